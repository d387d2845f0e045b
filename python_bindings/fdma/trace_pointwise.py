"""Operations that treat elements one by one: arithmetic, comparisons, logic, selection, conversions.

Each follows PyTorch: operands are brought to one type (trace_types.py), broadcast, and combined. The ranges of the values
decide where FDMA's own rules need help: a negative divisor is turned round, a result of 8 or 16 bits is wrapped.
Where a range does not tell, the expression selects by `where`; binding knows tables and lengths and folds what they
decide, so that a lookup in a table of document ids costs what it would without.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from . import trace_nodes as nodes
from .trace_context import Trace
from .trace_nodes import Node
from .trace_symbol import Index, Symbol, refuse
from .trace_types import Range, float_bound, range_of_type, result_type

__all__ = ["broadcast", "cast", "common_type", "element_of", "pointwise"]


# ---- shapes and types


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all broadcast to; ValueError, as PyTorch's RuntimeError, where they do not."""
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
    is_number = all(operand.is_number for operand in operands)
    if not shape:
        made = combine(*[operand._node for operand in operands])
        return Symbol(trace, dtype, bounds, made, is_number=is_number)

    def element(index: tuple[Index, ...]) -> Node:
        return combine(*[element_of(operand, index) for operand in operands])

    return Symbol(trace, dtype, bounds, None, shape, element)


def common_type(*operands: Symbol) -> str:
    """The type that PyTorch computes these operands in."""
    first = operands[0]._dtype
    if all(operand._dtype == first for operand in operands):
        return first
    return result_type([(s._dtype, 0 if s.is_number else 2 if s._shape else 1) for s in operands])


def cast(trace: Trace, symbol: Symbol, dtype: str) -> Symbol:
    """The value as another type: nonzero as true, true as 1, 8 and 16 bits wrapped where they may have to be."""
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
    """pointwise() for an integer result that may leave its type: 8 and 16 bits wrap, 32 and 64 do not overflow."""
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


def _prepare(trace: Trace, *values: Any) -> tuple[str, list[Symbol]]:
    symbols = [trace.symbol(value) for value in values]
    dtype = common_type(*symbols)
    return dtype, [cast(trace, symbol, dtype) for symbol in symbols]


def _corners(apply: Callable[[int, int], int], a: Range, b: Range) -> Range:
    values = [apply(x, y) for x in a for y in b]
    return Range(min(values), max(values))


# ---- arithmetic


def _no_alpha(operation: str, alpha: Any) -> None:
    if alpha != 1:
        refuse(f"torch.{operation} with alpha", "multiply")


def add(trace: Trace, input: Any, other: Any, *, alpha: Any = 1) -> Symbol:
    _no_alpha("add", alpha)
    dtype, (a, b) = _prepare(trace, input, other)
    if dtype == "bool":
        return pointwise(trace, "bool", Range(0, 1), nodes.disjunction, a, b)
    bounds = Range(a._range.lo + b._range.lo, a._range.hi + b._range.hi)
    return fit(trace, dtype, bounds, lambda x, y: nodes.arithmetic("add", x, y), a, b)


def sub(trace: Trace, input: Any, other: Any, *, alpha: Any = 1) -> Symbol:
    _no_alpha("sub", alpha)
    dtype, (a, b) = _prepare(trace, input, other)
    if dtype == "bool":
        refuse("- of booleans", "use ^")
    bounds = Range(a._range.lo - b._range.hi, a._range.hi - b._range.lo)
    return fit(trace, dtype, bounds, lambda x, y: nodes.arithmetic("sub", x, y), a, b)


def rsub(trace: Trace, input: Any, other: Any, *, alpha: Any = 1) -> Symbol:
    return sub(trace, other, input, alpha=alpha)


