"""Losses over a batch of pairs: alignment, bilateral excision, forget lock.

n = pairs of the batch, w = embedding width, d = adapter size, m = locked directions.
"""

import torch.nn.functional as F
from torch import Tensor


def info_nce(z_v: Tensor, z_t: Tensor, image_ids: Tensor, logit_scale: float | Tensor) -> Tensor:
    """Contrast images with texts; texts of one image are never each other's negatives.

    The loss of van den Oord et al. (2018) in CLIP's symmetric form. Where a batch holds several
    pairs of one image, the target is spread evenly over all of them.

    Parameters
    ----------
    z_v, z_t : Tensor of shape (n, w)
        Unit rows; row i of both is a pair.
    image_ids : Tensor of shape (n,)
        Which image a row belongs to.
    logit_scale : float or scalar Tensor
        Inverse temperature.

    Returns
    -------
    Tensor
        Mean over both directions, in nats; 0 for a batch of one image.

    Examples
    --------
    Two pairs that cannot be told apart cost log 2; the same two pairs of one image cost it too,
    because the target is then one half each, and it is the smallest value there:

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> round(info_nce(z, z, torch.tensor([0, 1]), 10.0).item(), 4)
    0.6931
    >>> round(info_nce(z, z, torch.tensor([0, 0]), 10.0).item(), 4)
    0.6931
    """
    logits = logit_scale * z_v @ z_t.T  # (n, n)
    same = (image_ids[:, None] == image_ids[None, :]).to(logits.dtype)
    target = same / same.sum(1, keepdim=True)
    by_image = -(target * F.log_softmax(logits, 1)).sum(1).mean()
    by_text = -(target * F.log_softmax(logits.T, 1)).sum(1).mean()
    return (by_image + by_text) / 2


def sigmoid_loss(
    z_v: Tensor, z_t: Tensor, image_ids: Tensor, logit_scale: float, logit_bias: float
) -> Tensor:
    """Judge every image-text combination of the batch on its own.

    The loss of SigLIP (Zhai et al. 2023, algorithm 1), with all texts of an image as positives.
    Parameters as in `info_nce`; returns the sum over combinations divided by n.
    """
    logits = logit_scale * z_v @ z_t.T + logit_bias
    sign = (image_ids[:, None] == image_ids[None, :]).to(logits.dtype) * 2 - 1
    return -F.logsigmoid(sign * logits).sum() / len(z_v)


def bilateral_excision(
    z_v: Tensor, z_t: Tensor, start_v: Tensor, start_t: Tensor, unseen: float, pair_weight: float
) -> Tensor:
    """Move both branches of forget pairs away from where they stood, together.

    Bilateral knowledge excision: an untouched branch would pull the moved one back, because the
    gradient of z_v . z_t in one branch is the other branch's embedding.

    Parameters
    ----------
    z_v, z_t : Tensor of shape (n, w)
        Unit embeddings of forget pairs under the adapters that are being changed.
    start_v, start_t : Tensor of shape (n, w)
        The same pairs under the adapters before excision; no gradient flows into them.
    unseen : float
        Mean cosine of pairs that were never seen; the pair term stops there, since erasing
        beyond it would mark the pair just as well.
    pair_weight : float
        Weight of the pair term.

    Returns
    -------
    Tensor
        mean [cos(z_v, start_v) + cos(z_t, start_t)] / 2
        + weight * mean relu(cos(z_v, z_t) - unseen).
    """
    displaced = ((z_v * start_v.detach()).sum(1) + (z_t * start_t.detach()).sum(1)) / 2
    pair = F.relu((z_v * z_t).sum(1) - unseen)
    return displaced.mean() + pair_weight * pair.mean()


def forget_lock(theta: Tensor, anchor: Tensor, basis: Tensor, alpha: float) -> Tensor:
    """Penalise motion along the locked directions: alpha / 2 * ||U^T (theta - theta_u)||^2.

    Parameters
    ----------
    theta, anchor : Tensor of shape (d,)
        Current adapters and those right after excision.
    basis : Tensor of shape (d, m)
        Orthonormal columns, U_mu.
    alpha : float
        Strength; with gradient steps of size eta keep eta * alpha <= 1.
    """
    return alpha / 2 * (basis.T @ (theta - anchor)).square().sum()


def proximal_lock(
    theta: Tensor, anchor: Tensor, basis: Tensor, alpha: float, step: float
) -> Tensor:
    """Apply the forget lock after an optimiser's step, decoupled from it.

    Adam rescales each coordinate and so would bend the penalty's gradient out of the locked
    subspace; the proximal step keeps its direction, the way AdamW decouples weight decay.

    Returns
    -------
    Tensor of shape (d,)
        theta - (step * alpha / (1 + step * alpha)) U U^T (theta - theta_u).

    Examples
    --------
    >>> import torch
    >>> u = torch.tensor([[1.0], [0.0]])
    >>> proximal_lock(torch.tensor([2.0, 5.0]), torch.zeros(2), u, alpha=1.0, step=1.0)
    tensor([1., 5.])
    """
    share = step * alpha / (1 + step * alpha)
    return theta - share * (basis @ (basis.T @ (theta - anchor)))
