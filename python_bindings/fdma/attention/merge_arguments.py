"""Checks of the arguments of merge, for arrays of every framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .shapes import DTYPES

__all__: list[str] = []


def checked_pairs(parts: Any) -> list[tuple[Any, Any]]:
    """The parts as pairs. TypeError and ValueError, which name the argument."""
    if not isinstance(parts, list | tuple):
        raise TypeError(f"parts: expected a list of (out, lse) pairs, got {type(parts).__name__}")
    for i, part in enumerate(parts):
        if not isinstance(part, list | tuple) or len(part) != 2:
            raise TypeError(f"parts[{i}]: expected a pair (out, lse), got {type(part).__name__}")
    if not 1 <= len(parts) <= 32:
        raise ValueError(
            f"parts: expected 1 to 32 of them, got {len(parts)}; merge the results of merges"
        )
    return [(out, lse) for out, lse in parts]


def check_shapes(pairs: Sequence[tuple[Any, Any]], sinks: Any, heads_first: bool) -> None:
    """ValueError, which names the argument, for shapes and dtypes that do not go together."""
    first = pairs[0][0]
    axes = "heads, len" if heads_first else "len, heads"
    if len(first.shape) != 4 or first.shape[3] < 1:
        raise ValueError(
            f"parts[0] out: expected [batch, {axes}, head_dim], got {list(first.shape)}"
        )
    dtype = str(first.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise NotImplementedError(
            f"parts[0] out: expected float32, float16 or bfloat16, got {dtype}; convert it first"
        )
    batch, heads, q_len = first.shape[:3]
    if not heads_first:
        heads, q_len = q_len, heads
    for i, (out, lse) in enumerate(pairs):
        if tuple(out.shape) != tuple(first.shape) or out.dtype != first.dtype:
            raise ValueError(
                f"parts[{i}] out: expected {dtype} {list(first.shape)}, as parts[0], got "
                f"{out.dtype} {list(out.shape)}"
            )
        if tuple(lse.shape) != (batch, heads, q_len):
            raise ValueError(
                f"parts[{i}] lse: expected [batch, heads, q_len] = [{batch}, {heads}, {q_len}], "
                f"got {list(lse.shape)}"
            )
        if str(lse.dtype).removeprefix("torch.") != "float32":
            raise ValueError(f"parts[{i}] lse: expected float32, got {lse.dtype}")
    if sinks is None:
        return
    shape = tuple(sinks.shape)
    if shape != (heads,) and shape != (batch, heads, q_len):  # torch.compile follows comparisons
        raise ValueError(
            f"sinks: expected [heads] = [{heads}] or [batch, heads, q_len] = [{batch}, {heads}, "
            f"{q_len}], got {list(sinks.shape)}"
        )
    if str(sinks.dtype).removeprefix("torch.") not in ("float32", dtype):
        raise ValueError(f"sinks: expected float32 or {dtype}, as parts[0], got {sinks.dtype}")
