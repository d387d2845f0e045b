"""The operators of PyTorch behind `fdma.attention`: what torch.compile, export and modes see.

    fdma::attention(Tensor q, Tensor k, Tensor v, Tensor? bias, str text, SymInt mask, float scale,
                    bool heads_first, bool deterministic, bool keeps_out_low,
                    int num_threads=-1, float softcap=0.0) -> (Tensor, Tensor, Tensor)
    fdma::attention_backward(Tensor? dout, Tensor? dlse, .., bool wants_bias, int num_threads=-1,
                    float softcap=0.0) -> (Tensor, Tensor, Tensor, Tensor)

The mask is a text, or an empty text and the number of a BlockMask (masks/handles.py). A number that
changes from step to step does not make torch.compile compile a graph again. In a program that is
recorded to run elsewhere, the text holds the BlockMask itself (masks/mask_text.py). num_threads -1
means the value of torch.get_num_threads() at run time.
"""

from __future__ import annotations

from typing import Any

import torch

from ..masks.handles import mask_of_handle
from ..masks.mask_text import is_mask_text, mask_of_text
from .tensors import (
    CallArguments,
    backward,
    forward,
    forward_with_out_low,
    new_gradient,
    new_outputs,
    threads_of_call,
)
from .threads import NOT_SAID
from .torch_modes import refuse_second_gradients, refuse_transforms

__all__: list[str] = []


def _call(
    text: str,
    number: int,
    scale: float,
    heads_first: bool,
    deterministic: bool,
    num_threads: int,
    softcap: float,
) -> CallArguments:
    mask: Any = text
    if not text:
        mask = mask_of_handle(number)
    elif is_mask_text(text):
        mask = mask_of_text(text)
    threads = threads_of_call(num_threads)
    return CallArguments(mask, scale, heads_first, deterministic, threads, softcap)


# `rest` are the arguments after the tensors, in the order of the schemas below. An operator returns
# only tensors, so an empty tensor stands for a missing out_low or bias gradient. PyTorch omits
# last arguments that have their default values, which are those of _LAST.
_LAST = NOT_SAID, 0.0


def _filled(given: Any, count: int) -> Any:
    """The arguments, `count` of them, with those that PyTorch omitted."""
    return (*given, *_LAST[len(_LAST) - (count - len(given)) :])


def _run_forward(q: Any, k: Any, v: Any, bias: Any, *rest: Any) -> Any:
    *words, keeps_out_low, num_threads, softcap = _filled(rest, 8)
    refuse_transforms("attention", q, k, v, bias)
    call = _call(*[*words, num_threads, softcap])
    if keeps_out_low:
        return forward_with_out_low(q, k, v, bias, call)
    return *forward(q, k, v, bias, call, True), q.new_empty(0)


def _describe_forward(q: Any, k: Any, v: Any, bias: Any, *rest: Any) -> Any:
    out, lse = new_outputs(q, k, v, heads_first=rest[3])
    return out, lse, torch.empty_like(out) if rest[5] else q.new_empty(0)


def _run_backward(dout: Any, dlse: Any, *others: Any) -> Any:
    q, k, v, bias, out, lse, out_low = others[:7]
    *words, wants_bias, num_threads, softcap = _filled(others[7:], 8)
    kept = None if out_low.numel() == 0 else out_low
    call = _call(*[*words, num_threads, softcap])
    grads = backward(q, k, v, bias, out, lse, kept, dout, dlse, call, wants_bias)
    return *grads[:3], q.new_empty(0) if grads[3] is None else grads[3]


def _describe_backward(dout: Any, dlse: Any, *others: Any) -> Any:
    q, k, v, bias = others[:4]
    heads_first, wants_bias = others[10], others[12]
    dbias = torch.empty(bias.shape, dtype=bias.dtype, device=q.device) if wants_bias else None
    grads = (new_gradient(x, heads_first) for x in (q, k, v))
    return *grads, q.new_empty(0) if dbias is None else dbias


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *given, keeps_out_low, num_threads, softcap = _filled(inputs, 12)
    *tensors, text, handle, scale, heads_first, deterministic = given
    out, lse, out_low = output
    # pytorch.py saves the same number of tensors: a checkpoint may run a call again on either path.
    ctx.save_for_backward(*tensors, out, lse, out_low if keeps_out_low else None)
    ctx.mark_non_differentiable(out_low)
    ctx.last = num_threads, softcap
    ctx.rest = text, handle, scale, heads_first, deterministic
    ctx.set_materialize_grads(False)
    ctx.mask = mask_of_handle(handle) if not text and type(handle) is int else None


def _backward(ctx: Any, dout: Any, dlse: Any, _: Any) -> Any:
    none = (None,) * 8
    if dout is None and dlse is None:
        return None, None, None, None, *none
    tensors = ctx.saved_tensors  # read once, because checkpoints return them only once
    wants_bias = tensors[3] is not None and ctx.needs_input_grad[3]
    return *gradients(*tensors, dout, dlse, *ctx.rest, wants_bias, *ctx.last), *none


def gradients(*arguments: Any) -> Any:
    """Returns (dq, dk, dv, dbias or None) of the operator. The tensors are those of `backward` in
    attention/tensors.py; the arguments of the operator's schema take the place of the call.
    """
    *tensors, out_low, dout, dlse = arguments[:9]
    words = arguments[9:]
    wants_bias = words[-3]
    out_low = tensors[0].new_empty(0) if out_low is None else out_low
    dq, dk, dv, dbias = attention_backward(dout, dlse, *tensors, out_low, *words)
    return dq, dk, dv, dbias if wants_bias else None


def _backward_of_backward(ctx: Any, *_: Any) -> Any:
    refuse_second_gradients("attention")


attention = torch.library.custom_op(
    "fdma::attention",
    _run_forward,
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? bias, str text, SymInt mask, float scale, "
    "bool heads_first, bool deterministic, bool keeps_out_low, int num_threads=-1, "
    "float softcap=0.0) "
    "-> (Tensor, Tensor, Tensor)",
)
attention_backward = torch.library.custom_op(
    "fdma::attention_backward",
    _run_backward,
    mutates_args=(),
    schema="(Tensor? dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, "
    "Tensor lse, Tensor residual, str text, SymInt mask, float scale, bool heads_first, "
    "bool deterministic, bool wants_bias, int num_threads=-1, float softcap=0.0) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
attention.register_fake(_describe_forward)
attention_backward.register_fake(_describe_backward)
attention.register_autograd(_backward, setup_context=_setup_context)
attention_backward.register_autograd(_backward_of_backward)
