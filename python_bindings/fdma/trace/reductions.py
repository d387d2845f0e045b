"""Reductions over axes of traced values.

`any` and `all` become loops of the mask language. Sums, minima and maxima are unrolled, up to
MOST_TERMS terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import nodes
from .conditions import equal, less, less_equal, logical_not, maximum, minimum
from .context import Trace
from .nodes import Node
from .pointwise import BOOLEAN, cast, fit
from .symbol import Index, Symbol, refuse
from .value_types import Range
from .views import axis_of, reshape, unsqueeze

__all__ = ["MOST_TERMS", "REDUCTIONS"]

MOST_TERMS = 1024
# any and all over at most this many elements are unrolled; over more they are loops. Both forms
# compile to the same mask.
_MOST_WRITTEN_OUT = 2


def _reduce(
    symbol: Symbol,
    dim: Any,
    keepdim: bool,
    bounds: Range,
    fold: Callable[[int, Callable[[Index], Node]], Node],
    dtype: str,
) -> Symbol:
    """Reduces axes, the last one first; fold(extent, element) makes one node of an axis."""
    rank = len(symbol._shape)
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    folded = sorted({axis_of(d, rank) for d in dims}) if rank else []

    def reduced(at: tuple[Index, ...], level: int) -> Node:
        if level == len(folded):
            return symbol.at(at)
        axis = folded[level]
        return fold(symbol._shape[axis], lambda i: reduced((*at[:axis], i, *at[axis:]), level + 1))

    if not rank:
        return (
            symbol
            if symbol._dtype == dtype
            else Symbol(symbol._trace, dtype, bounds, fold(1, lambda i: symbol.at(())))
        )
    kept = tuple(n for d, n in enumerate(symbol._shape) if d not in folded)
    shape = tuple(1 if d in folded else n for d, n in enumerate(symbol._shape)) if keepdim else kept

    def element(at: tuple[Index, ...]) -> Node:
        if keepdim:
            at = tuple(i for d, i in enumerate(at) if d not in folded)
        return reduced(at, 0)

    if not shape:
        return Symbol(symbol._trace, dtype, bounds, element(()))
    return Symbol(symbol._trace, dtype, bounds, None, shape, element)


def _quantifier(
    is_any: bool,
) -> Callable[..., Symbol]:
    join = nodes.disjunction if is_any else nodes.conjunction
    loop = nodes.any_of if is_any else nodes.all_of

    def fold(extent: int, element: Callable[[Index], Node]) -> Node:
        if extent > _MOST_WRITTEN_OUT:
            return loop(extent, element)
        made: Node = not is_any
        for i in range(extent):
            made = join(made, element(i))
        return made

    def apply(
        trace: Trace, input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None
    ) -> Symbol:
        a = cast(trace, trace.symbol(input), "bool")
        dims = dim if axis is None else axis
        return _reduce(a, dims, keepdim, BOOLEAN, fold, "bool")

    return apply


any_ = _quantifier(True)
all_ = _quantifier(False)


def _count(symbol: Symbol, dim: Any) -> int:
    rank = len(symbol._shape)
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    count = 1
    for d in {axis_of(d, rank) for d in dims} if rank else ():
        count *= symbol._shape[d]
    return count


def _written_out(
    operation: str, count: int, join: Callable[[Node, Node], Node]
) -> Callable[[int, Callable[[Index], Node]], Node]:
    if count > MOST_TERMS:
        refuse(f"{operation} of {count} elements", f"at most {MOST_TERMS} can be written out")

    def fold(extent: int, element: Callable[[Index], Node]) -> Node:
        # A balanced tree: expressions are as deep as the logarithm of their terms.
        terms = [element(i) for i in range(extent)]
        while len(terms) > 1:
            terms = [
                join(terms[i], terms[i + 1]) if i + 1 < len(terms) else terms[i]
                for i in range(0, len(terms), 2)
            ]
        return terms[0] if terms else 0

    return fold


def sum_(
    trace: Trace,
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    axis: Any = None,
) -> Symbol:
    dim = dim if axis is None else axis
    wanted = "int64" if dtype is None else trace.dtype_name(dtype)
    a = cast(trace, trace.symbol(input), wanted)
    count = _count(a, dim)
    fold = _written_out("sum", count, lambda x, y: nodes.arithmetic("add", x, y))
    bounds = Range(min(count * a._range.lo, 0), max(count * a._range.hi, 0))
    exact = _reduce(a, dim, keepdim, bounds, fold, wanted)
    return fit(trace, wanted, bounds, lambda x: x, exact)


def count_nonzero(trace: Trace, input: Any, dim: Any = None) -> Symbol:
    return sum_(trace, cast(trace, trace.symbol(input), "bool"), dim)


class _Extremum(NamedTuple):
    values: Symbol
    indices: Any


class _NoIndices:
    def __getattr__(self, name: str) -> Any:
        refuse("the indices of min or max over an axis", "use the values")


def _extremum(op: str) -> tuple[Callable[..., Any], Callable[..., Symbol]]:
    of_two = minimum if op == "min" else maximum

    def over_axes(trace: Trace, input: Any, dim: Any = None, keepdim: bool = False) -> Symbol:
        a = trace.symbol(input)
        count = _count(a, dim)
        if a._dtype == "bool":
            return (all_ if op == "min" else any_)(trace, a, dim, keepdim)
        if count == 0:
            raise ValueError(f"{op} of no elements")
        fold = _written_out(op, count, lambda x, y: nodes.arithmetic(op, x, y))
        return _reduce(a, dim, keepdim, a._range, fold, a._dtype)

    def apply(
        trace: Trace,
        input: Any,
        *args: Any,
        dim: Any = None,
        keepdim: bool = False,
        other: Any = None,
    ) -> Any:
        first = args[0] if args else dim
        if other is not None or isinstance(first, Symbol) or trace.is_array(first):
            return of_two(trace, input, first if other is None else other)
        if first is None:
            return over_axes(trace, input)
        kept = args[1] if len(args) > 1 else keepdim
        return _Extremum(over_axes(trace, input, first, kept), _NoIndices())

    return apply, over_axes


(_min, _amin), (_max, _amax) = _extremum("min"), _extremum("max")


def prod(trace: Trace, input: Any, dim: Any = None, keepdim: bool = False) -> Symbol:
    a = cast(trace, trace.symbol(input), "int64")
    count = _count(a, dim)
    if count > 16:
        refuse(f"prod of {count} elements", "multiply at most 16")
    most = max(abs(a._range.lo), abs(a._range.hi), 1) ** max(count, 1)
    bounds = Range(-most if a._range.lo < 0 else 0, most)
    fold = _written_out("prod", count, lambda x, y: nodes.arithmetic("mul", x, y))
    if count == 0:
        return cast(trace, trace.symbol(1), "int64")
    return fit(trace, "int64", bounds, lambda x: x, _reduce(a, dim, keepdim, bounds, fold, "int64"))


def isin(
    trace: Trace,
    elements: Any,
    test_elements: Any,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Symbol:
    a = unsqueeze(trace, elements, -1)
    b = reshape(trace, test_elements, -1)
    found = any_(trace, equal(trace, a, b), -1)
    return logical_not(trace, found) if invert else found


def searchsorted(
    trace: Trace,
    sorted_sequence: Any,
    input: Any,
    *,
    right: bool = False,
    side: str | None = None,
    out_int32: bool = False,
) -> Symbol:
    """The number of boundaries below the value, or with `right` not above it."""
    boundaries, value = trace.symbol(sorted_sequence), trace.symbol(input)
    if len(boundaries._shape) != 1:
        refuse("torch.searchsorted in rows", "use a 1-dimensional sequence")
    is_right = right or side == "right"
    value = unsqueeze(trace, value, -1)
    below = (less_equal if is_right else less)(trace, boundaries, value)
    made = sum_(trace, below, -1)
    return cast(trace, made, "int32") if out_int32 else made


def bucketize(
    trace: Trace, input: Any, boundaries: Any, *, right: bool = False, out_int32: bool = False
) -> Symbol:
    return searchsorted(trace, boundaries, input, right=right, out_int32=out_int32)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "any": any_,
    "all": all_,
    "sum": sum_,
    "prod": prod,
    "count_nonzero": count_nonzero,
    "min": _min,
    "max": _max,
    "amin": _amin,
    "amax": _amax,
    "isin": isin,
    "searchsorted": searchsorted,
    "bucketize": bucketize,
}
