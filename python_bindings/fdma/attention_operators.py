"""The operators of PyTorch behind `fdma.attention`: what torch.compile, export and modes see.

    fdma::attention(Tensor q, Tensor k, Tensor v, Tensor? bias, str text, SymInt mask, float scale,
                    bool heads_first, bool deterministic, bool keeps_residual)
                    -> (Tensor, Tensor, Tensor)
    fdma::attention_backward(Tensor? dout, Tensor? dlse, .., bool wants_bias)
                    -> (Tensor, Tensor, Tensor, Tensor)

The mask is a text, or the number of a BlockMask (`mask_handles`) beside an empty text: a number
that changes from step to step is no reason to compile a graph again. In a program that is recorded
to run elsewhere the text holds the BlockMask itself (`mask_text`).
"""

from __future__ import annotations

from typing import Any

import torch

from .attention_tensors import (
    Call,
    backward,
    forward,
    forward_with_residual,
    new_gradient,
    new_outputs,
)
from .mask_handles import mask_of_handle
from .mask_text import is_mask_text, mask_of_text
from .torch_modes import refuse_second_gradients, refuse_transforms

__all__: list[str] = []


def _call(text: str, number: int, scale: float, heads_first: bool, deterministic: bool) -> Call:
    mask: Any = text
    if not text:
        mask = mask_of_handle(number)
    elif is_mask_text(text):
        mask = mask_of_text(text)
    return Call(mask, scale, heads_first, deterministic)


# `rest` are the words after the tensors, in the order of the schemas below. An operator returns
# tensors: empty ones in place of a residual or a gradient of a bias that is not there.


def _run_forward(q: Any, k: Any, v: Any, bias: Any, *rest: Any) -> Any:
    *words, keeps_residual = rest
    refuse_transforms("attention", q, k, v, bias)
    if keeps_residual:
        return forward_with_residual(q, k, v, bias, _call(*words))
    return *forward(q, k, v, bias, _call(*words), True), q.new_empty(0)


def _describe_forward(q: Any, k: Any, v: Any, bias: Any, *rest: Any) -> Any:
    out, lse = new_outputs(q, k, v, heads_first=rest[3])
    return out, lse, torch.empty_like(out) if rest[5] else q.new_empty(0)


def _run_backward(dout: Any, dlse: Any, *others: Any) -> Any:
    q, k, v, bias, out, lse, residual = others[:7]
    *rest, wants_bias = others[7:]
    kept = None if residual.numel() == 0 else residual
    grads = backward(q, k, v, bias, out, lse, kept, dout, dlse, _call(*rest), wants_bias)
    return *grads[:3], q.new_empty(0) if grads[3] is None else grads[3]


def _describe_backward(dout: Any, dlse: Any, *others: Any) -> Any:
    q, k, v, bias = others[:4]
    heads_first, wants_bias = others[10], others[12]
    dbias = torch.empty(bias.shape, dtype=bias.dtype, device=q.device) if wants_bias else None
    grads = (new_gradient(x, heads_first) for x in (q, k, v))
    return *grads, q.new_empty(0) if dbias is None else dbias


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, text, handle, scale, heads_first, deterministic, keeps_residual = inputs
    out, lse, residual = output
    # As many tensors as `attention_torch` saves: a checkpoint may run a call again on that way.
    ctx.save_for_backward(*tensors, out, lse, residual if keeps_residual else None)
    ctx.mark_non_differentiable(residual)
    ctx.rest = text, handle, scale, heads_first, deterministic
    ctx.set_materialize_grads(False)
    ctx.mask = mask_of_handle(handle) if not text and type(handle) is int else None


def _backward(ctx: Any, dout: Any, dlse: Any, _: Any) -> Any:
    none = (None,) * 6
    if dout is None and dlse is None:
        return None, None, None, None, *none
    tensors = ctx.saved_tensors  # once: checkpoints give them once
    wants_bias = tensors[3] is not None and ctx.needs_input_grad[3]
    return *gradients(*tensors, dout, dlse, *ctx.rest, wants_bias), *none


def gradients(*arguments: Any) -> Any:
    """(dq, dk, dv, dbias or None) by the operator; arguments as `attention_tensors.backward` has
    them, the words of the schema in place of the call.
    """
    *tensors, residual, dout, dlse = arguments[:9]
    *words, wants_bias = arguments[9:]
    residual = tensors[0].new_empty(0) if residual is None else residual
    dq, dk, dv, dbias = attention_backward(dout, dlse, *tensors, residual, *words, wants_bias)
    return dq, dk, dv, dbias if wants_bias else None


def _backward_of_backward(ctx: Any, *_: Any) -> Any:
    refuse_second_gradients("attention")


attention = torch.library.custom_op(
    "fdma::attention",
    _run_forward,
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? bias, str text, SymInt mask, float scale, "
    "bool heads_first, bool deterministic, bool keeps_residual) -> (Tensor, Tensor, Tensor)",
)
attention_backward = torch.library.custom_op(
    "fdma::attention_backward",
    _run_backward,
    mutates_args=(),
    schema="(Tensor? dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, "
    "Tensor lse, Tensor residual, str text, SymInt mask, float scale, bool heads_first, "
    "bool deterministic, bool wants_bias) -> (Tensor, Tensor, Tensor, Tensor)",
)
attention.register_fake(_describe_forward)
attention_backward.register_fake(_describe_backward)
attention.register_autograd(_backward, setup_context=_setup_context)
attention_backward.register_autograd(_backward_of_backward)
