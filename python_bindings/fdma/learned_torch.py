"""dynamic_mask_attention with gradients: one call of the core for each pass.

The backward call takes the selection as the forward call has left it on a GPU; on the CPU it
selects once more, which costs less than to keep what was selected.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _fdma
from .attention_shapes import checked_scale
from .attention_tensors import needs_residual, new_gradient, new_outputs

__all__: list[str] = []

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_plain(*tensors: Any) -> bool:
    """Whether tensors are what they seem, and nothing is traced, transformed or cast."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._is_any_autocast_enabled()
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(type(x) in _PLAIN for x in tensors)
    )


def with_gradients(
    held: _fdma.DynamicMaskAttention,
    tensors: tuple[Any, Any, Any],
    dt_proj: Any,
    a_coef: Any,
    asked: Any,
) -> Any:
    """(result, log-sum-exp) of an object that was made with gradients."""
    return _Learned.apply(*tensors, dt_proj, a_coef, held, asked)


def _forward(
    ctx: Any, q: Any, k: Any, v: Any, dt_proj: Any, a_coef: Any, held: Any, asked: Any
) -> Any:
    heads_first = asked.heads_first
    out, lse = new_outputs(q, k, v, heads_first)
    heads_kv, kv_len = (k.shape[1], k.shape[2]) if heads_first else (k.shape[2], k.shape[1])
    rows = q.shape[0], heads_kv, kv_len
    scores = torch.empty(rows, dtype=torch.float32, device=q.device)
    kept = None
    if held.device >= 0 and held.reading != "all":
        kept = torch.empty((*rows, 2), dtype=torch.int32, device=q.device)
    residual = None
    if needs_residual(q, asked.bias != "none" and any(ctx.needs_input_grad[2:5])):
        residual = torch.empty_like(out)
    held.run(
        *(_readable(x, heads_first) for x in (q, k, v)),
        dt_proj.detach().contiguous(),
        a_coef.detach().contiguous(),
        softmax_scale=checked_scale(asked.scale) or None,
        out=_lengths_first(out, heads_first),
        lse=lse,
        scores_out=scores,
        kept_out=kept,
        out_residual=None if residual is None else _lengths_first(residual, heads_first),
    )
    ctx.save_for_backward(q, k, v, dt_proj, a_coef, scores, kept, out, lse, residual)
    ctx.held, ctx.asked = held, asked
    ctx.set_materialize_grads(False)
    return out, lse


def _backward(ctx: Any, dout: Any, dlse: Any) -> Any:
    if dout is None and dlse is None:
        return (None,) * 7
    q, k, v, dt_proj, a_coef, scores, kept, out, lse, residual = ctx.saved_tensors
    held, asked = ctx.held, ctx.asked
    heads_first = asked.heads_first
    if dout is None:
        dout = torch.zeros_like(out)
    has_scores = asked.bias != "none" and any(ctx.needs_input_grad[2:5])
    grads = [new_gradient(x, heads_first) for x in (q, k, v)]
    of_scores = [
        torch.empty_like(x, memory_format=torch.contiguous_format) if is_wanted else None
        for x, is_wanted in zip((dt_proj, a_coef), ctx.needs_input_grad[3:5], strict=True)
    ]
    num_bytes = held.backward_workspace_nbytes
    if asked.deterministic:
        num_bytes = held.deterministic_workspace_nbytes
    workspace = q.new_empty(num_bytes, dtype=torch.uint8) if num_bytes else None
    held.backward(
        *(_readable(x, heads_first) for x in (q, k, v)),
        *(x.detach().contiguous() if has_scores else None for x in (dt_proj, a_coef)),
        scores,
        kept,
        _lengths_first(out, heads_first),
        lse.detach(),
        _readable(dout, heads_first),
        None if dlse is None else dlse.detach(),
        *(_lengths_first(x, heads_first) for x in grads),
        ddt_proj=of_scores[0] if has_scores else None,
        da_coef=of_scores[1] if has_scores else None,
        softmax_scale=checked_scale(asked.scale) or None,
        deterministic=asked.deterministic,
        workspace=workspace,
        out_residual=None if residual is None else _lengths_first(residual, heads_first),
    )
    if not has_scores:
        of_scores = [None, None]
    return *grads, *of_scores, None, None


class _Learned(torch.autograd.Function):  # type: ignore[misc]
    forward = staticmethod(_forward)
    backward = staticmethod(torch.autograd.function.once_differentiable(_backward))


def _lengths_first(x: Any, heads_first: bool) -> Any:
    return x.detach().transpose(1, 2) if heads_first else x.detach()


def _readable(x: Any, heads_first: bool) -> Any:
    """The tensor, lengths before heads; a copy where a kernel does not take it as it lies."""
    x = _lengths_first(x, heads_first)
    strides = x.stride()
    is_aligned = all(n % 8 == 0 for n in strides[:-1]) and x.data_ptr() % 16 == 0
    if strides[-1] == 1 and (is_aligned or not x.is_cuda):
        return x
    return x.clone(memory_format=torch.contiguous_format)
