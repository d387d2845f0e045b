"""FlexAttention functions traced: each operation, captures, lookups, what is refused, evaluating
every cell.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from mask_mods import FOLDER, MaskMod, assert_exact, cells_of, expected_cells, torch

# isort: split
import fdma

flex = pytest.importorskip("torch.nn.attention.flex_attention")

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

SIZES = (2, 3, 13, 17)

document = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4], dtype=torch.int32)
starts = torch.tensor([0, 3, 5, 9, 13])
is_global = torch.arange(17) % 5 == 0
chosen = torch.tensor([[1, 4, 7, 16], [0, 2, 3, 5]], dtype=torch.int32)
window = torch.tensor(5)
grid = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5) % 7
live = torch.rand(2, 3, 13, 17, generator=torch.Generator().manual_seed(1)) < 0.5
signed = torch.tensor([-3, 5, -1, 0, 2], dtype=torch.int16)
small = torch.tensor([250, 3, 0, 129], dtype=torch.uint8)


def two_heads(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < 4 * (h + 1)) & (k >= b)


def in_place(b: Any, h: Any, q: Any, k: Any) -> Any:
    mask = q == k
    mask |= k == 0
    mask &= q > 3
    q += 5
    return mask ^ (q < k)


# ---- every operation, against create_mask

OPERATIONS: dict[str, MaskMod] = {
    "comparisons": lambda b, h, q, k: (q < k) ^ (q <= 5) ^ (k > 3) ^ (k >= q) ^ (q == k) ^ (q != 2),
    "reversed": lambda b, h, q, k: (
        (5 - q > k) | (3 * k < q) | (40 // (q + 1) == k) | (9 % (k + 1) == 0)
    ),
    "floor and remainder": lambda b, h, q, k: ((q - k) // 3 + (q - k) % 3) % 2 == 0,
    "negative divisors": lambda b, h, q, k: ((q - k) // -3 == -2) | ((q - k) % -4 == -1),
    "divisors of a table": lambda b, h, q, k: k // signed[q % 2 * 3 + 1 - q % 2 * 3] == 1,
    "divisors of any sign": lambda b, h, q, k: (
        (k - 8) // (signed[q % 3]) + (k - 8) % signed[q % 3] > 1
    ),
    "rounding modes": lambda b, h, q, k: (
        torch.div(q - k, 4, rounding_mode="trunc")
        + torch.div(q - k, 3, rounding_mode="floor")
        + torch.floor_divide(k - q, 2)
        > 0
    ),
    "fmod, remainder": lambda b, h, q, k: torch.fmod(q - k, 5) + torch.remainder(q - k, -5) > -2,
    "shifts": lambda b, h, q, k: (
        ((1 << (q % 8)) > k * 3) ^ (((q - k) >> 1) == -2) ^ (k - 3 >> 65 < 0)
    ),
    "bits": lambda b, h, q, k: (q & k == 0) | ((q ^ k) == 1) | ((q | k) > 14) | (~q & 3 == 1),
    "bits, named": lambda b, h, q, k: (
        torch.bitwise_or(torch.bitwise_and(q, k), torch.bitwise_xor(q, torch.bitwise_not(k)))
        > torch.bitwise_left_shift(k, 1) - torch.bitwise_right_shift(q, 1)
    ),
    "conditions": lambda b, h, q, k: ~((q > 3) & (k > 3) | (q < 2) ^ (k < 2)),
    "conditions as numbers": lambda b, h, q, k: (
        ((q > 3) + (k > 3).int() + 1 == 2) | ((q > k) * k > 4)
    ),
    "conditions compared": lambda b, h, q, k: (
        ((q > 3) == (k > 3)) ^ ((q > 8) < (k > 8)) ^ ((q > 5) != (k > 9))
    ),
    "logical": lambda b, h, q, k: torch.logical_or(
        torch.logical_and(q, k > 3), torch.logical_xor(q > 5, torch.logical_not(k))
    ),
    "methods": lambda b, h, q, k: (
        q.ge(k).logical_and(q.sub(k).lt(7)).logical_or(k.eq(0)).bitwise_or(q.ne(k).logical_not())
    ),
    "where": lambda b, h, q, k: torch.where(q < 5, k < 3, k > torch.where(k < 9, 2, q)),
    "where, method": lambda b, h, q, k: q.where(q > k, 2) == 2,
    "masked_fill": lambda b, h, q, k: q.masked_fill(k > 3, 7) > k,
    "minimum, maximum": lambda b, h, q, k: (
        torch.minimum(q, k) + torch.maximum(q, torch.tensor(6)) > 10
    ),
    "min, max of two": lambda b, h, q, k: torch.max(q, k) - torch.min(q, k) < 4,
    "clamp": lambda b, h, q, k: (
        (q - 3).clamp(0, 5) + k.clamp(min=4) + torch.clamp(q, max=6) + k.clip(q, q + 3) > 20
    ),
    "clamp_min": lambda b, h, q, k: q.clamp_min(4) > k.clamp_max(9),
    "abs, sign": lambda b, h, q, k: (
        (abs(q - k) + torch.abs(k - 9) + (q - k).abs() < 9) | (torch.sign(q - k) == -1)
    ),
    "powers": lambda b, h, q, k: (
        (q - 5) ** 2 + torch.square(k - 5) < 2 ** (h + 3) + torch.pow(b, 3)
    ),
    "casts": lambda b, h, q, k: (
        q.to(torch.int32).long()
        + (k > 3).to(torch.int64)
        + (q - 7).bool().int()
        + b.type(torch.int32)
        + h.type_as(q)
        > 8
    ),
    "casts that wrap": lambda b, h, q, k: (
        ((q * 40).to(torch.int8) > 0) ^ ((k * -40).to(torch.uint8) > 100)
    ),
    "small types wrap": lambda b, h, q, k: (
        (small[q % 4] + small[k % 4] > 200) ^ (small[q % 4] - 5 > 250)
    ),
    "types of tables": lambda b, h, q, k: signed[q % 5] * small[k % 4] > signed[k % 5] - 100,
    "floats": lambda b, h, q, k: (
        ((q > 2.5) & (k <= 7.0) & (q != 4.5)) | (k >= float("inf")) | (q < -0.5)
    ),
    "constants": lambda b, h, q, k: (
        torch.ones_like(q, dtype=torch.bool)
        & (k > torch.zeros_like(k))
        & (q < torch.full_like(q, 9))
        & (k.new_full((), 14) > k)
        & q.new_zeros(()).eq(0)
        & b.new_ones(size=(), dtype=torch.bool)
    ),
    "tensors made inside": lambda b, h, q, k: (torch.tensor(3) < q) & (k < torch.arange(20)[12]),
    "isin": lambda b, h, q, k: (
        torch.isin(k, chosen[0].long()) | torch.isin(q, torch.tensor([2, 3]), invert=True)
    ),
    "searchsorted": lambda b, h, q, k: (
        torch.searchsorted(starts, q, right=True) == torch.bucketize(k, starts, right=True)
    ),
    "lookup": lambda b, h, q, k: document[q] == document[k],
    "lookup of a lookup": lambda b, h, q, k: k - starts[document[k]] <= q - starts[document[q]],
    "lookup from the end": lambda b, h, q, k: (
        (document[-1 - q] == document[k - 17]) | is_global[q - k]
    ),
    "lookup in 2 dimensions": lambda b, h, q, k: chosen[b, q % 4] > k,
    "lookup in 3 dimensions": lambda b, h, q, k: grid[1][h, q % 4, k % 5] > 3,
    "lookup in 4 dimensions": lambda b, h, q, k: grid[b, h, q % 4, k % 5] > 3,
    "booleans in 4 dimensions": lambda b, h, q, k: live[b, h, q, k],
    "0 dimensions": lambda b, h, q, k: q - k < window,
    "row": lambda b, h, q, k: (chosen[b] == k.unsqueeze(-1)).any(-1),
    "row, all": lambda b, h, q, k: (grid[b, h, q % 4] != k.unsqueeze(-1)).all(dim=-1),
    "row, none": lambda b, h, q, k: (chosen[b] == k[..., None]).sum(-1) == 0,
    "long row": lambda b, h, q, k: (document == (q - k).unsqueeze(-1)).any(-1),
    "row by number": lambda b, h, q, k: chosen[b][1] + chosen[b][-1] > k,
    "row by symbol": lambda b, h, q, k: chosen[b][q % 4] > k,
    "row by slice": lambda b, h, q, k: (
        (chosen[b, 1:3] > k).any(-1) & (grid[b, h, :, q % 5] > 2).all(-1)
    ),
    "row by steps": lambda b, h, q, k: (grid[b, h, ::2, 1] > k % 7).any(),
    "column": lambda b, h, q, k: (chosen[:, k % 4] > q).all(0),
    "rows of rows": lambda b, h, q, k: (
        (grid[b, h] == k.unsqueeze(-1).unsqueeze(-1)).any(-1).all(-1) | (q == 0)
    ),
    "parted lookups": lambda b, h, q, k: (grid[b, :, q % 4] > 5).any(),
    "arrays as indices": lambda b, h, q, k: (document[chosen[b].long()] == document[k]).any(-1),
    "extrema of rows": lambda b, h, q, k: (
        (grid[b, h, q % 4].amax(-1) > k) & (chosen[b].min(-1).values < q) & (chosen[b].max() > k)
    ),
    "sum of a row": lambda b, h, q, k: (grid[b, h, q % 4] * 2).sum() % 3 == k % 3,
    "counts": lambda b, h, q, k: torch.count_nonzero(grid[b, h, q % 4]) > k % 6,
    "any of integers": lambda b, h, q, k: grid[b, h, q % 4].any() & k.any(),
    "stack, cat": lambda b, h, q, k: (
        (torch.stack([q, k]) > 3).all(0)
        ^ (torch.cat([chosen[b], chosen[1 - b]]) == k).any()
        ^ (torch.stack([q, k, h])[k % 3] == 2)
    ),
    "shapes": lambda b, h, q, k: (
        (grid[b].permute(1, 2, 0)[q % 4, k % 5, h] == 3)
        ^ (grid[b, h].t()[k % 5, q % 4] == 2)
        ^ (grid[b, h].reshape(-1)[q] == 1)
        ^ (grid[b].transpose(0, 2)[k % 5, q % 4, h] == 4)
        ^ (grid[b, h].flatten().view(2, -1)[:, k % 10] == 5).any()
        ^ (q.expand(3) == k).all()
        ^ (chosen[b].unsqueeze(0).squeeze() == k).any()
        ^ (grid[b].flatten(1)[h, q] == 0)
    ),
    "gather, take": lambda b, h, q, k: (
        (torch.take(chosen, q % 8) > k)
        | (torch.gather(chosen[b], 0, torch.tensor([2, 0])) == k).any()
        | (chosen.index_select(1, torch.tensor([1, 2]))[b, q % 2] == k)
    ),
    "broadcast": lambda b, h, q, k: (torch.broadcast_tensors(chosen[b], k)[1] == q).all(-1),
    "shape and type of an index": lambda b, h, q, k: (
        (q >= k) & (q.dim() == 0) & (q.shape == ()) & (q.dtype == torch.int64) & (k.numel() == 1)
    ),
    "noise": lambda b, h, q, k: q.clone().detach().contiguous().to(q.device) >= k.to(device="cpu"),
    "in place": in_place,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_exact(name: str) -> None:
    assert_exact(OPERATIONS[name], SIZES)


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (1, 1, 129, 127), (2, 2, 1, 300), (1, 3, 257, 1), (3, 2, 64, 128)]
)
def test_sizes(sizes: tuple[int, int, int, int]) -> None:
    assert_exact(two_heads, sizes)
    assert_exact(flex.or_masks(two_heads, lambda b, h, q, k: (q + k) % 3 == h), sizes)


def test_text_is_what_one_would_write() -> None:
    def text(mask_mod: MaskMod) -> str:
        return str(fdma.trace_mask_mod(mask_mod))

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def near(b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.abs(q - k) < 8

    assert text(causal) == "q >= k"
    assert text(flex.and_masks(causal, near)) == "q >= k & abs(q - k) < 8"
    assert text(flex.or_masks(causal, near)) == "q >= k | abs(q - k) < 8"
    assert text(flex.noop_mask) == "true"
    assert text(lambda b, h, q, k: document[q] == document[k]) == "@document[q] == @document[k]"
    assert text(lambda b, h, q, k: q - k < window) == "q - k < @window"
    assert text(OPERATIONS["row"]) == "any(i in 4 : @chosen[b, i] == k)"
    assert text(torch.compile(causal)) == "q >= k"
    assert text(OPERATIONS["long row"]) == "any(i in 17 : @document[i] == q - k)"


# ---- captures


class Holder:
    def __init__(self) -> None:
        self.documents = document
        self._limit = 9

    def mask_mod(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (self.documents[q] == self.documents[k]) & (k < self._limit)

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return self.mask_mod(b, h, q, k) | (q == k)


def test_captures_in_every_place() -> None:
    def with_parameter(ids: Any, width: int, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (ids[q] == ids[k]) & (q - k < width)

    def with_default(b: Any, h: Any, q: Any, k: Any, *, ids: Any = document) -> Any:
        return ids[q] == ids[k]

    def outer(inner: MaskMod, shift: Any) -> MaskMod:
        def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
            def moved(i: Any) -> Any:
                return (i + shift) % 13

            return inner(b, h, moved(q), moved(k))

        return mask_mod

    by_keyword = functools.partial(with_default, ids=document)
    names: list[tuple[MaskMod, set[str]]] = [
        (functools.partial(with_parameter, document, 4), {"ids"}),
        (by_keyword, {"ids"}),
        (with_default, {"ids"}),
        (Holder().mask_mod, {"documents"}),
        (Holder(), {"documents"}),
        (outer(with_default, torch.tensor(4)), {"ids", "shift"}),
        (outer(outer(two_heads, 3), 2), set()),
    ]
    for mask_mod, expected in names:
        assert set(assert_exact(mask_mod, SIZES).tables) == expected


def test_one_table_for_one_tensor() -> None:
    again = document
    mask = assert_exact(
        lambda b, h, q, k: (document[q] == again[k]) & (document.view(-1)[q] == document.long()[k]),
        (1, 1, 17, 17),
    )
    assert len(mask.tables) == 2  # document itself, and what .long() made


def test_two_tensors_of_one_name() -> None:
    def of(ids: Any) -> fdma.MaskExpr:
        return fdma.trace_mask_mod(lambda b, h, q, k: ids[q] == ids[k])

    other = torch.arange(17) % 3
    both = of(document) & of(other)
    assert sorted(both.tables) == ["ids", "ids1"]
    expected = (document[:, None] == document) & (other[:, None] == other)
    assert np.array_equal(cells_of(both, (1, 1, 17, 17))[0, 0], expected.numpy())


def test_tables_are_read_when_compiled() -> None:
    ids = torch.zeros(9, dtype=torch.int64)
    starts_of = torch.tensor([0, 4, 6])

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (ids[q] == ids[k]) & (k >= starts_of[ids[q]])

    mask = fdma.trace_mask_mod(mask_mod)
    for values in ([0] * 9, [0] * 4 + [1] * 2 + [2] * 3, [-1] * 9):  # -1 is the last document
        ids.copy_(torch.tensor(values))
        assert np.array_equal(cells_of(mask, (1, 1, 9, 9)), expected_cells(mask_mod, (1, 1, 9, 9)))


def test_tensors_of_every_layout() -> None:
    wide = torch.arange(40).reshape(5, 8)
    columns, steps = wide.t(), wide[:, ::2]
    same = torch.tensor([[3]]).expand(5, 8)
    backwards = np.arange(10)[::-1]
    grad = torch.ones(3, requires_grad=True)
    unsigned = torch.tensor([1, 2, 65535], dtype=torch.uint16)
    sizes = (1, 1, 8, 5)
    assert_exact(lambda b, h, q, k: columns[q, k] + steps[k, q // 2] > same[k, q] + 20, sizes)
    assert np.array_equal(
        cells_of(fdma.trace_mask_mod(lambda b, h, q, k: backwards[q] > k + 3), sizes)[0, 0],
        backwards[:8, None] > np.arange(5) + 3,
    )
    mask = fdma.trace_mask_mod(lambda b, h, q, k: unsigned[q % 3] > k)
    assert cells_of(mask, sizes)[0, 0].sum() == 0 + 1 * 3 + 2 * 3 + 5 * 2
    with pytest.raises(fdma.TraceError, match="float32"):
        fdma.trace_mask_mod(lambda b, h, q, k: grad[q % 3] > k)


def test_numpy_arrays_serve_too() -> None:
    ids, flags = document.numpy(), is_global.numpy()

    def inner(q: Any, k: Any) -> Any:
        return ids[q] == ids[k]

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return np.logical_and(inner(q, k), np.minimum(q, k) > 2) | (flags[k] & (np.abs(q - k) < 9))

    mask = fdma.trace_mask_mod(mask_mod)
    assert set(mask.tables) == {"ids", "flags"}
    q, k = np.ogrid[:13, :17]
    assert np.array_equal(cells_of(mask, (1, 1, 13, 17))[0, 0], mask_mod(0, 0, q, k))
    assert np.shares_memory(mask.tables["ids"], ids) and type(mask.tables["ids"]) is np.ndarray
    assert type(ids[:2]) is np.ndarray  # the function's own cells are as before
    narrow, large = np.arange(9, dtype=np.int8), np.array([250, 3], np.uint8)

    def of_types(b: Any, h: Any, q: Any, k: Any) -> Any:
        # Values are compared, not types; arithmetic is of the types, and wraps.
        return (large[q % 2] + large[k % 2] == 244) | (large[k % 2] == 506) | (narrow[q % 9] > k)

    of_values = fdma.trace_mask_mod(of_types)
    assert np.array_equal(
        cells_of(of_values, (1, 1, 13, 300))[0, 0], of_types(0, 0, q, np.arange(300))
    )
    at_once = fdma.sample_mask_mod(mask_mod, 13, 17)
    assert np.array_equal(cells_of(at_once, (1, 1, 13, 17)), cells_of(mask, (1, 1, 13, 17)))


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
import fdma

ids = np.array([0, 0, 1, 1, 2])
rows = np.array([[0, 3], [1, 2]])
def mask_mod(b, h, q_idx, kv_idx):
    same = (ids[q_idx] == ids[kv_idx]) | (rows[b] == kv_idx.unsqueeze(-1)).any(-1)
    return same & (q_idx >= kv_idx) & (q_idx.dtype == np.int64)

mask = fdma.compile(mask_mod, 5, batch=2)
q, k = np.ogrid[:5, :5]
for b in range(2):
    expected = ((ids[q] == ids[k]) | (rows[b] == k[..., None]).any(-1)) & (q >= k)
    assert np.array_equal(mask.to_dense()[b, 0], expected)
causal = lambda b, h, q, k: q >= k
assert fdma.compile(causal, 5) == fdma.compile(causal, 5, sample=True) == fdma.compile("causal", 5)
"""


