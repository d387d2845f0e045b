"""Attention and its gradients on plain PyTorch tensors, by plans, without autograd or dispatch.

One function of the core (`_fdma.CachedCalls`) finds a call that was made before and runs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .. import _fdma
from ..masks.block_mask import BlockMask
from .mask_argument import block_mask
from .plans import Direction, DType, Geometry, Place, plans
from .score import NO_SCORE, WANTS, ScoreArguments, with_gradients
from .shapes import DTYPES, Extents, checked_extents
from .tensor_layouts import refuse_layouts
from .threads import NOT_SAID
from .torch_modes import refuse_transforms

__all__: list[str] = []

_TYPES: dict[Any, DType] = {getattr(torch, name): name for name in DTYPES.values()}
_CONTIGUOUS = torch.contiguous_format
_MAX_TEXTS = 4096
NO_LENGTHS = None, None, None
_FEW_QUERIES = 4096  # kFewQueries of the core
_upload_streams: dict[int, Any] = {}
_text_numbers: dict[str, int] = {}
_next_number = itertools.count(-1, -1)


Lengths = tuple[Any, Any, Any]
"""q_lens, kv_lens and cu_seqlens of a call of a closed-form plan, or None."""


class CallArguments(NamedTuple):
    """The arguments of a call besides its tensors and its score."""

    mask: BlockMask | str
    softmax_scale: float
    """0: 1 / sqrt(head_dim)."""
    heads_first: bool
    deterministic: bool
    num_threads: int = 0
    """Of the CPU, forward and backward; 0: all."""


def threads_of_call(said: int) -> int:
    """The core's number of threads for num_threads, by the rules of attention/threads.py."""
    count: int = torch.get_num_threads() if said == NOT_SAID else said
    return count


def number_of(mask: BlockMask | str) -> int:
    """A number that identifies a mask or a text."""
    if isinstance(mask, BlockMask):
        return mask._handle
    number = _text_numbers.get(mask)
    if number is None:
        if len(_text_numbers) >= _MAX_TEXTS:
            _text_numbers.clear()
        number = _text_numbers.setdefault(mask, next(_next_number))
    return number


def extents_of(q: Any, k: Any, v: Any, heads_first: bool) -> Extents:
    try:
        return checked_extents(q.shape, k.shape, v.shape, heads_first)
    except RuntimeError:  # nested tensors have no shape
        refuse_layouts(q=q, k=k, v=v)
        raise


def plan_of(
    q: Any,
    k: Any,
    v: Any,
    score: ScoreArguments,
    call: CallArguments,
    direction: Direction = "forward",
) -> Any:
    """The plan of a call, cached or made now. A batch of 0 is checked and has the plan None."""
    is_backward = direction == "backward"
    is_deterministic = call.deterministic and is_backward
    number = number_of(call.mask)
    how = call.heads_first, is_backward, is_deterministic
    descriptor = number, q, k, v, score, *how
    plan = _find_cached(*descriptor)
    if plan is not None:
        return plan
    refuse_layouts(q=q, k=k, v=v)
    # Parameters, and tensors before PyTorch 2.10, do not describe themselves to C.
    tensors = tuple((x.shape, x.dtype, x.device) for x in (q, k, v))
    key = number, tensors, score.parts, *how
    plan = plans.of_call(key)
    if plan is not None:
        return plan
    extents, geometry, place = _geometry(q, k, v, score, call, direction)
    counts = extents.batch, extents.heads, extents.q_len, extents.kv_len
    mask = block_mask(call.mask, *counts, call.num_threads, call.heads_first)
    if extents.batch == 0:
        return None
    entry = plans.entry(mask, geometry, place, call.num_threads)
    rows = extents.batch, extents.heads, extents.q_len
    one_number = torch.empty(1, dtype=torch.float32, device=q.device)
    if not _add_cached(*descriptor, entry, one_number.expand(rows)):
        plans.remember(key, entry)
    return entry.plan


