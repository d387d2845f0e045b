"""attention on arrays of NumPy, CuPy and JAX: no gradients, results of the same framework."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, NamedTuple

import numpy as np

from .. import _fdma
from .frameworks import framework
from .mask_argument import block_mask
from .plans import Geometry, Place, plans
from .score import (
    GIVEN_TENSORS,
    NO_SCORE,
    GivenScore,
    ScoreArguments,
    numbers_of,
    refuse_bias,
    refuse_key_bias,
    refuse_sinks,
    refuse_slopes,
    refuse_table,
    seed_and_offset,
    table_and_left,
)
from .shapes import (
    DTYPES,
    Extents,
    checked_backend,
    checked_extents,
    checked_scale,
    is_heads_first,
)
from .threads import process_threads

__all__: list[str] = []


class _CallParams(NamedTuple):
    """The arguments of a call besides q, k and v.

    `deterministic` changes nothing here, because results have the same bits in every run.
    """

    mask: Any
    given: GivenScore | None
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
    return _run(np, q, k, v, params)


def cupy_attention(q: Any, k: Any, v: Any, *words: Any) -> Any:
    """`fdma.attention` for CuPy arrays, on CuPy's current stream."""
    import cupy

    params = _CallParams(*words)
    checked_backend(params.backend, True, "a GPU")
    with q.device:
        return _run(cupy, q, k, v, params, cupy_place(int(q.device.id)))


def cupy_place(device: int) -> Place:
    """The place of CuPy's arrays on a CUDA device."""
    import cupy

    return Place(
        device,
        lambda: bool(cupy.cuda.get_current_stream().is_capturing()),
        lambda: cupy.cuda.Stream(non_blocking=True),
    )


def jax_attention(q: Any, k: Any, v: Any, *words: Any) -> Any:
    """`fdma.attention` for concrete JAX arrays, outside jit, grad and vmap.

    It waits for the arguments and, on a GPU, for the result, because JAX does not expose its
    streams.
    """
    import jax

    params = _CallParams(*words)
    of_score = () if params.given is None else params.given.tensors()
    for name, x in (("q", q), ("k", k), ("v", v), *zip(GIVEN_TENSORS, of_score, strict=False)):
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
    place = Place(int(device.local_hardware_id or 0)) if is_on_gpu else None
    return _run(jax.numpy, q, k, v, params, place)


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
) -> Any:
    mask, given, scale, layout, return_lse = params[:5]
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
    score = NO_SCORE if given is None else score_of(xp, given, q, extents)
    num_threads = process_threads(params.num_threads)
    counts = extents.batch, extents.heads, extents.q_len, extents.kv_len
    compiled = block_mask(mask, *counts, num_threads, heads_first)
    if extents.batch == 0:
        out = xp.empty((*q.shape[:3], extents.head_dim_v), q.dtype)
        rows = (extents.batch, extents.heads, extents.q_len)
        return (out, xp.empty(rows, np.float32)) if return_lse else out
    geometry = Geometry(
        extents.batch,
        extents.heads,
        extents.heads_kv,
        extents.head_dim,
        extents.head_dim_v,
        dtype,
        score.parts,
        None if place is None else place.device,
    )
    key = (compiled._handle, geometry)
    plan = plans.of_call(key) or plans.get(key, compiled, geometry, place, num_threads)
    is_short = min(compiled.q_lens) < extents.q_len
    words: Any = {"softmax_scale": factor or None, "num_threads": num_threads}
    out, lse = _run_core(xp, plan, q, k, v, score, heads_first, is_short, words)
    return (out, lse) if return_lse else out


def run_plan(
    plan: Any,
    q: Any,
    k: Any,
    v: Any,
    given: GivenScore | None,
    *,
    heads_first: bool,
    is_short: bool,
    out: Any,
    lse: Any,
    num_threads: int | None,
    mask: Any,
    deterministic: bool,
    planned_backward: Any,
    **words: Any,
) -> Any:
    """(result, log-sum-exp) of a plan that was looked up before, written to out and lse where they
    are given. words: softmax_scale and the lengths of a closed-form plan. is_short: rows may lie
    past lengths; they are set. mask, deterministic and planned_backward are for gradients, which
    arrays do not have.
    """
    del mask, deterministic, planned_backward
    name = framework(q)
    if name == "jax" and not (out is None and lse is None):
        raise NotImplementedError("out, lse: JAX has no memory that others may write")
    words["num_threads"] = process_threads(num_threads)
    xp = importlib.import_module({"jax": "jax.numpy"}.get(name, name))
    with q.device if name == "cupy" else contextlib.nullcontext():
        q, k, v = (x if is_jax(x) else rows_of(xp, x) for x in (q, k, v))
        score = NO_SCORE
        if given is not None:
            extents = checked_extents(q.shape, k.shape, v.shape, heads_first)
            score = score_of(xp, given, q, extents)
        return _run_core(xp, plan, q, k, v, score, heads_first, is_short, words, out, lse)


