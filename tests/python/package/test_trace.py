"""Tests the tracing of FlexAttention functions.

Each operation is compared with create_mask; other tests cover the text and captures.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
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
heat = torch.rand(2, 3, 13, 17, generator=torch.Generator().manual_seed(2))
additive = torch.zeros(13, 17).masked_fill(heat[0, 0] > 0.7, -torch.inf)
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
    "tables of floats": lambda b, h, q, k: (
        (heat[b, h, q, k] > 0.5)
        ^ (additive[q, k] == 0)
        ^ torch.isneginf(additive[q, k - 17])
        ^ ((1 - heat[b, 1, q][k]) * 2 < 0.8)
        ^ (heat[b, h, -1 - q, 3].half() * 3).round().int().eq(k % 4)
        ^ (torch.sigmoid(heat[b, h, q, :4]) > 0.6).any(-1)
        ^ additive[q, k].bool()
        ^ (abs(-heat[1, 2, q, k]) < 0.25)
        ^ (heat[b, h, q, 1].to(torch.float64).clamp(0.2, 0.9) != 0.2)
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


def test_names_of_what_objects_and_dictionaries_hold() -> None:
    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ids", document)
            self.register_buffer("width", window)

        def mask_mod(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return (self.ids[q] == self.ids[k]) & (q - k < self.width)

    mask = assert_exact(Module().mask_mod, SIZES)
    assert str(mask) == "@ids[q] == @ids[k] & q - k < @width"
    tables = {"of_documents": document, "wide": window}
    mask = assert_exact(lambda b, h, q, k: tables["of_documents"][q] + tables["wide"] > k, SIZES)
    assert str(mask) == "@of_documents[q] + @wide > k"


def test_functions_of_both_libraries_follow_pytorch() -> None:
    ids = document.numpy()
    rows = chosen.to(torch.uint8)

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (rows[b] + k == 3).any(-1) | (q > 3)  # as uint8, 255 + 4 is 3

    def with_both(b: Any, h: Any, q: Any, k: Any) -> Any:
        return mask_mod(b, h, q, k) & (ids[q] >= 0)

    assert_exact(mask_mod, (2, 1, 6, 300))
    plain = cells_of(fdma.trace_mask_mod(mask_mod), (2, 1, 6, 300))
    assert np.array_equal(cells_of(fdma.trace_mask_mod(with_both), (2, 1, 6, 300)), plain)


def test_one_table_for_one_tensor() -> None:
    again = document
    mask = assert_exact(
        lambda b, h, q, k: (document[q] == again[k]) & (document.view(-1)[q] == document.long()[k]),
        (1, 1, 17, 17),
    )
    assert len(mask.tables) == 2  # the tables are `document` itself and the result of .long()


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
    for values in ([0] * 9, [0] * 4 + [1] * 2 + [2] * 3, [-1] * 9):  # index -1 is the last document
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
    assert_exact(lambda b, h, q, k: grad[q % 3] > k, sizes)
    assert_exact(lambda b, h, q, k: grad[q % 3] > 0.5, sizes)


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
    assert type(ids[:2]) is np.ndarray  # the cells of the function itself are as before
    narrow, large = np.arange(9, dtype=np.int8), np.array([250, 3], np.uint8)

    def of_types(b: Any, h: Any, q: Any, k: Any) -> Any:
        # Values are compared, not types. Arithmetic follows the types, and wraps.
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


LOADS_TORCH = """
import sys
import fdma

def mask_mod(b, h, q_idx, kv_idx):
    import torch
    ids = torch.tensor([0, 0, 1])
    return torch.logical_and(ids[q_idx] == ids[kv_idx], q_idx >= kv_idx)

assert "torch" not in sys.modules
assert fdma.compile(mask_mod, 3).counts.allowed_pairs == 4
assert "torch" in sys.modules
"""


def test_function_that_loads_pytorch() -> None:
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    subprocess.run([sys.executable, "-c", LOADS_TORCH], check=True, env=environment)


def test_without_pytorch() -> None:
    subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        check=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
    )


def test_a_choice_has_the_type_of_the_value_of_the_cell() -> None:
    """create_mask computes torch.where of a table without axes in the type of the other value."""
    two, below = torch.tensor(2), torch.tensor([-3], dtype=torch.int32)

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.where(q <= k, two, (q < q).to(torch.uint8)) < below[0]  # as uint8, -3 is 253

    assert_exact(mask_mod, (1, 1, 4, 4))
    wide = torch.tensor(300)
    assert_exact(lambda b, h, q, k: torch.where(q <= k, (k < 3).byte(), wide) == 44, (1, 1, 4, 4))
