"""Image-text pairs: ids, captions and labels in memory, images opened when they are asked for."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from ease_flower.errors import DataError


@dataclass(frozen=True)
class Pairs:
    """Images with one or more captions each.

    Attributes
    ----------
    ids : tuple of str
        One a image, unique.
    captions : tuple of tuple of str
        At least one a image.
    labels : tuple of str
        Class of each image; ``""`` where there is none.
    open_image : callable
        Opens image i, RGB.
    """

    ids: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]
    open_image: Callable[[int], Image]

    def __post_init__(self) -> None:
        """Refuse lists of different length, repeated ids and images without a caption."""
        if not len(self.ids) == len(self.captions) == len(self.labels):
            raise DataError(
                f"{len(self.ids)} ids, {len(self.captions)} caption lists and "
                f"{len(self.labels)} labels: one of each an image is needed"
            )
        seen: set[str] = set()
        for name, captions in zip(self.ids, self.captions, strict=True):
            if name in seen:
                raise DataError(f"image id {name!r} occurs twice; ids must be unique")
            if not captions:
                raise DataError(f"image {name!r} has no caption; at least one is needed")
            seen.add(name)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_captions(self) -> int:
        """Captions of all images together."""
        return sum(map(len, self.captions))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids and captions; a key for what is computed from the pairs."""
        text = "\x1e".join(
            "\x1f".join([i, *c]) for i, c in zip(self.ids, self.captions, strict=True)
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def image(self, index: int) -> Image:
        """Open one image by position."""
        return self.open_image(range(len(self))[index])

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> "Pairs":
        """Choose images by position, in this order; nothing is opened."""
        chosen = [int(i) for i in indices]
        return Pairs(
            tuple(self.ids[i] for i in chosen),
            tuple(self.captions[i] for i in chosen),
            tuple(self.labels[i] for i in chosen),
            lambda i: self.open_image(chosen[i]),
        )

    def re_paired(self, seed: int) -> "Pairs":
        """Give every image the captions of another one: what only memorising can retrieve."""
        order = np.random.default_rng(seed).permutation(len(self))
        taken = np.empty_like(order)
        taken[order] = np.roll(order, 1)  # one cycle: no image keeps its own
        captions = tuple(self.captions[i] for i in taken)
        return Pairs(self.ids, captions, self.labels, self.open_image)


def concat(a: Pairs, b: Pairs) -> Pairs:
    """Put the images of b after those of a."""
    return Pairs(
        a.ids + b.ids,
        a.captions + b.captions,
        a.labels + b.labels,
        lambda i: a.open_image(i) if i < len(a) else b.open_image(i - len(a)),
    )
