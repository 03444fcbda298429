"""Tests run on a `tiny` that was pretrained for a few steps only, in a cache of their own."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import flwr.common.logger  # noqa: F401  (sets the level that is overridden below)
import torch

from ease_flower.model import tiny

logging.getLogger("flwr").setLevel("ERROR")
REAL_CACHE = os.environ.get("EASE_FLOWER_CACHE")


@pytest.fixture(scope="session", autouse=True)
def quick_tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    recipe = dict(tiny.RECIPE)
    os.environ["EASE_FLOWER_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    tiny.RECIPE.update(steps=12, scenes=300, batch=50)
    torch.set_num_threads(1)  # small tensors: threads only wait for each other
    yield
    tiny.RECIPE.update(recipe)


@pytest.fixture
def real_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give processes that a test starts the cache this machine already has."""
    if REAL_CACHE:
        monkeypatch.setenv("EASE_FLOWER_CACHE", REAL_CACHE)
    else:
        monkeypatch.delenv("EASE_FLOWER_CACHE")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"
