"""A word-level tokenizer for the small backbone."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PAD, UNKNOWN = 0, 1


class WordTokenizer:
    """Map words to ids; the end token has the highest id, where open_clip pools.

    Parameters
    ----------
    words : sequence of str
        The vocabulary, lower case.
    context_length : int
        Tokens of a caption, start and end included.

    Examples
    --------
    >>> WordTokenizer(["red", "star"], 6)(["A red star."])
    array([[4, 1, 2, 3, 5, 0]])
    """

    def __init__(self, words: Sequence[str], context_length: int = 24) -> None:
        self.ids = {word: i + 2 for i, word in enumerate(words)}
        self.start = len(self.ids) + 2
        self.end = self.start + 1
        self.context_length = context_length

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self.end + 1

    def __call__(self, captions: Sequence[str]) -> NDArray[np.int64]:
        """Return ids of shape (n, context_length); long captions lose words, not the end."""
        out = np.full((len(captions), self.context_length), PAD, dtype=np.int64)
        for row, caption in zip(out, captions, strict=True):
            words = re.findall(r"[a-z0-9]+", caption.lower())[: self.context_length - 2]
            ids = [self.start, *(self.ids.get(word, UNKNOWN) for word in words), self.end]
            row[: len(ids)] = ids
        return out
