"""Checks of an attention call's arguments: layout, extents, scale, backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .plans import DType

__all__: list[str] = []

DTYPES: dict[str, DType] = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
}


_LAYOUTS_OF_OTHERS = {
    **dict.fromkeys(("bhsd", "bhnd", "bnsd", "hnd", "bhld", "bhtd", "bntd"), "bhsd"),
    **dict.fromkeys(("bshd", "bnhd", "bsnd", "nhd", "bmhk", "blhd", "bthd", "btnd"), "bshd"),
}


class Extents(NamedTuple):
    """The extents of one call."""

    batch: int
    heads: int
    heads_kv: int
    q_len: int
    kv_len: int
    head_dim: int
    head_dim_v: int


def is_heads_first(layout: str) -> bool:
    if layout == "bhsd":
        return True
    if layout == "bshd":
        return False
    known = _LAYOUTS_OF_OTHERS.get(str(layout).lower(), "")
    hint = f'; write "{known}"' if known else ""
    raise ValueError(f'layout: expected "bhsd" or "bshd", got {layout!r}{hint}')


def checked_scale(scale: float | None, name: str = "scale") -> float:
    """The core's number for a scale; 0 means 1 / sqrt(head_dim).

    TypeError for an object that is not a number, and for a tensor that requires a gradient, because
    it would get none.
    """
    if scale is None:
        return 0.0
    if not isinstance(scale, float):
        refuse_no_number(scale, name)
    value = float(scale)
    if not -math.inf < value < math.inf or value == 0:  # comparisons: torch.compile follows them
        raise ValueError(f"{name}: expected a finite number other than 0, got {scale}")
    return value


def checked_softcap(softcap: float | None) -> float:
    """The core's number for a softcap; 0 means none. Errors as for a scale."""
    if softcap is None:
        return 0.0
    if not isinstance(softcap, float):
        refuse_no_number(softcap, "softcap", "")
    value = float(softcap)
    # Comparisons, as above; the range is that of the core.
    if value != 0 and not 1e-12 <= value <= 1e12:
        raise ValueError(
            f"softcap: expected a number above 0 (1e-12 to 1e12), or 0 or None for no cap, got "
            f"{softcap}"
        )
    return value


def refuse_no_number(
    scale: Any, name: str, instead: str = "multiply q by it and give {name}=1.0, or "
) -> None:
    if getattr(scale, "requires_grad", False):
        raise TypeError(
            f"{name}: a tensor that requires a gradient, but attention has none of it; "
            f"{instead.format(name=name)}give float({name}.detach())"
        )
    dtype = str(getattr(scale, "dtype", "float"))
    is_number = hasattr(scale, "__float__") and not isinstance(scale, bool)
    if not is_number or ("int" not in dtype and "float" not in dtype):
        raise TypeError(f"{name}: expected a number or None, got {type(scale).__name__}")


def checked_extents(
    q: Sequence[int], k: Sequence[int], v: Sequence[int], heads_first: bool
) -> Extents:
    """ValueError, naming the argument, for shapes that do not go together."""
    axes = "heads, len" if heads_first else "len, heads"
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 4:
            raise ValueError(
                f"{name}: expected 4 dimensions [batch, {axes}, head_dim], got {list(shape)}"
                + _with_batch(name, len(shape), heads_first)
            )
    head, length = (1, 2) if heads_first else (2, 1)
    batch, heads, heads_kv = q[0], q[head], k[head]
    if tuple(k[:3]) != tuple(v[:3]):
        raise ValueError(f"v: expected {list(k[:3])} before its last extent, as k, got {list(v)}")
    if k[0] != batch:
        raise ValueError(f"k: expected batch {batch}, as q, got {k[0]}")
    if k[3] != q[3]:
        raise ValueError(f"k: expected head_dim {q[3]}, as q, got {k[3]}")
    for name, count in (("q", heads), ("k", heads_kv)):
        if count == 0:
            raise ValueError(f"{name}: expected at least 1 head, got 0")
    if heads % heads_kv != 0:
        hint = ""
        if q[length] % max(k[length], 1) == 0:
            other = "bshd" if heads_first else "bhsd"
            swapped = "len, heads" if heads_first else "heads, len"
            hint = f'; if these tensors are [batch, {swapped}, head_dim], pass layout="{other}"'
        raise ValueError(
            f"k: expected a number of heads that divides the {heads} of q, got {heads_kv}{hint}"
        )
    return Extents(batch, heads, heads_kv, q[length], k[length], q[3], v[3])


def _with_batch(name: str, rank: int, heads_first: bool) -> str:
    """How to give a tensor without a batch dimension, or without heads."""
    if rank == 3:
        return f"; write {name}[None] for a batch of one"
    if rank == 2:
        return f"; write {name}[None, {'None' if heads_first else ':, None'}] for one head"
    return ""


def checked_backend(backend: str, is_on_gpu: bool, where: Any) -> None:
    """ValueError for a backend that is not that of the tensors' device, which alone decides."""
    if backend not in ("auto", "cpu", "sm90"):
        is_gpu = backend in ("cuda", "gpu", "hopper", "h100", "sm90a", "flash")
        hint = '; write "sm90", or leave it out' if is_gpu else ""
        raise ValueError(f'backend: expected "auto", "cpu" or "sm90", got {backend!r}{hint}')
    if backend == "cpu" and is_on_gpu:
        raise ValueError(f'backend: "cpu" computes on the host, q is on {where}; use q.cpu()')
    if backend == "sm90" and not is_on_gpu:
        raise ValueError(f'backend: "sm90" computes on a GPU, q is on {where}; move it there')
