"""Attention over a text with tables that are tensors of the graph: for torch.compile and export.

    fdma::attention_with_tables(Tensor q, Tensor k, Tensor v, Tensor[] tables, str text,
                                float scale, bool deterministic, the fields of ScoreArguments)
                                -> (Tensor, Tensor)
    fdma::attention_with_tables_backward(Tensor dout, .., Tensor out, Tensor lse, int wanted,
                                the fields of ScoreArguments)
                                -> (dq, dk, dv, dkey_bias, dbias, drelative, dsinks)

The mask is compiled when the graph runs. It is cached by the contents of the tables, so that the
layers of a model share it; each tensor is read once.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import torch

from ..attention.operators import SCORE_SCHEMA
from ..attention.pytorch import autocast
from ..attention.score import (
    NO_SCORE,
    NUM_TENSORS,
    WANTS,
    GivenScore,
    ScoreArguments,
    inputs_order,
    wanted_of_inputs,
)
from ..attention.score_torch import score_of
from ..attention.tensors import (
    CallArguments,
    backward,
    forward,
    new_gradient,
    new_gradients_of_score,
    new_outputs,
    threads_of_call,
)
from ..attention.threads import NOT_SAID
from ..attention.torch_modes import refuse_second_gradients, refuse_transforms
from ..masks.block_mask import BlockMask
from ..masks.compile import compile
from .hf_host_values import host_value

__all__: list[str] = []

_MAX_MASKS = 64
_masks: dict[Any, BlockMask] = {}
_lock = threading.Lock()


def table_mask(text: str, tables: list[Any], batch: int, q_len: int, kv_len: int) -> BlockMask:
    """The mask of a text whose tables t0, t1, .. are these tensors."""
    held = [host_value(table, partial(_held, table)) for table in tables]
    key = text, batch, q_len, kv_len, *held
    mask = _masks.get(key)
    if mask is None:
        arrays = {
            f"t{i}": np.frombuffer(data, dtype).reshape(shape)
            for i, (data, dtype, shape) in enumerate(held)
        }
        mask = compile(text, q_len, kv_len, batch, tables=arrays)
        with _lock:
            if len(_masks) >= _MAX_MASKS:
                _masks.clear()
            _masks[key] = mask
    return mask


def _held(table: Any) -> tuple[bytes, str, tuple[int, ...]]:
    array = table.detach().cpu().contiguous().numpy()
    return array.tobytes(), array.dtype.str, array.shape


def attention_with_tables(
    q: Any,
    k: Any,
    v: Any,
    tables: list[Any],
    text: str,
    scale: float | None,
    deterministic: bool,
    given: GivenScore | None = None,
) -> Any:
    """`fdma.attention` over a text with tables, heads before lengths."""
    q, k, v = autocast(q, k, v)
    factor = 0.0 if scale is None else scale
    score = NO_SCORE if given is None else score_of(given, q, k, v, True)
    return _attention(q, k, v, tables, text, factor, deterministic, *score)[0]


def _call(
    q: Any, k: Any, tables: list[Any], text: str, scale: float, deterministic: bool
) -> CallArguments:
    mask = table_mask(text, tables, q.shape[0], q.shape[2], k.shape[2])
    return CallArguments(mask, scale, True, deterministic, threads_of_call(NOT_SAID))


def _run_forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    words, score = rest[:4], ScoreArguments(*rest[4:])
    refuse_transforms("attention", q, k, v, *score.tensors)
    return forward(q, k, v, score, _call(q, k, *words), True)


def _run_backward(dout: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    words, out, lse, wanted, score = rest[:4], *rest[4:7], ScoreArguments(*rest[7:])
    call = _call(q, k, *words)
    grads = backward(q, k, v, score, out, lse, None, dout, None, call, wanted)
    return tuple(q.new_empty(0) if x is None else x for x in grads)


def _describe_forward(q: Any, k: Any, v: Any, *_: Any) -> Any:
    return new_outputs(q, k, v, heads_first=True)


def _describe_backward(_: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    of_score = new_gradients_of_score(ScoreArguments(*rest[7:]), rest[6])
    grads = (new_gradient(x, True) for x in (q, k, v))
    return *grads, *(q.new_empty(0) if x is None else x for x in of_score)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, tables, *words = inputs[:7]
    score = ScoreArguments(*inputs[7:])
    ctx.save_for_backward(q, k, v, *score.tensors, *tables, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.words, ctx.numbers = words, score.numbers


def _backward(ctx: Any, dout: Any, _: Any) -> Any:
    q, k, v, *rest, out, lse = ctx.saved_tensors
    of_score, tables = rest[:NUM_TENSORS], rest[NUM_TENSORS:]
    wanted = wanted_of_inputs(ctx.needs_input_grad[7 : 7 + NUM_TENSORS])
    words = *ctx.words, out, lse, wanted
    found = _attention_backward(dout, q, k, v, tables, *words, *of_score, *ctx.numbers)
    dq, dk, dv, *grads = found
    given = (x if wanted & bit else None for x, bit in zip(grads, WANTS, strict=True))
    none = (None,) * len(ctx.numbers)
    inputs = dq, dk, dv, [None] * len(tables), None, None, None, *inputs_order(*given), *none
    return inputs[: len(ctx.needs_input_grad)]


def _backward_of_backward(ctx: Any, *_: Any) -> Any:
    refuse_second_gradients("attention")


_WORDS = "Tensor[] tables, str text, float scale, bool deterministic"
_attention = torch.library.custom_op(
    "fdma::attention_with_tables",
    _run_forward,
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_WORDS}, {SCORE_SCHEMA}) -> (Tensor, Tensor)",
)
_attention_backward = torch.library.custom_op(
    "fdma::attention_with_tables_backward",
    _run_backward,
    mutates_args=(),
    schema=f"(Tensor dout, Tensor q, Tensor k, Tensor v, {_WORDS}, Tensor out, Tensor lse, "
    f"int wanted, {SCORE_SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_attention.register_fake(_describe_forward)
_attention_backward.register_fake(_describe_backward)
_attention.register_autograd(_backward, setup_context=_setup_context)
_attention_backward.register_autograd(_backward_of_backward)
