"""Elementwise operations: operands are cast to one type, broadcast, and combined by a node.

The rules are PyTorch's (value_types.py). FDMA computes in 64 bits, so a result of 8 or 16 bits is
wrapped if the ranges of the values allow it to leave its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import nodes
from .context import Trace
from .nodes import Node
from .symbol import Index, Symbol
from .value_types import Range, range_of_type, result_type

__all__ = [
    "BOOLEAN",
    "broadcast",
    "cast",
    "common_type",
    "corners",
    "element_of",
    "fit",
    "pointwise",
    "prepare",
]

BOOLEAN = Range(0, 1)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all broadcast to; ValueError if there is none. PyTorch raises RuntimeError."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent != 1 and result[axis] not in (1, extent):
                raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
            if extent != 1:
                result[axis] = extent
    return tuple(result)


def element_of(symbol: Symbol, index: tuple[Index, ...]) -> Node:
    """The node of the element that broadcasts to `index`."""
    shape = symbol._shape
    own = index[len(index) - len(shape) :]
    return symbol.at(tuple(0 if n == 1 else i for n, i in zip(shape, own, strict=True)))


def pointwise(
    trace: Trace, dtype: str, bounds: Range, combine: Callable[..., Node], *operands: Symbol
) -> Symbol:
    """A symbol whose elements are combinations of the operands' elements."""
    shape = broadcast(*[operand._shape for operand in operands])
    if not shape:
        made = combine(*[operand._node for operand in operands])
        weight = max(operand.weight for operand in operands)
        return Symbol(trace, dtype, bounds, made, weight=weight)

    def element(index: tuple[Index, ...]) -> Node:
        return combine(*[element_of(operand, index) for operand in operands])

    return Symbol(trace, dtype, bounds, None, shape, element)


def common_type(*operands: Symbol, outranks: bool = False) -> str:
    """The type that PyTorch, or NumPy, computes these operands in.

    Values with axes outrank those without. With `outranks`, for comparisons and torch.where, every
    value of the cell also outranks tables without axes. The reason is that create_mask evaluates
    many cells at once, which gives values of the cell an axis.
    """
    first = operands[0]._dtype
    if all(operand._dtype == first for operand in operands):
        return first
    if operands[0]._trace.numpy_rules:  # which ranks Python's numbers below arrays, no more
        return result_type([(s._dtype, min(s.weight, 1)) for s in operands])
    return result_type(
        [(s._dtype, s.weight if s._shape or outranks else min(s.weight, 1)) for s in operands]
    )


def cast(trace: Trace, symbol: Symbol, dtype: str) -> Symbol:
    """The value as another type. A number other than 0 becomes true, and true becomes 1. Values of
    8 and 16 bits are wrapped if their range may exceed the type.
    """
    if symbol._dtype == dtype:
        return symbol
    if dtype == "bool":
        return pointwise(
            trace, "bool", Range(0, 1), lambda a: nodes.compare("not_equal", a, 0), symbol
        )
    if symbol._dtype == "bool":
        return pointwise(trace, dtype, Range(0, 1), nodes.from_bool, symbol)
    if symbol._range.within(range_of_type(dtype)):
        return pointwise(trace, dtype, symbol._range, lambda a: a, symbol)
    return fit(trace, dtype, symbol._range, lambda a: a, symbol)


def fit(
    trace: Trace, dtype: str, bounds: Range, combine: Callable[..., Node], *operands: Symbol
) -> Symbol:
    """pointwise() for an integer result that may leave its type. Results of 8 and 16 bits wrap;
    those of 32 and 64 bits are taken not to overflow.
    """
    limits = range_of_type(dtype)
    if bounds.within(limits):
        return pointwise(trace, dtype, bounds, combine, *operands)
    if dtype in ("int32", "int64"):
        lo, hi = max(bounds.lo, limits.lo), min(bounds.hi, limits.hi)
        cut = Range(lo, hi) if lo <= hi else limits
        return pointwise(trace, dtype, cut, combine, *operands)

    def wrapped(*parts: Node) -> Node:
        moved = nodes.arithmetic("sub", combine(*parts), limits.lo)
        inside = nodes.arithmetic("mod", moved, limits.hi - limits.lo + 1)
        return nodes.arithmetic("add", inside, limits.lo)

    return pointwise(trace, dtype, limits, wrapped, *operands)


def prepare(trace: Trace, *values: Any, outranks: bool = False) -> tuple[str, list[Symbol]]:
    """The operands in their common type, and its name."""
    symbols = [trace.symbol(value) for value in values]
    dtype = common_type(*symbols, outranks=outranks)
    return dtype, [cast(trace, symbol, dtype) for symbol in symbols]


def corners(apply: Callable[[int, int], int], a: Range, b: Range) -> Range:
    values = [apply(x, y) for x in a for y in b]
    return Range(min(values), max(values))
