"""dynamic_mask_attention with gradients: one call of the core for each pass.

On a GPU the backward call uses the selection of the forward call. On the CPU it selects once more,
which costs less than to store the selection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .. import _fdma
from .tensors import needs_out_low, new_gradient, new_outputs
from .torch_modes import (
    PLAIN,
    is_batched,
    refuse_recording,
    refuse_second_gradients,
    refuse_transforms,
)

__all__: list[str] = []


def is_plain(*tensors: Any) -> bool:
    """Whether tensors are of PyTorch's own type, and no call is traced, transformed or cast."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._is_any_autocast_enabled()
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(type(x) in PLAIN for x in tensors)
    )


def check_modes(*tensors: Any) -> None:
    """NotImplementedError by name for modes of PyTorch that `dynamic_mask_attention` lacks."""
    refuse_recording("dynamic_mask_attention")
    if torch.compiler.is_compiling():
        return
    refuse_transforms("dynamic_mask_attention", *tensors)
    for x in tensors:
        if isinstance(x, FakeTensor) or getattr(x, "is_meta", False):
            raise NotImplementedError(
                "dynamic_mask_attention: fake and meta tensors have no values to select keys by"
            )


def with_gradients(
    held: _fdma.DynamicMaskAttention,
    tensors: tuple[Any, Any, Any],
    dt_proj: Any,
    a_coef: Any,
    params: Any,
) -> Any:
    """(result, log-sum-exp) of a call object that was made with gradients."""
    return _Learned.apply(*tensors, dt_proj, a_coef, held, params)


def _forward(
    ctx: Any, q: Any, k: Any, v: Any, dt_proj: Any, a_coef: Any, held: Any, params: Any
) -> Any:
    heads_first = params.heads_first
    out, lse = new_outputs(q, k, v, heads_first)
    heads_kv, kv_len = (k.shape[1], k.shape[2]) if heads_first else (k.shape[2], k.shape[1])
    rows = q.shape[0], heads_kv, kv_len
    scores = torch.empty(rows, dtype=torch.float32, device=q.device)
    kept = None
    if held.device >= 0 and held.reading != "all":
        kept = torch.empty((*rows, 2), dtype=torch.int32, device=q.device)
    out_low = None
    if needs_out_low(q, params.bias != "none" and any(ctx.needs_input_grad[2:5])):
        out_low = torch.empty_like(out)
    held.run(
        *(_readable(x, heads_first) for x in (q, k, v)),
        dt_proj.detach().contiguous(),
        a_coef.detach().contiguous(),
        softmax_scale=params.softmax_scale,
        num_threads=params.num_threads,
        out=_lengths_first(out, heads_first),
        lse=lse,
        scores_out=scores,
        kept_out=kept,
        out_low=None if out_low is None else _lengths_first(out_low, heads_first),
    )
    ctx.save_for_backward(q, k, v, dt_proj, a_coef, scores, kept, out, lse, out_low)
    ctx.held, ctx.params = held, params
    ctx.set_materialize_grads(False)
    return out, lse


def _backward(ctx: Any, dout: Any, dlse: Any) -> Any:
    if dout is None and dlse is None:
        return (None,) * 7
    if any(x is not None and is_batched(x) for x in (dout, dlse)):
        raise NotImplementedError(
            "dynamic_mask_attention: no batches of gradients (is_grads_batched, vectorize); ask "
            "for them one by one"
        )
    tensors = *ctx.saved_tensors, dout, dlse
    run: Any = _Gradients.apply if torch.is_grad_enabled() else _gradients
    return *run(*tensors, ctx.held, ctx.params, ctx.needs_input_grad[2:5]), None, None


def _gradients(
    q: Any,
    k: Any,
    v: Any,
    dt_proj: Any,
    a_coef: Any,
    scores: Any,
    kept: Any,
    out: Any,
    lse: Any,
    out_low: Any,
    dout: Any,
    dlse: Any,
    held: Any,
    params: Any,
    wants: Any,
) -> Any:
    """The gradients of q, k, v, dt_proj and a_coef.

    wants: whether the gradients of v, dt_proj and a_coef are needed. Sums have a fixed order if the
    call is deterministic or torch.use_deterministic_algorithms is on.
    """
    refuse_transforms("gradients of dynamic_mask_attention", dout, dlse, q, k, v, dt_proj, a_coef)
    deterministic = params.deterministic or torch.are_deterministic_algorithms_enabled()
    heads_first = params.heads_first
    if dout is None:
        dout = torch.zeros_like(out)
    has_scores = params.bias != "none" and any(wants)
    grads = [new_gradient(x, heads_first) for x in (q, k, v)]
    of_scores = [
        torch.empty_like(x, memory_format=torch.contiguous_format) if is_wanted else None
        for x, is_wanted in zip((dt_proj, a_coef), wants[1:], strict=True)
    ]
    num_bytes = held.backward_workspace_nbytes
    if deterministic:
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
        softmax_scale=params.softmax_scale,
        num_threads=params.num_threads,
        deterministic=deterministic,
        workspace=workspace,
        out_low=None if out_low is None else _lengths_first(out_low, heads_first),
    )
    if not has_scores:
        of_scores = [None, None]
    return *grads, *of_scores


class _Learned(torch.autograd.Function):  # type: ignore[misc]
    forward = staticmethod(_forward)
    backward = staticmethod(_backward)


class _Gradients(torch.autograd.Function):  # type: ignore[misc]
    """The gradients if autograd records them (create_graph), when they require a gradient too."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        return _gradients(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        refuse_second_gradients("dynamic_mask_attention")


def _lengths_first(x: Any, heads_first: bool) -> Any:
    return x.detach().transpose(1, 2) if heads_first else x.detach()


def _readable(x: Any, heads_first: bool) -> Any:
    """The tensor with lengths before heads; a copy if a kernel cannot read its strides."""
    x = _lengths_first(x, heads_first)
    strides = x.stride()
    is_aligned = all(n % 8 == 0 for n in strides[:-1]) and x.data_ptr() % 16 == 0
    if strides[-1] == 1 and (is_aligned or not x.is_cuda):
        return x
    return x.clone(memory_format=torch.contiguous_format)