def test_without_pytorch() -> None:
    subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        check=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
    )


# ---- what is refused

REFUSED: dict[str, tuple[MaskMod, str]] = {
    "if": (lambda b, h, q, k: q >= k if q > 3 else k < 2, r"bool\(\)"),
    "and": (lambda b, h, q, k: q >= k and k < 2, r"bool\(\).*& \| ~"),
    "not": (lambda b, h, q, k: not q >= k, r"bool\(\)"),
    "chain": (lambda b, h, q, k: 0 <= q - k < 5, r"chained comparison"),
    "max": (lambda b, h, q, k: max(q, k) < 5, r"torch\.maximum"),
    "int": (lambda b, h, q, k: int(q) > 3, r"int\(\)"),
    "float": (lambda b, h, q, k: float(q) > 3, r"float\(\)"),
    "item": (lambda b, h, q, k: q.item() > 3, r"Tensor\.item"),
    "tolist": (lambda b, h, q, k: q.tolist() > 3, r"Tensor\.tolist"),
    "numpy": (lambda b, h, q, k: q.numpy() > 3, r"Tensor\.numpy"),
    "list index": (lambda b, h, q, k: [1, 2, 3][q] > k, r"index of a list.*index a tensor"),
    "range": (lambda b, h, q, k: sum(i for i in range(q)) > k, r"a range"),
    "slice": (lambda b, h, q, k: document[:q].sum() > k, r"slice with a traced bound"),
    "iteration": (lambda b, h, q, k: list(q) > k, r"iteration"),
    "true division": (lambda b, h, q, k: q / 2 > k, r"true division.*use //"),
    "torch.div": (lambda b, h, q, k: torch.div(q, 2) > k, r"true division.*rounding_mode"),
    "float factor": (lambda b, h, q, k: q * 0.5 > k, r"the float 0\.5"),
    "float cast": (lambda b, h, q, k: q.float() > k, r"Tensor\.float"),
    "float type": (lambda b, h, q, k: q.to(torch.float32) > k, r"float32"),
    "float table": (lambda b, h, q, k: torch.rand(20)[k] > 0.5, r"array of type float32.*outside"),
    "large float": (lambda b, h, q, k: q < 2.0**30 + 0.5, r"the float 1073741824"),
    "cumsum": (lambda b, h, q, k: torch.cumsum(chosen[b], 0)[1] > k, r"torch\.cumsum"),
    "sort": (lambda b, h, q, k: chosen[b].sort().values[0] > k, r"Tensor\.sort"),
    "argmax": (lambda b, h, q, k: chosen[b].argmax() > k, r"Tensor\.argmax"),
    "indices of max": (lambda b, h, q, k: chosen[b].max(-1).indices > k, r"indices of min or max"),
    "functional": (lambda b, h, q, k: torch.nn.functional.one_hot(q, 20)[3] == 1, r"one_hot"),
    "sqrt": (lambda b, h, q, k: torch.sqrt(q) > k, r"torch\.sqrt"),
    "matmul": (lambda b, h, q, k: chosen @ q > k, r"matmul"),
    "boolean mask": (lambda b, h, q, k: document[document > q].any(), r"boolean mask"),
    "minus": (lambda b, h, q, k: (q > 3) - (k > 3), r"- of booleans"),
    "unary minus": (lambda b, h, q, k: -(q > 3), r"unary -"),
    "in": (lambda b, h, q, k: q in (1, 2), r"bool\(\)"),
    "contains": (lambda b, h, q, k: 2 in chosen[b], r"`in`"),
    "assignment": (lambda b, h, q, k: chosen[b].__setitem__(0, 1), r"assignment"),
    "assignment to a tensor": (lambda b, h, q, k: document.__setitem__(q, 1), r"__setitem__"),
    "in-place method": (lambda b, h, q, k: q.add_(1) > k, r"Tensor\.add_"),
    "huge sum": (lambda b, h, q, k: (torch.arange(5000) > q).sum() > k, r"sum of 5000 elements"),
    "five dimensions": (
        lambda b, h, q, k: torch.zeros(1, 1, 1, 1, 20).int()[0, 0, 0, 0, q] == 0,
        r"5 dim",
    ),
    "equal": (lambda b, h, q, k: torch.equal(q, k), r"torch\.equal"),
    "numpy's transpose": (lambda b, h, q, k: np.transpose(q) > k, r"numpy\.transpose"),
    "numpy function": (lambda b, h, q, k: np.sqrt(q) > k, r"numpy\.sqrt"),
    "numpy array": (lambda b, h, q, k: np.asarray(q) > k, r"asarray"),
    "argument": (lambda b, h, q, k: np.add(q, k, casting="no") > 3, r"numpy\.add with these"),
    "alpha": (lambda b, h, q, k: torch.add(q, k, alpha=2) > 3, r"alpha"),
    "exponent": (lambda b, h, q, k: q**k > 3, r"traced exponent"),
    "negative shift": (lambda b, h, q, k: q << -1 > 3, r"<< -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_and_names(name: str) -> None:
    mask_mod, message = REFUSED[name]
    with pytest.raises(fdma.TraceError, match=message) as caught:
        fdma.compile(mask_mod, 16)
    text = str(caught.value)
    assert isinstance(caught.value, NotImplementedError)
    assert "sample=True" in text
    line = inspect.getsourcelines(mask_mod)[1]
    assert f"(test_py_trace.py:{line}" in text.replace(f":{line + 1}", f":{line}")
    # The next function is traced as if nothing had happened.
    assert str(fdma.trace_mask_mod(lambda b, h, q, k: q >= k)) == "q >= k"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda q, k: q + k, "int64"),
        (lambda q, k: None, "NoneType"),
        (lambda q, k: "yes", "str"),
        (lambda q, k: chosen == k, r"shape \(2, 4\)"),
        (lambda q, k: (q > k, k), "tuple"),
        (lambda q, k: 1, "int64"),
    ],
)
def test_rejects_what_is_no_condition(result: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        fdma.trace_mask_mod(lambda b, h, q, k: result(q, k))
    with pytest.raises(TypeError, match=r"a function of"):
        fdma.trace_mask_mod(3)  # type: ignore[arg-type]


def test_errors_of_the_function_are_its_own() -> None:
    def broken(b: Any, h: Any, q: Any, k: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fdma.trace_mask_mod(broken)
    with pytest.raises(IndexError, match="out of bounds"):
        fdma.trace_mask_mod(lambda b, h, q, k: document[q] == document[40])
    with pytest.raises(TypeError):
        fdma.trace_mask_mod(lambda q, k: q >= k)
    assert not hasattr(fdma.trace_mask_mod(lambda b, h, q, k: q >= k), "nothing")


def test_lookups_outside_are_errors_as_in_pytorch() -> None:
    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return document[q + 10] == document[k]

    with pytest.raises(IndexError):
        expected_cells(mask_mod, SIZES)
    with pytest.raises(ValueError, match="document"):
        fdma.compile(mask_mod, 13, 17)


def test_libraries_may_ask_what_a_symbol_is() -> None:
    def curious(b: Any, h: Any, q: Any, k: Any) -> Any:
        assert not torch.is_tensor(q) and not hasattr(q, "no_such_attribute")
        assert getattr(q, "no_such_attribute", 3) == 3 and repr(q) == "<traced int64>"
        assert q.device == document.device and q.ndim == 0 and not q.is_cuda
        return q >= k

    fdma.trace_mask_mod(curious)


# ---- every cell

SAMPLED: dict[str, MaskMod] = {
    "two heads": two_heads,
    "floats": lambda b, h, q, k: torch.sin(q * 0.7 + h) > torch.cos(k / 3.0),
    "same for all": lambda b, h, q, k: q / 2 > k,
    "batch only": lambda b, h, q, k: (q + b) / 2 > k,
    "heads only": lambda b, h, q, k: (q + h) / 2 > k,
    "lookups": lambda b, h, q, k: live[b, h, q, k],
    "noop": flex.noop_mask,
}


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("cells_at_once", [1 << 24, 200])
def test_sample_equals_create_mask(
    name: str, cells_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdma.trace_sample.CELLS_AT_ONCE", cells_at_once)
    batch, heads, q_len, kv_len = SIZES
    mask = fdma.compile(SAMPLED[name], q_len, kv_len, batch, heads, sample=True)
    expected = expected_cells(SAMPLED[name], SIZES)
    assert np.array_equal(np.broadcast_to(mask.to_dense(), SIZES), expected)
    sampled = fdma.sample_mask_mod(SAMPLED[name], q_len, kv_len, batch, heads)
    (bits,) = sampled.tables.values()
    if name in ("noop", "same for all"):
        assert bits.shape == (13, 17)
    elif name == "batch only":
        assert bits.shape == (2, 13, 17)


def test_sample_rejects() -> None:
    with pytest.raises(TypeError, match="booleans"):
        fdma.sample_mask_mod(lambda b, h, q, k: q + k, 4)
    with pytest.raises(ValueError, match="q_len"):
        fdma.sample_mask_mod(two_heads, -1)
    assert fdma.compile(two_heads, 0, 5, sample=True).to_dense().size == 0


# ---- with create_block_mask

BLOCK_MASKS: dict[str, tuple[MaskMod, tuple[int, int, int, int]]] = {
    "causal": (lambda b, h, q, k: q >= k, (1, 1, 300, 300)),
    "documents": (
        lambda b, h, q, k: (torch.arange(500) // 130)[q] == (torch.arange(500) // 130)[k],
        (1, 1, 500, 500),
    ),
    "heads": (lambda b, h, q, k: (q >= k) & (q - k < 90 * (h + 1)), (1, 3, 401, 257)),
    "batch": (lambda b, h, q, k: (q >= k) | (k < 140 * b), (3, 2, 256, 384)),
    "dilated": (lambda b, h, q, k: (q - k).abs() % 131 == 0, (1, 1, 391, 500)),
    "rows": (lambda b, h, q, k: (chosen[b] == (k // 16).unsqueeze(-1)).any(-1), (2, 1, 200, 300)),
}


@pytest.mark.parametrize("name", BLOCK_MASKS)
def test_compiled_is_create_block_mask(name: str) -> None:
    mask_mod, (batch, heads, q_len, kv_len) = BLOCK_MASKS[name]
    theirs = flex.create_block_mask(mask_mod, batch, heads, q_len, kv_len, device="cpu")
    ours = fdma.compile(mask_mod, q_len, kv_len, batch, heads).to_flex("cpu")
    for part in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
        mine, expected = getattr(ours, part), getattr(theirs, part)
        assert torch.equal(mine.expand_as(expected), expected), part


# ---- speed, threads


def test_tracing_takes_microseconds() -> None:
    ids, offsets = torch.arange(8192) // 512, torch.arange(17) * 512

    def typical(b: Any, h: Any, q: Any, k: Any) -> Any:
        same = ids[q] == ids[k]
        return same & (q - offsets[ids[q]] >= k - offsets[ids[k]]) & (q - k < 1024)

    def best(of: MaskMod) -> float:
        times = []
        for _ in range(30):
            begin = time.perf_counter()
            fdma.trace_mask_mod(of)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert best(typical) < 1e-3
    assert best(lambda b, h, q, k: q >= k) < 1e-3


def test_lookups_that_may_wrap_compile_as_fast_as_those_that_do_not() -> None:
    ids, offsets = torch.arange(65536) // 4096, torch.arange(17) * 4096
    wrapped = fdma.trace_mask_mod(
        lambda b, h, q, k: (ids[q] == ids[k]) & (q - offsets[ids[q]] >= k - offsets[ids[k]])
    )
    plain = fdma.MaskExpr.parse(
        "@ids[q] == @ids[k] & q - @offsets[@ids[q]] >= k - @offsets[@ids[k]]",
        ids=ids,
        offsets=offsets,
    )
    assert "where" in str(wrapped)
    assert fdma.compile(wrapped, 65536) == fdma.compile(plain, 65536)

    def best(mask: fdma.MaskExpr) -> float:
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            fdma.compile(mask, 65536)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert best(wrapped) < 2 * best(plain) + 2e-3


def test_threads_trace_apart() -> None:
    problems: list[BaseException] = []

    def work(width: int) -> None:
        ids = torch.arange(40) // width
        try:
            for _ in range(40):
                mask = fdma.trace_mask_mod(lambda b, h, q, k: (ids[q] == ids[k]) & (q - k < width))
                assert str(mask) == f"@ids[q] == @ids[k] & q - k < {width}"
                assert mask.tables["ids"].data_ptr() == ids.data_ptr()
        except BaseException as error:  # shown by the main thread
            problems.append(error)

    threads = [threading.Thread(target=work, args=(width,)) for width in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[0]


def test_nothing_is_left_behind() -> None:
    gc.collect()
    gc.disable()
    try:

        def trace() -> Any:
            ids = torch.arange(9)
            fdma.trace_mask_mod(lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k))
            with pytest.raises(fdma.TraceError):
                fdma.trace_mask_mod(lambda b, h, q, k: ids[q].item() > k)
            return weakref.ref(ids)

        kept = trace()
        assert kept() is None
    finally:
        gc.enable()


def test_tracing_inside_tracing() -> None:
    def outer(b: Any, h: Any, q: Any, k: Any) -> Any:
        inner = fdma.trace_mask_mod(lambda b, h, q, k: document[q] == document[k])
        assert str(inner) == "@document[q] == @document[k]"
        return (q >= k) & is_global[k]

    assert str(fdma.trace_mask_mod(outer)) == "q >= k & @is_global[k]"