def device_index(x: Any) -> int | None:
    """The CUDA device of an array; None for the CPU."""
    name = framework(x)
    if name == "cupy":
        return int(x.device.id)
    if name == "jax" and next(iter(x.devices())).platform != "cpu":
        raise NotImplementedError("q: plan objects are for JAX arrays on the CPU alone")
    return None


def is_jax(array: Any) -> bool:
    """Whether an array is JAX's, which has no memory that others may write."""
    return not hasattr(array, "strides")


def score_of(xp: Any, given: GivenScore, q: Any, extents: Extents) -> ScoreArguments:
    """The checked score of a call. Raises TypeError and ValueError, which name the argument."""
    softcap, dropout_p = numbers_of(given)
    key_bias, bias, slopes, sinks = given.key_bias, given.bias, given.alibi_slopes, given.sinks
    table, left = None, 0
    if key_bias is not None:
        key_bias = _floats(xp, "key_bias", key_bias, None)
        refuse_key_bias(key_bias.shape, extents)
        wanted = extents.batch, extents.heads_kv, extents.kv_len
        key_bias = xp.broadcast_to(key_bias, wanted)
    if bias is not None:
        bias = _floats(xp, "bias", bias, q)
        refuse_bias(bias.shape, extents)
    if slopes is not None:
        slopes = _floats(xp, "alibi_slopes", slopes, None)
        refuse_slopes(slopes.shape, extents)
    if given.relative is not None:
        table, left = table_and_left(given.relative)
        table = _floats(xp, "relative", table, None)
        refuse_table(table.shape, left, extents)
    if sinks is not None:
        sinks = _floats(xp, "sinks", sinks, q)
        refuse_sinks(sinks.shape, extents)
    seed, offset = _seed(given, dropout_p)
    tensors = key_bias, bias, slopes, table, sinks, None
    return ScoreArguments(*tensors, softcap, left, dropout_p, seed, offset)


def _floats(xp: Any, name: str, x: Any, q: Any) -> Any:
    """The array in float32, or in the dtype of q where it has that, with a last stride of 1."""
    if xp is np:
        x = np.asarray(x)
    if not str(x.dtype).startswith(("float", "bfloat")):
        raise TypeError(f"{name}: expected floating point numbers, got {x.dtype}")
    if x.dtype != np.float32 and (q is None or x.dtype != q.dtype):
        x = x.astype(np.float32)
    return x if is_jax(x) else rows_of(xp, x)


def _seed(given: GivenScore, dropout_p: float) -> tuple[int, int]:
    """Seed and offset of dropout, which arrays have no generator of their own for."""
    if given.dropout_seed is not None:
        if given.generator is not None:
            raise ValueError("generator: expected None with a dropout_seed")
        return seed_and_offset(given.dropout_seed)
    if not dropout_p:
        return 0, 0
    if not isinstance(given.generator, np.random.Generator):
        raise ValueError(
            "dropout_seed: expected an integer, or generator=numpy.random.default_rng(); arrays "
            "have no generator of their own"
        )
    return int(given.generator.integers(0, 1 << 63)), 0


def _run_core(
    xp: Any,
    plan: Any,
    q: Any,
    k: Any,
    v: Any,
    score: ScoreArguments,
    heads_first: bool,
    is_short: bool,
    words: dict[str, Any],
    out: Any = None,
    lse: Any = None,
) -> Any:
    """(result, log-sum-exp) of arrays that are what the plan says."""
    batch, heads, q_len = q.shape[:3] if heads_first else (q.shape[0], q.shape[2], q.shape[1])
    rows = batch, heads, q_len
    is_empty = 0 in q.shape or 0 in k.shape or 0 in v.shape
    if is_jax(q):
        if is_empty:
            return xp.zeros((*q.shape[:3], v.shape[3]), q.dtype), xp.full(rows, -np.inf, np.float32)
        # The core makes the arrays. JAX queues transposes and conversions, and what follows, on
        # streams of its own, so the call waits for its arguments and for its results.
        import jax

        if heads_first:
            q, k, v = (xp.swapaxes(x, 1, 2) for x in (q, k, v))
        jax.block_until_ready((q, k, v, *(x for x in score.tensors if x is not None)))
        result = _fdma.attention(q, k, v, plan, score=score, **words, stream=0, waits=True)
        out, lse = (xp.from_dlpack(x) for x in result)
        return xp.swapaxes(out, 1, 2) if heads_first else out, lse
    if out is None:
        # With heads first the rows of one query lie together, too.
        out = xp.empty((batch, q_len, heads, v.shape[3]), q.dtype)
        out = xp.swapaxes(out, 1, 2) if heads_first else out
    lse = xp.empty(rows, np.float32) if lse is None else lse
    if is_short or is_empty:
        out.fill(0)
        lse.fill(-np.inf)
    if is_empty:
        return out, lse
    into = out
    if heads_first:
        q, k, v, into = (xp.swapaxes(x, 1, 2) for x in (q, k, v, out))
    _fdma.attention(q, k, v, plan, score=score, **words, out=into, lse=lse)
    return out, lse
