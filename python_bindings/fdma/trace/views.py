"""Views of traced values, which add, move and join axes, and constants in the shape of a value.

A symbol with axes is a function from the indices of an element to its node (symbol.py); a
view of it is another function that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import nodes
from .context import Trace
from .nodes import Node
from .pointwise import broadcast, cast, common_type, element_of
from .symbol import Index, Symbol, refuse
from .value_types import Range

__all__ = ["VIEWS", "axis_of", "expand", "reshape", "unsqueeze", "view"]


def view(
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


def axis_of(dim: Any, rank: int) -> int:
    if not isinstance(dim, int) or not -max(rank, 1) <= dim < max(rank, 1):
        raise IndexError(f"dimension out of range: {dim} of {rank}")
    return dim % max(rank, 1)


def unsqueeze(trace: Trace, input: Any, dim: Any) -> Symbol:
    a = trace.symbol(input)
    place = axis_of(dim, len(a._shape) + 1)
    shape = (*a._shape[:place], 1, *a._shape[place:])
    return view(a, shape, lambda at: (*at[:place], *at[place + 1 :]))


def squeeze(trace: Trace, input: Any, dim: Any = None) -> Symbol:
    a = trace.symbol(input)
    rank = len(a._shape)
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {axis_of(d, rank) for d in dims} & {d for d in range(rank) if a._shape[d] == 1}
    kept = [d for d in range(rank) if d not in gone]

    def source(at: tuple[Index, ...]) -> tuple[Index, ...]:
        full: list[Index] = [0] * rank
        for d, i in zip(kept, at, strict=True):
            full[d] = i
        return tuple(full)

    return view(a, tuple(a._shape[d] for d in kept), source)


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

    return view(a, tuple(shape), source)


def flatten(trace: Trace, input: Any, start_dim: int = 0, end_dim: int = -1) -> Symbol:
    a = trace.symbol(input)
    rank = len(a._shape)
    if rank == 0:
        return reshape(trace, a, 1)
    first, last = axis_of(start_dim, rank), axis_of(end_dim, rank)
    middle = int(np.prod(a._shape[first : last + 1], dtype=np.int64))
    return reshape(trace, a, (*a._shape[:first], middle, *a._shape[last + 1 :]))


def permute(trace: Trace, input: Any, *dims: Any) -> Symbol:
    a = trace.symbol(input)
    order = [axis_of(d, len(a._shape)) for d in _extents(dims)]

    def source(at: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(at[order.index(axis)] for axis in range(len(order)))

    return view(a, tuple(a._shape[d] for d in order), source)


def transpose(trace: Trace, input: Any, dim0: int = 0, dim1: int = 1) -> Symbol:
    a = trace.symbol(input)
    order = list(range(len(a._shape)))
    if order:
        i, j = axis_of(dim0, len(order)), axis_of(dim1, len(order))
        order[i], order[j] = order[j], order[i]
    return permute(trace, a, order)


def stack(trace: Trace, tensors: Sequence[Any], dim: int = 0, *, axis: Any = None) -> Symbol:
    place = dim if axis is None else axis
    rank = len(trace.symbol(tensors[0])._shape)
    return cat(trace, [unsqueeze(trace, s, place) for s in tensors], axis_of(place, rank + 1))


def cat(trace: Trace, tensors: Sequence[Any], dim: int = 0) -> Symbol:
    parts = [trace.symbol(tensor) for tensor in tensors]
    dtype = common_type(*parts)
    parts = [cast(trace, part, dtype) for part in parts]
    axis = axis_of(dim, len(parts[0]._shape))
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
            return of(max(n for n in range(len(parts)) if starts[n] <= i))
        chosen = of(len(parts) - 1)
        for number in range(len(parts) - 2, -1, -1):
            chosen = nodes.where(nodes.compare("less", i, starts[number + 1]), of(number), chosen)
        return chosen

    return Symbol(trace, dtype, bounds, None, tuple(shape), element)


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


VIEWS: dict[str, Callable[..., Any]] = {
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    **dict.fromkeys(("expand", "broadcast_to"), expand),
    "expand_as": lambda trace, input, other: expand(trace, input, trace.symbol(other)._shape),
    "broadcast_tensors": broadcast_tensors,
    **dict.fromkeys(("reshape", "view"), reshape),
    **dict.fromkeys(("flatten", "ravel"), flatten),
    "permute": permute,
    **dict.fromkeys(("transpose", "swapaxes", "t"), transpose),
    "stack": stack,
    **dict.fromkeys(("cat", "concat", "concatenate"), cat),
    "ones_like": _like(1),
    "zeros_like": _like(0),
    "full_like": _like(None),
    "new_ones": _new(1),
    "new_zeros": _new(0),
    "new_full": _new(None),
    "new_tensor": new_tensor,
}
