"""attention on arrays of NumPy, CuPy and JAX: no gradients, results of the same framework."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _fdma
from .mask_argument import block_mask
from .plans import Geometry, Place, plans
from .shapes import (
    DTYPES,
    bias_extents,
    checked_backend,
    checked_extents,
    checked_scale,
    is_heads_first,
    refuse_bias,
)
from .threads import process_threads

__all__: list[str] = []


class _CallParams(NamedTuple):
    """The arguments of a call besides q, k and v.

    `deterministic` changes nothing here, because results have the same bits in every run.
    """

    mask: Any
    bias: Any
    scale: float | None
    layout: str
    return_lse: bool
    deterministic: bool
    backend: str
    num_threads: int | None


def numpy_attention(q: Any, k: Any, v: Any, *words: Any) -> Any:
    """`fdma.attention` for NumPy arrays."""
    params = _CallParams(*words)
    checked_backend(params.backend, False, "the host")
    q, k, v = (rows_of(np, np.asarray(x)) for x in (q, k, v))
    if params.bias is not None:
        params = params._replace(bias=np.ascontiguousarray(params.bias))
    return _run(np, q, k, v, params)


def cupy_attention(q: Any, k: Any, v: Any, *words: Any) -> Any:
    """`fdma.attention` for CuPy arrays, on CuPy's current stream."""
    import cupy

    params = _CallParams(*words)
    checked_backend(params.backend, True, "a GPU")
    place = Place(
        int(q.device.id),
        lambda: bool(cupy.cuda.get_current_stream().is_capturing()),
        lambda: cupy.cuda.Stream(non_blocking=True),
    )
    with q.device:
        return _run(cupy, q, k, v, params, place)


def jax_attention(q: Any, k: Any, v: Any, *words: Any) -> Any:
    """`fdma.attention` for concrete JAX arrays, outside jit, grad and vmap.

    It waits for the arguments and, on a GPU, for the result, because JAX does not expose its
    streams.
    """
    import jax

    params = _CallParams(*words)
    for name, x in (("q", q), ("k", k), ("v", v), ("bias", params.bias)):
        if isinstance(x, jax.core.Tracer):
            raise NotImplementedError(
                f"{name}: a tracer of JAX; attention runs on arrays that are there, outside jit, "
                "grad and vmap"
            )
        if x is not None:
            jax.block_until_ready(x)
    device = next(iter(q.devices()))
    is_on_gpu = device.platform in ("gpu", "cuda")
    checked_backend(params.backend, is_on_gpu, device)
    if device.platform not in ("cpu", "gpu", "cuda"):
        raise NotImplementedError(f"q: is on {device}; move it to the CPU or a CUDA GPU")
    # The call waits for its end, because its plan may be uploaded for this call alone.
    index = int(device.local_hardware_id or 0) if is_on_gpu else None
    return _run(jax.numpy, q, k, v, params, None, index)


def rows_of(xp: Any, array: Any) -> Any:
    """The array with stride 1 along the last axis; it is copied if its stride is another one."""
    if array.ndim and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        return xp.ascontiguousarray(array)
    return array


def _run(
    xp: Any,
    q: Any,
    k: Any,
    v: Any,
    params: _CallParams,
    place: Place | None = None,
    device: int | None = None,
) -> Any:
    mask, bias, scale, layout, return_lse = params[:5]
    heads_first = is_heads_first(layout)
    factor = checked_scale(scale)
    extents = checked_extents(q.shape, k.shape, v.shape, heads_first)
    dtype = DTYPES.get(str(q.dtype))
    if dtype is None:
        raise NotImplementedError(
            f"q: expected float32, float16 or bfloat16, got {q.dtype}; convert it first"
        )
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise ValueError(f"{name}: expected {dtype}, as q, got {x.dtype}")
    if bias is not None:
        refuse_bias(bias.shape, extents)
        if not str(bias.dtype).startswith(("float", "bfloat")):
            raise TypeError(f"bias: expected floating point numbers, got {bias.dtype}")
        bias = xp.broadcast_to(bias.astype(np.float32), bias_extents(extents))
    num_threads = process_threads(params.num_threads)
    counts = extents.batch, extents.heads, extents.q_len, extents.kv_len
    compiled = block_mask(mask, *counts, num_threads)
    rows = (extents.batch, extents.heads, extents.q_len)
    if extents.batch == 0:
        out = xp.empty((*q.shape[:3], extents.head_dim_v), q.dtype)
        return (out, xp.empty(rows, np.float32)) if return_lse else out
    geometry = Geometry(
        extents.batch,
        extents.heads,
        extents.heads_kv,
        extents.head_dim,
        extents.head_dim_v,
        dtype,
        bias is not None,
        device if place is None else place.device,
    )
    key = (compiled._handle, geometry)
    plan = plans.of_call(key) or plans.get(key, compiled, geometry, place, num_threads)
    is_jax = not hasattr(q, "strides")
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        out = xp.zeros((*q.shape[:3], extents.head_dim_v), q.dtype)
        lse = xp.full(rows, -np.inf, np.float32)
        return (out, lse) if return_lse else out
    words: Any = {
        "key_bias": bias,
        "softmax_scale": factor or None,
        "num_threads": num_threads,
    }
    if heads_first:
        q, k, v = (xp.swapaxes(x, 1, 2) for x in (q, k, v))
    if is_jax:
        # JAX has no memory that others may write, so the core makes the arrays. The transposes and
        # conversions above are queued on a stream of JAX's own, so the call waits for them.
        import jax

        jax.block_until_ready((q, k, v) if bias is None else (q, k, v, bias))
        result = _fdma.attention(q, k, v, plan, **words, stream=0)
        out, lse = (xp.from_dlpack(x) for x in result)
    else:
        out = xp.empty((*q.shape[:3], extents.head_dim_v), q.dtype)
        lse = xp.empty(rows, np.float32)
        if min(compiled.q_lens) < extents.q_len:
            out.fill(0)
            lse.fill(-np.inf)
        _fdma.attention(q, k, v, plan, **words, out=out, lse=lse)
    if heads_first:
        out = xp.swapaxes(out, 1, 2)
    return (out, lse) if return_lse else out
