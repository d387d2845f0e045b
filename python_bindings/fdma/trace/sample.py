"""The mask of a function by evaluating every cell: what sample=True means.

Rows are evaluated in blocks of about CELLS_AT_ONCE cells, by torch.vmap as FlexAttention's
create_mask does where PyTorch is loaded (or by NumPy's broadcasting for functions that capture
NumPy arrays), into one boolean array. While all heads, or all batch elements, agree, only one of
them is kept. A function that looks at an index of which there is one (looks.py) gives a
table that is looked up by it, so that its mask does not serve several. Time grows with every cell,
memory with a byte for each that is kept.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..masks.expr import b, h, k, q, table
from ..masks.expr_types import MaskExpr
from .arguments import check_arguments
from .captures import captured_values, is_of_numpy
from .looks import Looks, looks_in_numpy, watched_in_torch

__all__ = ["CELLS_AT_ONCE", "sample_mask_mod"]

CELLS_AT_ONCE = 1 << 24


def sample_mask_mod(
    mask_mod: Callable[..., Any],
    q_len: int,
    kv_len: int | None = None,
    batch: int = 1,
    heads: int = 1,
) -> MaskExpr:
    """The mask of a FlexAttention function, every cell evaluated: a boolean table.

    It serves functions that trace_mask_mod refuses. The result fits these lengths only. If the
    function looks at b or h, the result fits the given number of batch elements or heads only.

    Errors: those of the function; TypeError if it does not return booleans; ValueError for sizes
    below 0.

    >>> import numpy as np
    >>> import fdma
    >>> def checkers(b, h, q_idx, kv_idx):
    ...     return np.cos(np.pi * (q_idx + kv_idx)) > 0
    >>> mask = fdma.sample_mask_mod(checkers, 2, 3)
    >>> fdma.compile(mask, 2, 3).to_dense()[0, 0].astype(int)
    array([[1, 0, 1],
           [0, 1, 0]])
    """
    kv_len = q_len if kv_len is None else kv_len
    for name, size in {"q_len": q_len, "kv_len": kv_len, "batch": batch, "heads": heads}.items():
        if size < 0:
            raise ValueError(f"{name}: expected 0 or more, got {size}")
    check_arguments(mask_mod)
    evaluate, looks = _evaluator(mask_mod, batch, heads, kv_len)
    rows_at_once = max(1, CELLS_AT_ONCE // max(1, batch * heads * kv_len))
    kept = np.zeros((1, 1, q_len, kv_len), np.bool_)
    for begin in range(0, q_len if batch and heads else 0, rows_at_once):
        end = min(begin + rows_at_once, q_len)
        cells = evaluate(begin, end)
        kept = _widen(kept, cells)
        kept[:, :, begin:end] = cells[: kept.shape[0], : kept.shape[1]]
    # The table has the axes along which cells differ. It also has an axis of which only one index
    # is known, if the function may differ along it.
    is_alone = (batch == 1, heads == 1)
    at = looks() if q_len and kv_len and any(is_alone) else (False, False)
    axes = [axis for axis in (0, 1) if kept.shape[axis] > 1 or (is_alone[axis] and at[axis])]
    bits = table(kept.reshape(*[kept.shape[axis] for axis in axes], q_len, kv_len))
    place = (*[(b, h)[axis] for axis in axes], q, k)
    return MaskExpr(bits[place])


def _widen(kept: np.ndarray[Any, Any], cells: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array with an extent for batch elements or heads once they differ."""
    for axis in (0, 1):
        if kept.shape[axis] < cells.shape[axis] and (cells != cells.take([0], axis)).any():
            kept = np.repeat(kept, cells.shape[axis], axis)
    return kept


def _evaluator(
    mask_mod: Callable[..., Any], batch: int, heads: int, kv_len: int
) -> tuple[Callable[[int, int], np.ndarray[Any, Any]], Callable[[], Looks]]:
    """A function from rows [begin, end) to booleans [batch, heads, rows, kv_len], and a second one
    that says, after a call of the first, whether the mask looks at b and h."""
    torch = sys.modules.get("torch")
    captured = list(captured_values(mask_mod))
    if torch is None or is_of_numpy(captured):
        evaluate = _numpy_evaluator(mask_mod, batch, heads, kv_len)
        return evaluate, lambda: looks_in_numpy(mask_mod)
    device = next((value.device for value in captured if isinstance(value, torch.Tensor)), "cpu")
    watched, looks = watched_in_torch(torch, mask_mod)
    return _torch_evaluator(torch, watched, batch, heads, kv_len, device), looks


def _numpy_evaluator(
    mask_mod: Callable[..., Any], batch: int, heads: int, kv_len: int
) -> Callable[[int, int], np.ndarray[Any, Any]]:
    def evaluate(begin: int, end: int) -> np.ndarray[Any, Any]:
        b, h, q, k = np.ix_(
            np.arange(batch), np.arange(heads), np.arange(begin, end), np.arange(kv_len)
        )
        cells = np.asarray(mask_mod(b, h, q, k))
        _check_boolean(cells.dtype == np.bool_, cells.dtype)
        return np.broadcast_to(cells, (batch, heads, end - begin, kv_len))

    return evaluate


def _torch_evaluator(
    torch: Any, mask_mod: Callable[..., Any], batch: int, heads: int, kv_len: int, device: Any
) -> Callable[[int, int], np.ndarray[Any, Any]]:
    mapped = mask_mod
    for axis in (3, 2, 1, 0):
        mapped = torch.vmap(mapped, in_dims=tuple(0 if i == axis else None for i in range(4)))
    try:  # enables lookups by indices that vmap has batched, as create_mask does
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex as Lookups
    except ImportError:
        Lookups = contextlib.nullcontext  # noqa: N806

    def evaluate(begin: int, end: int) -> np.ndarray[Any, Any]:
        sizes = ((0, batch), (0, heads), (begin, end), (0, kv_len))
        with Lookups():
            cells = mapped(*[torch.arange(a, b, device=device) for a, b in sizes])
        _check_boolean(cells.dtype == torch.bool, cells.dtype)
        result: np.ndarray[Any, Any] = cells.cpu().numpy()
        return result

    return evaluate


def _check_boolean(is_boolean: bool, dtype: object) -> None:
    if not is_boolean:
        raise TypeError(f"mask_mod: expected it to return booleans, got {dtype}")
