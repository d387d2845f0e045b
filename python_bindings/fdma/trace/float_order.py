"""Comparisons with entries of floats, by tables of integers that compare alike.

Two entries. Floats become codes: integers in the same order, with one code for 0.0 and -0.0. NaN
has codes of which every comparison but != is false.

An integer x and an entry e. The library converts x to a float, which rounds, and compares. The
result of this conversion never decreases as x grows, so two thresholds say everything:

    x >= e  iff  x >= lower(e), the first integer that converts to e or more
    x >  e  iff  x >= upper(e), the first integer that converts to more than e

They are ceil(e) and floor(e) + 1 where all integers of that size have floats. Otherwise, beyond
2^23 in float32 and for infinities, both are found by bisection with the library's own conversion.
The tables hold the values at the time of tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import nodes
from .context import Trace
from .floats import FloatLookup
from .pointwise import BOOLEAN, cast, pointwise
from .symbol import Symbol, refuse
from .value_types import Range

__all__ = ["compare_floats", "is_float"]

_TYPES = ("float16", "bfloat16", "float32", "float64")
_WHOLE = float(1 << 53)  # up to here float64 has every integer
_MOST = (1 << 63) - 1
_MIRRORED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
    "equal": "equal",
    "not_equal": "not_equal",
}


def is_float(trace: Trace, value: Any) -> bool:
    """True for a lookup in floats and for an array of floats with axes."""
    if isinstance(value, Symbol | int):  # most are
        return False
    return isinstance(value, FloatLookup) or (trace.holds_floats(value) and value.ndim > 0)


def compare_floats(trace: Trace, op: str, a: Any, b: Any) -> Symbol:
    """The condition `a op b`. One of them is_float; the other may be an integer, too."""
    lookups = [_lookup(trace, value) for value in (a, b)]
    if lookups[0] is None:
        assert lookups[1] is not None
        return _compare_integer(trace, op, trace.symbol(a), lookups[1])
    if lookups[1] is None:
        return _compare_integer(trace, _MIRRORED[op], trace.symbol(b), lookups[0])
    return _compare_entries(trace, op, lookups[0], lookups[1])


def _lookup(trace: Trace, value: Any) -> FloatLookup | None:
    if isinstance(value, FloatLookup):
        return value
    return FloatLookup(trace, value, ()) if trace.holds_floats(value) else None


def _exact(trace: Trace, array: Any) -> NDArray[np.float64]:
    """The entries as float64, which has all numbers of the narrower types."""
    name = str(array.dtype).removeprefix("torch.")
    if name not in _TYPES:
        refuse(f"a comparison with a table of {name}", "use float32 or integers")
    if trace.is_tensor(array):
        array = array.detach().to("cpu", trace.torch.float64).numpy()
    return np.asarray(array, np.float64)


# ---- two entries


def _compare_entries(trace: Trace, op: str, a: FloatLookup, b: FloatLookup) -> Symbol:
    if op.startswith("greater"):
        return _compare_entries(trace, _MIRRORED[op], b, a)
    entries = [_exact(trace, side.array) for side in (a, b)]
    are_whole = all(map(_is_whole, entries))
    # NaN is above every code on the left of `less`, and below every code on the right.
    sides = [
        side.as_integers(
            ("codes", are_whole, of_nan if np.isnan(values).any() else 0),
            _codes(values, are_whole, of_nan),
        )
        for side, values, of_nan in zip((a, b), entries, (_MOST, -_MOST), strict=True)
    ]
    return pointwise(trace, "bool", BOOLEAN, lambda x, y: nodes.compare(op, x, y), *sides)


def _is_whole(entries: NDArray[np.float64]) -> bool:
    known = entries[~np.isnan(entries)]
    return bool(((np.abs(known) <= _WHOLE) & (known == np.floor(known))).all())


def _codes(entries: NDArray[np.float64], are_whole: bool, of_nan: int) -> NDArray[np.int64]:
    """Integers in the order of the entries: the entries themselves, or their bits."""
    is_nan = np.isnan(entries)
    known = np.asarray(np.where(is_nan, 0.0, entries) + 0.0)  # -0.0 + 0.0 is 0.0
    if are_whole:
        codes = known.astype(np.int64)
    else:
        bits = known.view(np.int64)
        codes = np.where(bits < 0, -(bits & _MOST), bits)
    return np.where(is_nan, of_nan, codes)


# ---- an integer and an entry


def _compare_integer(trace: Trace, op: str, x: Symbol, entry: FloatLookup) -> Symbol:
    if op == "not_equal":
        is_equal = _compare_integer(trace, "equal", x, entry)
        return pointwise(trace, "bool", BOOLEAN, nodes.negation, is_equal)
    dtype = x._dtype
    x = cast(trace, x, "int64")
    least, most = max(x._range.lo, -_MOST + 1), min(x._range.hi, _MOST - 1)
    if x._range != (least, most):  # integers at the ends of 64 bits convert to the same float
        bounds = Range(least, most)
        x = pointwise(trace, "int64", bounds, lambda n: nodes.clamp(n, least, most), x)
    lower, upper, is_nan = _thresholds(trace, entry.array, dtype, least, most)
    key = (op, dtype, least, most)

    def compare(sign: str, table: NDArray[np.int64], part: str = "") -> Symbol:
        limit = entry.as_integers((*key, part), table)
        return pointwise(trace, "bool", BOOLEAN, lambda n, e: nodes.compare(sign, n, e), x, limit)

    if op == "less":
        return compare("less", np.where(is_nan, least, lower))
    if op == "less_equal":
        return compare("less_equal", np.where(is_nan, least, upper) - 1)
    if op == "greater":
        return compare("greater", upper - 1)
    if op == "greater_equal":
        return compare("greater_equal", lower)
    if (upper - lower <= 1).all():
        return compare("equal", np.where(upper > lower, lower, most + 1))
    above, below = compare("greater_equal", lower, "from"), compare("less", upper, "to")
    return pointwise(trace, "bool", BOOLEAN, nodes.conjunction, above, below)


def _thresholds(
    trace: Trace, array: Any, dtype: str, least: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """lower and upper of each entry among the integers of this range, `most` + 1 where there is
    none; and which entries are NaN, whose thresholds are `most` + 1.
    """
    entries = _exact(trace, array)
    info = trace.torch.finfo if trace.is_tensor(array) else np.finfo
    is_small = np.abs(entries) < 1 / float(info(array.dtype).eps)
    small = np.where(is_small, entries, 0.0)
    lower, upper = (
        np.clip(limit.astype(np.int64), least, most + 1)
        for limit in (np.ceil(small), np.floor(small) + 1)
    )
    if not is_small.all():
        distinct, places = np.unique(entries[~is_small], return_inverse=True)
        reaches, exceeds = _conversion(trace, array, dtype, distinct)
        for limit, holds in ((lower, reaches), (upper, exceeds)):
            limit[~is_small] = _first(holds, len(distinct), least, most)[places]
    return lower, upper, np.isnan(entries)


_Test = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


def _conversion(
    trace: Trace, array: Any, dtype: str, distinct: NDArray[np.float64]
) -> tuple[_Test, _Test]:
    """Whether integers, one for each distinct entry, convert to it or more, and to more than it."""
    if trace.is_tensor(array):
        torch = trace.torch
        entries = torch.from_numpy(distinct).to(array.dtype)

        def converted(numbers: NDArray[np.int64]) -> Any:
            return torch.from_numpy(numbers).to(array.dtype)

        return (
            lambda numbers: (converted(numbers) >= entries).numpy(),
            lambda numbers: (converted(numbers) > entries).numpy(),
        )
    common = np.result_type(np.dtype(dtype), array.dtype)
    values = distinct.astype(common)
    return (
        lambda numbers: numbers.astype(common) >= values,
        lambda numbers: numbers.astype(common) > values,
    )


def _first(holds: _Test, count: int, least: int, most: int) -> NDArray[np.int64]:
    """The first integer of [least, most] for which each of `count` tests holds, else most + 1."""
    low, high = np.full(count, least, np.int64), np.full(count, most + 1, np.int64)
    while (is_open := low < high).any():
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow
        found = holds(middle)
        high = np.where(is_open & found, middle, high)
        low = np.where(is_open & ~found, middle + 1, low)
    return low
