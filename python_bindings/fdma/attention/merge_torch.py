"""merge on tensors of PyTorch, by the operator

    fdma::merge(Tensor[] outs, Tensor[] lses, Tensor? sinks, bool heads_first,
                int num_threads) -> (Tensor, Tensor)

Its gradients are PyTorch's own operators: they are as bound by memory as merge itself. For a row
with w_i = exp(lse_i - lse) and s = sigmoid(lse - sink)

    d out_i = s w_i dout
    d lse_i = w_i (s (out_i - out) dout + dlse)
    d sink  = -(1 - s) out dout

A plain call goes to the core directly, or through an autograd function if a gradient is needed,
which saves the time of the operator.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _fdma
from .merge_arguments import check_shapes
from .tensor_layouts import refuse_layouts
from .tensors import threads_of_call
from .threads import NOT_SAID, checked_num_threads
from .torch_modes import are_plain, is_plain, refuse_transforms

__all__: list[str] = []


def merge(
    pairs: list[tuple[Any, Any]], sinks: Any, heads_first: bool, num_threads: int | None
) -> Any:
    """`fdma.merge` for tensors."""
    said = NOT_SAID if num_threads is None else checked_num_threads(num_threads)
    outs, lses = [out for out, _ in pairs], [lse for _, lse in pairs]
    _check(outs, lses, sinks)
    check_shapes(pairs, sinks, heads_first)
    if sinks is not None:
        sinks = sinks.to(torch.float32)
    tensors = [*outs, *lses] if sinks is None else [*outs, *lses, sinks]
    if torch.compiler.is_compiling():
        return operator(outs, lses, sinks, heads_first, said)
    if is_plain(outs[0], lses[0], lses[0]) and are_plain(*tensors):
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return _Merge.apply(len(outs), heads_first, said, sinks, *outs, *lses)
        return _run(outs, lses, sinks, heads_first, said)
    refuse_transforms("merge", *tensors)
    return operator(outs, lses, sinks, heads_first, said)


def _check(outs: list[Any], lses: list[Any], sinks: Any) -> None:
    named = [(f"parts[{i}] out", x) for i, x in enumerate(outs)]
    named += [(f"parts[{i}] lse", x) for i, x in enumerate(lses)]
    if sinks is not None:
        named.append(("sinks", sinks))
    for name, x in named:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor of PyTorch, got {type(x).__name__}")
        refuse_layouts(**{name: x})
        if x.device != outs[0].device:
            raise ValueError(
                f"{name}: expected a tensor on {outs[0].device}, as parts[0] out, got {x.device}"
            )


def _run(outs: Any, lses: Any, sinks: Any, heads_first: bool, num_threads: int) -> Any:
    refuse_transforms("merge", *outs, *lses, sinks)
    out, lse = _new_results(outs, lses)
    written = out
    if out.numel() == 0:
        return out, lse.fill_(-torch.inf)
    outs = [x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous() for x in outs]
    if heads_first:
        written, outs = out.transpose(1, 2), [x.transpose(1, 2) for x in outs]
    threads = threads_of_call(num_threads)
    parts = list(zip(outs, lses, strict=True))
    _fdma.merge(parts, sinks=sinks, out=written, lse=lse, num_threads=threads)
    return out, lse


def _new_results(outs: Any, lses: Any) -> Any:
    """Memory for out, in the order of the first part or contiguous, and for lse."""
    is_dense = outs[0].is_contiguous() or outs[0].transpose(1, 2).is_contiguous()
    form = torch.preserve_format if is_dense else torch.contiguous_format
    return (
        torch.empty_like(outs[0], memory_format=form),
        torch.empty_like(lses[0], memory_format=torch.contiguous_format),
    )


def _describe(outs: Any, lses: Any, sinks: Any, heads_first: bool, num_threads: int) -> Any:
    return _new_results(outs, lses)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    outs, lses, sinks, heads_first = inputs[:4]
    ctx.num_parts = len(outs)
    ctx.heads_first = heads_first
    ctx.save_for_backward(*outs, *lses, sinks, *output)


def _backward(ctx: Any, dout: Any, dlse: Any) -> Any:
    *parts, sinks, out, lse = ctx.saved_tensors
    outs, lses = parts[: ctx.num_parts], parts[ctx.num_parts :]

    def per_row(x: Any) -> Any:
        """The sum over columns, [batch, heads, q_len]."""
        rows = x.sum(-1)
        return rows if ctx.heads_first else rows.transpose(1, 2)

    def columns(rows: Any) -> Any:
        return (rows if ctx.heads_first else rows.transpose(1, 2))[..., None]

    has_keys = lse != -torch.inf
    steady = lse.masked_fill(~has_keys, 0)
    kept = has_keys.to(torch.float32)
    if sinks is not None:
        full = sinks[:, None] if sinks.dim() == 1 else sinks
        kept = kept * torch.sigmoid(steady - full)
    wide = dout.to(torch.float32)
    dot = per_row(wide * out.to(torch.float32))
    douts, dlses = [], []
    for part_out, part_lse in zip(outs, lses, strict=True):
        weight = torch.exp(part_lse - steady)
        douts.append((wide * columns(kept * weight)).to(part_out.dtype))
        # A part without keys may hold anything, NaN included.
        read = part_out.to(torch.float32).masked_fill(columns(part_lse == -torch.inf), 0)
        dlses.append(weight * (kept * (per_row(wide * read) - dot) + dlse))
    dsinks = None
    if sinks is not None:
        dsinks = -(1 - kept) * dot
        if sinks.dim() == 1:
            dsinks = dsinks.sum((0, 2))
    return douts, dlses, dsinks, None, None


class _Merge(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, num_parts: int, heads_first: bool, num_threads: int, sinks: Any, *tensors: Any
    ) -> Any:
        outs, lses = tensors[:num_parts], tensors[num_parts:]
        results = _run(outs, lses, sinks, heads_first, num_threads)
        _setup_context(ctx, (outs, lses, sinks, heads_first), results)
        return results

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        douts, dlses, dsinks, *_ = _backward(ctx, dout, dlse)
        return None, None, None, dsinks, *douts, *dlses


operator = torch.library.custom_op(
    "fdma::merge",
    _run,
    mutates_args=(),
    schema="(Tensor[] outs, Tensor[] lses, Tensor? sinks, bool heads_first, int num_threads) "
    "-> (Tensor, Tensor)",
)
operator.register_fake(_describe)
operator.register_autograd(_backward, setup_context=_setup_context)
