"""Defines dense attention in float64, and reads the tensor files of fdma-maskc run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def to_bfloat16(values: Array) -> Array:
    """Returns the bits of the nearest bfloat16; ties go to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(values: Array, dtype: str) -> Array:
    return to_bfloat16(values) if dtype == "bfloat16" else values.astype(dtype)


def loaded(values: Array, dtype: str) -> Array:
    return (from_bfloat16(values) if dtype == "bfloat16" else values).astype(np.float64)


def write_tensor(file: Any, name: str, values: Array, dtype: str, **options: Any) -> None:
    dataset = file.create_dataset(name, data=stored(values, dtype), **options)
    if dtype == "bfloat16":
        dataset.attrs["dtype"] = "bfloat16"


def read_tensor(path: Path, name: str) -> Array:
    """Returns the values of a dataset that the tool wrote, in float64."""
    with h5py.File(path) as file:
        dataset = file[name]
        dtype = dataset.attrs.get("dtype", b"").decode() or str(dataset.dtype)
        return loaded(dataset[()], dtype)


@dataclass
class Tensors:
    """q, k, v [batch, len, heads, dim] and bias [batch, heads_kv, kv_len], as they are stored."""

    q: Array
    k: Array
    v: Array
    bias: Array | None = None
    dtypes: tuple[str, str, str] = ("float32", "float32", "float32")

    def write(self, path: Path, layout: str = "bshd", group: str = "/", **options: Any) -> None:
        with h5py.File(path, "w") as file:
            for name, dtype in zip("qkv", self.dtypes, strict=True):
                values = getattr(self, name)
                if layout == "bhsd":
                    values = values.transpose(0, 2, 1, 3)
                write_tensor(file, f"{group}{name}", values, dtype, **options)
            if self.bias is not None:
                file[f"{group}key_bias"] = self.bias.astype(np.float32)


def random_tensors(
    seed: int,
    *,
    batch: int = 1,
    q_len: int,
    kv_len: int,
    heads: int = 1,
    heads_kv: int = 1,
    dim: int = 16,
    dim_v: int = 16,
    dtypes: tuple[str, str, str] = ("float32", "float32", "float32"),
    has_bias: bool = False,
) -> Tensors:
    random = np.random.default_rng(seed)

    def draw(dtype: str, *extents: int) -> Array:
        return loaded(stored(random.standard_normal(extents), dtype), dtype)

    return Tensors(
        draw(dtypes[0], batch, q_len, heads, dim),
        draw(dtypes[1], batch, kv_len, heads_kv, dim),
        draw(dtypes[2], batch, kv_len, heads_kv, dim_v),
        draw("float32", batch, heads_kv, kv_len) if has_bias else None,
        dtypes,
    )


def attention(
    tensors: Tensors,
    mask: Array,
    scale: float | None = None,
    lengths: list[tuple[int, int]] | None = None,
    softcap: float = 0,
) -> tuple[Array, Array]:
    """Returns out [batch, q_len, heads, dim_v] and lse [batch, heads, q_len].

    mask is [batch or 1, heads or 1, q, k]. `lengths` are those of each batch element; cells past
    them do not exist, and rows past them have out 0 and lse -inf.
    """
    batch, q_len, heads, dim = tensors.q.shape
    kv_len, heads_kv = tensors.k.shape[1:3]
    factor = 1 / np.sqrt(dim) if scale is None else scale
    out = np.zeros((batch, q_len, heads, tensors.v.shape[3]))
    lse = np.full((batch, heads, q_len), -np.inf)
    for b in range(batch):
        rows, keys = (q_len, kv_len) if lengths is None else lengths[b]
        for h in range(heads):
            kv = h // (heads // heads_kv)
            logits = factor * tensors.q[b, :rows, h] @ tensors.k[b, :keys, kv].T
            if softcap:
                logits = softcap * np.tanh(logits / softcap)
            if tensors.bias is not None:
                logits = logits + tensors.bias[b, kv, :keys]
            seen = mask[b % mask.shape[0], h % mask.shape[1], :rows, :keys]
            for q in np.flatnonzero(seen.any(axis=1)):
                some = logits[q][seen[q]]
                weights = np.exp(some - some.max())
                lse[b, h, q] = np.log(weights.sum()) + some.max()
                out[b, q, h] = (weights / weights.sum()) @ tensors.v[b, :keys, kv][seen[q]]
    return out, lse
