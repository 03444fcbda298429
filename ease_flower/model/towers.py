"""Dual encoders cut in two: a frozen stem, computed once a pair, and a head with adapters.

Everything below the lowest adapted block is deterministic, so its output can be kept
(`ease_flower.model.caching`). ``head(stem(x))`` is the tower of the original model, exactly.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from open_clip.transformer import text_global_pool
from PIL.Image import Image
from torch import Tensor, nn

from ease_flower.errors import UserError


class Tower(nn.Module, ABC):
    """One branch; `head` holds the only modules that are ever adapted."""

    trims = False  # whether hidden states after the last token of a batch may be cut off

    @abstractmethod
    def stem(self, raw: Tensor) -> Tensor:
        """Map raw input (pixels or token ids) to the input of the lowest adapted block."""

    @abstractmethod
    def head(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Map hidden states to embeddings of shape (n, width), not normalised.

        Parameters
        ----------
        hidden : Tensor
            What `stem` returned.
        tokens : Tensor of shape (n, length)
            The token ids of a text tower; an image tower does not look at it.
        """

    def adaptable(self) -> list[str]:
        """Name the Linears of the head, in the order of the forward pass.

        The names stay the same once PEFT has wrapped the Linears.
        """
        return [
            name
            for name, module in self.named_modules()
            if (isinstance(module, nn.Linear) or hasattr(module, "base_layer"))
            and name.startswith("blocks.")
            and not {"base_layer", "lora_A", "lora_B"} & set(name.split("."))
        ]


class ViTTower(Tower):
    """The image tower of an open_clip vision transformer, cut before its last blocks."""

    def __init__(self, visual: Any, num_adapted: int) -> None:
        super().__init__()
        layers = visual.transformer.resblocks
        self.blocks = nn.ModuleList(layers[_cut(len(layers), num_adapted, "image") :])
        self.lower = nn.ModuleList(layers[: len(layers) - num_adapted])
        self.batch_first = bool(visual.transformer.batch_first)
        visual.transformer = nn.Identity()
        self.rest = visual

    def stem(self, raw: Tensor) -> Tensor:
        """Embed patches and run the frozen blocks: (n, 3, h, w) to (n, patches + 1, width)."""
        return _run(self.lower, self.rest._embeds(raw), None, self.batch_first)

    def head(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Run the adapted blocks, pool and project."""
        pooled, _ = self.rest._pool(_run(self.blocks, hidden, None, self.batch_first))
        out: Tensor = pooled if self.rest.proj is None else pooled @ self.rest.proj
        return out


class TimmViTTower(Tower):
    """The image tower of an open_clip model whose trunk is a timm vision transformer."""

    def __init__(self, visual: Any, num_adapted: int) -> None:
        super().__init__()
        layers = visual.trunk.blocks
        self.blocks = nn.ModuleList(layers[_cut(len(layers), num_adapted, "image") :])
        self.lower = nn.ModuleList(layers[: len(layers) - num_adapted])
        visual.trunk.blocks = nn.Identity()
        self.rest = visual

    def stem(self, raw: Tensor) -> Tensor:
        """Embed patches and run the frozen blocks."""
        trunk = self.rest.trunk
        x: Tensor = trunk.norm_pre(trunk.patch_drop(trunk._pos_embed(trunk.patch_embed(raw))))
        for block in self.lower:
            x = block(x)
        return x

    def head(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Run the adapted blocks, pool and project."""
        for block in self.blocks:
            hidden = block(hidden)
        trunk = self.rest.trunk
        pooled: Tensor = self.rest.head(trunk.forward_head(trunk.norm(hidden)))
        return pooled


class TextTower(Tower):
    """The text tower of an open_clip model.

    With a causal mask and pooling at the end token, what follows that token cannot change the
    embedding, so captions are cut to the longest of the batch instead of padded to 77.
    """

    def __init__(self, text: Any, num_adapted: int, pool_type: str, eos_id: int | None) -> None:
        super().__init__()
        layers = text.transformer.resblocks
        self.blocks = nn.ModuleList(layers[_cut(len(layers), num_adapted, "text") :])
        self.lower = nn.ModuleList(layers[: len(layers) - num_adapted])
        self.batch_first = bool(text.transformer.batch_first)
        self.token_embedding = text.token_embedding
        self.positional_embedding = text.positional_embedding
        self.ln_final = text.ln_final
        self.text_projection = text.text_projection
        mask = text.attn_mask
        self.register_buffer("mask", None if mask is None else mask.detach(), persistent=False)
        self.pool_type, self.eos_id = pool_type, eos_id
        self.trims = mask is not None and pool_type in ("argmax", "eos")

    def _mask(self, length: int) -> Tensor | None:
        mask = self.mask
        return mask[:length, :length] if isinstance(mask, Tensor) else None

    def stem(self, raw: Tensor) -> Tensor:
        """Embed tokens and run the frozen blocks: (n, length) to (n, length, width)."""
        x = self.token_embedding(raw) + self.positional_embedding[: raw.shape[1]]
        return _run(self.lower, x, self._mask(raw.shape[1]), self.batch_first)

    def head(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Run the adapted blocks, pool at the end token and project."""
        x = _run(self.blocks, hidden, self._mask(hidden.shape[1]), self.batch_first)
        x = self.ln_final(x)
        x = text_global_pool(x, tokens, self.pool_type, eos_token_id=self.eos_id)
        projection = self.text_projection
        if projection is not None:
            x = projection(x) if isinstance(projection, nn.Linear) else x @ projection
        assert isinstance(x, Tensor)
        return x


def _run(blocks: nn.ModuleList, x: Tensor, mask: Tensor | None, batch_first: bool) -> Tensor:
    x = x if batch_first else x.transpose(0, 1)
    for block in blocks:
        x = block(x, attn_mask=mask)
    return x if batch_first else x.transpose(0, 1)


def _cut(num_layers: int, num_adapted: int, tower: str) -> int:
    if num_adapted > num_layers:
        raise UserError(
            f"adapted-blocks = {num_adapted}: the {tower} tower has {num_layers} blocks"
        )
    return num_layers - num_adapted


class DualEncoder(nn.Module):
    """Two towers, a temperature, and how to make their input.

    Attributes
    ----------
    name, digest : str
        What was asked for, and the SHA-256 of all frozen weights (16 hex digits).
    logit_scale, logit_bias : float
        exp of the trained log temperature, and the sigmoid loss's bias (None: InfoNCE).
    """

    def __init__(self, image: Tower, text: Tower, spec: "EncoderSpec") -> None:
        super().__init__()
        self.image, self.text = image, text
        self.spec = spec
        self.requires_grad_(False).eval()

    def forward(self, pixels: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Embed images and texts; unit rows, (n, width) each."""
        return (
            nn.functional.normalize(self.image.head(self.image.stem(pixels), tokens), dim=-1),
            nn.functional.normalize(self.text.head(self.text.stem(tokens), tokens), dim=-1),
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device


@dataclass(frozen=True)
class EncoderSpec:
    """What a dual encoder knows of itself besides its weights."""

    name: str
    digest: str
    logit_scale: float
    logit_bias: float | None
    preprocess: Callable[[Image], Tensor]
    tokenize: Callable[[Sequence[str]], Tensor]
    activation: str = "gelu"
