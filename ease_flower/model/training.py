"""Local LoRA-CLIP training of one client: mini-batch steps on InfoNCE, with the forget lock."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ease_flower.config import Config
from ease_flower.errors import NotFinite, NothingTrained
from ease_flower.model.adapters import flat_theta, trained_parameters
from ease_flower.model.caching import StemCache, embed_images, embed_texts
from ease_flower.model.losses import (
    bilateral_excision,
    forget_lock,
    info_nce,
    proximal_lock,
    sigmoid_loss,
)
from ease_flower.model.towers import DualEncoder

PAIR_WEIGHT = 1.0  # weight of the pair term in bilateral excision


@dataclass(frozen=True)
class Lock:
    """The forget lock a client holds: U_mu of shape (d, m) and theta_u of shape (d,)."""

    basis: Tensor
    anchor: Tensor


@dataclass(frozen=True)
class Fit:
    """How local training went.

    Attributes
    ----------
    loss : float
        Mean loss of the last epoch.
    push : float or None
        The hardest that a step pushed along U_mu, over the step size: max ||U_mu^T (step)|| / eta,
        which for gradient steps is max ||U_mu^T grad L_align||. The lock keeps the drift
        ||U_mu^T (theta - theta_u)|| of who starts at theta_u at most at push / alpha. None
        without a lock, and with AdamW under the penalty, which then bounds nothing.
    drift : float or None
        ||U_mu^T (theta - theta_u)|| at the end, along U_mu as the client holds it.
    """

    loss: float
    push: float | None = None
    drift: float | None = None


def batches(
    stems: StemCache,
    batch_size: int,
    rng: np.random.Generator,
    without: NDArray[np.int64] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch: each image once, with one of its captions drawn at random.

    The last batch joins the one before it if it would hold a single pair, because one pair has
    no negatives. Pairs `without` are left out of their batches, which stay what they were
    otherwise; a batch of fewer than two is left out whole.
    """
    order = rng.permutation(len(stems))
    cuts = list(range(batch_size, len(order), batch_size))
    if cuts and len(order) - cuts[-1] < 2:
        cuts.pop()
    for rows in np.split(order, cuts):
        images = torch.from_numpy(rows)
        first, last = stems.first[images], stems.first[images + 1]
        pick = torch.from_numpy(rng.random(len(rows)))
        captions = first + (pick * (last - first)).long()
        if without is not None:
            kept = torch.from_numpy(~np.isin(rows, without))
            images, captions = images[kept], captions[kept]
        if len(images) > 1:
            yield images, captions


def alignment_loss(
    encoder: DualEncoder, stems: StemCache, images: Tensor, captions: Tensor
) -> Tensor:
    """InfoNCE of a batch, or the sigmoid loss where the backbone was trained with it."""
    z_v = embed_images(encoder, stems, images)
    z_t = embed_texts(encoder, stems, captions)
    ids = images.to(encoder.device)
    spec = encoder.spec
    if spec.logit_bias is None:
        return info_nce(z_v, z_t, ids, spec.logit_scale)
    return sigmoid_loss(z_v, z_t, ids, spec.logit_scale, spec.logit_bias)


