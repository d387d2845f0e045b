"""Operations that move, add or fold axes: lookups, views, reductions.

A symbol with axes is a function from the indices of an element to its node (trace_symbol.py); a view is another function
that calls it. Lookups follow PyTorch's advanced indexing. An index below 0 counts from the end: `table[k - 5]` is
`@table[where(k - 5 < 0, k - 5 + n, k - 5)]`, written only where the index can be negative at all; binding folds it again
where lengths and tables decide.

`any` and `all` become loops of the mask language; sums, minima and maxima are written out, up to MOST_TERMS terms.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import trace_nodes as nodes
from .trace_context import Trace
from .trace_nodes import Node
from .trace_pointwise import (
    broadcast,
    cast,
    common_type,
    element_of,
    fit,
    maximum,
    minimum,
    mul,
    pointwise,
)
from .trace_symbol import Index, Symbol, refuse
from .trace_types import Range, range_of_type

__all__ = ["AXES", "MOST_TERMS"]

MOST_TERMS = 1024
# any and all over at most this many elements are written out: short conditions are simplified further than loops.
_MOST_WRITTEN_OUT = 4


def _view(
    symbol: Symbol, shape: tuple[int, ...], source: Callable[[tuple[Index, ...]], tuple[Index, ...]]
) -> Symbol:
    """The symbol of this shape whose element `index` is the element source(index) of `symbol`."""
    if not shape:
        return Symbol(symbol._trace, symbol._dtype, symbol._range, symbol.at(source(())))
    return Symbol(
        symbol._trace,
        symbol._dtype,
        symbol._range,
        None,
        shape,
        lambda index: symbol.at(source(index)),
    )


# ---- lookups


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
            if isinstance(part, slice) and builtins.any(
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
            parts.append(symbol)
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if taken > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    if Ellipsis not in [part for part in parts if not isinstance(part, Symbol)]:
        parts.append(Ellipsis)
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return [*parts[:at], *[slice(None)] * (rank - taken), *parts[at + 1 :]]


def getitem(trace: Trace, input: Any, index: Any) -> Symbol:
    """PyTorch's indexing by numbers, slices, None, ..., and integer symbols or arrays."""
    table = trace.symbol(input)
    parts = _index_parts(trace, len(table._shape), index, not isinstance(input, np.ndarray))
    arrays = [part for part in parts if isinstance(part, Symbol)]
    inner = broadcast(*[part._shape for part in arrays]) if arrays else ()
    # Axes of the result. Those of the arrays stand where the arrays do, or first if something parts them.
    places = [
        i
        for i, part in enumerate(p for p in parts if not isinstance(p, int))
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
            fixed = _from_the_end(part, Range(part, part), extent)
            rules.append(lambda at, fixed=fixed: fixed)
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
            rules.append(_array_rule(part, extent, len(inner)))
    end = begin + len(inner)

    def source(at: tuple[Index, ...]) -> tuple[Index, ...]:
        # Rules of slices count result axes, those of arrays see the arrays' axes only.
        array_at = at[begin:end]
        return tuple(
            rule(array_at) if getattr(rule, "of_array", False) else rule(at) for rule in rules
        )

    return _view(table, tuple(shape), source)


def _slice_rule(
    axis: int, start: int, step: int, extent: int
) -> Callable[[tuple[Index, ...]], Index]:
    def rule(at: tuple[Index, ...]) -> Index:
        moved = nodes.arithmetic("mul", at[axis], step)
        return nodes.arithmetic("add", moved, start)

    return rule


def _array_rule(part: Symbol, extent: int, rank: int) -> Callable[[tuple[Index, ...]], Index]:
    def rule(at: tuple[Index, ...]) -> Index:
        return _from_the_end(element_of(part, at), part._range, extent)

    rule.of_array = True  # type: ignore[attr-defined]
    return rule


def take(trace: Trace, input: Any, index: Any) -> Symbol:
    return getitem(trace, reshape(trace, input, -1), index)


def index_select(trace: Trace, input: Any, dim: int, index: Any) -> Symbol:
    table = trace.symbol(input)
    axis = _axis(dim, len(table._shape))
    return getitem(trace, table, (*[slice(None)] * axis, index))


def gather(trace: Trace, input: Any, dim: int, index: Any) -> Symbol:
    table, chosen = trace.symbol(input), trace.symbol(index)
    rank = len(table._shape)
    if rank != len(chosen._shape):
        raise IndexError("gather: index and input must have the same number of dimensions")
    if rank == 0:
        return table
    axis = _axis(dim, rank)

    def source(at: tuple[Index, ...]) -> tuple[Index, ...]:
        picked = _from_the_end(chosen.at(at), chosen._range, table._shape[axis])
        return (*at[:axis], picked, *at[axis + 1 :])

    return _view(table, chosen._shape, source)


# ---- views


def _axis(dim: Any, rank: int) -> int:
    if not isinstance(dim, int) or not -max(rank, 1) <= dim < max(rank, 1):
        raise IndexError(f"dimension out of range: {dim} of {rank}")
    return dim % max(rank, 1)


def unsqueeze(trace: Trace, input: Any, dim: Any = None, *, axis: Any = None) -> Symbol:
    a = trace.symbol(input)
    place = _axis(dim if axis is None else axis, len(a._shape) + 1)
    shape = (*a._shape[:place], 1, *a._shape[place:])
    return _view(a, shape, lambda at: (*at[:place], *at[place + 1 :]))


def squeeze(trace: Trace, input: Any, dim: Any = None) -> Symbol:
    a = trace.symbol(input)
    rank = len(a._shape)
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {_axis(d, rank) for d in dims} & {d for d in range(rank) if a._shape[d] == 1}
    kept = [d for d in range(rank) if d not in gone]

    def source(at: tuple[Index, ...]) -> tuple[Index, ...]:
        full: list[Index] = [0] * rank
        for d, i in zip(kept, at, strict=True):
            full[d] = i
        return tuple(full)

    return _view(a, tuple(a._shape[d] for d in kept), source)


def _extents(sizes: tuple[Any, ...]) -> list[int]:
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    return [int(extent) for extent in given]


def expand(trace: Trace, input: Any, *sizes: Any) -> Symbol:
    a = trace.symbol(input)
    wanted = _extents(sizes)
    lead = len(wanted) - len(a._shape)
    shape = tuple(a._shape[i - lead] if extent == -1 else extent for i, extent in enumerate(wanted))
    if lead < 0 or broadcast(a._shape, shape) != shape:
        raise ValueError(f"expand: {a._shape} does not expand to {shape}")
    if not shape:
        return a
    return Symbol(trace, a._dtype, a._range, None, shape, lambda at: element_of(a, at))


def broadcast_tensors(trace: Trace, *tensors: Any) -> list[Symbol]:
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    symbols = [trace.symbol(tensor) for tensor in given]
    shape = broadcast(*[symbol._shape for symbol in symbols])
    return [expand(trace, symbol, shape) for symbol in symbols]


def reshape(trace: Trace, input: Any, *sizes: Any) -> Symbol:
    a = trace.symbol(input)
    shape = _extents(sizes)
    total = a.numel()
    if -1 in shape:
        known = 1
        for extent in shape:
            known *= extent if extent != -1 else 1
        shape[shape.index(-1)] = total // known if known else 0
    if int(np.prod(shape, dtype=np.int64)) != total:
        raise ValueError(f"reshape: {a._shape} has {total} elements, not those of {tuple(shape)}")

    def source(at: tuple[Index, ...]) -> tuple[Index, ...]:
        flat: Node = 0
        for extent, i in zip(shape, at, strict=True):
            flat = nodes.arithmetic("add", nodes.arithmetic("mul", flat, extent), i)
        indices: list[Index] = []
        for axis in range(len(a._shape) - 1, -1, -1):
            extent = a._shape[axis]
            indices.append(flat if axis == 0 else nodes.arithmetic("mod", flat, extent))
            flat = nodes.arithmetic("floor_div", flat, extent)
        return tuple(reversed(indices))

    return _view(a, tuple(shape), source)


def flatten(trace: Trace, input: Any, start_dim: int = 0, end_dim: int = -1) -> Symbol:
    a = trace.symbol(input)
    rank = len(a._shape)
    if rank == 0:
        return reshape(trace, a, 1)
    first, last = _axis(start_dim, rank), _axis(end_dim, rank)
    middle = int(np.prod(a._shape[first : last + 1], dtype=np.int64))
    return reshape(trace, a, (*a._shape[:first], middle, *a._shape[last + 1 :]))


def permute(trace: Trace, input: Any, *dims: Any) -> Symbol:
    a = trace.symbol(input)
    order = [_axis(d, len(a._shape)) for d in _extents(dims)]

    def source(at: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(at[order.index(axis)] for axis in range(len(order)))

    return _view(a, tuple(a._shape[d] for d in order), source)


def transpose(trace: Trace, input: Any, dim0: int = 0, dim1: int = 1) -> Symbol:
    a = trace.symbol(input)
    order = list(range(len(a._shape)))
    if order:
        i, j = _axis(dim0, len(order)), _axis(dim1, len(order))
        order[i], order[j] = order[j], order[i]
    return permute(trace, a, order)


def stack(trace: Trace, tensors: Sequence[Any], dim: int = 0, *, axis: Any = None) -> Symbol:
    symbols = [trace.symbol(tensor) for tensor in tensors]
    return cat(trace, [unsqueeze(trace, s, dim if axis is None else axis) for s in symbols], dim)


def cat(trace: Trace, tensors: Sequence[Any], dim: int = 0) -> Symbol:
    parts = [trace.symbol(tensor) for tensor in tensors]
    dtype = common_type(*parts)
    parts = [cast(trace, part, dtype) for part in parts]
    axis = _axis(dim, len(parts[0]._shape))
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part._shape[axis])
    shape = list(parts[0]._shape)
    shape[axis] = starts[-1]
    bounds = Range(min(p._range.lo for p in parts), max(p._range.hi for p in parts))

    def element(at: tuple[Index, ...]) -> Node:
        i = at[axis]

        def of(number: int) -> Node:
            inside = nodes.arithmetic("sub", i, starts[number])
            return parts[number].at((*at[:axis], inside, *at[axis + 1 :]))

        if isinstance(i, int):
            return of(builtins.max(n for n in range(len(parts)) if starts[n] <= i))
        chosen = of(len(parts) - 1)
        for number in range(len(parts) - 2, -1, -1):
            chosen = nodes.where(nodes.compare("less", i, starts[number + 1]), of(number), chosen)
        return chosen

    return Symbol(trace, dtype, bounds, None, tuple(shape), element)


# ---- reductions


def _reduce(
    symbol: Symbol,
    dim: Any,
    keepdim: bool,
    bounds: Range,
    fold: Callable[[int, Callable[[Index], Node]], Node],
    dtype: str,
) -> Symbol:
    """Folds axes, the last first; fold(extent, element) makes one node."""
    rank = len(symbol._shape)
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    folded = sorted({_axis(d, rank) for d in dims}) if rank else []

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
        return _reduce(a, dims, keepdim, Range(0, 1), fold, "bool")

    return apply


any_ = _quantifier(True)
all_ = _quantifier(False)


def _count(symbol: Symbol, dim: Any) -> int:
    rank = len(symbol._shape)
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    count = 1
    for d in {_axis(d, rank) for d in dims} if rank else ():
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


def _extremum(op: str) -> Callable[..., Any]:
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

    apply.over_axes = over_axes  # type: ignore[attr-defined]
    return apply


_min, _max = _extremum("min"), _extremum("max")


def prod(trace: Trace, input: Any, dim: Any = None, keepdim: bool = False) -> Symbol:
    a = cast(trace, trace.symbol(input), "int64")
    count = _count(a, dim)
    if count > 16:
        refuse(f"prod of {count} elements", "multiply at most 16")
    bounds = Range(1, 1)
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
    found = any_(trace, a == b, -1)
    return ~found if invert else found


def searchsorted(
    trace: Trace,
    sorted_sequence: Any,
    input: Any,
    *,
    right: bool = False,
    side: str | None = None,
    out_int32: bool = False,
) -> Symbol:
    """How many boundaries lie below the value (or at it, for right)."""
    boundaries, value = trace.symbol(sorted_sequence), trace.symbol(input)
    if len(boundaries._shape) != 1:
        refuse("torch.searchsorted in rows", "use a 1-dimensional sequence")
    is_right = right or side == "right"
    value = unsqueeze(trace, value, -1)
    below = boundaries <= value if is_right else boundaries < value
    made = sum_(trace, below, -1)
    return cast(trace, made, "int32") if out_int32 else made


def bucketize(
    trace: Trace, input: Any, boundaries: Any, *, right: bool = False, out_int32: bool = False
) -> Symbol:
    return searchsorted(trace, boundaries, input, right=right, out_int32=out_int32)


# ---- constants in the shape or type of a symbol


def _filled(trace: Trace, shape: tuple[int, ...], value: Any, dtype: Any, default: str) -> Symbol:
    number = trace.symbol(value)
    if dtype is None and isinstance(value, float):
        refuse("a float constant", "use integers")
    name = default if dtype is None else trace.dtype_name(dtype)
    node = cast(trace, Symbol(trace, number._dtype, number._range, number._node), name)
    return expand(trace, node, shape) if shape else node


def _like(value: int | None) -> Callable[..., Symbol]:
    def apply(
        trace: Trace, input: Any, fill_value: Any = value, *, dtype: Any = None, **ignored: Any
    ) -> Symbol:
        a = trace.symbol(input)
        return _filled(trace, a._shape, fill_value, dtype, a._dtype)

    return apply


def _new(value: int | None) -> Callable[..., Symbol]:
    def apply(
        trace: Trace,
        input: Any,
        *sizes: Any,
        size: Any = None,
        fill_value: Any = value,
        dtype: Any = None,
        **ignored: Any,
    ) -> Symbol:
        a = trace.symbol(input)
        if value is None and fill_value is None:
            *sizes, fill_value = sizes  # type: ignore[assignment]
        shape = tuple(_extents(tuple(sizes)) if size is None else _extents((size,)))
        return _filled(trace, shape, fill_value, dtype, a._dtype)

    return apply


def new_tensor(trace: Trace, input: Any, data: Any, *, dtype: Any = None, **ignored: Any) -> Symbol:
    made = trace.symbol(data)
    return made if dtype is None else cast(trace, made, trace.dtype_name(dtype))


AXES: dict[str, Callable[..., Any]] = {
    "__getitem__": getitem,
    "take": take,
    "index_select": index_select,
    "gather": gather,
    **dict.fromkeys(("unsqueeze", "expand_dims"), unsqueeze),
    "squeeze": squeeze,
    **dict.fromkeys(("expand", "broadcast_to"), expand),
    "expand_as": lambda trace, input, other: expand(trace, input, trace.symbol(other)._shape),
    "broadcast_tensors": broadcast_tensors,
    **dict.fromkeys(("reshape", "view"), reshape),
    **dict.fromkeys(("flatten", "ravel"), flatten),
    "permute": permute,
    **dict.fromkeys(("transpose", "swapaxes"), transpose),
    "t": transpose,
    "stack": stack,
    **dict.fromkeys(("cat", "concat", "concatenate"), cat),
    "any": any_,
    "all": all_,
    "sum": sum_,
    "prod": prod,
    "count_nonzero": count_nonzero,
    "min": _min,
    "max": _max,
    "amin": _min.over_axes,  # type: ignore[attr-defined]
    "amax": _max.over_axes,  # type: ignore[attr-defined]
    "isin": isin,
    "searchsorted": searchsorted,
    "bucketize": bucketize,
    "ones_like": _like(1),
    "zeros_like": _like(0),
    "full_like": _like(None),
    "new_ones": _new(1),
    "new_zeros": _new(0),
    "new_full": _new(None),
    "new_tensor": new_tensor,
}
_ = (mul, pointwise, range_of_type)
