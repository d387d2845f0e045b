"""Imports the core fdma._fdma of the build that FDMA_BUILD_DIR names, and defines attention.

An import of this module skips the importing test file if that build has no core module.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(os.environ.get("FDMA_BUILD_DIR", "")).resolve() / "python_bindings"
if not list((FOLDER / "fdma").glob("_fdma.*.so")):
    pytest.skip(
        "FDMA_BUILD_DIR names no build with the Python package (FDMA_BUILD_PYTHON=ON)",
        allow_module_level=True,
    )
sys.path.insert(0, str(FOLDER))

from fdma import _fdma as fdma  # noqa: E402

__all__ = ["FOLDER", "OtherDevice", "Tensor", "definition", "fdma", "random_tensors", "round_bf16"]

Tensor = np.ndarray[Any, Any]


def definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    softmax_scale: float | None = None,
    key_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns attention in float64 by matrix products: out [b, q, h, d], lse [b, h, q]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if key_bias is not None:
        logits += np.repeat(key_bias.astype(np.float64), group, axis=1)[:, :, None, :]
    logits = np.where(mask, logits, -np.inf)
    highest = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(highest), highest, 0.0)
    weights = np.exp(logits - shift)
    total = weights.sum(axis=-1, keepdims=True)
    out = np.einsum("bhqk,bkhd->bqhd", weights / np.where(total > 0, total, 1.0), v)
    with np.errstate(divide="ignore"):
        lse = (shift + np.log(total))[..., 0]
    return out, lse


def random_tensors(
    seed: int,
    batch: int,
    q_len: int,
    kv_len: int,
    heads_q: int,
    heads_kv: int,
    head_dim: int,
    head_dim_v: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    random = np.random.default_rng(seed)
    return (
        random.standard_normal((batch, q_len, heads_q, head_dim), np.float32),
        random.standard_normal((batch, kv_len, heads_kv, head_dim), np.float32),
        random.standard_normal((batch, kv_len, heads_kv, head_dim_v or head_dim), np.float32),
    )


def round_bf16(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the nearest bfloat16 of each float32, as bits (uint16) and as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    high = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return high, (high.astype(np.uint32) << 16).view(np.float32)


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class OtherDevice:
    """A float32 array on another device, as DLPack describes it. It has no memory."""

    def __init__(self, device_type: int, shape: tuple[int, ...]) -> None:
        self.device = (device_type, 0)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.tensor = _DLTensor(
            16, device_type, 0, len(shape), 2, 32, 1, ctypes.cast(self.shape, Int64s), None, 0
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


Int64s = ctypes.POINTER(ctypes.c_int64)
