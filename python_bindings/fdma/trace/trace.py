"""FlexAttention's functions as masks: the unchanged `mask_mod(b, h, q_idx, kv_idx)` is run once, on
symbols.

The result is an ordinary MaskExpr. It is exact, the captured tensors are its tables, and it is
compiled without visiting N^2 cells.

>>> import fdma
>>> def sliding_window(b, h, q_idx, kv_idx):
...     return (q_idx >= kv_idx) & (q_idx - kv_idx <= 256)
>>> print(fdma.trace_mask_mod(sliding_window))
q >= k & q - k <= 256

How it works: symbol.py (the values), context.py (tables, calls), operations.py
(the table of operations), value_types.py (types and ranges), captures.py (what a function
holds). A function that needs to see a value, or uses an operation without a counterpart, raises
TraceError; sample.py is the way that evaluates every cell.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from ..masks.expr_types import MaskExpr
from .arguments import check_arguments
from .captures import captured_values, is_of_numpy, uses_jax, with_traced_arrays
from .context import tracing
from .nodes import lift
from .sample import sample_mask_mod
from .symbol import Symbol, TraceError, refuse

__all__ = ["TraceError", "sample_mask_mod", "trace_mask_mod"]


def trace_mask_mod(mask_mod: Callable[..., Any]) -> MaskExpr:
    """The mask that a FlexAttention function of (b, h, q_idx, kv_idx) computes.

    Captured tensors and arrays (integer or boolean, 0 to 4 dimensions) become tables, named like
    the variables that hold them. They are referenced; compile reads their values at the time of
    compiling and copies tensors on a GPU to the host. A comparison of captured floats with numbers
    becomes a table of its results at the time of tracing. Captured numbers, shapes and values that
    the function computes from tensors alone are written into the expression.

    Errors: TraceError (a NotImplementedError) names the operation that cannot be traced, its line,
    and what to do; TypeError if mask_mod is not callable. Cost: a few microseconds an operation,
    whatever the length.

    >>> import numpy as np
    >>> import fdma
    >>> document = np.array([0, 0, 1])
    >>> def same_document(b, h, q_idx, kv_idx):
    ...     return document[q_idx] == document[kv_idx]
    >>> mask = fdma.trace_mask_mod(same_document)
    >>> print(mask)
    @document[q] == @document[k]
    >>> fdma.compile(mask, 3).to_dense()[0, 0].astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]])
    """
    if not callable(mask_mod):
        raise TypeError(
            f"mask_mod: expected a function of (b, h, q_idx, kv_idx), got {type(mask_mod).__name__}"
        )
    # A function that torch.compile has wrapped is traced in its original form.
    mask_mod = getattr(mask_mod, "_torchdynamo_orig_callable", mask_mod)
    with tracing() as trace:
        captured = list(captured_values(mask_mod))
        trace.numpy_rules |= is_of_numpy(captured)
        try:
            result = with_traced_arrays(mask_mod, captured)(*trace.indices())
        except Exception as error:
            if isinstance(error, TypeError):
                check_arguments(mask_mod)
            if not isinstance(error, TraceError) and uses_jax(captured):
                refuse(
                    "JAX", "capture numpy.asarray(table) and use operators and NumPy's functions"
                )
            raise
        if isinstance(result, MaskExpr):
            return result
        if result is None or isinstance(result, str | list | tuple | dict | FunctionType):
            hint = "; return the comparison" if result is None else ""
            if isinstance(result, FunctionType):
                hint = "; call the function that makes the mask function"
            raise TypeError(
                f"mask_mod: expected it to return a boolean, got {type(result).__name__}{hint}"
            )
        symbol: Symbol = trace.symbol(result)
    if symbol._dtype != "bool":
        raise TypeError(
            f"mask_mod: expected it to return a boolean, got {symbol._dtype}; compare it with 0"
        )
    if symbol._shape:
        raise TypeError(
            f"mask_mod: expected one boolean for each cell, got shape {symbol._shape}; "
            "reduce it with .any(-1) or .all(-1)"
        )
    node = lift(symbol.at(()))
    used = node.table_names()  # a lookup may have dropped out, as in `(table[q] < 5) & False`
    return MaskExpr._wrap(node, {name: trace.arrays[name] for name in used})
