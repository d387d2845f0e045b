"""Tests comparisons of captured floats with each other and with integers against PyTorch."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from mask_mods import MaskMod, assert_exact, cells_of, torch

# isort: split
import fdma

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

OPERATORS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
TYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
INF, NAN = float("inf"), float("nan")
SPECIAL = [NAN, -INF, INF, -0.0, 0.0, 0.5, -0.5, 1, 3, 2.9999, 3.5, -1, 7, 1e-40, -1e-40, 65504]
WHOLE = [0, 1, 1, 2, 5, 3, -0.0, -4, 7, 7, 15, 14, 2, 2, 8, 9]
SIZES = (1, 1, 16, 16)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "values", [SPECIAL, WHOLE, [*WHOLE[:15], NAN]], ids=["special", "whole", "nan"]
)
def test_two_entries(op: str, dtype: str, values: list[float]) -> None:
    compare, x = OPERATORS[op], torch.tensor(values).to(TYPES[dtype])
    assert_exact(lambda b, h, q, k: compare(x[q], x[k]), SIZES)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize(
    "types", [("float32", "float64"), ("bfloat16", "float16"), ("float16", "float32")]
)
def test_entries_of_two_types(op: str, types: tuple[str, str]) -> None:
    values = torch.tensor([0.1, 0.2, 0.30000001192, 0.3, 1 / 3, NAN, INF, 3, -0.0, 0, *range(6)])
    a, b_ = (values.double().to(TYPES[name]) for name in types)
    compare = OPERATORS[op]
    assert_exact(lambda b, h, q, k: compare(a[q], b_[k]) ^ compare(b_[q], a[k]), SIZES)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("step", [1, 40, 5000, (1 << 20) + 3, (1 << 40) + 7])
def test_an_integer_and_an_entry(op: str, dtype: str, step: int) -> None:
    """Beyond the integers that a type of float has, and beyond its largest number."""
    compare = OPERATORS[op]
    ends = torch.tensor(
        [*SPECIAL[:8], *(n * step for n in (1, 3, 5.5, 9, 13, 15)), step * 7 + 1, -3]
    )
    x = ends.to(TYPES[dtype])
    assert_exact(lambda b, h, q, k: compare(q * step, x[k]), SIZES)
    assert_exact(lambda b, h, q, k: compare(x[k], q * step - 5), SIZES)


@pytest.mark.parametrize("op", OPERATORS)
def test_integers_at_the_ends_of_64_bits(op: str) -> None:
    compare, most = OPERATORS[op], (1 << 63) - 1
    numbers = torch.tensor([-most - 1, -most, -most + 1, -1, 0, 1, most - 600, most - 1, most])
    for dtype in TYPES.values():
        x = torch.tensor([NAN, INF, -INF, 2.0**63, -(2.0**63), 0, 9e18, 1.5, -1]).to(dtype)
        assert_exact(lambda b, h, q, k, x=x: compare(numbers[q], x[k]), (1, 1, 9, 9))


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "bool"])
def test_entries_of_integers_and_of_floats(op: str, dtype: str) -> None:
    compare = OPERATORS[op]
    numbers = torch.arange(-8, 8).to(getattr(torch, dtype))
    x = torch.tensor(SPECIAL)
    assert_exact(lambda b, h, q, k: compare(numbers[q], x[k]), SIZES)


ids = torch.Tensor([0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 5, 5, 5])
lengths = torch.tensor([3.0, 16.0, 9.5])
scores = torch.rand(2, 3, 16, generator=torch.Generator().manual_seed(0))
learned = torch.tensor([1.5, 3.0, 7.0], requires_grad=True)
threshold = torch.tensor(0.5)
exact_threshold = torch.tensor(0.1, dtype=torch.float64)
FUNCTIONS: dict[str, MaskMod] = {
    "documents": lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k),
    "lengths": lambda b, h, q, k: k < lengths[h],
    "scores": lambda b, h, q, k: scores[b, h, k] > scores[b, h, q],
    "of the last": lambda b, h, q, k: scores[b, h, k] >= scores[b, h, -1],
    "a row": lambda b, h, q, k: (scores[b, h] > scores[b, h, q]).any(-1) & (q >= k),
    "an array": lambda b, h, q, k: (lengths <= k).sum() == h,
    "array, torch.eq": lambda b, h, q, k: torch.eq(k.unsqueeze(-1), ids[:4]).any(-1),
    "functions": lambda b, h, q, k: torch.lt(k, ids[q]) ^ torch.ge(ids[k], ids[q]),
    "methods": lambda b, h, q, k: ids[q].eq(ids[k]) & ids[k].le(q) | ids[q].less(k),
    "learned": lambda b, h, q, k: learned[q % 3] > k,
    "a number": lambda b, h, q, k: scores[b, h, k] > threshold,
    "a number of another type": lambda b, h, q, k: scores[b, h, k] > exact_threshold,
    "after an operation": lambda b, h, q, k: (scores[b, h, k] * 16).round() <= q,
    "two steps": lambda b, h, q, k: scores[b][h][q] < scores[b][h, k],
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    assert_exact(FUNCTIONS[name], (2, 3, 16, 16))


def test_ids_and_lengths_keep_their_values() -> None:
    mask = fdma.trace_mask_mod(FUNCTIONS["documents"])
    assert str(mask) == "@ids[q] == @ids[k] & q >= k"
    assert mask.tables["ids"].tolist() == ids.tolist()
    mask = fdma.trace_mask_mod(FUNCTIONS["lengths"])
    assert str(mask) == "k < @lengths[h]"
    assert mask.tables["lengths"].tolist() == [3, 16, 10]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_of_numpy(op: str, dtype: str) -> None:
    """NumPy compares int64 with float32 as float64, and int8 with float16 as float16."""
    compare = OPERATORS[op]
    with np.errstate(over="ignore"):
        x = np.array([*SPECIAL[:-1], 16777217], np.float64).astype(dtype)
    small = np.arange(-8, 8, dtype=np.int8)
    q, k = np.arange(16)[:, None], np.arange(16)[None]
    functions: list[MaskMod] = [
        lambda b, h, q, k: compare(x[q], x[k]),
        lambda b, h, q, k: compare(q + 16777210, x[k]),
        lambda b, h, q, k: compare(x[q], small[k]),
    ]
    for function in functions:
        mask = fdma.trace_mask_mod(function)
        assert np.array_equal(cells_of(mask, SIZES)[0, 0], function(0, 0, q, k))


def test_other_operations_say_what_to_capture() -> None:
    for function, remedy in (
        (lambda b, h, q, k: ids[q] - ids[k] < 2, r"; capture ids\.long\(\), or pass sample"),
        (
            lambda b, h, q, k: torch.maximum(ids[q], k) > 0,
            r"; capture ids\.long\(\), or pass sample",
        ),
        (lambda b, h, q, k: scores[b, h, q] - scores[b, h, k] < 2, "compute the booleans outside"),
    ):
        with pytest.raises(fdma.TraceError, match=remedy):
            fdma.trace_mask_mod(function)


def test_a_large_table_is_quick() -> None:
    table: Any = torch.rand(1 << 18) * 1e6
    fdma.trace_mask_mod(lambda b, h, q, k: table[k] < q)
    fdma.trace_mask_mod(lambda b, h, q, k: table[k] < table[q])
