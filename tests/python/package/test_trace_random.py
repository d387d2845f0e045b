"""Tests that a traced random FlexAttention function equals PyTorch, cell by cell.

Programs are drawn as source text over the operations that docs/python.md promises. They capture
tensors of one to four dimensions and of every integer type. A counterexample is a function to read.
All values stay within their 32-bit types, because FDMA does not model wrapping there; 8 and 16 bits
may wrap.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from mask_mods import assert_exact, torch

hypothesis = pytest.importorskip("hypothesis", reason="Hypothesis is not installed")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
EXAMPLES = int(os.environ.get("FDMA_TRACE_EXAMPLES", "150"))
SIZES = (2, 2, 7, 9)

_random = np.random.default_rng(5)


def _table(dtype: str, *shape: int) -> Any:
    low = 0 if dtype.startswith("u") else -7
    return torch.from_numpy(_random.integers(low, 12, shape).astype(dtype))


TABLES = {
    "a8": _table("int8", 5),
    "u8": _table("uint8", 6) * 20,
    "a16": _table("int16", 3, 4),
    "a32": _table("int32", 9),
    "a64": _table("int64", 4, 3),
    "cube": _table("int32", 2, 3, 4),
    "hyper": _table("int64", 2, 2, 3, 3),
    "flags": torch.from_numpy(_random.integers(0, 2, 8).astype(bool)),
    "grid": torch.from_numpy(_random.integers(0, 2, (3, 5)).astype(bool)),
    "scalar": torch.tensor(3),
    "narrow": torch.tensor(4, dtype=torch.int8),
}
VECTORS = ["a8", "u8", "a32"]
NUMBERS = st.integers(-20, 40)
DTYPES = ["torch.int8", "torch.uint8", "torch.int16", "torch.int32", "torch.int64"]


def _index(draw: Any, name: str, axis: int, depth: int) -> str:
    extent = TABLES[name].shape[axis]
    inner = f"({draw(integers(depth - 1))}).long()"  # PyTorch takes int32 and int64 as indices
    if draw(st.booleans()):
        return f"{inner} % {extent}"
    return f"({inner} % {2 * extent} - {extent})"


def _lookup(draw: Any, names: list[str], depth: int, axes_left: int = 0) -> str:
    name = draw(st.sampled_from(names))
    rank = TABLES[name].ndim - axes_left
    return f"{name}[{', '.join(_index(draw, name, axis, depth) for axis in range(rank))}]"


@st.composite
def rows(draw: Any, depth: int) -> str:
    """Returns values with one axis."""
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return str(draw(st.sampled_from(VECTORS)))
    if kind == 1:
        return _lookup(draw, ["a16", "a64", "cube", "hyper"], depth, axes_left=1)
    if kind == 2:
        return (
            f"({draw(rows(depth - 1))} + ({draw(integers(depth - 1))}).unsqueeze(-1))"
            if depth
            else "a8"
        )
    if kind == 3:
        parts = [draw(integers(depth - 1)) for _ in range(2)]
        return f"torch.stack([({parts[0]}).long(), ({parts[1]}).long()])"
    if kind == 4:
        return "torch.arange(4)"
    if kind == 5:
        return f"{draw(st.sampled_from(VECTORS))}[1:{draw(st.integers(3, 5))}]"
    if kind == 6:
        return f"a64[:, {draw(st.integers(-3, 2))}]"
    return f"a16.reshape(-1)[torch.arange(3) * 2 + ({_index(draw, 'a16', 1, depth)}) % 4]"


@st.composite
def integers(draw: Any, depth: int) -> str:
    if depth <= 0:
        leaves = ["q", "k", "q", "k", "b", "h", "scalar", "narrow"]
        return str(draw(st.sampled_from(leaves)))
    x = integers(depth - 1)
    kind = draw(st.integers(0, 21))
    if kind <= 1:
        return f"(({draw(x)}) {draw(st.sampled_from(['+', '-']))} ({draw(x)}))"
    if kind == 2:
        return f"({draw(NUMBERS)} {draw(st.sampled_from(['+', '-', '*']))} ({draw(x)}))"
    if kind == 3:
        divisor = draw(NUMBERS.filter(bool))
        return f"(({draw(x)}).long() {draw(st.sampled_from(['//', '%']))} {divisor})"
    if kind == 4:
        divisor = draw(st.integers(1, 20))
        rounding = draw(st.sampled_from(["'floor'", "'trunc'"]))
        return f"torch.div({draw(x)}, {divisor}, rounding_mode={rounding})"
    if kind == 5:
        return f"torch.fmod({draw(x)}, {draw(st.integers(1, 20))})"
    if kind == 6:
        return f"abs({draw(x)})"
    if kind == 7:
        function = draw(st.sampled_from(["minimum", "maximum", "max", "min"]))
        return f"torch.{function}({draw(x)}, {draw(x)})"
    if kind == 8:
        return f"({draw(x)}).clamp({draw(st.integers(-5, 3))}, {draw(st.integers(0, 9))})"
    if kind == 9:
        return f"torch.where({draw(conditions(depth - 1))}, {draw(x)}, {draw(x)})"
    if kind == 10:
        return f"(({draw(x)}) {draw(st.sampled_from('&|^'))} ({draw(x)}))"
    if kind == 11:
        return f"(({draw(x)}) {draw(st.sampled_from('&|^'))} {draw(st.integers(0, 15))})"
    if kind == 12:
        return f"{draw(st.sampled_from(['~', '-', '+']))}({draw(x)})"
    if kind == 13:
        return f"((({draw(x)}).long()) << {draw(st.integers(0, 4))})"
    if kind == 14:
        return f"((({draw(x)}).long()) >> {draw(st.sampled_from([0, 1, 3, 62, 70]))})"
    if kind == 15:
        cast = draw(st.sampled_from([".int()", ".long()", ".to(torch.uint8)"]))
        return f"({draw(conditions(depth - 1))}){cast}"
    if kind == 16:
        return f"({draw(x)}).to({draw(st.sampled_from(DTYPES))})"
    if kind == 17:
        return _lookup(draw, ["a8", "u8", "a16", "a32", "a64", "cube", "hyper"], depth)
    if kind == 18:
        reduction = draw(st.sampled_from(["sum", "amax", "amin"]))
        return f"({draw(rows(depth - 1))}).{reduction}(-1)"
    if kind == 19:
        place = draw(st.sampled_from(["0", "-1", "q % 2", "k % 2 - 2"]))
        return f"({draw(rows(depth - 1))})[{place}]"
    if kind == 20:
        return f"torch.remainder({draw(x)}, {draw(st.integers(1, 9))})"
    return f"(({draw(conditions(depth - 1))}) * {draw(NUMBERS)} + ({draw(x)}))"


@st.composite
def conditions(draw: Any, depth: int) -> str:
    x, c = integers(max(depth - 1, 0)), conditions(depth - 1)
    if depth <= 0:
        return f"({draw(x)} {draw(st.sampled_from(['<', '<=', '>', '>=', '==', '!=']))} {draw(x)})"
    kind = draw(st.integers(0, 14))
    if kind <= 3:
        op = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
        return f"(({draw(x)}) {op} ({draw(x)}))"
    if kind == 4:
        op = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
        return f"(({draw(x)}) {op} {draw(st.sampled_from(['3', '2.5', '-1.0', '7.999', '1e30']))})"
    if kind <= 6:
        return f"({draw(c)} {draw(st.sampled_from('&|^'))} {draw(c)})"
    if kind == 7:
        return f"~{draw(c)}"
    if kind == 8:
        return f"torch.logical_{draw(st.sampled_from(['and', 'or', 'xor']))}({draw(x)}, {draw(c)})"
    if kind == 9:
        return f"torch.logical_not({draw(x)})"
    if kind == 10:
        return _lookup(draw, ["flags", "grid"], depth)
    if kind == 11:
        op = draw(st.sampled_from(["<", ">=", "==", "!="]))
        fold = draw(st.sampled_from(["any", "all"]))
        return f"({draw(rows(depth - 1))} {op} ({draw(x)}).unsqueeze(-1)).{fold}(-1)"
    if kind == 12:
        return f"torch.isin({draw(x)}, {draw(st.sampled_from(VECTORS))}.long())"
    if kind == 13:
        return f"torch.where({draw(c)}, {draw(c)}, {draw(c)})"
    op = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
    return f"({draw(c)} {op} {draw(c)})"


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)
@given(conditions(4))
def test_random_functions_are_exact(source: str) -> None:
    scope = {"torch": torch, **TABLES}
    exec(f"def mask_mod(b, h, q, k):\n    return {source}\n", scope)
    assert_exact(scope["mask_mod"], SIZES)


TABLE = torch.from_numpy(_random.integers(0, 97, (3, 4, 2, 5)))


@st.composite
def index_tuples(draw: Any) -> str:
    """Returns the contents of TABLE[..]: numbers, slices, None, ..., symbols, arrays."""
    parts: list[str] = []
    has_ellipsis = draw(st.booleans())
    rank = draw(st.integers(0, 4))
    for axis in range(rank):
        # An ellipsis leaves the axes unknown, so the smallest extent is 2.
        extent = 2 if has_ellipsis else TABLE.shape[axis]
        kind = draw(st.integers(0, 6))
        if kind == 0:
            parts.append(str(draw(st.integers(-extent, extent - 1))))
        elif kind == 1:
            parts.append(draw(st.sampled_from([":", "1:", ":-1", "::2", "-2:", ":9"])))
        elif kind == 2:
            parts.append(
                f"torch.tensor({draw(st.sampled_from(['[0, 1, 0]', '[[1], [-1]]', '1']))})"
            )
        elif kind == 3:
            parts.append(f"chosen[q % 2] % {extent}")
        else:
            symbol = draw(st.sampled_from("qkbh"))
            parts.append(
                draw(st.sampled_from([f"{symbol} % {extent}", f"-1 - {symbol} % {extent}"]))
            )
    for _ in range(draw(st.integers(0, 2))):
        parts.insert(draw(st.integers(0, len(parts))), "None")
    if has_ellipsis:
        parts.insert(draw(st.integers(0, len(parts))), "...")
    return ", ".join(parts) or "..."


@settings(max_examples=EXAMPLES, deadline=None)
@given(index_tuples())
def test_random_lookups_are_exact(index: str) -> None:
    scope: dict[str, Any] = {
        "torch": torch,
        "TABLE": TABLE,
        "chosen": torch.tensor([[0, 3, 1], [2, 0, 1]]),
    }
    # Every element has a weight of its own, so that a wrong order shows.
    exec(
        "def mask_mod(b, h, q, k):\n"
        f"    part = TABLE[{index}]\n"
        "    weights = torch.arange(1, part.numel() + 1)\n"
        "    return (part.reshape(-1) * weights).sum() % 11 == k % 11\n",
        scope,
    )
    assert_exact(scope["mask_mod"], (2, 2, 5, 7))