def train_locally(
    encoder: DualEncoder,
    stems: StemCache,
    config: Config,
    rng: np.random.Generator,
    lock: Lock | None = None,
    without: NDArray[np.int64] | None = None,
) -> Fit:
    """Train the adapters in place for the configured epochs.

    Parameters
    ----------
    encoder : DualEncoder
        With the adapters the server sent.
    stems : StemCache
        The client's training pairs.
    config : Config
        Epochs, batch size, optimiser, step size, kind and strength of the lock.
    rng : numpy.random.Generator
        Order of pairs and choice of captions; derive it from seed, client and round.
    lock : Lock, optional
        Keeps theta at theta_u along U_mu.
    without : ndarray of int, optional
        Pairs that are left out, for replay.

    Returns
    -------
    Fit

    Raises
    ------
    NotFinite
        If the loss becomes NaN or infinite; says at which step, and what to lower.
    NothingTrained
        If a tower's adapters did not move.
    """
    parameters = trained_parameters(encoder)
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = make_optimizer(parameters.values(), config)
    held = None if lock is None else LockStep(encoder, lock, config)
    losses: list[float] = []
    for epoch in range(config.local_epochs):
        losses = []
        for step, (images, captions) in enumerate(batches(stems, config.batch_size, rng, without)):
            loss = alignment_loss(encoder, stems, images, captions)
            if lock is not None and config.lock == "penalty":
                loss = loss + forget_lock(
                    flat_theta(encoder), lock.anchor, lock.basis, config.lock_alpha
                )
            if not torch.isfinite(loss):
                raise NotFinite(
                    f"loss is {loss.item()} at epoch {epoch + 1}, step {step + 1}: lower "
                    f"learning-rate ({config.learning_rate:g}) or look at the data"
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if held is not None:
                held()
            losses.append(loss.item())
    for tower in ("image", "text"):
        mine = [name for name in parameters if name.startswith(tower)]
        if all(torch.equal(parameters[name], before[name]) for name in mine):
            raise NothingTrained(
                f"the {tower} tower's adapters did not move in {config.local_epochs} epochs: "
                "their modules are not used in the forward pass, or learning-rate is too small"
            )
    mean = float(np.mean(losses)) if losses else 0.0
    if held is None:
        return Fit(mean)
    return Fit(mean, held.push if held.bounds else None, float(held.along.norm()))


def make_optimizer(moved: Iterable[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    """Make a fresh optimiser over some adapters; no state outlives a client round."""
    parameters = list(moved)
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.learning_rate, momentum=0.0)
    return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=0.0)


class LockStep:
    """What the forget lock does after each step of the optimiser; notes the hardest push."""

    @torch.no_grad()
    def __init__(self, encoder: DualEncoder, lock: Lock, config: Config) -> None:
        self.encoder, self.lock, self.config = encoder, lock, config
        self.along = lock.basis.T @ (flat_theta(encoder) - lock.anchor)
        self.push = 0.0

    @torch.no_grad()
    def __call__(self) -> None:
        """Measure the step along U_mu, then take back what the proximal lock does not allow."""
        step, alpha = self.config.learning_rate, self.config.lock_alpha
        theta, basis, anchor = flat_theta(self.encoder), self.lock.basis, self.lock.anchor
        now = basis.T @ (theta - anchor)
        if self.config.lock == "proximal":
            pushed, self.along = now - self.along, now / (1 + step * alpha)
            _write(self.encoder, proximal_lock(theta, anchor, basis, alpha, step))
        else:  # the penalty's own gradient is no push
            pushed, self.along = now - (1 - step * alpha) * self.along, now
        self.push = max(self.push, float(pushed.norm()) / step)

    @property
    def bounds(self) -> bool:
        """Whether drift is bounded by push / alpha: Adam bends the penalty's gradient."""
        return self.config.lock == "proximal" or self.config.optimizer == "sgd"


def _write(encoder: DualEncoder, theta: Tensor) -> None:
    start = 0
    for parameter in trained_parameters(encoder).values():
        stop = start + parameter.numel()
        parameter.copy_(theta[start:stop].view_as(parameter))
        start = stop


def excise_locally(
    encoder: DualEncoder,
    stems: StemCache,
    holdout: StemCache,
    config: Config,
    rng: np.random.Generator,
    enough: Callable[[], bool] = lambda: False,
) -> Tensor:
    """Move forget pairs away in both branches (bilateral knowledge excision, BKE).

    Parameters
    ----------
    stems, holdout : StemCache
        Forget pairs, and pairs of the same client that were never trained on: their mean cosine
        is where the pair term stops.
    config : Config
        ``excise-steps`` at most; ``excise-branches`` that are moved (one alone is the ablation).
    enough : callable
        Asked before each step; True stops there.

    Returns
    -------
    Tensor of shape (steps, d)
        Displacement from the start after each step; the server filters and locks its span.
    """
    with torch.no_grad():
        start = flat_theta(encoder).clone()
        rows = torch.arange(len(holdout))
        unseen = (
            embed_images(encoder, holdout, rows) * embed_texts(encoder, holdout, holdout.first[:-1])
        ).sum(1)
        unseen_mean = float(unseen.mean()) if len(unseen) else 0.0
    moved = {
        name: p
        for name, p in trained_parameters(encoder).items()
        if config.excise_branches in ("both", name.split(".")[0])
    }
    optimizer = make_optimizer(moved.values(), config)
    trajectory: list[Tensor] = []
    while len(trajectory) < config.excise_steps and not enough():
        for images, captions in batches(stems, config.batch_size, rng):
            # Before the graph is built: it swaps adapters in place.
            anchor = _embed_at(encoder, start, stems, images, captions)
            z_v = embed_images(encoder, stems, images)
            z_t = embed_texts(encoder, stems, captions)
            loss = bilateral_excision(z_v, z_t, *anchor, unseen_mean, PAIR_WEIGHT)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trajectory.append(flat_theta(encoder).detach() - start)
            if len(trajectory) == config.excise_steps or enough():
                break
    return torch.stack(trajectory).cpu() if trajectory else torch.zeros(0, len(start))


@torch.no_grad()
def _embed_at(
    encoder: DualEncoder, theta: Tensor, stems: StemCache, images: Tensor, captions: Tensor
) -> tuple[Tensor, Tensor]:
    """Embed a batch under other adapters and put the current ones back."""
    current = flat_theta(encoder).clone()
    _write(encoder, theta)
    embedded = embed_images(encoder, stems, images), embed_texts(encoder, stems, captions)
    _write(encoder, current)
    return embedded
