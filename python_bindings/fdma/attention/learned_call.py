"""dynamic_mask_attention by the core's one call, prepared once for a shape."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, NamedTuple

from .. import _fdma
from ..masks.block_mask import BlockMask
from ..masks.compile import compile
from ..masks.expr_types import MaskExpr
from .frameworks import framework
from .plans import Entry, plans
from .shapes import DTYPES, Extents, checked_backend

__all__: list[str] = []


class CallParams(NamedTuple):
    """The arguments of a call besides its tensors."""

    w: int
    among: BlockMask | MaskExpr | str
    bias: Any
    softmax_scale: float | None
    heads_first: bool
    drop_zero_scores: bool
    backend: str
    deterministic: bool
    gradients: bool
    num_threads: int


def one_call(
    tensors: tuple[Any, Any, Any], dt_proj: Any, a_coef: Any, extents: Extents, params: CallParams
) -> Any:
    """(result, log-sum-exp), or None where scores, selection and attention must run one by one.

    These cases are: arrays of JAX, dtypes that differ, lengths per batch element, masks that differ
    between query heads, and on a GPU masks `among` that show a key again after hiding it. With
    gradients, tracing by torch.compile and autocast are such cases too.
    """
    q, k, v = tensors
    name = framework(q)
    dtype = DTYPES.get(str(q.dtype).removeprefix("torch."))
    if name == "jax" or dtype is None or not (q.dtype == k.dtype == v.dtype):
        return None
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        return None
    if params.gradients:
        from .learned_torch import is_plain, with_gradients

        if not is_plain(*tensors, dt_proj, a_coef):
            return None
    device = _device(q, name)
    checked_backend(params.backend, device is not None, getattr(q, "device", "the host"))
    seen = _among(params.among, extents, params.num_threads)
    if isinstance(params.among, BlockMask):
        params.among._core.check_serves(extents.batch, extents.heads, "among")
    elif seen is not None and seen._core.is_per_head and extents.heads != extents.heads_kv:
        return None  # h is the query head, and here keys are selected for each KV head
    if seen is not None and (
        seen.heads not in (1, extents.heads_kv)
        or {*seen.q_lens} != {extents.q_len}
        or {*seen.kv_lens} != {extents.kv_len}
    ):
        return None
    key = (
        "dynamic_mask_attention",
        None if seen is None else seen.content_hash,
        params.w,
        extents,
        dtype,
        params.bias,
        params.drop_zero_scores,
        device,
        params.gradients,
    )
    try:
        held = plans.prepared(key, lambda: _prepare(seen, extents, dtype, params, device)).plan
    except NotImplementedError:
        if device is None:
            raise
        return None
    if not params.gradients:
        return _run(held, name, tensors, dt_proj, a_coef, params)
    return with_gradients(held, tensors, dt_proj, a_coef, params)


def _device(q: Any, name: str) -> int | None:
    if name == "cupy":
        return int(q.device.id)
    if name == "torch" and q.device.type == "cuda":
        return int(q.device.index)
    return None


def _among(among: Any, extents: Extents, num_threads: int) -> BlockMask | None:
    """The mask `among` of a call, or None for the causal mask."""
    if isinstance(among, BlockMask):
        return among
    if isinstance(among, str):
        if among == "causal":
            return None
        if _fdma.parse_expr(among).table_names:
            raise ValueError("among: the text has tables; give an expression with its arrays")
    counts = extents.q_len, extents.kv_len, extents.batch, extents.heads_kv
    return compile(among, *counts, num_threads=num_threads)


def _prepare(
    seen: BlockMask | None, extents: Extents, dtype: Any, params: CallParams, device: int | None
) -> Entry:
    lengths: dict[str, Any] = {}
    if seen is None:
        lengths = {"q_len": extents.q_len, "kv_len": extents.kv_len}
    held = _fdma.DynamicMaskAttention(
        params.w,
        among=None if seen is None else seen._core,
        **lengths,
        batch=extents.batch,
        heads_q=extents.heads,
        heads_kv=extents.heads_kv,
        head_dim=extents.head_dim,
        head_dim_v=extents.head_dim_v,
        dtype=dtype,
        bias=params.bias,
        drop_zero_scores=params.drop_zero_scores,
        backend="cpu" if device is None else "sm90",
        gradients=params.gradients,
        device=device,
    )
    return Entry(held, held.nbytes)


def _run(
    held: _fdma.DynamicMaskAttention,
    name: str,
    tensors: tuple[Any, Any, Any],
    dt_proj: Any,
    a_coef: Any,
    params: CallParams,
) -> Any:
    out: Any
    if name == "torch":
        from .tensors import is_readable, new_outputs

        q, k, v = (x.detach() for x in tensors)
        dt_proj, a_coef = (x.detach().contiguous() for x in (dt_proj, a_coef))
        out, lse = new_outputs(q, k, v, params.heads_first)
        into = out
        if params.heads_first:
            q, k, v, into = (x.transpose(1, 2) for x in (q, k, v, out))
        q, k, v = (x if is_readable(x) else x.contiguous() for x in (q, k, v))
    else:
        xp = importlib.import_module(name)
        # CuPy's new arrays are on its current device, which need not be that of the tensors.
        with tensors[0].device if name == "cupy" else contextlib.nullcontext():
            q, k, v = (x.swapaxes(1, 2) if params.heads_first else x for x in tensors)
            q, k, v = (x if _has_rows(x) else xp.ascontiguousarray(x) for x in (q, k, v))
            batch, q_len, heads, _ = q.shape
            into = xp.empty((batch, q_len, heads, v.shape[3]), q.dtype)
            lse = xp.empty((batch, heads, q_len), "float32")
            out = into.swapaxes(1, 2) if params.heads_first else into
    words: Any = {"softmax_scale": params.softmax_scale, "num_threads": params.num_threads}
    held.run(q, k, v, dt_proj, a_coef, **words, out=into, lse=lse)
    return out, lse


def _has_rows(x: Any) -> bool:
    return bool(x.strides[-1] == x.itemsize)
