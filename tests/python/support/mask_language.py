"""Evaluates the mask language cell by cell in Python, and draws random expressions of it.

A tree is a tuple: an operator and its operands, as `Tree` below lists them. build() makes it an
expression of the package with the operators that a user would write. value() is its meaning at a
cell, None where that is undefined. Neither function knows of the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fdma_module import Tensor
from hypothesis import strategies as st

# isort: split
import fdma

Tree = Any  # ("add", x, y), ("literal", 5), ("table", "t", index, ..), ("any", n, name, body), ..
Value = int | bool | None

MIN, MAX = -(1 << 63), (1 << 63) - 1


def _fits(value: int) -> int | None:
    return value if MIN <= value <= MAX else None


def _divide(x: int, y: int) -> int | None:
    return x // y if y > 0 else None


def _shift(combine: Callable[[int, int], int]) -> Callable[[int, int], int | None]:
    return lambda x, n: _fits(combine(x, n)) if 0 <= n <= 62 else None


STRICT: dict[str, Callable[..., Value]] = {
    "add": lambda x, y: _fits(x + y),
    "sub": lambda x, y: _fits(x - y),
    "mul": lambda x, y: _fits(x * y),
    "floor_div": _divide,
    "mod": lambda x, y: x % y if y > 0 else None,
    "negate": lambda x: _fits(-x),
    "abs": lambda x: _fits(abs(x)),
    "min": min,
    "max": max,
    "clamp": lambda x, lo, hi: min(max(x, lo), hi),
    "shl": _shift(operator.lshift),
    "shr": _shift(operator.rshift),
    "bit_and": operator.and_,
    "bit_or": operator.or_,
    "bit_xor": operator.xor,
    "complement": lambda x: ~x,
    "to_int": int,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "same": operator.eq,
    "differ": operator.ne,
    "xor": operator.ne,
    "not": operator.not_,
}
"""Operators that are undefined where an operand is."""

WRITTEN: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floor_div": operator.floordiv,
    "mod": operator.mod,
    "negate": operator.neg,
    "abs": abs,
    "min": fdma.minimum,
    "max": fdma.maximum,
    "clamp": fdma.clamp,
    "shl": operator.lshift,
    "shr": fdma.shr,
    "bit_and": operator.and_,
    "bit_or": fdma.bitor,
    "bit_xor": operator.xor,
    "complement": operator.invert,
    "to_int": fdma.to_int,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "same": operator.eq,
    "differ": operator.ne,
    "xor": operator.xor,
    "not": operator.invert,
    "and": operator.and_,
    "or": operator.or_,
    "where": fdma.where,
}


@dataclass(frozen=True)
class Cell:
    """What an expression may mention: the variables of a cell, loops, and tables."""

    variables: Mapping[str, int | None]
    tables: Mapping[str, Tensor]
    loops: Mapping[str, int] = field(default_factory=dict)

    def at(self, q: int | None, k: int | None) -> Cell:
        """Returns another cell. An index that is undefined matters only where it is used."""
        q_len, kv_len = self.variables["q_len"], self.variables["kv_len"]
        assert q_len is not None and kv_len is not None
        pos = None if q is None else _fits(q + kv_len - q_len)
        return Cell({**self.variables, "q": q, "k": k, "pos": pos}, self.tables, self.loops)


def value(tree: Tree, cell: Cell) -> Value:
    """Returns the value of a tree at a cell, or None if it is undefined."""
    op, *operands = tree
    if op in ("literal", "boolean"):
        return operands[0]  # type: ignore[no-any-return]
    if op == "variable":
        return cell.variables[operands[0]]
    if op == "loop":
        return cell.loops[operands[0]]
    if op == "table":
        table = cell.tables[operands[0]]
        index = [value(each, cell) for each in operands[1:]]
        if any(i is None or not 0 <= i < n for i, n in zip(index, table.shape, strict=True)):
            return None
        return table[tuple(index)].item()  # type: ignore[no-any-return]
    if op in ("and", "or"):
        return _decided(op == "or", (value(each, cell) for each in operands))
    if op == "where":
        choice = value(operands[0], cell)
        return None if choice is None else value(operands[1 if choice else 2], cell)
    if op in ("any", "all"):
        bound, name, body = operands
        n = value(bound, cell)
        if n is None:
            return None
        inside = (Cell(cell.variables, cell.tables, {**cell.loops, name: i}) for i in range(n))
        return _decided(op == "any", (value(body, each) for each in inside))
    if op == "at":
        q, k = value(operands[1], cell), value(operands[2], cell)
        return value(operands[0], cell.at(q, k))
    values = [value(each, cell) for each in operands]
    return None if None in values else STRICT[op](*values)


def _decided(by: bool, values: Any) -> bool | None:
    """Returns `by` if a value equals it, else None if a value is undefined, else the other."""
    listed = list(values)
    if by in listed:
        return by
    return None if None in listed else not by


def build(tree: Tree, tables: Mapping[str, fdma.TableExpr], loops: Mapping[str, Any]) -> Any:
    """Returns the tree as an expression of the package."""
    op, *operands = tree
    if op in ("literal", "boolean"):
        return operands[0]
    if op == "variable":
        return getattr(fdma, operands[0])
    if op == "loop":
        return loops[operands[0]]
    if op == "table":
        index = tuple(build(each, tables, loops) for each in operands[1:])
        return tables[operands[0]][index] if index else tables[operands[0]]
    if op in ("any", "all"):
        bound, name, body = operands
        loop = fdma.any_of if op == "any" else fdma.all_of
        return loop(build(bound, tables, loops), lambda i: build(body, tables, {**loops, name: i}))
    if op == "at":
        mask, q, k = (build(each, tables, loops) for each in operands)
        return fdma.at(mask, q=q, k=k)
    values = [build(each, tables, loops) for each in operands]
    if all(isinstance(each, int) for each in values):  # Python would compute this itself
        kind = fdma.MaskExpr if isinstance(values[0], bool) else fdma.IntExpr
        values[0] = kind(values[0])
    if op in (
        "bit_and",
        "bit_or",
        "bit_xor",
        "complement",
    ):  # operands are conditions here, whose type is not known
        values = [fdma.IntExpr(each) for each in values]
    return WRITTEN[op](*values)


def cells(
    tree: Tree, tables: Mapping[str, Tensor], batch: int, heads: int, q_len: int, kv_len: int
) -> Tensor | None:
    """Returns bool [batch, heads, q_len, kv_len] of a condition; None if a cell is undefined."""
    result = np.zeros((batch, heads, q_len, kv_len), np.bool_)
    for b, h, q, k in np.ndindex(*result.shape):
        names = {"b": b, "h": h, "q": q, "k": k, "q_len": q_len, "kv_len": kv_len}
        at_cell = value(tree, Cell(names | {"pos": q + kv_len - q_len}, tables))
        if at_cell is None:
            return None
        result[b, h, q, k] = at_cell
    return result


# ---- random trees

_VARIABLES = ("q", "k", "b", "h", "q_len", "kv_len", "pos")
_BINARY = ("add", "sub", "mul", "floor_div", "mod", "min", "max", "bit_and", "bit_or", "bit_xor")
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
TABLE_RANKS = {"w": 0, "i1": 1, "i2": 2, "i4": 4, "c1": 1, "c3": 3}
"""Tables of random trees and their dimensions; those whose name begins with c are boolean."""


@st.composite
def random_tables(draw: st.DrawFn) -> dict[str, Tensor]:
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    arrays: dict[str, Tensor] = {}
    for name, rank in TABLE_RANKS.items():
        shape = tuple(random.integers(2, 9, rank))
        is_condition = name.startswith("c")
        arrays[name] = (
            random.integers(0, 2, shape).astype(np.bool_)
            if is_condition
            else np.asarray(random.integers(-3, 9, shape)).astype(
                [np.int32, np.int64][random.integers(2)]
            )
        )
    return arrays


def _sometimes(draw: st.DrawFn, share: int) -> bool:
    return draw(st.integers(0, 99)) < share


@st.composite
def integers(draw: st.DrawFn, depth: int, loops: tuple[str, ...] = ()) -> Tree:
    if depth <= 0 or _sometimes(draw, 15):
        leaf = draw(st.integers(0, 9))
        if leaf < 5:
            return ("variable", draw(st.sampled_from(_VARIABLES[:2] * 3 + _VARIABLES)))
        if leaf < 7 and loops:
            return ("loop", draw(st.sampled_from(loops)))
        if leaf == 7:
            return ("table", "w")
        big = st.sampled_from([62, 64, 1 << 20, (1 << 62) + 5, MAX, MIN, -1000])
        return ("literal", draw(big if _sometimes(draw, 4) else st.integers(-2, 9)))
    kind = draw(st.integers(0, 13))
    inner = integers(depth - 1, loops)
    if kind < 6:
        op = draw(st.sampled_from(_BINARY))
        right = draw(inner)
        if op in ("floor_div", "mod") and not _sometimes(draw, 10):
            right = ("literal", draw(st.integers(1, 5)))
        return (op, draw(inner), right)
    if kind == 6:
        return (draw(st.sampled_from(("negate", "abs", "complement"))), draw(inner))
    if kind == 7:
        return ("clamp", draw(inner), ("literal", draw(st.integers(-2, 3))), draw(inner))
    if kind == 8:
        by = draw(inner) if _sometimes(draw, 20) else ("literal", draw(st.integers(0, 4)))
        return (draw(st.sampled_from(("shl", "shr"))), draw(inner), by)
    if kind == 9:
        return ("where", draw(conditions(depth - 1, loops)), draw(inner), draw(inner))
    if kind == 10:
        return ("to_int", draw(conditions(depth - 1, loops)))
    return draw(_entries(("i1", "i2", "i4"), loops))


@st.composite
def _entries(draw: st.DrawFn, names: tuple[str, ...], loops: tuple[str, ...]) -> Tree:
    name = draw(st.sampled_from(names))
    index = []
    for _ in range(TABLE_RANKS[name]):
        place = draw(integers(1, loops))
        index.append(
            place if _sometimes(draw, 8) else ("clamp", place, ("literal", 0), ("literal", 1))
        )
    return ("table", name, *index)


@st.composite
def conditions(draw: st.DrawFn, depth: int, loops: tuple[str, ...] = ()) -> Tree:
    if depth <= 0 or _sometimes(draw, 10):
        if _sometimes(draw, 8):
            return ("boolean", draw(st.booleans()))
        if _sometimes(draw, 20):
            return draw(_entries(("c1", "c3"), loops))
        return (
            draw(st.sampled_from(_COMPARISONS)),
            draw(integers(1, loops)),
            draw(integers(1, loops)),
        )
    kind = draw(st.integers(0, 12))
    inner = conditions(depth - 1, loops)
    if kind < 5:
        return (
            draw(st.sampled_from(("and", "or", "xor", "same", "differ"))),
            draw(inner),
            draw(inner),
        )
    if kind == 5:
        return ("not", draw(inner))
    if kind == 6:
        return ("where", draw(inner), draw(inner), draw(inner))
    if kind == 7 and len(loops) < 2:
        name = f"i{len(loops)}"
        bounds = st.sampled_from(
            (
                ("literal", 0),
                ("literal", 3),
                ("add", ("variable", "h"), ("literal", 1)),
                ("table", "w"),
            )
        )
        body = draw(conditions(depth - 1, (*loops, name)))
        return (draw(st.sampled_from(("any", "all"))), draw(bounds), name, body)
    if kind == 8:
        return ("at", draw(inner), draw(integers(1, loops)), draw(integers(1, loops)))
    if kind == 9:
        return draw(_entries(("c1", "c3"), loops))
    comparison = draw(st.sampled_from(_COMPARISONS))
    return (comparison, draw(integers(depth - 1, loops)), draw(integers(depth - 1, loops)))


@st.composite
def masks(draw: st.DrawFn, depth: int) -> Tree:
    """Draws a condition. Most differ from a pattern, so that few are true or false everywhere."""
    tree = draw(conditions(depth))
    if _sometimes(draw, 30):
        return tree
    place = ("add", ("mul", ("literal", 3), ("variable", "q")), ("variable", "k"))
    return ("xor", tree, ("less", ("mod", place, ("literal", 4)), ("literal", 2)))
