"""Nodes of a traced expression. An operand is a node of the core, an int or a bool; operations on
constants are folded.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Final, TypeAlias

from .. import _fdma

__all__ = [
    "ExprNode",
    "Node",
    "all_of",
    "any_of",
    "arithmetic",
    "clamp",
    "compare",
    "conjunction",
    "disjunction",
    "exclusive_or",
    "from_bool",
    "lift",
    "lookup",
    "negation",
    "unary",
    "variable",
    "where",
]

ExprNode: TypeAlias = _fdma.ExprNode
# An int is an integer and a bool a condition; neither stands for the other.
Node: TypeAlias = ExprNode | int | bool

_make = _fdma.expr_node
_loop_numbers = itertools.count()
_LIMIT: Final = 1 << 63

_FOLD: Final[dict[str, Callable[[int, int], int]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": min,
    "max": max,
    "bit_and": operator.and_,
    "bit_or": operator.or_,
    "bit_xor": operator.xor,
}
_FOLD_POSITIVE: Final[dict[str, Callable[[int, int], int]]] = {
    "floor_div": operator.floordiv,
    "mod": operator.mod,
}
_FOLD_SHIFT: Final[dict[str, Callable[[int, int], int]]] = {
    "shl": operator.lshift,
    "shr": operator.rshift,
}
_COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "less": operator.lt,
    "less_equal": operator.le,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "greater_equal": operator.ge,
    "greater": operator.gt,
}


def variable(name: str) -> ExprNode:
    """q, k, b or h."""
    return _make("variable", [], 0, name)


def lift(node: Node) -> ExprNode:
    """The node itself, or the literal of a number."""
    if isinstance(node, bool):
        return _make("boolean", [], int(node))
    if isinstance(node, int):
        if not -_LIMIT < node < _LIMIT:
            raise OverflowError(f"the number {node} does not fit in 64 bits")
        return _make("literal", [], node) if node >= 0 else _make("negate", [lift(-node)])
    return node


def lookup(symbol: str, indices: list[Node]) -> ExprNode:
    """An entry of the table with this symbol."""
    return _make("table", [lift(i) for i in indices], 0, symbol)


def arithmetic(op: str, a: Node, b: Node) -> Node:
    """add, sub, mul, floor_div, mod, min, max, shl, shr, bit_and, bit_or or bit_xor of integers."""
    if isinstance(a, int) and isinstance(b, int):
        if op in _FOLD:
            value = _FOLD[op](a, b)
        elif op in _FOLD_POSITIVE and b > 0:
            value = _FOLD_POSITIVE[op](a, b)
        elif op in _FOLD_SHIFT and 0 <= b <= 62:
            value = _FOLD_SHIFT[op](a, b)
        else:
            return _make(op, [lift(a), lift(b)])
        if -_LIMIT < value < _LIMIT:
            return value
    elif isinstance(b, int):
        if b == 0 and op in ("add", "sub", "shl", "shr", "bit_or", "bit_xor"):
            return a
        if b == 1 and op in ("mul", "floor_div"):
            return a
        if b < 0 and op in ("add", "sub"):
            op, b = ("sub" if op == "add" else "add"), -b
    elif isinstance(a, int) and ((a == 0 and op == "add") or (a == 1 and op == "mul")):
        return b
    return _make(op, [lift(a), lift(b)])


def unary(op: str, a: Node) -> Node:
    """negate or abs of an integer."""
    if isinstance(a, int):
        return -a if op == "negate" else abs(a)
    return _make(op, [a])


def clamp(a: Node, lo: Node, hi: Node) -> Node:
    """min(max(a, lo), hi)."""
    if isinstance(a, int):
        return arithmetic("min", arithmetic("max", a, lo), hi)
    return _make("clamp", [a, lift(lo), lift(hi)])


def compare(op: str, a: Node, b: Node) -> Node:
    """A comparison of integers; equal and not_equal of conditions too."""
    if isinstance(a, int) and isinstance(b, int):
        return _COMPARE[op](a, b)
    return _make(op, [lift(a), lift(b)])


def negation(a: Node) -> Node:
    """~a of a condition."""
    return not a if isinstance(a, bool) else _make("logical_not", [lift(a)])


def conjunction(a: Node, b: Node) -> Node:
    """a & b of conditions."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, bool):
            return y if x else False
    return _make("logical_and", [lift(a), lift(b)])


def disjunction(a: Node, b: Node) -> Node:
    """a | b of conditions."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, bool):
            return True if x else y
    return _make("logical_or", [lift(a), lift(b)])


def exclusive_or(a: Node, b: Node) -> Node:
    """a ^ b of conditions."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, bool):
            return negation(y) if x else y
    return _make("logical_xor", [lift(a), lift(b)])


def from_bool(a: Node) -> Node:
    """int(a) of a condition."""
    return int(a) if isinstance(a, bool) else _make("from_bool", [lift(a)])


def where(condition: Node, a: Node, b: Node) -> Node:
    """a where the condition holds, b elsewhere; both integers or both conditions."""
    if isinstance(condition, bool):
        return a if condition else b
    return _make("where", [lift(condition), lift(a), lift(b)])


def _loop(op: str, bound: int, body: Callable[[ExprNode], Node]) -> Node:
    symbol = f"%f{next(_loop_numbers)}:i"  # an automatic name, no other module's
    condition = body(_make("variable", [], 0, symbol))
    if isinstance(condition, bool):
        return condition
    return _make(op, [lift(bound), lift(condition)], 0, symbol)


def any_of(bound: int, body: Callable[[ExprNode], Node]) -> Node:
    """any(i in bound : body(i)), bound > 0."""
    return _loop("any_of", bound, body)


def all_of(bound: int, body: Callable[[ExprNode], Node]) -> Node:
    """all(i in bound : body(i)), bound > 0."""
    return _loop("all_of", bound, body)
