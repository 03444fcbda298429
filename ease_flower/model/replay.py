"""A holder's local work for attribution: rounds run again without pairs, or on pairs alone."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ease_flower.config import Config
from ease_flower.model.adapters import AdapterSpace, flat_theta, set_adapters
from ease_flower.model.caching import StemCache
from ease_flower.model.towers import DualEncoder
from ease_flower.model.training import train_locally

Theta = NDArray[np.float32]


def replay_round(
    encoder: DualEncoder,
    space: AdapterSpace,
    stems: StemCache,
    forget: NDArray[np.int64],
    config: Config,
    rng: np.random.Generator,
    received: Theta,
) -> Theta | None:
    """Run a round again: same start, same order of pairs, without those to forget.

    Parameters
    ----------
    stems : StemCache
        All training pairs of the holder.
    forget : ndarray of int
        Positions that are left out of every batch.
    rng : numpy.random.Generator
        As in the round itself.
    received : ndarray of shape (d,)
        Adapters the round started from.

    Returns
    -------
    ndarray of shape (d,) or None
        The update Delta~; None if fewer than two pairs are left to train on.
    """
    if len(stems) - len(forget) < 2:
        return None
    set_adapters(encoder, space.unflatten(received))
    train_locally(encoder, stems, config, rng, without=forget)
    return _theta(encoder) - received


def pseudo_updates(
    encoder: DualEncoder,
    space: AdapterSpace,
    stems: StemCache,
    config: Config,
    rng: Callable[[int], np.random.Generator],
    start: Theta,
    rounds: int,
) -> NDArray[np.float32]:
    """Train on some pairs alone, from theta_0, for a few client rounds.

    Returns
    -------
    ndarray of shape (rounds, d)
        What each of them added.
    """
    set_adapters(encoder, space.unflatten(start))
    path = [start]
    for number in range(rounds):
        train_locally(encoder, stems, config, rng(number))
        path.append(_theta(encoder))
    return np.diff(np.stack(path), axis=0)


def _theta(encoder: DualEncoder) -> Theta:
    with torch.no_grad():
        theta: Theta = flat_theta(encoder).cpu().numpy().copy()
    return theta
