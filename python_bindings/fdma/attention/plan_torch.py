"""Runs of plan objects on tensors of PyTorch that `fdma.attention` has no words for.

A run into memory that the caller gives has no gradients. A run of a closed-form plan has them, with
the lengths and documents of that run: they are saved with its tensors, so that each backward pass
computes with those of its own forward pass, and one that was written to in between is an error of
autograd. Second gradients are an error by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch

from .. import _fdma
from .pytorch import autocast, requires_gradient
from .score import (
    GIVEN_TENSORS,
    NO_SCORE,
    NUM_TENSORS,
    GivenScore,
    ScoreArguments,
    inputs_order,
    wanted_of,
)
from .score_torch import score_of
from .tensors import (
    CallArguments,
    backward,
    is_readable,
    needs_out_low,
    new_outputs,
    run_forward,
    threads_of_call,
)
from .threads import NOT_SAID, checked_num_threads
from .torch_modes import are_plain, is_batched, is_plain, refuse_second_gradients

__all__: list[str] = []

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled


class _Run(NamedTuple):
    """What a run of a closed-form plan has besides its tensors."""

    plan: Any
    planned_backward: Callable[[bool, int], Any]
    """The plan of the gradients, by deterministic and num_threads."""
    call: CallArguments


def run_plan(
    plan: Any,
    q: Any,
    k: Any,
    v: Any,
    score: GivenScore | None,
    *,
    mask: Any,
    heads_first: bool,
    is_short: bool,
    out: Any,
    lse: Any,
    softmax_scale: float | None,
    deterministic: bool,
    num_threads: int | None,
    planned_backward: Callable[[bool, int], Any],
    **lengths: Any,
) -> Any:
    """(result, log-sum-exp) of a plan that was looked up before, written to out and lse where they
    are given. lengths: q_lens, kv_lens and cu_seqlens of a run of a closed-form plan. is_short:
    rows may lie past lengths; they are set.
    """
    if _is_compiling():
        _refuse_modes()
    said = NOT_SAID if num_threads is None else checked_num_threads(num_threads)
    given = {"q": q, "k": k, "v": v, "out": out, "lse": lse, **lengths}
    if score is not None:
        given.update(zip(GIVEN_TENSORS, score.tensors(), strict=True))
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    if not (is_plain(q, k, v) and are_plain(*tensors.values())):
        _refuse_modes()
    into_given = out is not None or lse is not None
    for name, x in tensors.items():
        if into_given and x.requires_grad and _is_grad_enabled():
            raise NotImplementedError(
                f"{name}: runs into given memory (out, lse) have no gradients, but it requires "
                "one; call it without out and lse, or under torch.no_grad()"
            )
        if x.device != q.device:
            raise ValueError(f"{name}: expected a tensor on {q.device}, as q, got {x.device}")
    q, k, v = autocast(q, k, v)
    checked = NO_SCORE
    if score is not None:
        checked = score_of(score, q, k, v, heads_first)
    threads = threads_of_call(said)
    if into_given:
        words = {"softmax_scale": softmax_scale, "num_threads": threads, **lengths}
        return _run_into(plan, q, k, v, checked, heads_first, is_short, out, lse, words)
    scale = softmax_scale or 0.0
    call = CallArguments(mask, scale, heads_first, deterministic, threads)
    run = _Run(plan, planned_backward, call)
    of_run = (lengths.get("q_lens"), lengths.get("kv_lens"), lengths.get("cu_seqlens"))
    if _is_grad_enabled() and (
        any(x.requires_grad for x in (q, k, v)) or requires_gradient(checked)
    ):
        return _ClosedForm.apply(q, k, v, *checked.tensors, *of_run, run, checked.numbers)
    return _results(q, k, v, checked, of_run, run, False)[:2]


def _refuse_modes() -> NoReturn:
    raise NotImplementedError(
        "out, lse, closed_form: runs into given memory and runs in closed form are there for plain "
        "tensors alone, outside torch.compile and modes that rewrite or record calls"
    )


def _run_into(
    plan: Any,
    q: Any,
    k: Any,
    v: Any,
    score: ScoreArguments,
    heads_first: bool,
    is_short: bool,
    out: Any,
    lse: Any,
    words: dict[str, Any],
) -> Any:
    made = new_outputs(q, k, v, heads_first)
    out, lse = made[0] if out is None else out, made[1] if lse is None else lse
    is_empty = q.numel() == 0 or k.numel() == 0 or v.numel() == 0
    if is_short or is_empty:
        out.zero_()
        lse.fill_(-torch.inf)
    if is_empty:
        return out, lse
    q, k, v = (x.detach() if is_readable(x) else _copy(x) for x in (q, k, v))
    tensors = (None if x is None else _rows(x.detach()) for x in score.tensors)
    score = score.with_tensors(tensors)
    into = out
    if heads_first:
        q, k, v, into = (x.transpose(1, 2) for x in (q, k, v, out))
    _fdma.attention(q, k, v, plan, score=score, out=into, lse=lse, **words)
    return out, lse


def _rows(x: Any) -> Any:
    return x if x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)


def _copy(x: Any) -> Any:
    return x.detach().clone(memory_format=torch.contiguous_format)


def _results(
    q: Any,
    k: Any,
    v: Any,
    score: ScoreArguments,
    lengths: Any,
    run: _Run,
    wants_out_low: bool,
) -> Any:
    """(result, log-sum-exp, the low half of the result or None)."""
    out, lse = new_outputs(q, k, v, run.call.heads_first)
    out_low = torch.empty_like(out) if wants_out_low else None
    if q.numel() == 0 or k.numel() == 0 or v.numel() == 0:
        return out.zero_(), lse.fill_(-torch.inf), None if out_low is None else out_low.zero_()
    run_forward(run.plan, q, k, v, score, out, lse, run.call, out_low, lengths)
    return out, lse, out_low


def _forward(ctx: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    *tensors, run, numbers = rest
    score, lengths = ScoreArguments(*tensors[:NUM_TENSORS], *numbers), tensors[NUM_TENSORS:]
    wants_out_low = needs_out_low(q, _wanted(ctx))
    out, lse, out_low = _results(q, k, v, score, lengths, run, wants_out_low)
    ctx.save_for_backward(q, k, v, *tensors, out, lse, out_low)
    ctx.run, ctx.numbers = run, numbers
    ctx.set_materialize_grads(False)
    return out, lse


def _backward(ctx: Any, dout: Any, dlse: Any) -> Any:
    if dout is None and dlse is None:
        return (None,) * (8 + NUM_TENSORS)
    if any(x is not None and is_batched(x) for x in (dout, dlse)):
        raise NotImplementedError(
            "AttentionPlan.run: no batches of gradients (is_grads_batched, vectorize) of runs in "
            "closed form; ask for them one by one"
        )
    tensors = *ctx.saved_tensors, dout, dlse
    run: Any = _Gradients.apply if _is_grad_enabled() else _gradients
    dq, dk, dv, *of_score = run(*tensors, ctx.run, ctx.numbers, _wanted(ctx))
    return dq, dk, dv, *inputs_order(*of_score), *(None,) * 5


def _wanted(ctx: Any) -> int:
    return wanted_of(ctx.needs_input_grad[3 : 3 + NUM_TENSORS])


def _gradients(*arguments: Any) -> Any:
    """(dq, dk, dv, dkey_bias, dbias, drelative, dsinks), the last four None if not wanted."""
    q, k, v, *tensors, out, lse, out_low, dout, dlse, run, numbers, wanted = arguments
    score, lengths = ScoreArguments(*tensors[:NUM_TENSORS], *numbers), tensors[NUM_TENSORS:]

    def planned(call: CallArguments) -> Any:
        return run.planned_backward(call.deterministic, call.num_threads)

    results = out, lse, out_low, dout, dlse
    return backward(q, k, v, score, *results, run.call, wanted, planned, tuple(lengths))


class _ClosedForm(torch.autograd.Function):  # type: ignore[misc]
    forward = staticmethod(_forward)
    backward = staticmethod(_backward)


class _Gradients(torch.autograd.Function):  # type: ignore[misc]
    """The gradients if autograd records them (create_graph), when they require a gradient too."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        return _gradients(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        refuse_second_gradients("AttentionPlan.run")
