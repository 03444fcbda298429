"""LoRA adapters as one ordered, named, flat vector theta.

PEFT puts the adapters in; this file fixes their order, so that every machine means the same
entry by theta[i]. d = size of theta. With ``lora-train = "B"`` A stays at its shared random
start and theta holds B alone: the weight change is then linear in theta, and averaging or
projecting theta averages or projects weights exactly (FFA-LoRA, Sun et al. 2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from ease_flower.config import Config
from ease_flower.errors import UserError
from ease_flower.model.towers import DualEncoder
from ease_flower.seeding import torch_generator

Arrays = list[NDArray[np.float32]]


@dataclass(frozen=True)
class AdapterSpace:
    """Names and shapes of the adapter arrays, in the order they are laid end to end.

    Examples
    --------
    >>> space = AdapterSpace(("image.blocks.0.q.B", "text.blocks.0.q.B"), ((2, 1), (1, 3)))
    >>> space.size
    5
    >>> space.blocks("tower")
    {'image': slice(0, 2, None), 'text': slice(2, 5, None)}
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Number of entries, d."""
        return sum(prod(shape) for shape in self.shapes)

    def flatten(self, arrays: Sequence[NDArray[np.floating]]) -> NDArray[np.float32]:
        """Lay arrays end to end; ndarray of shape (d,), float32.

        Raises
        ------
        ValueError
            If number or shapes differ from this space; the first difference is named.
        """
        if len(arrays) != len(self.names):
            raise ValueError(f"{len(arrays)} arrays, expected {len(self.names)}")
        for name, shape, array in zip(self.names, self.shapes, arrays, strict=True):
            if np.shape(array) != shape:
                raise ValueError(f"{name}: shape {np.shape(array)}, expected {shape}")
        return np.concatenate([np.asarray(a, dtype=np.float32).ravel() for a in arrays])

    def unflatten(self, theta: NDArray[np.floating]) -> Arrays:
        """Cut a vector of shape (d,) into the arrays, float32."""
        if theta.shape != (self.size,):
            raise ValueError(f"theta has shape {theta.shape}, expected {(self.size,)}")
        ends = np.cumsum([prod(shape) for shape in self.shapes])
        return [
            part.reshape(shape).astype(np.float32)
            for part, shape in zip(np.split(theta, ends[:-1]), self.shapes, strict=True)
        ]

    def blocks(self, granularity: str) -> dict[str, slice]:
        """Name contiguous blocks: ``all``, one a ``tower``, or one a ``layer``."""
        depth = {"all": 0, "tower": 1, "layer": 3}[granularity]
        blocks: dict[str, slice] = {}
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + prod(shape)
            key = ".".join(name.split(".")[:depth]) or "all"
            blocks[key] = slice(blocks[key].start if key in blocks else start, stop)
            start = stop
        return blocks


def adapter_names(encoder: DualEncoder) -> list[str]:
    """Name the Linears of both heads that get adapters."""
    return [
        f"{tower}.{name}"
        for tower in ("image", "text")
        for name in getattr(encoder, tower).adaptable()
    ]


def lora_config(encoder: DualEncoder, config: Config) -> LoraConfig:
    """Describe the adapters to PEFT; every target module is named in full."""
    return LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=adapter_names(encoder),
        lora_dropout=0.0,
        bias="none",
    )


def add_adapters(encoder: DualEncoder, config: Config) -> AdapterSpace:
    """Put LoRA adapters into an encoder that has none, in place, at theta_0.

    Returns
    -------
    AdapterSpace
        The trained arrays: B alone, or A and B of each module.
    """
    names = adapter_names(encoder)
    if not names:
        raise UserError(f"backbone = {encoder.spec.name!r}: no Linear to adapt")
    inject_adapter_in_model(lora_config(encoder, config), encoder)
    reset_adapters(encoder, config)
    return space_of(encoder)


def space_of(encoder: DualEncoder) -> AdapterSpace:
    """Return the space of an encoder's trained adapters."""
    trained = trained_parameters(encoder)
    return AdapterSpace(tuple(trained), tuple(tuple(p.shape) for p in trained.values()))


def reset_adapters(encoder: DualEncoder, config: Config) -> None:
    """Set all adapters to theta_0 of a run and choose which are trained.

    A is drawn from the run's seed and the module's name, B is zero, so theta_0 is the same on
    every machine.
    """
    for name, module in _lora_layers(encoder).items():
        a, b = _factor(module, "lora_A"), _factor(module, "lora_B")
        bound = 1 / sqrt(a.shape[1])
        start = torch.rand(a.shape, generator=torch_generator(config.seed, "lora-A", name))
        with torch.no_grad():
            a.copy_((2 * start - 1) * bound)
            b.zero_()
        a.requires_grad_(config.lora_train == "AB")
        b.requires_grad_(True)


def trained_parameters(encoder: DualEncoder) -> dict[str, nn.Parameter]:
    """Return the trained adapter parameters by name, in the order of theta."""
    return {
        f"{name}.{factor}": parameter
        for name, module in _lora_layers(encoder).items()
        for factor in ("lora_A", "lora_B")
        if (parameter := _factor(module, factor)).requires_grad
    }


def get_adapters(encoder: DualEncoder) -> Arrays:
    """Copy the trained adapters out, float32."""
    return [p.detach().cpu().float().numpy().copy() for p in trained_parameters(encoder).values()]


def set_adapters(encoder: DualEncoder, arrays: Sequence[NDArray[np.floating]]) -> None:
    """Copy adapters in; number and shapes must fit."""
    parameters = trained_parameters(encoder)
    with torch.no_grad():
        for (name, parameter), array in zip(parameters.items(), arrays, strict=True):
            if tuple(parameter.shape) != np.shape(array):
                raise ValueError(
                    f"{name}: shape {np.shape(array)}, expected {tuple(parameter.shape)}"
                )
            parameter.copy_(torch.from_numpy(np.asarray(array, dtype=np.float32)))


def flat_theta(encoder: DualEncoder) -> Tensor:
    """Lay the trained adapters end to end; Tensor of shape (d,) that carries gradients."""
    return torch.cat([p.flatten() for p in trained_parameters(encoder).values()])


def _lora_layers(encoder: DualEncoder) -> dict[str, nn.Module]:
    layers = {n: m for n, m in encoder.named_modules() if hasattr(m, "lora_A")}
    if not layers:
        raise ValueError("the encoder has no adapters; call add_adapters first")
    return layers


def _factor(module: nn.Module, which: str) -> nn.Parameter:
    weight = getattr(module, which)["default"].weight
    assert isinstance(weight, nn.Parameter)
    return weight