def _geometry(
    q: Any, k: Any, v: Any, score: ScoreArguments, call: CallArguments, direction: Direction
) -> tuple[Extents, Geometry, Place | None]:
    extents = extents_of(q, k, v, call.heads_first)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name}: expected {q.dtype}, as q, got {tensor.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name}: expected a tensor on {q.device}, as q, got {tensor.device}")
    for name, tensor in zip(ScoreArguments._fields, score.tensors, strict=False):
        if tensor is not None and tensor.device != q.device:
            raise ValueError(f"{name}: expected a tensor on {q.device}, as q, got {tensor.device}")
    dtype = _TYPES.get(q.dtype)
    if dtype is None:
        raise NotImplementedError(
            f"q: expected float32, float16 or bfloat16, got {q.dtype}; convert it first"
        )
    place = place_of(q.device) if q.device.type == "cuda" else None
    geometry = Geometry(
        extents.batch,
        extents.heads,
        extents.heads_kv,
        extents.head_dim,
        extents.head_dim_v,
        dtype,
        score.parts,
        None if place is None else place.device,
        direction,
        call.deterministic and direction == "backward" and place is not None,
    )
    return extents, geometry, place


def place_of(device: Any) -> Place:
    """The place of tensors on a CUDA device."""
    index = torch.cuda.current_device() if device.index is None else device.index

    def upload_stream() -> Any:
        if index not in _upload_streams:
            _upload_streams[index] = torch.cuda.Stream(index)
        return _upload_streams[index]

    return Place(index, torch.cuda.is_current_stream_capturing, upload_stream)


def new_outputs(q: Any, k: Any, v: Any, heads_first: bool, with_lse: bool = True) -> Any:
    """Memory for the result, in q's order or with lengths before heads, and for the log-sum-exp."""
    batch, first, second, head_dim = q.shape
    head_dim_v = v.shape[3]
    if head_dim == head_dim_v and (q.is_contiguous() or q.transpose(1, 2).is_contiguous()):
        out = torch.empty_like(q)
    elif heads_first:
        out = torch.empty((batch, second, first, head_dim_v), dtype=q.dtype, device=q.device)
        out = out.transpose(1, 2)
    else:
        out = torch.empty((batch, first, second, head_dim_v), dtype=q.dtype, device=q.device)
    if not with_lse:
        return out, None
    rows = (batch, first, second) if heads_first else (batch, second, first)
    return out, torch.empty(rows, dtype=torch.float32, device=q.device)


_cached_calls = _fdma.CachedCalls(torch.empty_like, _CONTIGUOUS, new_outputs)
plans.when_forgotten.append(_cached_calls.clear)
run_cached = _cached_calls.run
_find_cached, _add_cached = _cached_calls.find, _cached_calls.add


def needs_out_low(q: Any, wanted: int) -> bool:
    """Whether the gradients need out_low, the low half of the result. Without out_low the core
    computes the exact delta of the gradients in one more pass over the keys. wanted: the bits of
    the gradients of a score.
    """
    if q.dtype == torch.float32:
        return False
    return wanted != 0 or bool(q.shape[0] * q.shape[1] * q.shape[2] <= _FEW_QUERIES)


def forward_with_out_low(q: Any, k: Any, v: Any, score: ScoreArguments, call: CallArguments) -> Any:
    """(result, log-sum-exp, the low half of the result)."""
    plan = plan_of(q, k, v, score, call)
    out, lse = new_outputs(q, k, v, call.heads_first)
    out_low = torch.empty_like(out)
    if q.numel() == 0 or k.numel() == 0 or v.numel() == 0:
        return out.zero_(), lse.fill_(-torch.inf), out_low.zero_()
    run_forward(plan, q, k, v, score, out, lse, call, out_low)
    return out, lse, out_low


def forward(
    q: Any, k: Any, v: Any, score: ScoreArguments, call: CallArguments, with_lse: bool
) -> Any:
    """The result, or with_lse (result, log-sum-exp)."""
    mask, scale, heads_first, _, num_threads = call
    of_core = None if score is NO_SCORE else score
    words = scale, heads_first, with_lse, num_threads
    cached = run_cached(number_of(mask), q, k, v, of_core, *words)
    return _forward(q, k, v, score, call, with_lse) if cached is None else cached


def _forward(
    q: Any, k: Any, v: Any, score: ScoreArguments, call: CallArguments, with_lse: bool
) -> Any:
    plan = plan_of(q, k, v, score, call)
    out, lse = new_outputs(q, k, v, call.heads_first, with_lse)
    if q.numel() == 0 or k.numel() == 0 or v.numel() == 0:
        out.zero_()
        return (out, lse.fill_(-torch.inf)) if with_lse else out
    run_forward(plan, q, k, v, score, out, lse, call)
    return (out, lse) if with_lse else out


