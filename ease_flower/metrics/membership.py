"""Membership inference: telling trained pairs from pairs of the same client that were not."""

import numpy as np
from numpy.typing import NDArray

from ease_flower.errors import NotFinite

Vector = NDArray[np.floating]


def pair_scores(image_emb: Vector, text_emb: Vector, text_image: NDArray[np.integer]) -> Vector:
    """Score each image by the mean cosine to its own captions; shape (n,), float64.

    Parameters
    ----------
    image_emb, text_emb : ndarray of shape (n, w), (m, w)
        Unit rows.
    text_image : ndarray of shape (m,)
        Image of each caption.
    """
    cosines = (image_emb[text_image].astype(np.float64) * text_emb).sum(1)
    total = np.bincount(text_image, weights=cosines, minlength=len(image_emb))
    return total / np.bincount(text_image, minlength=len(image_emb))


def membership_auc(members: Vector, nonmembers: Vector) -> tuple[float, float]:
    """Area under the ROC curve of "a higher score means it was trained on".

    Parameters
    ----------
    members, nonmembers : ndarray of shape (a,), (b,)
        Scores of trained pairs, and of pairs from the same source that were not.

    Returns
    -------
    float, float
        AUC in [0, 1], ties counted half (Mann-Whitney), and its standard error (Hanley and
        McNeil 1982). 0.5: they cannot be told apart. Below it: trained pairs fit *worse* than
        unseen ones, which marks them just as well (over-forgetting). All scores equal: 0.5.

    Raises
    ------
    ValueError
        If either side is empty.
    NotFinite
        If a score is NaN or infinite.

    Examples
    --------
    >>> membership_auc(np.array([0.9, 0.5]), np.array([0.5, 0.1]))[0]
    0.875
    """
    a, b = len(members), len(nonmembers)
    if not a or not b:
        raise ValueError(f"{a} members and {b} non-members: both are needed")
    scores = np.concatenate([members, nonmembers]).astype(np.float64)
    if not np.isfinite(scores).all():
        raise NotFinite("membership scores hold NaN or infinite entries")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # ties share their mean rank
    auc = float((rank[:a].sum() - a * (a + 1) / 2) / (a * b))
    return auc, auc_standard_error(auc, a, b)


def auc_standard_error(auc: float, a: int, b: int) -> float:
    """Return an AUC's standard error, a members and b non-members (Hanley and McNeil 1982).

    Examples
    --------
    >>> round(auc_standard_error(0.5, 100, 100), 4)
    0.0409
    """
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (a - 1) * (q1 - auc**2) + (b - 1) * (q2 - auc**2)
    return float(np.sqrt(max(variance, 0.0) / (a * b)))


def attack_accuracy(members: Vector, nonmembers: Vector) -> float:
    """Balanced accuracy of the best threshold on the score; in [0.5, 1], 0.5 is chance.

    Examples
    --------
    >>> attack_accuracy(np.array([0.9, 0.5]), np.array([0.4, 0.6]))
    0.75
    """
    cuts = np.unique(np.concatenate([members, nonmembers]))
    caught = (members[None, :] >= cuts[:, None]).mean(1)
    alarms = (nonmembers[None, :] >= cuts[:, None]).mean(1)
    return float(max(0.5, ((caught + 1 - alarms) / 2).max()))