def mul(trace: Trace, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = _prepare(trace, input, other)
    if dtype == "bool":
        return pointwise(trace, "bool", Range(0, 1), nodes.conjunction, a, b)
    bounds = _corners(lambda x, y: x * y, a._range, b._range)
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
    dtype, (a, b) = _prepare(trace, input, other)
    if dtype == "bool":
        refuse("// of booleans", "use .int()")
    _check_divisor(b)
    x, d = a._range, b._range
    if d.lo > 0:
        bounds = _corners(lambda n, m: n // m, x, d)
    else:
        most = max(-x.lo, x.hi, x.lo, -x.hi)
        bounds = Range(-most, most)
    return fit(trace, dtype, bounds, lambda n, m: _positive_divisor("floor_div", n, m, d), a, b)


def remainder(trace: Trace, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = _prepare(trace, input, other)
    if dtype == "bool":
        refuse("% of booleans", "use .int()")
    _check_divisor(b)
    d = b._range
    bounds = Range(min(d.lo + 1, 0), max(d.hi - 1, 0))
    if d.lo > 0 and a._range.lo >= 0:
        bounds = Range(0, min(a._range.hi, d.hi - 1))
    return fit(trace, dtype, bounds, lambda n, m: _positive_divisor("mod", n, m, d), a, b)


def _truncating(trace: Trace, operation: str, input: Any, other: Any) -> Symbol:
    # The sign of the quotient or remainder apart: |x| op |d|.
    dtype, (a, b) = _prepare(trace, input, other)
    if dtype == "bool":
        refuse("division of booleans", "use .int()")
    if a._range.lo >= 0 and b._range.lo > 0:
        return FUNCTIONS[operation](trace, a, b)
    magnitude = FUNCTIONS[operation](trace, absolute(trace, a), absolute(trace, b))
    is_negative = a < 0 if operation == "remainder" else (a < 0) ^ (b < 0)
    chosen: Symbol = where(trace, is_negative, -magnitude, magnitude)
    return chosen


def fmod(trace: Trace, input: Any, other: Any) -> Symbol:
    return _truncating(trace, "remainder", input, other)


def div(trace: Trace, input: Any, other: Any, *, rounding_mode: str | None = None) -> Symbol:
    if rounding_mode == "floor":
        return floor_divide(trace, input, other)
    if rounding_mode == "trunc":
        return _truncating(trace, "floor_divide", input, other)
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
    made: Symbol = (a > 0).to(trace.library_dtype(a._dtype)) - (a < 0).to(
        trace.library_dtype(a._dtype)
    )
    return made


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
    if base._node == 2 and base.is_number:
        return left_shift(trace, 1, e)
    refuse("** with a traced exponent", "use 1 << n for powers of two")


def square(trace: Trace, input: Any) -> Symbol:
    return mul(trace, input, input)


# ---- bits


def left_shift(trace: Trace, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = _prepare(trace, input, other)
    if dtype == "bool":
        refuse("<< of booleans", "use .int()")
    if isinstance(b._node, int) and not 0 <= b._node <= 62:
        refuse(f"<< {b._node}", "shift by 0 to 62")
    lo, hi = max(b._range.lo, 0), min(b._range.hi, 62)
    bounds = _corners(lambda x, n: x << n, a._range, Range(min(lo, hi), max(lo, hi)))
    return fit(trace, dtype, bounds, lambda x, n: nodes.arithmetic("shl", x, n), a, b)


def right_shift(trace: Trace, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = _prepare(trace, input, other)
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
        dtype, (a, b) = _prepare(trace, input, other)
        if dtype == "bool":
            return pointwise(trace, "bool", Range(0, 1), of_conditions, a, b)
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
    if op == "bit_and" and max(lows) >= 0:  # one is not negative: neither is the result
        return Range(0, min(hi for lo, hi in (a._range, b._range) if lo >= 0))
    if min(lows) >= 0:
        return Range(0, (1 << max(highs).bit_length()) - 1)
    return range_of_type(dtype)


def invert(trace: Trace, input: Any) -> Symbol:
    a = trace.symbol(input)
    if a._dtype == "bool":
        return pointwise(trace, "bool", Range(0, 1), nodes.negation, a)
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


# ---- comparisons and logic


def _float_of(trace: Trace, value: Any) -> tuple[float, bool] | None:
    """A float constant, and whether comparisons with it are made in float64."""
    if isinstance(value, float) and not isinstance(value, Symbol):
        is_double = trace.torch is None or trace.torch.get_default_dtype() == trace.torch.float64
        return value, is_double
    if (
        trace.is_array(value)
        and value.ndim == 0
        and str(value.dtype).endswith(("float32", "float64"))
    ):
        return float(value), str(value.dtype).endswith("64")
    return None


_MIRRORED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
    "equal": "equal",
    "not_equal": "not_equal",
}


def _compare_float(trace: Trace, op: str, a: Symbol, value: float, is_double: bool) -> Symbol:
    bound = float_bound(value, is_double)
    if bound is None:
        refuse(f"a comparison with the float {value}", "use an integer")
    a = cast(trace, a, "int64")  # the whole part of a float need not fit in the type of a
    if math.isnan(bound):
        answer = op == "not_equal"
    elif math.isinf(bound):
        answer = op == "not_equal" or (op.startswith("less") == (bound > 0) and op != "equal")
    elif bound == math.floor(bound):
        return _compare(op)(trace, a, int(bound))
    elif op in ("equal", "not_equal"):
        answer = op == "not_equal"
    else:  # x < 2.5 and x <= 2.5 are x <= 2; x > 2.5 and x >= 2.5 are x >= 3
        is_less = op.startswith("less")
        edge = math.floor(bound) if is_less else math.ceil(bound)
        return _compare("less_equal" if is_less else "greater_equal")(trace, a, edge)
    return pointwise(trace, "bool", Range(0, 1), lambda x: answer, a)


def _compare_conditions(op: str, a: Node, b: Node) -> Node:
    if op in ("equal", "not_equal"):
        differ = nodes.exclusive_or(a, b)
        return differ if op == "not_equal" else nodes.negation(differ)
    if op in ("less", "less_equal"):  # false < true
        if op == "less":
            return nodes.conjunction(nodes.negation(a), b)
        return nodes.disjunction(nodes.negation(a), b)
    return _compare_conditions(_MIRRORED[op], b, a)


def _compare(op: str) -> Callable[..., Symbol]:
    def apply(trace: Trace, input: Any, other: Any) -> Symbol:
        number = _float_of(trace, other)
        if number is not None:
            return _compare_float(trace, op, trace.symbol(input), *number)
        number = _float_of(trace, input)
        if number is not None:
            return _compare_float(trace, _MIRRORED[op], trace.symbol(other), *number)
        dtype, (a, b) = _prepare(trace, input, other)
        if dtype == "bool":
            return pointwise(
                trace, "bool", Range(0, 1), lambda x, y: _compare_conditions(op, x, y), a, b
            )
        return pointwise(trace, "bool", Range(0, 1), lambda x, y: nodes.compare(op, x, y), a, b)

    return apply


def _logical(of_conditions: Callable[[Node, Node], Node]) -> Callable[..., Symbol]:
    def apply(trace: Trace, input: Any, other: Any) -> Symbol:
        a, b = (cast(trace, trace.symbol(value), "bool") for value in (input, other))
        return pointwise(trace, "bool", Range(0, 1), of_conditions, a, b)

    return apply


def logical_not(trace: Trace, input: Any) -> Symbol:
    return invert(trace, cast(trace, trace.symbol(input), "bool"))


# ---- selection


def where(trace: Trace, condition: Any, input: Any, other: Any) -> Symbol:
    chosen = trace.symbol(condition)
    if chosen._dtype != "bool":
        refuse(f"torch.where with a condition of type {chosen._dtype}", "compare it with 0")
    dtype, (a, b) = _prepare(trace, input, other)
    bounds = Range(min(a._range.lo, b._range.lo), max(a._range.hi, b._range.hi))
    return pointwise(trace, dtype, bounds, nodes.where, chosen, a, b)


def where_method(trace: Trace, self: Any, condition: Any, other: Any) -> Symbol:
    return where(trace, condition, self, other)


def masked_fill(trace: Trace, input: Any, mask: Any, value: Any) -> Symbol:
    a = trace.symbol(input)
    return where(trace, mask, cast(trace, trace.symbol(value), a._dtype), a)


def minimum(trace: Trace, input: Any, other: Any) -> Symbol:
    return _extremum(trace, "min", input, other)


def maximum(trace: Trace, input: Any, other: Any) -> Symbol:
    return _extremum(trace, "max", input, other)


def _extremum(trace: Trace, op: str, input: Any, other: Any) -> Symbol:
    dtype, (a, b) = _prepare(trace, input, other)
    if dtype == "bool":
        combine = nodes.conjunction if op == "min" else nodes.disjunction
        return pointwise(trace, "bool", Range(0, 1), combine, a, b)
    pick = min if op == "min" else max
    bounds = Range(pick(a._range.lo, b._range.lo), pick(a._range.hi, b._range.hi))
    return pointwise(trace, dtype, bounds, lambda x, y: nodes.arithmetic(op, x, y), a, b)


def clamp(trace: Trace, input: Any, min: Any = None, max: Any = None) -> Symbol:
    a = trace.symbol(input)
    if min is None and max is None:
        refuse("torch.clamp without bounds", "give min or max")
    for bound in (min, max):
        if isinstance(bound, float):
            refuse("torch.clamp with a float", "use integers")
    if min is None or max is None or a._dtype == "bool":
        result = a if min is None else maximum(trace, a, min)
        return result if max is None else minimum(trace, result, max)
    dtype, (x, lo, hi) = _prepare(trace, a, min, max)
    bounds = minimum(trace, maximum(trace, x, lo), hi)._range
    return pointwise(trace, dtype, bounds, nodes.clamp, x, lo, hi)


# ---- conversions


def to(trace: Trace, input: Any, *args: Any, dtype: Any = None, **ignored: Any) -> Symbol:
    a = trace.symbol(input)
    for value in args:
        if isinstance(value, Symbol):
            dtype = value._dtype
        elif trace.is_array(value):
            dtype = value.dtype
        elif trace.torch is not None and isinstance(value, trace.torch.dtype):
            dtype = value
        elif isinstance(value, str) and value in ("bool", "int32", "int64"):
            dtype = value
    return a if dtype is None else _retyped(trace, a, trace.dtype_name(dtype))


def _retyped(trace: Trace, a: Symbol, dtype: str) -> Symbol:
    made = cast(trace, a, dtype)
    return pointwise(trace, dtype, made._range, lambda x: x, made) if made is a else made


def type_(trace: Trace, input: Any, dtype: Any = None) -> Symbol:
    if dtype is None:
        refuse("Tensor.type() without a type", "use .dtype")
    return to(trace, input, dtype)


def _converter(dtype: str) -> Callable[..., Symbol]:
    def apply(trace: Trace, input: Any, *ignored: Any, **also: Any) -> Symbol:
        return cast(trace, trace.symbol(input), dtype)

    return apply


def same(trace: Trace, input: Any, *ignored: Any, **also: Any) -> Symbol:
    """What concerns memory, devices and gradients only."""
    return trace.symbol(input)


# By the names that PyTorch and NumPy give them.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add",), add),
    **dict.fromkeys(("sub", "subtract"), sub),
    "rsub": rsub,
    **dict.fromkeys(("mul", "multiply"), mul),
    "floor_divide": floor_divide,
    **dict.fromkeys(("remainder", "mod"), remainder),
    "fmod": fmod,
    **dict.fromkeys(("div", "divide", "true_divide"), div),
    "divmod": divmod_,
    **dict.fromkeys(("neg", "negative"), negate),
    "positive": positive,
    **dict.fromkeys(("abs", "absolute"), absolute),
    **dict.fromkeys(("sign", "sgn"), sign),
    **dict.fromkeys(("pow", "power"), power),
    "square": square,
    **dict.fromkeys(("bitwise_left_shift", "left_shift"), left_shift),
    **dict.fromkeys(("bitwise_right_shift", "right_shift"), right_shift),
    "bitwise_and": _bitwise("bit_and", nodes.conjunction),
    "bitwise_or": _bitwise("bit_or", nodes.disjunction),
    "bitwise_xor": _bitwise("bit_xor", nodes.exclusive_or),
    **dict.fromkeys(("bitwise_not", "invert"), invert),
    **dict.fromkeys(("lt", "less"), _compare("less")),
    **dict.fromkeys(("le", "less_equal"), _compare("less_equal")),
    **dict.fromkeys(("eq", "equal"), _compare("equal")),
    **dict.fromkeys(("ne", "not_equal"), _compare("not_equal")),
    **dict.fromkeys(("ge", "greater_equal"), _compare("greater_equal")),
    **dict.fromkeys(("gt", "greater"), _compare("greater")),
    "logical_and": _logical(nodes.conjunction),
    "logical_or": _logical(nodes.disjunction),
    "logical_xor": _logical(nodes.exclusive_or),
    "logical_not": logical_not,
    "where": where,
    "Tensor.where": where_method,
    "masked_fill": masked_fill,
    "minimum": minimum,
    "maximum": maximum,
    **dict.fromkeys(("clamp", "clip"), clamp),
    "clamp_min": lambda trace, input, min: clamp(trace, input, min=min),
    "clamp_max": lambda trace, input, max: clamp(trace, input, max=max),
    "to": to,
    "type": type_,
    "type_as": lambda trace, input, other: to(trace, input, other),
    "bool": _converter("bool"),
    "byte": _converter("uint8"),
    "char": _converter("int8"),
    "short": _converter("int16"),
    "int": _converter("int32"),
    "long": _converter("int64"),
    **dict.fromkeys(("clone", "detach", "contiguous", "cpu", "cuda"), same),
}
