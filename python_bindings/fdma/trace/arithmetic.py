"""Arithmetic and bits of traced values.

FDMA defines fewer operations than PyTorch; a divisor below 0, for instance, is undefined. For such
values the expression selects another form by `where`, unless the ranges of the values rule them
out. Binding knows tables and lengths and folds the selections that they decide, so a division by a
table of positive entries costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import nodes
from .conditions import greater, less, not_equal, where
from .context import Trace
from .nodes import Node
from .pointwise import BOOLEAN, cast, corners, fit, pointwise, prepare
from .symbol import Symbol, refuse
from .value_types import Range, range_of_type

__all__ = ["ARITHMETIC"]


def _no_alpha(operation: str, alpha: Any) -> None:
    if alpha != 1:
        refuse(f"torch.{operation} with alpha", "multiply")


def add(trace: Trace, input: Any, other: Any, *, alpha: Any = 1) -> Symbol:
    _no_alpha("add", alpha)
    dtype, (a, b) = prepare(trace, input, other)
    if dtype == "bool":
        return pointwise(trace, "bool", BOOLEAN, nodes.disjunction, a, b)
    bounds = Range(a._range.lo + b._range.lo, a._range.hi + b._range.hi)
    return fit(trace, dtype, bounds, lambda x, y: nodes.arithmetic("add", x, y), a, b)


def sub(trace: Trace, input: Any, other: Any, *, alpha: Any = 1) -> Symbol:
    _no_alpha("sub", alpha)
    dtype, (a, b) = prepare(trace, input, other)
    if dtype == "bool":
        refuse("- of booleans", "use ^")
    bounds = Range(a._range.lo - b._range.hi, a._range.hi - b._range.lo)
    return fit(trace, dtype, bounds, lambda x, y: nodes.arithmetic("sub", x, y), a, b)


def rsub(trace: Trace, input: Any, other: Any, *, alpha: Any = 1) -> Symbol:
    return sub(trace, other, input, alpha=alpha)


def mul(trace: Trace, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = prepare(trace, input, other)
    if dtype == "bool":
        return pointwise(trace, "bool", BOOLEAN, nodes.conjunction, a, b)
    bounds = corners(lambda x, y: x * y, a._range, b._range)
    return fit(trace, dtype, bounds, lambda x, y: nodes.arithmetic("mul", x, y), a, b)


def _positive_divisor(op: str, a: Node, b: Node, divisor: Range) -> Node:
    # x // -d = -x // d;  x % -d = -(-x % d)
    if divisor.lo > 0:
        return nodes.arithmetic(op, a, b)
    turned = nodes.arithmetic(op, nodes.unary("negate", a), nodes.unary("negate", b))
    if op == "mod":
        turned = nodes.unary("negate", turned)
    if divisor.hi < 0:
        return turned
    return nodes.where(nodes.compare("less", b, 0), turned, nodes.arithmetic(op, a, b))


def _check_divisor(b: Symbol) -> None:
    if b._range == (0, 0):
        raise ZeroDivisionError("mask_mod: division by 0")


def floor_divide(trace: Trace, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = prepare(trace, input, other)
    if dtype == "bool":
        refuse("// of booleans", "use .int()")
    _check_divisor(b)
    x, d = a._range, b._range
    if d.lo > 0:
        bounds = corners(lambda n, m: n // m, x, d)
    else:
        most = max(-x.lo, x.hi, x.lo, -x.hi)
        bounds = Range(-most, most)
    return fit(trace, dtype, bounds, lambda n, m: _positive_divisor("floor_div", n, m, d), a, b)


def remainder(trace: Trace, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = prepare(trace, input, other)
    if dtype == "bool":
        refuse("% of booleans", "use .int()")
    _check_divisor(b)
    d = b._range
    bounds = Range(min(d.lo + 1, 0), max(d.hi - 1, 0))
    if d.lo > 0 and a._range.lo >= 0:
        bounds = Range(0, min(a._range.hi, d.hi - 1))
    return fit(trace, dtype, bounds, lambda n, m: _positive_divisor("mod", n, m, d), a, b)


def _truncating(
    trace: Trace, operation: Callable[[Trace, Any, Any], Symbol], input: Any, other: Any
) -> Symbol:
    # The sign of the quotient or remainder is computed separately from |x| op |d|.
    dtype, (a, b) = prepare(trace, input, other)
    if dtype == "bool":
        refuse("division of booleans", "use .int()")
    if a._range.lo >= 0 and b._range.lo > 0:
        return operation(trace, a, b)
    magnitude = operation(trace, absolute(trace, a), absolute(trace, b))
    is_negative = less(trace, a, 0)
    if operation is floor_divide:
        is_negative = not_equal(trace, is_negative, less(trace, b, 0))
    return where(trace, is_negative, negate(trace, magnitude), magnitude)


def fmod(trace: Trace, input: Any, other: Any) -> Symbol:
    return _truncating(trace, remainder, input, other)


def div(trace: Trace, input: Any, other: Any, *, rounding_mode: str | None = None) -> Symbol:
    if rounding_mode == "floor":
        return floor_divide(trace, input, other)
    if rounding_mode == "trunc":
        return _truncating(trace, floor_divide, input, other)
    refuse("/ (true division, a float)", "use // or torch.div(.., rounding_mode='floor')")


def divmod_(trace: Trace, input: Any, other: Any) -> tuple[Symbol, Symbol]:
    return floor_divide(trace, input, other), remainder(trace, input, other)


def negate(trace: Trace, input: Any) -> Symbol:
    a = trace.symbol(input)
    if a._dtype == "bool":
        refuse("unary - of a boolean", "use ~")
    bounds = Range(-a._range.hi, -a._range.lo)
    return fit(trace, a._dtype, bounds, lambda x: nodes.unary("negate", x), a)


def positive(trace: Trace, input: Any) -> Symbol:
    return trace.symbol(input)


def absolute(trace: Trace, input: Any) -> Symbol:
    a = trace.symbol(input)
    if a._dtype == "bool":
        refuse("abs of a boolean", "use .int()")
    lo, hi = a._range
    if lo >= 0:
        return a
    return fit(
        trace, a._dtype, Range(max(0, -hi), max(-lo, hi)), lambda x: nodes.unary("abs", x), a
    )


def sign(trace: Trace, input: Any) -> Symbol:
    a = trace.symbol(input)
    if a._dtype == "bool":
        return a
    above, below = greater(trace, a, 0), less(trace, a, 0)
    return sub(trace, cast(trace, above, a._dtype), cast(trace, below, a._dtype))


def power(trace: Trace, input: Any, exponent: Any) -> Symbol:
    e = trace.symbol(exponent)
    if isinstance(e._node, int) and not isinstance(e._node, bool):
        if not 0 <= e._node <= 62:
            refuse(f"** {e._node}", "use an exponent from 0 to 62")
        a = trace.symbol(input)
        result = trace.symbol(1)
        result = cast(trace, result, a._dtype) if a._dtype != "bool" else result
        for _ in range(e._node):
            result = mul(trace, result, a)
        return pointwise(trace, result._dtype, result._range, lambda x, y: x, result, a)
    base = trace.symbol(input)
    if base._node == 2 and base.weight == 0:
        return left_shift(trace, 1, e)
    refuse("** with a traced exponent", "use 1 << n for powers of two")


def square(trace: Trace, input: Any) -> Symbol:
    return mul(trace, input, input)


# ---- bits


def left_shift(trace: Trace, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = prepare(trace, input, other)
    if dtype == "bool":
        refuse("<< of booleans", "use .int()")
    if isinstance(b._node, int) and not 0 <= b._node <= 62:
        refuse(f"<< {b._node}", "shift by 0 to 62")
    lo, hi = max(b._range.lo, 0), min(b._range.hi, 62)
    bounds = corners(lambda x, n: x << n, a._range, Range(min(lo, hi), max(lo, hi)))
    return fit(trace, dtype, bounds, lambda x, n: nodes.arithmetic("shl", x, n), a, b)


def right_shift(trace: Trace, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = prepare(trace, input, other)
    if dtype == "bool":
        refuse(">> of booleans", "use .int()")
    if isinstance(b._node, int) and b._node < 0:
        refuse(f">> {b._node}", "shift by 0 or more")
    lo, hi = a._range
    bounds = Range(min(lo, 0), max(hi, 0))

    def shifted(x: Node, n: Node) -> Node:
        # Beyond 62 only the sign is left; FDMA shifts by 0 to 62.
        if isinstance(n, int) and n > 62:
            return nodes.where(nodes.compare("less", x, 0), -1, 0)
        return nodes.arithmetic("shr", x, n)

    return fit(trace, dtype, bounds, shifted, a, b)


def _bitwise(op: str, of_conditions: Callable[[Node, Node], Node]) -> Callable[..., Symbol]:
    def apply(trace: Trace, input: Any, other: Any) -> Symbol:
        dtype, (a, b) = prepare(trace, input, other)
        if dtype == "bool":
            return pointwise(trace, "bool", BOOLEAN, of_conditions, a, b)
        return pointwise(
            trace,
            dtype,
            _bits_range(op, a, b, dtype),
            lambda x, y: nodes.arithmetic(op, x, y),
            a,
            b,
        )

    return apply


def _bits_range(op: str, a: Symbol, b: Symbol, dtype: str) -> Range:
    lows, highs = (a._range.lo, b._range.lo), (a._range.hi, b._range.hi)
    if op == "bit_and" and max(lows) >= 0:  # the result is not negative if one operand is not
        return Range(0, min(hi for lo, hi in (a._range, b._range) if lo >= 0))
    if min(lows) >= 0:
        return Range(0, (1 << max(highs).bit_length()) - 1)
    return range_of_type(dtype)


def invert(trace: Trace, input: Any) -> Symbol:
    a = trace.symbol(input)
    if a._dtype == "bool":
        return pointwise(trace, "bool", BOOLEAN, nodes.negation, a)
    if a._dtype == "uint8":
        return sub(trace, 255, a)
    # ~x = -x - 1
    bounds = Range(-a._range.hi - 1, -a._range.lo - 1)
    return fit(
        trace,
        a._dtype,
        bounds,
        lambda x: nodes.arithmetic("sub", nodes.unary("negate", x), 1),
        a,
    )


# By the names that PyTorch gives them.
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": add,
    **dict.fromkeys(("sub", "subtract"), sub),
    "rsub": rsub,
    **dict.fromkeys(("mul", "multiply"), mul),
    "floor_divide": floor_divide,
    "remainder": remainder,
    "fmod": fmod,
    **dict.fromkeys(("div", "divide", "true_divide"), div),
    "divmod": divmod_,
    **dict.fromkeys(("neg", "negative"), negate),
    "positive": positive,
    **dict.fromkeys(("abs", "absolute"), absolute),
    **dict.fromkeys(("sign", "sgn"), sign),
    "pow": power,
    "square": square,
    "bitwise_left_shift": left_shift,
    "bitwise_right_shift": right_shift,
    "bitwise_and": _bitwise("bit_and", nodes.conjunction),
    "bitwise_or": _bitwise("bit_or", nodes.disjunction),
    "bitwise_xor": _bitwise("bit_xor", nodes.exclusive_or),
    "bitwise_not": invert,
}
