"""The operators of PyTorch behind `fdma.attention`: what torch.compile, export and modes see.

    fdma::attention(Tensor q, Tensor k, Tensor v, Tensor? bias, str text, SymInt mask, float scale,
                    bool heads_first, bool deterministic) -> (Tensor, Tensor)
    fdma::attention_backward(Tensor? dout, Tensor? dlse, .., bool wants_bias)
                    -> (Tensor, Tensor, Tensor, Tensor)

The mask is a text, or the number of a BlockMask (`mask_handles`) beside an empty text: a number
that changes from step to step is no reason to compile a graph again.
"""

from __future__ import annotations

from typing import Any

import torch

from .attention_tensors import Call, backward, forward, new_gradient, new_outputs
from .mask_handles import mask_of_handle

__all__: list[str] = []


def _call(text: str, mask: int, scale: float, heads_first: bool, deterministic: bool) -> Call:
    return Call(text if text else mask_of_handle(mask), scale, heads_first, deterministic)


# `rest` are the words after the tensors, in the order of the schemas below.


def _run_forward(q: Any, k: Any, v: Any, bias: Any, *rest: Any) -> Any:
    return forward(q, k, v, bias, _call(*rest), True)


def _describe_forward(q: Any, k: Any, v: Any, bias: Any, *rest: Any) -> Any:
    return new_outputs(q, k, v, heads_first=rest[3])


def _run_backward(dout: Any, dlse: Any, *others: Any) -> Any:
    q, k, v, bias, out, lse = others[:6]
    *rest, wants_bias = others[6:]
    grads = backward(q, k, v, bias, out, lse, dout, dlse, _call(*rest), wants_bias)
    # An operator returns tensors: an empty one where there is no bias.
    return *grads[:3], q.new_empty(0) if grads[3] is None else grads[3]


def _describe_backward(dout: Any, dlse: Any, *others: Any) -> Any:
    q, k, v, bias = others[:4]
    heads_first, wants_bias = others[9], others[11]
    dbias = torch.empty(bias.shape, dtype=bias.dtype, device=q.device) if wants_bias else None
    grads = (new_gradient(x, heads_first) for x in (q, k, v))
    return *grads, q.new_empty(0) if dbias is None else dbias


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, bias, *rest = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, bias, out, lse)
    ctx.rest = rest
    ctx.set_materialize_grads(False)
    text, handle = rest[:2]
    ctx.mask = mask_of_handle(handle) if not text and type(handle) is int else None


def _backward(ctx: Any, dout: Any, dlse: Any) -> Any:
    none = (None,) * 5
    if dout is None and dlse is None:
        return None, None, None, None, *none
    q, k, v, bias, out, lse = ctx.saved_tensors
    wants_bias = bias is not None and ctx.needs_input_grad[3]
    dq, dk, dv, dbias = attention_backward(
        dout, dlse, q, k, v, bias, out, lse, *ctx.rest, wants_bias
    )
    return dq, dk, dv, dbias if wants_bias else None, *none


attention = torch.library.custom_op(
    "fdma::attention",
    _run_forward,
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? bias, str text, SymInt mask, float scale, "
    "bool heads_first, bool deterministic) -> (Tensor, Tensor)",
)
attention_backward = torch.library.custom_op(
    "fdma::attention_backward",
    _run_backward,
    mutates_args=(),
    schema="(Tensor? dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, "
    "Tensor lse, str text, SymInt mask, float scale, bool heads_first, bool deterministic, "
    "bool wants_bias) -> (Tensor, Tensor, Tensor, Tensor)",
)
attention.register_fake(_describe_forward)
attention_backward.register_fake(_describe_backward)
attention.register_autograd(_backward, setup_context=_setup_context)