def run_forward(
    plan: Any,
    q: Any,
    k: Any,
    v: Any,
    score: ScoreArguments,
    out: Any,
    lse: Any,
    call: CallArguments,
    out_low: Any = None,
    lengths: Lengths = NO_LENGTHS,
) -> None:
    """Attention by a plan into new memory, which has no gaps."""
    words = call.softmax_scale, call.heads_first, out_low, call.num_threads, None
    for _ in range(2):
        unreadable = _fdma.attention_call(plan, q, k, v, score, out, lse, *words, *lengths)
        if not unreadable:
            break
        q, k, v, score = _contiguous(unreadable, q, k, v, score)


def is_readable(x: Any) -> bool:
    """Whether a kernel can read a tensor without a copy."""
    strides = x.stride()
    if strides[-1] != 1:
        return False
    return not x.is_cuda or (all(n % 8 == 0 for n in strides[:-1]) and x.data_ptr() % 16 == 0)


def backward(
    q: Any,
    k: Any,
    v: Any,
    score: ScoreArguments,
    out: Any,
    lse: Any,
    out_low: Any,
    dout: Any,
    dlse: Any,
    call: CallArguments,
    wanted: int,
    planned: Callable[[CallArguments], Any] | None = None,
    lengths: Lengths = NO_LENGTHS,
) -> Any:
    """(dq, dk, dv, dkey_bias, dbias, drelative, dsinks), the last four None where `wanted` does not
    have their bit. out_low is that of `forward_with_out_low`, or None.

    Sums have a fixed order if the call is deterministic or torch.use_deterministic_algorithms is
    on. planned: gives the plan of the gradients; otherwise it is looked up, or made.
    """
    refuse_transforms("gradients of attention", q, k, v, *score.tensors, dout, dlse)
    if torch.are_deterministic_algorithms_enabled():
        call = call._replace(deterministic=True)
    dq, dk, dv = (new_gradient(x, call.heads_first) for x in (q, k, v))
    of_score = new_gradients_of_score(score, wanted)
    grads = dq, dk, dv, *of_score
    if q.numel() == 0 or k.numel() == 0 or v.numel() == 0:
        return tuple(x if x is None else x.zero_() for x in grads)
    if dout is None:
        dout = torch.zeros_like(out)
    plan = plan_of(q, k, v, score, call, "backward") if planned is None else planned(call)
    # The framework allocates the workspace and can reuse it: it is as large as dq in float32.
    num_bytes = plan.workspace_nbytes
    workspace = q.new_empty(num_bytes, dtype=torch.uint8) if num_bytes else None
    for _ in range(2):
        unreadable = _fdma.attention_backward_call(
            plan,
            *(q, k, v, score, out, lse, dout, dlse),
            *(dq, dk, dv, of_score if wanted else None),
            call.softmax_scale,
            call.heads_first,
            call.deterministic,
            workspace,
            out_low,
            call.num_threads,
            None,
            *lengths,
        )
        if not unreadable:
            break
        q, k, v, score, dout, dlse = _contiguous(unreadable, q, k, v, score, dout, dlse)
    return grads


def new_gradient(x: Any, heads_first: bool) -> Any:
    """Memory for the gradient of q, k or v, with the same strides if the tensor has no gaps."""
    if x.is_contiguous() or x.transpose(1, 2).is_contiguous():
        return torch.empty_like(x)
    if heads_first:
        return torch.empty_like(x.transpose(1, 2), memory_format=_CONTIGUOUS).transpose(1, 2)
    return torch.empty_like(x, memory_format=_CONTIGUOUS)


def new_gradients_of_score(score: ScoreArguments, wanted: int) -> tuple[Any, Any, Any, Any]:
    """Memory for the gradients (dkey_bias, dbias, drelative, dsinks) that are wanted."""
    if not wanted:
        return None, None, None, None
    key_bias, bias, relative, sinks = (
        None if x is None or not wanted & bit else torch.empty_like(x, memory_format=_CONTIGUOUS)
        for x, bit in zip(with_gradients(score), WANTS, strict=True)
    )
    return key_bias, bias, relative, sinks


def _contiguous(
    bits: int, q: Any, k: Any, v: Any, score: ScoreArguments, *others: Any
) -> tuple[Any, ...]:
    """The tensors; those whose bit is set are copied to contiguous memory."""
    *given, seeds = score.tensors
    copied = [
        x.clone(memory_format=_CONTIGUOUS) if bits >> i & 1 else x
        for i, x in enumerate((q, k, v, *given, *others))
    ]
    num_given = len(given)
    score = score.with_tensors((*copied[3 : 3 + num_given], seeds))
    return *copied[:3], score, *copied[3 + num_given :]
