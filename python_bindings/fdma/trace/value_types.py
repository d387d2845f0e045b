"""Element types and value ranges of traced values: the rules of PyTorch, without PyTorch.

A traced value has one of six types. PyTorch's promotion decides in which type an operation is
computed. Values with axes outrank those without axes, which outrank Python's own numbers. An
operand of lower rank matters only if its category (bool, integer) is higher. FDMA computes in 64
bits, so values of 8 and 16 bits are wrapped explicitly unless their range rules out an overflow.
int32 and int64 are taken not to overflow; in FDMA an overflow is an error, never a wrong mask.
"""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

__all__ = [
    "INDEX",
    "Range",
    "float_bound",
    "promote",
    "range_of_type",
    "result_type",
]


class Range(NamedTuple):
    """The closed interval that the values of an integer lie in."""

    lo: int
    hi: int

    def within(self, other: Range) -> bool:
        return other.lo <= self.lo and self.hi <= other.hi


_LIMITS: Final = {
    "bool": Range(0, 1),
    "uint8": Range(0, 255),
    "int8": Range(-128, 127),
    "int16": Range(-(1 << 15), (1 << 15) - 1),
    "int32": Range(-(1 << 31), (1 << 31) - 1),
    "int64": Range(-(1 << 63), (1 << 63) - 1),
}
_BITS: Final = {"bool": 1, "uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}

# The range of q, k, b and h: sequences have less than 2^31 entries.
INDEX: Final = Range(0, (1 << 31) - 1)


def range_of_type(dtype: str) -> Range:
    """All values of a type."""
    return _LIMITS[dtype]


def promote(a: str, b: str) -> str:
    """The type that holds two types of one rank."""
    if a == b:
        return a
    wide, narrow = (a, b) if _BITS[a] >= _BITS[b] else (b, a)
    if (narrow == "uint8" and wide == "int8") or (narrow == "int8" and wide == "uint8"):
        return "int16"
    return wide


def result_type(operands: list[tuple[str, int]]) -> str:
    """The type that (type, rank) operands are computed in; rank 2 has axes, 1 has none, 0 is
    Python's number.
    """
    result = ""
    for rank in (2, 1, 0):
        here = ""
        for dtype, of_rank in operands:
            if of_rank == rank:
                here = promote(here, dtype) if here else dtype
        if not result or (result == "bool" and here):
            result = promote(result, here) if result and here else here or result
    return result


def float_bound(value: float, is_double: bool) -> float | None:
    """The number with which an integer is compared if PyTorch compares it with a float. The result
    is None if rounding of the integer could matter, which is beyond 2^24, or beyond 2^53 if the
    default type is float64.
    """
    if math.isnan(value) or math.isinf(value):
        return value
    if not is_double:
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    if abs(value) > 1 << 63:  # beyond every integer
        return math.copysign(math.inf, value)
    return value if abs(value) < (1 << 53 if is_double else 1 << 24) else None
