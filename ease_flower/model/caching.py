"""Stem activations of a client's pairs, computed once and kept in half precision.

Everything below the lowest adapted block is frozen and deterministic, so a client round costs
only the heads. Captions of an image stay together; texts are cut to the longest caption, and
read shortest first, so that a batch holds little padding.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ease_flower.data import Pairs
from ease_flower.model.towers import DualEncoder

IMAGE_BATCH, TEXT_BATCH = (
    16,
    64,
)  # small enough for a core's cache: 64 images take 2.7 times as long
HEAD_BATCH = 16
KEPT_SETS = 64  # sets of pairs a process keeps; a simulated client has three


@dataclass(frozen=True)
class StemCache:
    """What the heads need of n images with m captions.

    Attributes
    ----------
    image : Tensor of shape (n, ...), half
    text : Tensor of shape (m, length, width), half
    tokens : Tensor of shape (m, length)
    lengths : Tensor of shape (m,)
        Tokens of a caption up to its end token; the full length where a tower may not trim.
    owner : Tensor of shape (m,)
        Image of each caption.
    first : Tensor of shape (n + 1,)
        Captions of image i are rows first[i] to first[i + 1] - 1.
    """

    image: Tensor
    text: Tensor
    tokens: Tensor
    lengths: Tensor
    owner: Tensor
    first: Tensor

    def __len__(self) -> int:
        return len(self.image)

    def subset(self, rows: NDArray[np.int64]) -> "StemCache":
        """Choose images by position, with their captions."""
        images = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        counts = (self.first[1:] - self.first[:-1])[images]
        captions = torch.cat(
            [torch.arange(int(self.first[i]), int(self.first[i + 1])) for i in images]
            or [torch.arange(0)]
        )
        return StemCache(
            self.image[images],
            self.text[captions],
            self.tokens[captions],
            self.lengths[captions],
            torch.repeat_interleave(torch.arange(len(images)), counts),
            torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)]),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the half-precision activations."""
        return 2 * (self.image.numel() + self.text.numel())


@torch.inference_mode()
def compute_stems(encoder: DualEncoder, pairs: Pairs) -> StemCache:
    """Run the frozen stems over all images and captions, in a fixed order and batch size."""
    images = []
    for rows in torch.arange(len(pairs)).split(IMAGE_BATCH):
        pixels = torch.stack([encoder.spec.preprocess(pairs.image(int(i))) for i in rows])
        images.append(encoder.image.stem(pixels.to(encoder.device)).half().cpu())
    counts = [len(captions) for captions in pairs.captions]
    tokens = encoder.spec.tokenize([c for captions in pairs.captions for c in captions])
    lengths = (
        encoder_lengths(tokens)
        if encoder.text.trims
        else torch.full((len(tokens),), tokens.shape[1])
    )
    tokens = tokens[:, : int(lengths.max())]
    return StemCache(
        image=torch.cat(images),
        text=_text_stems(encoder, tokens, lengths),
        tokens=tokens,
        lengths=lengths,
        owner=torch.from_numpy(np.repeat(np.arange(len(counts)), counts)),
        first=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])),
    )


def _text_stems(encoder: DualEncoder, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Run the text stem, shortest captions first; rows come back in the order of `tokens`."""
    order = torch.argsort(lengths, stable=True)
    out: Tensor | None = None
    for rows in order.split(TEXT_BATCH):
        longest = int(lengths[rows].max())
        hidden = encoder.text.stem(tokens[rows, :longest].to(encoder.device)).half().cpu()
        if out is None:
            out = torch.zeros(*tokens.shape, hidden.shape[-1], dtype=torch.half)
        out[rows, :longest] = hidden
    assert out is not None  # pairs have captions
    return out


def encoder_lengths(tokens: Tensor) -> Tensor:
    """Count tokens up to the last one that is not padding (id 0); shape (n,)."""
    positions = torch.arange(1, tokens.shape[1] + 1)
    lengths: Tensor = ((tokens != 0) * positions).amax(1).clamp(min=1)
    return lengths


class StemStore:
    """Keeps the stems of the last few sets of pairs of one process, oldest out first."""

    def __init__(self, kept: int = KEPT_SETS) -> None:
        self.kept = kept
        self._stems: OrderedDict[tuple[str, int, str], StemCache] = OrderedDict()

    def get(self, encoder: DualEncoder, pairs: Pairs, num_adapted: int) -> StemCache:
        """Return the stems of these pairs under this encoder, computing them if needed."""
        key = (encoder.spec.digest, num_adapted, pairs.digest)
        if key not in self._stems:
            self._stems[key] = compute_stems(encoder, pairs)
        self._stems.move_to_end(key)
        while len(self._stems) > self.kept:
            self._stems.popitem(last=False)
        return self._stems[key]


def embed_images(encoder: DualEncoder, stems: StemCache, rows: Tensor) -> Tensor:
    """Embed images by position; unit rows (len(rows), width)."""
    hidden = stems.image[rows].to(encoder.device).float()
    return torch.nn.functional.normalize(encoder.image.head(hidden, rows), dim=-1)


def embed_texts(encoder: DualEncoder, stems: StemCache, rows: Tensor) -> Tensor:
    """Embed captions by position; unit rows (len(rows), width).

    Captions go through the head in small groups of like length, each trimmed to its longest,
    which halves a training step on photos on a CPU.
    """
    order = torch.argsort(stems.lengths[rows], stable=True)
    parts = []
    for group in rows[order].split(HEAD_BATCH):
        longest = int(stems.lengths[group].max())
        hidden = stems.text[group, :longest].to(encoder.device).float()
        tokens = stems.tokens[group, :longest].to(encoder.device)
        parts.append(encoder.text.head(hidden, tokens))
    embedded = torch.cat(parts)[torch.argsort(order).to(encoder.device)]
    return torch.nn.functional.normalize(embedded, dim=-1)


@torch.inference_mode()
def embed_all(encoder: DualEncoder, stems: StemCache, batch: int = 256) -> tuple[Tensor, Tensor]:
    """Embed every image and every caption, on the CPU in float32; (n, width), (m, width)."""
    images = [
        embed_images(encoder, stems, rows).cpu() for rows in torch.arange(len(stems)).split(batch)
    ]
    texts = [
        embed_texts(encoder, stems, rows).cpu()
        for rows in torch.arange(len(stems.owner)).split(batch)
    ]
    return torch.cat(images), torch.cat(texts)
