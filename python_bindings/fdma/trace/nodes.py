"""Nodes of a traced expression. An operand is a node of the core, an int or a bool; operations on
constants are folded.
"""

from __future__ import annotations

import itertools
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


def _fold(op: str, operands: tuple[Node, ...]) -> int | None:
    """The value of an operation on numbers, None where it is undefined or a node is among them."""
    numbers = [operand for operand in operands if isinstance(operand, int)]
    if len(numbers) < len(operands) or not all(-_LIMIT < n < _LIMIT for n in numbers):
        return None
    value = _fdma.fold_expr(op, [int(n) for n in numbers])
    return value if value != -_LIMIT else None


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
    value = _fold(op, (a, b))
    if value is not None:
        return value
    if isinstance(a, int) and isinstance(b, int):
        return _make(op, [lift(a), lift(b)])
    if isinstance(b, int):
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
    value = _fold(op, (a,))
    return _make(op, [lift(a)]) if value is None else value


def clamp(a: Node, lo: Node, hi: Node) -> Node:
    """min(max(a, lo), hi)."""
    if isinstance(a, int):
        return arithmetic("min", arithmetic("max", a, lo), hi)
    return _make("clamp", [a, lift(lo), lift(hi)])


def compare(op: str, a: Node, b: Node) -> Node:
    """A comparison of integers; equal and not_equal of conditions too."""
    value = _fold(op, (a, b))
    return _make(op, [lift(a), lift(b)]) if value is None else bool(value)


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
