"""Every operator and every named mask of the language has its form in Python."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from fdma_module import fdma as _fdma

# isort: split
import fdma

ROWS = _fdma.operator_names()


@pytest.mark.parametrize(("name", "spelling", "python"), ROWS, ids=[row[0] for row in ROWS])
def test_python_has_the_operator(name: str, spelling: str, python: str) -> None:
    if python.startswith("__"):
        classes = [fdma.IntExpr, fdma.MaskExpr]
        assert any(python in vars(c) or hasattr(c, python) for c in classes), python
    else:
        assert hasattr(fdma, python), python
        assert python in fdma.__all__


@pytest.mark.parametrize(("name", "signature", "example"), _fdma.named_masks())
def test_python_has_the_named_mask(name: str, signature: str, example: str) -> None:
    python = "global_" if name == "global" else name
    assert callable(getattr(fdma, python))
    assert python in fdma.__all__
    assert signature.startswith(name)
    assert _fdma.parse_expr(example).canonical_text == example


@pytest.mark.parametrize(
    ("method", "sign", "apply"),
    [
        ("__add__", "+", operator.add),
        ("__sub__", "-", operator.sub),
        ("__mul__", "*", operator.mul),
        ("__floordiv__", "//", operator.floordiv),
        ("__mod__", "%", operator.mod),
        ("__lt__", "<", operator.lt),
        ("__le__", "<=", operator.le),
        ("__eq__", "==", operator.eq),
        ("__ne__", "!=", operator.ne),
        ("__ge__", ">=", operator.ge),
        ("__gt__", ">", operator.gt),
    ],
)
def test_a_sign_makes_the_operator_of_its_row(
    method: str, sign: str, apply: Callable[[object, object], object]
) -> None:
    assert (sign, method) in [(spelling, python) for _, spelling, python in ROWS]
    assert str(apply(fdma.q, fdma.k)) == f"q {sign} k"


@pytest.mark.parametrize(
    ("op", "operands", "value"),
    [
        ("floor_div", [-7, 2], -4),
        ("floor_div", [7, 0], None),
        ("shl", [1, 62], 1 << 62),
        ("shl", [1, 63], None),
        ("add", [(1 << 63) - 1, 1], None),
        ("min", [3, 1, 2], 1),
        ("greater", [3, 1], 1),
        ("where", [0, 5, 6], 6),
        ("logical_not", [1], 0),
    ],
)
def test_folds_numbers(op: str, operands: list[int], value: int | None) -> None:
    assert _fdma.fold_expr(op, operands) == value


def test_refuses_what_is_no_operation_on_numbers() -> None:
    for op, operands in [("literal", []), ("at", [1, 2, 3]), ("any_of", [2, 1]), ("table", [1])]:
        with pytest.raises(ValueError, match=f"{op}: no operation on numbers"):
            _fdma.fold_expr(op, operands)
    with pytest.raises(ValueError, match="add: expected 2 operands, got 3"):
        _fdma.fold_expr("add", [1, 2, 3])
