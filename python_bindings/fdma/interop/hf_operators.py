"""Attention over a text with tables that are tensors of the graph: for torch.compile and export.

    fdma::attention_with_tables(Tensor q, Tensor k, Tensor v, Tensor[] tables, str text,
                                float scale, bool deterministic, float softcap)
                                -> (Tensor, Tensor)
    fdma::attention_with_tables_backward(Tensor dout, .., Tensor out, Tensor lse,
                                float softcap)
                                -> (Tensor, Tensor, Tensor)

The mask is compiled when the graph runs. It is cached by the contents of the tables, so that the
layers of a model share it; each tensor is read once.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import torch

from ..attention.pytorch import autocast
from ..attention.shapes import checked_softcap
from ..attention.tensors import (
    CallArguments,
    backward,
    forward,
    new_gradient,
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
    softcap: float | None = None,
) -> Any:
    """`fdma.attention` over a text with tables, heads before lengths."""
    q, k, v = autocast(q, k, v)
    factor = 0.0 if scale is None else scale
    cap = checked_softcap(softcap)
    return _attention(q, k, v, tables, text, factor, deterministic, cap)[0]


def _call(
    q: Any,
    k: Any,
    tables: list[Any],
    text: str,
    scale: float,
    deterministic: bool,
    softcap: float,
) -> CallArguments:
    mask = table_mask(text, tables, q.shape[0], q.shape[2], k.shape[2])
    return CallArguments(mask, scale, True, deterministic, threads_of_call(NOT_SAID), softcap)


def _run_forward(q: Any, k: Any, v: Any, *words: Any) -> Any:
    refuse_transforms("attention", q, k, v)
    return forward(q, k, v, None, _call(q, k, *words), True)


def _run_backward(dout: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    tables, text, scale, deterministic, out, lse, softcap = rest
    call = _call(q, k, tables, text, scale, deterministic, softcap)
    return tuple(backward(q, k, v, None, out, lse, None, dout, None, call, False)[:3])


def _describe_forward(q: Any, k: Any, v: Any, *_: Any) -> Any:
    return new_outputs(q, k, v, heads_first=True)


def _describe_backward(_: Any, q: Any, k: Any, v: Any, *__: Any) -> Any:
    return tuple(new_gradient(x, True) for x in (q, k, v))


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, tables, *words = inputs
    ctx.save_for_backward(q, k, v, *tables, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.words = words


def _backward(ctx: Any, dout: Any, _: Any) -> Any:
    q, k, v, *tables, out, lse = ctx.saved_tensors
    *words, softcap = ctx.words
    grads = _attention_backward(dout, q, k, v, tables, *words, out, lse, softcap)
    return *grads, [None] * len(tables), None, None, None, None


def _backward_of_backward(ctx: Any, *_: Any) -> Any:
    refuse_second_gradients("attention")


_WORDS = "Tensor[] tables, str text, float scale, bool deterministic"
_attention = torch.library.custom_op(
    "fdma::attention_with_tables",
    _run_forward,
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_WORDS}, float softcap) -> (Tensor, Tensor)",
)
_attention_backward = torch.library.custom_op(
    "fdma::attention_with_tables_backward",
    _run_backward,
    mutates_args=(),
    schema=f"(Tensor dout, Tensor q, Tensor k, Tensor v, {_WORDS}, Tensor out, Tensor lse, "
    "float softcap) -> (Tensor, Tensor, Tensor)",
)
_attention.register_fake(_describe_forward)
_attention_backward.register_fake(_describe_backward)
_attention.register_autograd(_backward, setup_context=_setup_context)
_attention_backward.register_autograd(_backward_of_backward)
