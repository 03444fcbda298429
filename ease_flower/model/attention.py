"""Attention whose four projections are plain Linears, so that LoRA adapts what it says.

open_clip 3.3 builds its blocks on `torch.nn.MultiheadAttention`, whose projections PEFT 0.21
cannot adapt rightly: the ``out_proj`` delta is applied twice (huggingface/peft#3774), and an
adapter on ``out_proj`` alone is never used. The split is exact; a test compares the two before
any adapter exists.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SplitAttention(nn.Module):
    """Multi-head self-attention with separate q, k, v and out projections.

    Parameters
    ----------
    fused : torch.nn.MultiheadAttention
        The module to copy; its dtype and device are kept.
    """

    def __init__(self, fused: nn.MultiheadAttention) -> None:
        super().__init__()
        if fused.in_proj_weight is None or fused.bias_k is not None:
            raise ValueError("only fused self-attention without extra key bias can be split")
        self.num_heads = fused.num_heads
        self.batch_first = bool(fused.batch_first)
        weights = fused.in_proj_weight.detach().chunk(3)
        biases = (None,) * 3 if fused.in_proj_bias is None else fused.in_proj_bias.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = (
            _linear(w, b) for w, b in zip(weights, biases, strict=True)
        )
        self.out_proj = _linear(fused.out_proj.weight, fused.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """Attend; takes and returns what `torch.nn.MultiheadAttention` does.

        Parameters
        ----------
        query, key, value : Tensor of shape (n, length, width), or (length, n, width)
        attn_mask : Tensor of shape (length, length), optional
            Added to the logits.
        """
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (
            project(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (n, heads, length, w)
            for project, x in zip(
                (self.q_proj, self.k_proj, self.v_proj), (query, key, value), strict=True
            )
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        out = self.out_proj(out.transpose(1, 2).flatten(2))  # (n, length, width)
        return (out if self.batch_first else out.transpose(0, 1)), None


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    out_features, in_features = weight.shape
    linear = nn.Linear(
        in_features,
        out_features,
        bias=bias is not None,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear


def split_attention(module: nn.Module) -> int:
    """Replace every fused attention below a module, in place.

    Returns
    -------
    int
        How many were replaced.
    """
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.MultiheadAttention:
                setattr(parent, name, SplitAttention(child).train(child.training))
                count += 1
    return count
