"""The operators of PyTorch behind `fdma.attention`: what torch.compile, export and modes see.

    fdma::attention(Tensor q, Tensor k, Tensor v, Tensor? bias, str text, SymInt mask, float scale,
                    bool heads_first, bool deterministic, bool keeps_residual)
                    -> (Tensor, Tensor, Tensor)
    fdma::attention_backward(Tensor? dout, Tensor? dlse, .., bool wants_bias)
                    -> (Tensor, Tensor, Tensor, Tensor)

The mask is a text, or the number of a BlockMask (`mask_handles`) beside an empty text: a number
that changes from step to step is no reason to compile a graph again.
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

__all__: list[str] = []


def _call(text: str, mask: int, scale: float, heads_first: bool, deterministic: bool) -> Call:
    return Call(text if text else mask_of_handle(mask), scale, heads_first, deterministic)


# `rest` are the words after the tensors, in the order of the schemas below. An operator returns
# tensors: empty ones in place of a residual or a gradient of a bias that is not there.


def _run_forward(q: Any, k: Any, v: Any, bias: Any, *rest: Any) -> Any:
    *words, keeps_residual = rest
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
    *tensors, text, handle, scale, heads_first, deterministic, _ = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[2])
    ctx.rest = text, handle, scale, heads_first, deterministic
    ctx.set_materialize_grads(False)
    ctx.mask = mask_of_handle(handle) if not text and type(handle) is int else None


def _backward(ctx: Any, dout: Any, dlse: Any, _: Any) -> Any:
    none = (None,) * 6
    if dout is None and dlse is None:
        return None, None, None, None, *none
    wants_bias = ctx.saved_tensors[3] is not None and ctx.needs_input_grad[3]
    dq, dk, dv, dbias = attention_backward(dout, dlse, *ctx.saved_tensors, *ctx.rest, wants_bias)
    return dq, dk, dv, dbias if wants_bias else None, *none


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
