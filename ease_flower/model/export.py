"""Adapters as a PEFT directory that others can load, and back again.

``adapter_config.json`` is PEFT's own; ``adapter_model.safetensors`` holds A and B of every
module under PEFT's names; ``base.json`` says which frozen weights they belong to, so that they
are never put on others.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save

from ease_flower.config import Config
from ease_flower.errors import StateError
from ease_flower.model.adapters import get_adapters, lora_config, set_adapters
from ease_flower.model.towers import DualEncoder
from ease_flower.state.files import read_json, write_bytes, write_json

PREFIX = "base_model.model."


def export_adapter(
    folder: Path, encoder: DualEncoder, config: Config, arrays: Sequence[NDArray[np.floating]]
) -> None:
    """Write adapters as a PEFT adapter directory.

    Parameters
    ----------
    folder : Path
    encoder : DualEncoder
        With adapters; it holds `arrays` afterwards.
    arrays : sequence of ndarray
        The trained adapters, in the order of the adapter space.
    """
    set_adapters(encoder, arrays)
    tensors = {
        PREFIX + name.replace(".default", ""): value.detach().cpu().float().contiguous()
        for name, value in encoder.state_dict().items()
        if ".lora_" in name
    }
    settings = lora_config(encoder, config).to_dict()
    settings["base_model_name_or_path"] = config.backbone
    settings["inference_mode"] = True
    plain = {k: sorted(v) if isinstance(v, set) else v for k, v in settings.items()}
    write_bytes(folder / "adapter_model.safetensors", save(tensors))
    write_bytes(
        folder / "adapter_config.json",
        json.dumps(plain, indent=1, sort_keys=True, default=str).encode(),
    )
    spec = encoder.spec
    write_json(
        folder / "base.json",
        {
            "backbone": spec.name,
            "digest": spec.digest,
            "activation": spec.activation,
            "adapted-blocks": config.adapted_blocks,
        },
    )


def import_adapter(folder: Path, encoder: DualEncoder) -> list[NDArray[np.float32]]:
    """Load a PEFT adapter directory into an encoder with adapters, strictly.

    Returns
    -------
    list of ndarray
        The trained adapters, in the order of the adapter space.

    Raises
    ------
    StateError
        If the directory belongs to other frozen weights, or a tensor is missing, left over or
        of another shape.
    """
    base = read_json(folder / "base.json")
    if base["digest"] != encoder.spec.digest or base["activation"] != encoder.spec.activation:
        raise StateError(
            f"{folder}: made for {base['backbone']} {base['digest']} ({base['activation']}), not "
            f"for {encoder.spec.name} {encoder.spec.digest} ({encoder.spec.activation})"
        )
    tensors = {
        name.removeprefix(PREFIX): value
        for name, value in load_file(folder / "adapter_model.safetensors").items()
    }
    own = {n.replace(".default", ""): p for n, p in encoder.named_parameters() if ".lora_" in n}
    if tensors.keys() != own.keys():
        odd = sorted(tensors.keys() ^ own.keys())
        raise StateError(f"{folder}: {len(odd)} tensors missing or left over, first {odd[0]}")
    with torch.no_grad():
        for name, parameter in own.items():
            if tensors[name].shape != parameter.shape:
                raise StateError(
                    f"{folder}: {name} has shape {tuple(tensors[name].shape)}, "
                    f"expected {tuple(parameter.shape)}"
                )
            parameter.copy_(tensors[name])
    return get_adapters(encoder)
