"""Weights that are made on this machine: once, by one process, kept in a cache folder."""

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs
from filelock import FileLock
from safetensors.torch import load_file, save_file
from torch import Tensor

Weights = dict[str, Tensor]


def cache_dir() -> Path:
    """Return the folder of weights made here; EASE_FLOWER_CACHE overrides it."""
    chosen = os.environ.get("EASE_FLOWER_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("ease-flower"))


def made_once(name: str, make: Callable[[], Weights]) -> Weights:
    """Load weights from the cache, making them first where that was not done yet.

    A file lock lets one process make them while the others wait; a kill in between leaves no
    half file.

    Parameters
    ----------
    name : str
        File name without suffix; holds a digest of all that decides the weights.
    make : callable
        Returns the weights.
    """
    path = cache_dir() / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            partial = path.with_suffix(".partial")
            save_file({key: value.contiguous() for key, value in make().items()}, partial)
            os.replace(partial, path)
    return load_file(path)
