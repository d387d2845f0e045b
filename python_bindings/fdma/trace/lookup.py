"""Lookups: PyTorch's indexing of tables, rows and other symbols, by numbers and by symbols.

An index below 0 counts from the end: `table[k - 5]` becomes `@table[where(k - 5 < 0, k - 5 + n, k -
5)]` if the index can be negative. Binding folds the `where` if lengths and tables decide it, and it
costs nothing then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import nodes
from .context import Trace
from .floats import FloatLookup
from .nodes import Node
from .pointwise import broadcast, element_of
from .symbol import Index, Symbol, refuse
from .value_types import Range
from .views import axis_of, reshape, view

__all__ = ["LOOKUPS", "getitem"]


class _Number(NamedTuple):
    """A table without dimensions as an index."""

    symbol: Symbol


def _from_the_end(index: Node, bounds: Range, extent: int) -> Index:
    if isinstance(index, int):
        if not -extent <= index < extent:
            raise IndexError(f"index {index} is out of bounds for dimension with size {extent}")
        return index % extent
    if bounds.lo >= 0:
        return index
    counted = nodes.arithmetic("add", index, extent)
    if bounds.hi >= 0:
        counted = nodes.where(nodes.compare("less", index, 0), counted, index)
    return counted


def _index_parts(trace: Trace, rank: int, index: Any, is_tensor: bool) -> list[Any]:
    """One part per axis of the source, and None for each new axis."""
    given = list(index) if isinstance(index, tuple) else [index]
    parts: list[Any] = []
    for part in given:
        if part is None or part is Ellipsis or isinstance(part, slice):
            if isinstance(part, slice) and any(
                isinstance(bound, Symbol) for bound in (part.start, part.stop, part.step)
            ):
                refuse("a slice with a traced bound", "compare positions and use .any(-1)")
            parts.append(part)
        elif isinstance(part, bool | np.bool_):
            refuse("an index True or False")
        elif isinstance(part, int | np.integer):
            parts.append(int(part))
        else:
            symbol = trace.symbol(part)
            if symbol._dtype == "bool":
                refuse("a lookup with a boolean mask", "use torch.where")
            if symbol._dtype == "uint8" and is_tensor:
                refuse("a lookup by uint8, a mask to PyTorch", "use .long()")
            # PyTorch takes a tensor without axes as a number, unless it is a symbol.
            is_number = not symbol._shape and not isinstance(part, Symbol)
            parts.append(_Number(symbol) if is_number else symbol)
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if taken > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    if Ellipsis not in [part for part in parts if not isinstance(part, Symbol)]:
        parts.append(Ellipsis)
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return [*parts[:at], *[slice(None)] * (rank - taken), *parts[at + 1 :]]


def getitem(trace: Trace, input: Any, index: Any) -> Any:
    """PyTorch's indexing by numbers, slices, None, ..., and integer symbols or arrays."""
    if trace.holds_floats(input):
        return FloatLookup(trace, input, (index,))
    table = trace.symbol(input)
    parts = _index_parts(trace, len(table._shape), index, not isinstance(input, np.ndarray))
    arrays = [part for part in parts if isinstance(part, Symbol)]
    inner = broadcast(*[part._shape for part in arrays]) if arrays else ()
    # The axes of arrays stand in the place of the arrays, or first if the arrays are not adjacent.
    places = [
        i
        for i, part in enumerate(p for p in parts if not isinstance(p, int | _Number))
        if isinstance(part, Symbol)
    ]
    is_joined = not places or places[-1] - places[0] == len(places) - 1
    shape: list[int] = [] if is_joined else list(inner)
    begin = 0  # of the arrays' axes in the result
    rules: list[Callable[[tuple[Index, ...]], Index]] = []
    axis = 0
    is_placed = not is_joined
    for part in parts:
        if part is None:
            shape.append(1)
            continue
        extent = table._shape[axis]
        axis += 1
        if isinstance(part, int):
            rules.append(_number_rule(_from_the_end(part, Range(part, part), extent)))
        elif isinstance(part, _Number):
            node = _from_the_end(part.symbol.at(()), part.symbol._range, extent)
            rules.append(_number_rule(node))
        elif isinstance(part, slice):
            start, stop, step = part.indices(extent)
            if step < 1:
                raise ValueError("step must be greater than zero")
            length = len(range(start, stop, step))
            rules.append(_slice_rule(len(shape), start, step, extent))
            shape.append(length)
        else:
            if not is_placed:
                begin = len(shape)
                shape.extend(inner)
                is_placed = True
            rules.append(_array_rule(part, extent, begin, begin + len(inner)))
    return view(table, tuple(shape), lambda at: tuple(rule(at) for rule in rules))


def _number_rule(number: Index) -> Callable[[tuple[Index, ...]], Index]:
    return lambda at: number


def _slice_rule(
    axis: int, start: int, step: int, extent: int
) -> Callable[[tuple[Index, ...]], Index]:
    def rule(at: tuple[Index, ...]) -> Index:
        moved = nodes.arithmetic("mul", at[axis], step)
        return nodes.arithmetic("add", moved, start)

    return rule


def _array_rule(
    part: Symbol, extent: int, begin: int, end: int
) -> Callable[[tuple[Index, ...]], Index]:
    return lambda at: _from_the_end(element_of(part, at[begin:end]), part._range, extent)


def take(trace: Trace, input: Any, index: Any) -> Any:
    return getitem(trace, reshape(trace, input, -1), index)


def index_select(trace: Trace, input: Any, dim: int, index: Any) -> Any:
    table = trace.symbol(input)
    axis = axis_of(dim, len(table._shape))
    return getitem(trace, table, (*[slice(None)] * axis, index))


def gather(trace: Trace, input: Any, dim: int, index: Any) -> Symbol:
    table, chosen = trace.symbol(input), trace.symbol(index)
    rank = len(table._shape)
    if rank != len(chosen._shape):
        raise IndexError("gather: index and input must have the same number of dimensions")
    if rank == 0:
        return table
    axis = axis_of(dim, rank)

    def source(at: tuple[Index, ...]) -> tuple[Index, ...]:
        picked = _from_the_end(chosen.at(at), chosen._range, table._shape[axis])
        return (*at[:axis], picked, *at[axis + 1 :])

    return view(table, chosen._shape, source)


LOOKUPS: dict[str, Callable[..., Any]] = {
    "__getitem__": getitem,
    "take": take,
    "index_select": index_select,
    "gather": gather,
}
