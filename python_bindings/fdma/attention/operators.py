"""The operators of PyTorch behind `fdma.attention`: what torch.compile, export and modes see.

    fdma::attention(Tensor q, Tensor k, Tensor v, str text, SymInt mask, float scale,
                    bool heads_first, bool deterministic, int num_threads, bool keeps_out_low,
                    the fields of ScoreArguments) -> (Tensor, Tensor, Tensor)
    fdma::attention_backward(Tensor? dout, Tensor? dlse, .., int wanted,
                    the fields of ScoreArguments)
                    -> (dq, dk, dv, dkey_bias, dbias, drelative, dsinks)

The mask is a text, or an empty text and the number of a BlockMask (masks/handles.py). A number that
changes from step to step does not make torch.compile compile a graph again. In a program that is
recorded to run elsewhere, the text holds the BlockMask itself (masks/mask_text.py). num_threads -1
means the value of torch.get_num_threads() at run time. `wanted` has the bits of attention/score.py.
"""

from __future__ import annotations

from typing import Any

import torch

from ..masks.handles import mask_of_handle
from ..masks.mask_text import is_mask_text, mask_of_text
from .score import NUM_TENSORS, WANTS, ScoreArguments, inputs_order, wanted_of_inputs
from .tensors import (
    CallArguments,
    backward,
    forward,
    forward_with_out_low,
    new_gradient,
    new_gradients_of_score,
    new_outputs,
    threads_of_call,
)
from .torch_modes import refuse_second_gradients, refuse_transforms

__all__: list[str] = []

SCORE_SCHEMA = (
    "Tensor? key_bias=None, Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? relative=None, "
    "Tensor? sinks=None, Tensor? seeds=None, float softcap=0.0, int relative_left=0, "
    "float dropout_p=0.0, SymInt seed=0, SymInt offset=0"
)
"""The fields of ScoreArguments. PyTorch omits last arguments that have their default values, which
are those of that tuple.
"""


def _call(
    text: str,
    number: int,
    scale: float,
    heads_first: bool,
    deterministic: bool,
    num_threads: int,
) -> CallArguments:
    mask: Any = text
    if not text:
        mask = mask_of_handle(number)
    elif is_mask_text(text):
        mask = mask_of_text(text)
    return CallArguments(mask, scale, heads_first, deterministic, threads_of_call(num_threads))


# An operator returns only tensors, so an empty tensor stands for a missing out_low or a gradient
# that is not wanted.


def _run_forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    words, keeps_out_low, score = rest[:6], rest[6], ScoreArguments(*rest[7:])
    refuse_transforms("attention", q, k, v, *score.tensors)
    call = _call(*words)
    if keeps_out_low:
        return forward_with_out_low(q, k, v, score, call)
    return *forward(q, k, v, score, call, True), q.new_empty(0)


def _describe_forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    out, lse = new_outputs(q, k, v, heads_first=rest[3])
    return out, lse, torch.empty_like(out) if rest[6] else q.new_empty(0)


def _run_backward(dout: Any, dlse: Any, *others: Any) -> Any:
    q, k, v, out, lse, out_low = others[:6]
    words, wanted, score = others[6:12], others[12], ScoreArguments(*others[13:])
    kept = None if out_low.numel() == 0 else out_low
    call = _call(*words)
    grads = backward(q, k, v, score, out, lse, kept, dout, dlse, call, wanted)
    return tuple(q.new_empty(0) if x is None else x for x in grads)


def _describe_backward(dout: Any, dlse: Any, *others: Any) -> Any:
    q, k, v = others[:3]
    heads_first, wanted, score = others[9], others[12], ScoreArguments(*others[13:])
    of_score = new_gradients_of_score(score, wanted)
    grads = (new_gradient(x, heads_first) for x in (q, k, v))
    return *grads, *(q.new_empty(0) if x is None else x for x in of_score)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, *words = inputs[:9]
    keeps_out_low, score = inputs[9], ScoreArguments(*inputs[10:])
    out, lse, out_low = output
    # pytorch.py saves the same tensors: a checkpoint may run a call again on either path.
    kept = out_low if keeps_out_low else None
    ctx.save_for_backward(q, k, v, *score.tensors, out, lse, kept)
    ctx.mark_non_differentiable(out_low)
    ctx.words, ctx.numbers = words, score.numbers
    ctx.set_materialize_grads(False)
    text, handle = words[:2]
    ctx.mask = mask_of_handle(handle) if not text and type(handle) is int else None


def _backward(ctx: Any, dout: Any, dlse: Any, _: Any) -> Any:
    if dout is None and dlse is None:
        return (None,) * len(ctx.needs_input_grad)
    # Read once, because checkpoints return them only once.
    q, k, v, *of_score, out, lse, out_low = ctx.saved_tensors
    wanted = wanted_of_inputs(ctx.needs_input_grad[10 : 10 + NUM_TENSORS])
    tensors = q, k, v, out, lse, out_low
    score = *of_score, *ctx.numbers
    dq, dk, dv, *grads = gradients(dout, dlse, *tensors, *ctx.words, wanted, *score)
    of_inputs = dq, dk, dv, *(None,) * 7, *inputs_order(*grads), *(None,) * len(ctx.numbers)
    return of_inputs[: len(ctx.needs_input_grad)]


def gradients(*arguments: Any) -> Any:
    """Returns (dq, dk, dv, dkey_bias, dbias, drelative, dsinks) of the operator, the last four None
    where they are not wanted. The arguments are those of its schema; out_low may be None.
    """
    dout, dlse, q, k, v, out, lse, out_low, *rest = arguments
    wanted = rest[6]
    out_low = q.new_empty(0) if out_low is None else out_low
    dq, dk, dv, *found = attention_backward(dout, dlse, q, k, v, out, lse, out_low, *rest)
    return dq, dk, dv, *(x if wanted & bit else None for x, bit in zip(found, WANTS, strict=True))


def _backward_of_backward(ctx: Any, *_: Any) -> Any:
    refuse_second_gradients("attention")


_WORDS = "str text, SymInt mask, float scale, bool heads_first, bool deterministic, int num_threads"
attention = torch.library.custom_op(
    "fdma::attention",
    _run_forward,
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_WORDS}, bool keeps_out_low, {SCORE_SCHEMA}) "
    "-> (Tensor, Tensor, Tensor)",
)
attention_backward = torch.library.custom_op(
    "fdma::attention_backward",
    _run_backward,
    mutates_args=(),
    schema="(Tensor? dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"Tensor out_low, {_WORDS}, int wanted, {SCORE_SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
attention.register_fake(_describe_forward)
attention_backward.register_fake(_describe_backward)
attention.register_autograd(_backward, setup_context=_setup_context)
attention_backward.register_autograd(_backward_of_backward)
