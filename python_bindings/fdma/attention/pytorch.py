"""attention on tensors of PyTorch.

Two paths lead to the same kernels. A plain call has tensors of PyTorch's own type and runs without
tracing, mode or transform. It is looked up among the cached calls and runs directly, or through an
autograd function if a gradient is needed; this costs some microseconds. All other calls, those of
torch.compile and of fake tensors among them, go through the operators `fdma::attention` and
`fdma::attention_backward` of attention/operators.py. An operator takes no Python objects, so it
takes the mask as a text or as a number (masks/handles.py). Second gradients are an error on both
paths.
"""

from __future__ import annotations

from typing import Any

import torch

from ..masks.block_mask import BlockMask
from ..masks.expr_types import MaskExpr
from ..masks.mask_text import text_of_handle
from . import operators as attention_operators
from .mask_argument import DENSE, block_mask
from .plans import Place
from .score import (
    NO_SCORE,
    NO_TENSORS,
    GivenScore,
    ScoreArguments,
    has_tensors,
    inputs_order,
    wanted_of,
)
from .score_torch import score_of
from .shapes import checked_backend, checked_scale, is_heads_first
from .tensor_layouts import refuse_layouts
from .tensors import (
    CallArguments,
    backward,
    extents_of,
    forward,
    forward_with_out_low,
    needs_out_low,
    number_of,
    place_of,
    run_cached,
    threads_of_call,
)
from .threads import NOT_SAID, checked_num_threads
from .torch_modes import (
    are_plain,
    is_batched,
    is_plain,
    is_recorded,
    only_sets_devices,
    refuse_second_gradients,
    refuse_transforms,
)

__all__: list[str] = []

_CASTS = (torch.float32, torch.float16, torch.bfloat16)
_DTYPE_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in _CASTS}
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast = torch._C._is_any_autocast_enabled
_no_function_modes = torch._C.DisableTorchFunction
_get_num_threads = torch.get_num_threads


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    given: GivenScore | None,
    scale: float | None,
    layout: str,
    return_lse: bool,
    deterministic: bool,
    backend: str,
    num_threads: int | None,
) -> Any:
    """`fdma.attention` for tensors."""
    said = NOT_SAID if num_threads is None else checked_num_threads(num_threads)
    if (
        _is_compiling()
        or not is_plain(q, k, v)
        or (given is not None and not are_plain(*given.tensors()))
    ):
        words = scale, layout, return_lse, deterministic, backend
        if not _is_compiling() and only_sets_devices() and are_plain(q, k, v):
            with _no_function_modes():
                return attention(q, k, v, mask, given, *words, num_threads)
        return _by_operators(q, k, v, mask, given, *words, said)
    threads = _get_num_threads() if said == NOT_SAID else said
    heads_first = layout == "bhsd" or is_heads_first(layout)
    factor = 0.0 if scale is None else checked_scale(scale)
    if backend != "auto":
        checked_backend(backend, q.is_cuda, q.device)
    if _is_any_autocast():
        q, k, v = autocast(q, k, v)
    score = NO_SCORE
    if given is not None:
        score = score_of(given, q, k, v, heads_first)
    if not isinstance(mask, BlockMask | str):
        mask = DENSE if mask is None else _resolved(mask, q, k, v, heads_first, threads)
    if _is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (given is not None and requires_gradient(score))
    ):
        call = CallArguments(mask, factor, heads_first, deterministic, threads)
        apply = _apply_with_lse if return_lse else _apply
        if given is None:
            return apply(q, k, v, call)
        if not has_tensors(score):
            return apply(q, k, v, call, score)
        return apply(q, k, v, call, score.with_tensors(NO_TENSORS), *score.tensors)
    of_core = None if given is None else score
    number = number_of(mask)
    cached = run_cached(number, q, k, v, of_core, factor, heads_first, return_lse, threads)
    if cached is not None:
        return cached
    call = CallArguments(mask, factor, heads_first, deterministic, threads)
    return forward(q, k, v, score, call, return_lse)


