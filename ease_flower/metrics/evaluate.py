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

Rows = NDArray[np.int64]


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


def evaluate_client(
    own: Embedded, forget: Rows, retain: Rows, outside: Embedded, far: Embedded | None
) -> dict[str, float]:
    """Search a client's own pairs among them and public distractors; attack their membership.

    Parameters
    ----------
    own : Embedded
        The pairs the client trained on.
    forget, retain : ndarray of int
        Positions of those that are to be forgotten, and of those that stay.
    outside : Embedded
        Pairs of the same client that were never trained on.
    far : Embedded, optional
        Public distractors.

    Returns
    -------
    dict
        For ``forget`` and ``retain``, where there are any: ``forget-r1``, ``-r5``, ``-r10``
        (percent) and ``num-forget``. ``gallery`` (images searched), ``num-outside``;
        ``membership-auc`` and its ``-se`` of forget pairs against the outside ones by their
        cosine, where there are at least 2 of both.
    """
    num = len(own.image)
    parts = [own] if far is None else [own, Embedded(far.image, far.text, far.owner + num)]
    images = np.concatenate([part.image for part in parts])
    texts = np.concatenate([part.text for part in parts])
    owner = np.concatenate([part.owner for part in parts])
    out = {"gallery": float(len(images)), "num-outside": float(len(outside.image))}
    for name, rows in (("forget", forget), ("retain", retain)):
        out[f"num-{name}"] = float(len(rows))
        if len(rows):
            recall = retrieval_recall(images, texts, owner, queries=rows)
            out |= {f"{name}-{k}": recall[k] for k in ("r1", "r5", "r10")}
    if len(forget) >= 2 and len(outside.image) >= 2:
        members = pair_scores(own.image, own.text, own.owner)[forget]
        others = pair_scores(outside.image, outside.text, outside.owner)
        out["membership-auc"], out["membership-auc-se"] = membership_auc(members, others)
    return out


def reference_auc(
    forget: Embedded, outside: Embedded, forget_start: Embedded, outside_start: Embedded
) -> tuple[float, float]:
    """Attack with a reference: each pair's cosine minus the one under theta_0.

    theta_0 never saw a pair, so what differs between the two samples before training cancels
    out, and 0.5 is the target (a one-model form of RMIA's reference, Zarifzadeh et al. 2024).

    Returns
    -------
    float, float
        AUC of forget pairs against outside ones, and its standard error.
    """

    def gain(now: Embedded, start: Embedded) -> NDArray[np.float64]:
        before = pair_scores(start.image, start.text, start.owner)
        return np.asarray(pair_scores(now.image, now.text, now.owner) - before, dtype=np.float64)

    return membership_auc(gain(forget, forget_start), gain(outside, outside_start))


def evaluate_public(encoder: DualEncoder, stems: StemCache) -> dict[str, float]:
    """Search public test pairs among themselves; recalls in percent, and ``gallery``."""
    own = embed(encoder, stems)
    out = retrieval_recall(own.image, own.text, own.owner)
    return out | {"gallery": float(len(own.image))}
