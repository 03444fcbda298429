"""One model on one holder's pairs: retrieval and membership, as plain numbers.

The numbers may travel; pairs, embeddings and scores of single pairs do not.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ease_flower.metrics.membership import membership_auc, pair_scores
from ease_flower.metrics.retrieval import retrieval_recall
from ease_flower.model.caching import StemCache, embed_all
from ease_flower.model.towers import DualEncoder


@dataclass(frozen=True)
class Embedded:
    """Pairs under one model: unit rows (n, width), (m, width), and the image of each caption."""

    image: NDArray[np.float32]
    text: NDArray[np.float32]
    owner: NDArray[np.int64]


def embed(encoder: DualEncoder, stems: StemCache) -> Embedded:
    """Embed all images and captions under the encoder's present adapters."""
    with torch.inference_mode():
        image, text = embed_all(encoder, stems)
    return Embedded(image.numpy(), text.numpy(), stems.owner.numpy())


def evaluate_client(train: Embedded, holdout: Embedded, far: Embedded | None) -> dict[str, float]:
    """Search a client's own pairs among them and public distractors; attack their membership.

    Parameters
    ----------
    train, holdout : Embedded
        Pairs of the client that were trained on, and that were not.
    far : Embedded, optional
        Public distractors.

    Returns
    -------
    dict
        ``r1``, ``r5``, ``r10`` and each direction's (percent), ``gallery`` (images searched),
        ``num-queries`` (images), ``membership-auc`` and ``membership-auc-se`` of trained pairs
        against the same client's held-out pairs by their cosine, ``num-holdout``. Without at
        least 2 held-out pairs there is no membership figure.
    """
    num = len(train.image)
    parts = [train] if far is None else [train, Embedded(far.image, far.text, far.owner + num)]
    images = np.concatenate([part.image for part in parts])
    out = retrieval_recall(
        images,
        np.concatenate([part.text for part in parts]),
        np.concatenate([part.owner for part in parts]),
        queries=np.arange(num),
    )
    out |= {"gallery": float(len(images)), "num-queries": float(num)}
    out["num-holdout"] = float(len(holdout.image))
    if len(holdout.image) >= 2:
        out["membership-auc"], out["membership-auc-se"] = membership_auc(
            pair_scores(train.image, train.text, train.owner),
            pair_scores(holdout.image, holdout.text, holdout.owner),
        )
    return out


def evaluate_public(encoder: DualEncoder, stems: StemCache) -> dict[str, float]:
    """Search public test pairs among themselves; recalls in percent, and ``gallery``."""
    own = embed(encoder, stems)
    out = retrieval_recall(own.image, own.text, own.owner)
    return out | {"gallery": float(len(own.image))}