def requires_gradient(score: ScoreArguments) -> bool:
    """Whether a tensor of a score requires a gradient."""
    for x in score.tensors:  # noqa: SIM110, since a generator would take longer
        if x is not None and x.requires_grad:
            return True
    return False


def dtype_name(x: Any) -> str:
    """The element type that attention sees: that of autocast, if it is on."""
    dtype = x.dtype
    if _is_any_autocast() and dtype in _CASTS and torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    return _DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def device_index(x: Any) -> int | None:
    """The CUDA device of a tensor; None for the CPU."""
    if x.device.type == "cuda":
        return torch.cuda.current_device() if x.device.index is None else int(x.device.index)
    if x.device.type == "cpu":
        return None
    raise NotImplementedError(f"q: is on {x.device}; move it to the CPU or a CUDA GPU")


def place(index: int) -> Place:
    """The place of tensors on a CUDA device."""
    return place_of(torch.device("cuda", index))


def _by_operators(q: Any, k: Any, v: Any, mask: Any, given: Any, *words: Any) -> Any:
    scale, layout, return_lse, deterministic, backend, num_threads = words
    for name, x in (("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor of PyTorch, as q, got {type(x).__name__}")
    refuse_layouts(q=q, k=k, v=v)
    heads_first = is_heads_first(layout)
    factor = checked_scale(scale)
    if backend != "auto":
        checked_backend(backend, q.device.type == "cuda", q.device)
    q, k, v = autocast(q, k, v)
    score = NO_SCORE
    if given is not None:
        score = score_of(given, q, k, v, heads_first)
    if not _is_compiling():
        refuse_transforms("attention", q, k, v, *score.tensors)
    text, handle, kept = _named(mask, q, k, v, heads_first, num_threads)
    wants_score = given is not None and requires_gradient(score) and _is_grad_enabled()
    keeps_out_low = wants_score and bool(q.dtype != torch.float32)
    # The comparison would make torch.compile compile one graph for few queries and one for many.
    if not keeps_out_low and not _is_compiling() and not is_recorded():
        is_asked = _is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        keeps_out_low = is_asked and needs_out_low(q, 0)
    words = factor, heads_first, deterministic, num_threads, keeps_out_low
    out, lse, _ = attention_operators.attention(q, k, v, text, handle, *words, *score)
    del kept
    return (out, lse) if return_lse else out


# `numbers` is a score without its tensors, which follow if there are any.


def _forward(
    ctx: Any, q: Any, k: Any, v: Any, call: Any, numbers: Any = NO_SCORE, *tensors: Any
) -> Any:
    return _saved(ctx, q, k, v, call, numbers, tensors)[0]


def _forward_with_lse(
    ctx: Any, q: Any, k: Any, v: Any, call: Any, numbers: Any = NO_SCORE, *tensors: Any
) -> Any:
    ctx.set_materialize_grads(False)
    return _saved(ctx, q, k, v, call, numbers, tensors)


def _saved(
    ctx: Any,
    q: Any,
    k: Any,
    v: Any,
    call: CallArguments,
    numbers: ScoreArguments,
    tensors: tuple[Any, ...],
) -> Any:
    out_low, score, wanted = None, numbers, 0
    if tensors:
        score = numbers.with_tensors(tensors)
        wanted = wanted_of(ctx.needs_input_grad[5:])
    if needs_out_low(q, wanted):
        out, lse, out_low = forward_with_out_low(q, k, v, score, call)
    else:
        out, lse = forward(q, k, v, score, call, True)
    ctx.save_for_backward(q, k, v, *tensors, out, lse, out_low)
    ctx.of_call = call, numbers
    return out, lse


def _backward(ctx: Any, dout: Any, dlse: Any = None) -> Any:
    if dout is None and dlse is None:
        return (None,) * len(ctx.needs_input_grad)
    q, k, v, *tensors, out, lse, out_low = ctx.saved_tensors
    run: Any = _record_gradients if _is_grad_enabled() else _gradients
    if (
        _is_compiling()
        or (dout is not None and is_batched(dout))
        or (dlse is not None and is_batched(dlse))
    ):
        run = _gradients_by_operator
    wanted = wanted_of(ctx.needs_input_grad[5:]) if tensors else 0
    results = out, lse, out_low, dout, dlse
    call, numbers = ctx.of_call
    dq, dk, dv, *grads = run(q, k, v, *results, call, wanted, numbers, *tensors)
    if not tensors:
        return dq, dk, dv, None, None
    return dq, dk, dv, None, None, *inputs_order(*grads)


def _gradients(*arguments: Any) -> Any:
    q, k, v, out, lse, out_low, dout, dlse, call, wanted, numbers, *tensors = arguments
    score = numbers.with_tensors(tensors) if tensors else numbers
    return backward(q, k, v, score, out, lse, out_low, dout, dlse, call, wanted)


def _gradients_by_operator(*arguments: Any) -> Any:
    """The gradients by the operator, which compiled autograd can compile and vmap can call for each
    element of a batch.
    """
    q, k, v, out, lse, out_low, dout, dlse, call, wanted, numbers, *tensors = arguments
    mask, *words = call
    text, handle = (mask, 0) if isinstance(mask, str) else ("", mask._handle)
    given = q, k, v, out, lse, out_low
    score = numbers.with_tensors(tensors) if tensors else numbers
    return attention_operators.gradients(dout, dlse, *given, text, handle, *words, wanted, *score)


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    forward = staticmethod(_forward)
    backward = staticmethod(_backward)


class _AttentionWithLse(torch.autograd.Function):  # type: ignore[misc]
    forward = staticmethod(_forward_with_lse)
    backward = staticmethod(_backward)


class _RecordedGradients(torch.autograd.Function):  # type: ignore[misc]
    """The gradients if autograd records them (create_graph), when they require a gradient too."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        return _gradients(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        refuse_second_gradients("attention")


# Skips the check for transforms of torch.func, which plain calls do not have.
_apply = super(torch.autograd.Function, _Attention).apply
_apply_with_lse = super(torch.autograd.Function, _AttentionWithLse).apply
_record_gradients = super(torch.autograd.Function, _RecordedGradients).apply


def autocast(*tensors: Any) -> Any:
    """The tensors in the element type of autocast, if it is on."""
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x.to(dtype) if x.dtype in _CASTS else x for x in tensors)


def _named(
    mask: Any, q: Any, k: Any, v: Any, heads_first: bool, num_threads: int
) -> tuple[str, int, Any]:
    """A text or a number for the mask, and the object that must live until the end of the call."""
    if mask is None:
        return DENSE, 0, None
    if isinstance(mask, str):
        return mask, 0, None
    if isinstance(mask, MaskExpr):
        # An attribute in C++, which torch.compile reads as a guard: another text compiles anew.
        text = mask._node.table_free_text
        if text is not None:
            return text, 0, None
    if not isinstance(mask, BlockMask):
        if _is_compiling():
            if isinstance(mask, MaskExpr):
                raise NotImplementedError(
                    "mask: inside torch.compile an expression with tables is not bound; compile it "
                    "outside, fdma.compile(mask, q_len, kv_len), and hand the BlockMask in"
                )
            raise NotImplementedError(
                "mask: inside torch.compile a BlockMask (fdma.compile, outside), an expression "
                f"without tables or a text is needed, got {type(mask).__name__}"
            )
        mask = _resolved(mask, q, k, v, heads_first, threads_of_call(num_threads))
    if is_recorded():
        return text_of_handle(mask._handle), 0, None
    return "", mask._handle, mask


def _resolved(mask: Any, q: Any, k: Any, v: Any, heads_first: bool, num_threads: int) -> BlockMask:
    extents = extents_of(q, k, v, heads_first)
    counts = extents.batch, extents.heads, extents.q_len, extents.kv_len
    return block_mask(mask, *counts, num_threads, heads_first)
