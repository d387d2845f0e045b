"""PyTorch tensors without strides (sparse, nested, ..), and what to write instead."""

from __future__ import annotations

from typing import Any

import torch

__all__: list[str] = []

_PACKED = (
    "fdma.attention(q[None], k[None], v[None], fdma.from_cu_seqlens(offsets, causal=True), "
    'layout="bshd")[0] on [total, heads, head_dim]'
)


def refuse_layouts(**tensors: Any) -> None:
    """NotImplementedError, which names the tensor, for a layout that no kernel reads."""
    for name, x in tensors.items():
        if x is None or (x.layout is torch.strided and not x.is_nested and not x.is_quantized):
            continue
        if x.is_nested:
            raise NotImplementedError(
                f"{name}: a nested tensor; pack its sequences and say in a mask where they end: "
                f"{_PACKED} (values() and offsets() of a jagged tensor)"
            )
        if x.is_quantized:
            raise NotImplementedError(f"{name}: a quantized tensor; use {name}.dequantize()")
        raise NotImplementedError(
            f"{name}: expected a dense tensor, got layout {x.layout}; use {name}.to_dense()"
        )
