"""Comparisons, logic, selection and conversions of traced values.

A comparison of an integer with a float is replaced by one with the integer that gives the same
results; float_order.py does so for whole tables of floats. Booleans compare as in PyTorch, false
below true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from . import nodes
from .context import Trace
from .float_order import compare_floats, is_float
from .nodes import Node
from .pointwise import BOOLEAN, cast, pointwise, prepare
from .symbol import Symbol, refuse
from .value_types import Range, float_bound

__all__ = [
    "CONDITIONS",
    "equal",
    "greater",
    "less",
    "less_equal",
    "logical_not",
    "maximum",
    "minimum",
    "not_equal",
    "where",
]


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
    return pointwise(trace, "bool", BOOLEAN, lambda x: answer, a)


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
        if is_float(trace, input) or is_float(trace, other):
            return compare_floats(trace, op, input, other)
        number = _float_of(trace, other)
        if number is not None:
            return _compare_float(trace, op, trace.symbol(input), *number)
        number = _float_of(trace, input)
        if number is not None:
            return _compare_float(trace, _MIRRORED[op], trace.symbol(other), *number)
        dtype, (a, b) = prepare(trace, input, other, outranks=True)
        if dtype == "bool":
            return pointwise(
                trace, "bool", BOOLEAN, lambda x, y: _compare_conditions(op, x, y), a, b
            )
        if trace.numpy_rules:  # NumPy compares values of any types
            a, b = (cast(trace, trace.symbol(value), "int64") for value in (input, other))
        return pointwise(trace, "bool", BOOLEAN, lambda x, y: nodes.compare(op, x, y), a, b)

    return apply


less, less_equal = _compare("less"), _compare("less_equal")
greater, greater_equal = _compare("greater"), _compare("greater_equal")
equal, not_equal = _compare("equal"), _compare("not_equal")


def _logical(of_conditions: Callable[[Node, Node], Node]) -> Callable[..., Symbol]:
    def apply(trace: Trace, input: Any, other: Any) -> Symbol:
        a, b = (cast(trace, trace.symbol(value), "bool") for value in (input, other))
        return pointwise(trace, "bool", BOOLEAN, of_conditions, a, b)

    return apply


def logical_not(trace: Trace, input: Any) -> Symbol:
    return pointwise(
        trace, "bool", BOOLEAN, nodes.negation, cast(trace, trace.symbol(input), "bool")
    )


# ---- selection


def where(trace: Trace, condition: Any, input: Any, other: Any) -> Symbol:
    chosen = trace.symbol(condition)
    if chosen._dtype != "bool":
        refuse(f"torch.where with a condition of type {chosen._dtype}", "compare it with 0")
    dtype, (a, b) = prepare(trace, input, other, outranks=True)
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
    dtype, (a, b) = prepare(trace, input, other)
    if dtype == "bool":
        combine = nodes.conjunction if op == "min" else nodes.disjunction
        return pointwise(trace, "bool", BOOLEAN, combine, a, b)
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
    dtype, (x, lo, hi) = prepare(trace, a, min, max)
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
        elif (trace.torch is not None and isinstance(value, trace.torch.dtype)) or (
            isinstance(value, str) and value in ("bool", "int32", "int64")
        ):
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
    """The value itself, for operations on memory, devices and gradients only."""
    return trace.symbol(input)


# Operations by PyTorch's names.
CONDITIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("lt", "less"), less),
    **dict.fromkeys(("le", "less_equal"), less_equal),
    **dict.fromkeys(("gt", "greater"), greater),
    **dict.fromkeys(("ge", "greater_equal"), greater_equal),
    "eq": equal,
    **dict.fromkeys(("ne", "not_equal"), not_equal),
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
