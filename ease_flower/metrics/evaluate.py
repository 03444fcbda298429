"""One model on one holder's pairs: retrieval and membership, as plain numbers.

The numbers may travel; pairs, embeddings and scores of single pairs do not.
"""

import torch

from ease_flower.metrics.membership import membership_auc, pair_scores
from ease_flower.metrics.retrieval import retrieval_recall
from ease_flower.model.caching import StemCache, embed_all
from ease_flower.model.towers import DualEncoder


def evaluate_client(
    encoder: DualEncoder, train: StemCache, holdout: StemCache, distractors: StemCache | None
) -> dict[str, float]:
    """Search a client's own pairs among them and public distractors; attack their membership.

    Returns
    -------
    dict
        ``r1``, ``r5``, ``r10`` and each direction's (percent), ``gallery`` (images searched),
        ``num-queries`` (images), ``membership-auc`` and ``membership-auc-se`` of trained pairs
        against the same client's held-out pairs by their cosine, ``num-holdout``. Without at
        least 2 held-out pairs there is no membership figure.
    """
    image, text = embed_all(encoder, train)
    owner = train.owner
    gallery, gallery_text = [image], [text]
    if distractors is not None and len(distractors):
        far_image, far_text = embed_all(encoder, distractors)
        gallery.append(far_image)
        gallery_text.append(far_text)
        owner = torch.cat([owner, distractors.owner + len(train)])
    images = torch.cat(gallery)
    out = retrieval_recall(
        images.numpy(),
        torch.cat(gallery_text).numpy(),
        owner.numpy(),
        queries=torch.arange(len(train)).numpy(),
    )
    out |= {"gallery": float(len(images)), "num-queries": float(len(train))}
    out["num-holdout"] = float(len(holdout))
    if len(holdout) >= 2:
        held_image, held_text = embed_all(encoder, holdout)
        out["membership-auc"], out["membership-auc-se"] = membership_auc(
            pair_scores(image.numpy(), text.numpy(), train.owner.numpy()),
            pair_scores(held_image.numpy(), held_text.numpy(), holdout.owner.numpy()),
        )
    return out


def evaluate_public(encoder: DualEncoder, stems: StemCache) -> dict[str, float]:
    """Search public test pairs among themselves; recalls in percent, and ``gallery``."""
    image, text = embed_all(encoder, stems)
    out = retrieval_recall(image.numpy(), text.numpy(), stems.owner.numpy())
    return out | {"gallery": float(len(image))}
