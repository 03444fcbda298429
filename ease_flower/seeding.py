"""Derived random generators: one seed, one stream for every (purpose, client, round).

Nothing here touches the global generators, so that the order in which clients happen to
run, or share a process, cannot change a number.
"""

import hashlib

import numpy as np
import torch


def derive(seed: int, *parts: str | int) -> int:
    """Derive a 63-bit seed from a base seed and what it is for.

    Parameters
    ----------
    seed : int
        The run's seed.
    *parts : str or int
        What the stream is for, for example ``"fit", "site-1", 3``.

    Returns
    -------
    int
        In [0, 2**63); equal inputs give equal seeds on every machine.

    Examples
    --------
    >>> derive(0, "fit", "site-1", 3) == derive(0, "fit", "site-1", 3)
    True
    >>> derive(0, "fit", "site-1", 3) == derive(0, "fit", "site-1", 4)
    False
    """
    text = "\x1f".join([str(seed), *(f"{type(p).__name__}:{p}" for p in parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_generator(seed: int, *parts: str | int) -> np.random.Generator:
    """Make the NumPy generator of one purpose (see `derive`)."""
    return np.random.default_rng(derive(seed, *parts))


def torch_generator(seed: int, *parts: str | int) -> torch.Generator:
    """Make the CPU torch generator of one purpose (see `derive`)."""
    return torch.Generator().manual_seed(derive(seed, *parts))
