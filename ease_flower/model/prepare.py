"""A backbone with adapters, built once a process and set to a run's start on each call."""

from functools import lru_cache

import torch

from ease_flower.config import Config
from ease_flower.data.federation import public_pairs
from ease_flower.model.adapters import AdapterSpace, add_adapters, reset_adapters
from ease_flower.model.backbones import PublicPairs, load_backbone
from ease_flower.model.towers import DualEncoder


def prepare(config: Config) -> tuple[DualEncoder, AdapterSpace]:
    """Return the run's encoder at theta_0, on its device, and the space of its adapters.

    The encoder is shared by all simulated clients of a process: set the adapters before use and
    keep no reference to its state afterwards.
    """
    public = public_pairs(config)
    encoder, space = _build(
        config.backbone,
        config.adapted_blocks,
        config.lora_rank,
        config.lora_alpha,
        config.lora_train,
        None if public is None else PublicPairs(public),
    )
    reset_adapters(encoder, config)
    return encoder.to(pick_device(config.device)), space


def pick_device(name: str) -> torch.device:
    """Turn ``auto`` into cuda where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


@lru_cache(maxsize=2)
def _build(
    backbone: str, blocks: int, rank: int, alpha: float, train: str, public: PublicPairs | None
) -> tuple[DualEncoder, AdapterSpace]:
    config = Config(
        backbone=backbone,
        adapted_blocks=blocks,
        lora_rank=rank,
        lora_alpha=alpha,
        lora_train=train,
    )
    encoder = load_backbone(backbone, blocks, public)
    return encoder, add_adapters(encoder, config)
