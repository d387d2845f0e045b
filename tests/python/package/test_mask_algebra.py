"""Tests set algebra, windows and differences of fdma.BlockMask against NumPy.

Arrays with wrong entries are tested, too.
"""

from __future__ import annotations

import re
from typing import Any

import fdma_module  # noqa: F401  (skips this file where the build has no package)
import numpy as np
import pytest
from mask_examples import BY_NAME, EXAMPLES, Example, in_every_format, tile_classes
from mask_formats import FORMATS

fdma = pytest.importorskip("fdma")
hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SIDES = st.sampled_from([16, 32, 48, 64])
LENGTHS = st.integers(0, 130)
few = settings(max_examples=60, deadline=None)


@st.composite
def cells_of(draw: Any, q_len: int, kv_len: int) -> Any:
    """Returns bool [q_len, kv_len]: a band, intervals for each key, noise, or a mixture."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    q, k = np.ogrid[:q_len, :kv_len]
    low, high = sorted(random.integers(-q_len - 1, kv_len + 2, 2))
    begin, end = random.integers(0, q_len + 1, (2, kv_len))
    kinds = [
        (k - q >= low) & (k - q <= high),
        (begin <= q) & (q < end),
        random.random((q_len, kv_len)) < 0.4,
        (q // 20 == k // 20) & (k <= q),
        np.broadcast_to(np.array(draw(st.booleans())), (q_len, kv_len)),
    ]
    first, second = draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=2))
    return np.ascontiguousarray((first | second) if draw(st.booleans()) else (first & second))


def stored(draw: Any, cells: Any) -> Any:
    """Returns the mask of these cells in a random format and random blocks."""
    kind = draw(st.sampled_from([f for f in FORMATS if f != "parametric"]))
    return fdma.BlockMask.from_dense(cells, block=draw(st.tuples(SIDES, SIDES)), format=kind)


@st.composite
def pairs_of_masks(draw: Any) -> Any:
    """Yields two masks of the same lengths; one may hold for all batch elements or heads."""
    q_len, kv_len = draw(LENGTHS), draw(LENGTHS)
    counts = draw(st.sampled_from([((1, 1), (1, 1)), ((2, 1), (2, 3)), ((1, 3), (2, 1))]))
    arrays = [
        np.array([[draw(cells_of(q_len, kv_len)) for _ in range(heads)] for _ in range(batch)])
        for batch, heads in counts
    ]
    return [(stored(draw, array), array) for array in arrays]


@few
@given(pairs_of_masks())
def test_operators_are_those_of_sets(pair: Any) -> None:
    (a, x), (b, y) = pair
    for found, expected in [
        (a & b, x & y),
        (a | b, x | y),
        (a ^ b, x ^ y),
        (a - b, x & ~y),
        (~a, ~x),
    ]:
        np.testing.assert_array_equal(found.to_dense(), expected)
        found.validate()
        assert found.block == a.block
    assert ~~a == a
    assert ~(a & b) == ~a | ~b
    assert a - b == a & ~b
    assert a ^ b == (a | b) - (a & b)
    assert (a == b) == (x.shape == y.shape and bool((x == y).all()))
    assert hash(a | b) == hash(b | a)


@few
@given(st.data())
def test_shift_and_transpose(data: Any) -> None:
    q_len, kv_len = data.draw(LENGTHS), data.draw(LENGTHS)
    cells = data.draw(cells_of(q_len, kv_len))
    mask = stored(data.draw, cells)
    dq, dk = data.draw(st.integers(-140, 140)), data.draw(st.integers(-140, 140))
    expected = np.zeros_like(cells)
    for q, k in np.argwhere(cells):
        if 0 <= q + dq < q_len and 0 <= k + dk < kv_len:
            expected[q + dq, k + dk] = True
    np.testing.assert_array_equal(mask.shift(dq, dk).to_dense()[0, 0], expected)
    turned = mask.transpose()
    assert turned.block == mask.block[::-1]
    np.testing.assert_array_equal(turned.to_dense()[0, 0], cells.T)
    assert turned.transpose() == mask


slices = st.one_of(
    st.none(),
    st.builds(slice, st.none() | st.integers(-150, 150), st.none() | st.integers(-150, 150)),
)


def as_slice(at: slice | int | None) -> slice:
    if at is None or isinstance(at, slice):
        return at or slice(None)
    return slice(at, at + 1 or None)


@few
@given(st.data())
def test_crops_are_slices(data: Any) -> None:
    cells = np.array([[data.draw(cells_of(90, 120)) for _ in range(2)] for _ in range(3)])
    mask = stored(data.draw, cells)
    q, kv = data.draw(slices), data.draw(slices)
    batch = data.draw(st.sampled_from([None, slice(1, None), 2]))
    heads = data.draw(st.sampled_from([None, slice(0, 1), -1]))
    found = mask.crop(q=q, kv=kv, batch=batch, heads=heads)
    part = [as_slice(at) for at in (batch, heads, q, kv)]
    expected = cells[tuple(part)]
    assert found.shape == expected.shape
    assert found.format == mask.format
    np.testing.assert_array_equal(found.to_dense(), expected)
    begins = [at.indices(n)[0] for at, n in zip(part, cells.shape, strict=True)]
    b, h, row, key = begins
    assert found.origin == (row, key, b, h)


def test_crops_of_lengths_per_element() -> None:
    example = BY_NAME["lengths"]
    cells = example.cells()
    lengths = list(example.lengths())
    for mask in in_every_format(fdma, example):
        found = mask.crop(q=slice(-50, None), kv=slice(10, 80))
        assert found.format == mask.format
        assert found.q_lens == (50, 0, 50)
        assert found.kv_lens == (70, 50, 70)
        for b, (q_len, kv_len) in enumerate(lengths):
            expected = cells[b, 0, max(q_len - 50, 0) : q_len, 10 : min(80, kv_len)]
            one = found.to_dense(batch=b, heads=0)
            np.testing.assert_array_equal(one, expected)
        assert mask.crop(batch=2).shape == (1, 1, 77, 90)
        assert mask.crop(q=slice(None)).q_lens == mask.q_lens
        assert fdma.BlockMask.concatenate([mask.crop(batch=b) for b in range(3)]) == mask
    with pytest.raises(ValueError, match="is not inside"):
        mask.crop(q=range(0, 100))
    with pytest.raises(ValueError, match="step of 1"):
        mask.crop(kv=slice(None, None, -1))
    with pytest.raises(TypeError, match="a slice, a range or None"):
        mask.crop(kv=3)
    with pytest.raises(ValueError, match="expected segment in blocks"):
        fdma.BlockMask.concatenate([fdma.compile("causal", 9), mask.to_format("bcsr")])
    with pytest.raises(TypeError, match="expected a BlockMask, got int"):
        fdma.BlockMask.concatenate([1])
    with pytest.raises(ValueError, match="at least one"):
        fdma.BlockMask.concatenate([])


def test_a_parametric_crop_stays_parametric() -> None:
    mask = fdma.compile("causal & window(4096)", 1 << 20, format="parametric")
    part = mask.crop(q=slice(1 << 19, None), kv=slice(1000, None))
    assert part.format == "parametric"
    assert part.nbytes < 200


@few
@given(pairs_of_masks())
def test_differences_are_those_of_cells(pair: Any) -> None:
    (a, x), (b, y) = pair
    found = a.diff(b, max_tiles=5)
    if x.shape != y.shape:
        assert (found.equal, found.num_cells, found.tiles) == (False, 0, ())
        assert "against" in found.reason == str(found)
        return
    assert (found.only_in_self, found.only_in_other) == ((x & ~y).sum(), (y & ~x).sum())
    assert found.equal == (not found) == (found.num_cells == 0) == (a == b)
    tiles = [
        (i, h, int(r), int(c))
        for i in range(a.batch)
        for h in range(a.heads)
        for r, c in np.argwhere(tile_classes(x[i, h] ^ y[i, h], a.block))
    ]
    assert found.num_tiles == len(tiles)
    assert found.tiles == tuple(tiles[:5])
    if found.first_cell is None:
        assert not tiles
        return
    i, h, q, k, in_self = found.first_cell
    assert (x[i, h, q, k], y[i, h, q, k]) == (in_self, not in_self)
    assert [i, h, q, k] == np.argwhere(x ^ y)[0].tolist()


def test_operations_explain_what_they_reject() -> None:
    a, b = fdma.compile("causal", 100), fdma.compile("causal", 101)
    with pytest.raises(ValueError, match=r"q_len 100.*q_len 101"):
        a & b
    for wrong in (1, True, np.ones((100, 100), bool)):
        with pytest.raises(TypeError):
            a & wrong
    with pytest.raises(TypeError, match="expected a BlockMask, got str"):
        a.diff("b")
    with pytest.raises(ValueError, match="max_tiles"):
        a.diff(b, max_tiles=-1)
    with pytest.raises(ValueError, match="'thorough', expected 'sizes'"):
        a.validate("thorough")
    with pytest.raises(ValueError, match="block_kv: 100"):
        a.to_format("bcsr", block=(128, 100))
    with pytest.raises(ValueError, match="block_q: 2048"):
        a.to_format("bcsr", block=2048)
    with pytest.raises(ValueError, match="one or two sides, got 3"):
        a.to_format("bcsr", block=(16, 16, 16))
    with pytest.raises(TypeError, match="one or two integers"):
        a.to_format("bcsr", block=(16, 16.0))
    with pytest.raises(TypeError, match="format: expected a str"):
        a.to_format(3)
    with pytest.raises(TypeError, match="integer"):
        a.shift(1.5, 0)
    assert a.to_format("bcsr", block=64).block == (64, 64)
    assert "101" in a.diff(b).reason


# The tests below change entries of the arrays.


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_arrays_there_and_back(example: Example) -> None:
    for mask in in_every_format(fdma, example):
        again = fdma.BlockMask.from_arrays(mask.arrays())
        assert (again, again.content_hash) == (mask, mask.content_hash)
        swapped = mask.arrays()
        for group in swapped["groups"]:
            for name, array in group.items():
                group[name] = array.astype(array.dtype.newbyteorder(">"))
        assert fdma.BlockMask.from_arrays(swapped) == mask


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_arrays_are_errors_or_valid_masks(data: Any) -> None:
    example = data.draw(st.sampled_from(EXAMPLES))
    masks = list(in_every_format(fdma, example))
    state = data.draw(st.sampled_from(masks)).arrays()
    group = data.draw(st.sampled_from(state["groups"]))
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(group)))
        array = group[name].copy()
        if array.size and data.draw(st.booleans()):
            at = data.draw(st.integers(0, array.size - 1))
            limits = np.iinfo(array.dtype)
            near = int(array.flat[at]) + data.draw(st.sampled_from([-1, 1]))
            value = data.draw(st.sampled_from([near, 0, -1, 7, int(limits.max), int(limits.min)]))
            array.flat[at] = np.clip(value, limits.min, limits.max)
        elif data.draw(st.booleans()):
            array = array[:-1]
        else:
            array = np.concatenate([array, array[-1:], array[:1]])
        group[name] = array
    try:
        mask = fdma.BlockMask.from_arrays(state)
    except ValueError as error:
        assert re.search(r"[a-z_]+(\[\d+\])?: ", str(error)), error
        return
    mask.validate("structure")
    assert fdma.BlockMask.from_dense(mask.to_dense()).mask_hash == mask.mask_hash or mask.batch > 1
    assert ~~mask == mask
    assert (mask & mask.transpose().transpose()) == mask


def broken(**changes: Any) -> Any:
    state = fdma.compile("causal & window(40)", 300, heads=2).arrays()
    state.update(changes)
    return {name: value for name, value in state.items() if value is not None}


def test_attributes_are_checked() -> None:
    good = broken()
    make = fdma.BlockMask.from_arrays
    group = good["groups"][0]
    narrow, real = (group["runs"].astype(dtype) for dtype in (np.int32, float))
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "q_len: missing", {"q_len": None}),
        (TypeError, "q_len: expected an integer", {"q_len": "300"}),
        (ValueError, r"q_lens\[0\]: -1", {"q_len": -1}),
        (ValueError, "runs|segments", {"q_len": 100}),
        (ValueError, "64 bits", {"q_len": 1 << 70}),
        (ValueError, "both q_len and q_lens", {"q_lens": np.array([300])}),
        (ValueError, "one of segment", {"format": "csr"}),
        (TypeError, "format: expected a str", {"format": b"segment"}),
        (ValueError, "block_q: 100", {"block_q": 100}),
        (ValueError, "block_kv: expected a multiple", {"block_kv": 1 << 40}),
        (ValueError, "group_of: expected a contiguous int32", {"num_heads": 3}),
        (ValueError, "group_of", {"group_of": np.array([[0, 1]], np.int32)}),
        (ValueError, "group_of", {"group_of": np.array([[1, 0]], np.int32)}),
        (ValueError, "group_of", {"group_of": np.array([[0, 0]], np.int64)}),
        (ValueError, "num_batches", {"num_batches": 0, "group_of": np.zeros((0, 2), np.int32)}),
        (ValueError, "1 groups|2 groups", {"groups": good["groups"] * 2}),
        (TypeError, "groups: expected a list", {"groups": group}),
        (ValueError, "groups/0/runs: missing", {"groups": [{}]}),
        (ValueError, "groups/0/more: unknown", {"groups": [{**group, "more": group["runs"]}]}),
        (ValueError, "groups/0/runs: type int32", {"groups": [{**group, "runs": narrow}]}),
        (TypeError, "runs: expected integers", {"groups": [{**group, "runs": real}]}),
        (TypeError, "runs: expected a NumPy array", {"groups": [{**group, "runs": [[1]]}]}),
        (ValueError, "content_hash", {"content_hash": "0" * 32}),
        (ValueError, "more: unknown", {"more": 1}),
        (NotImplementedError, "newer FDMA", {"version": 3}),
        (ValueError, "version: expected 1", {"version": 0}),
    ]  # fmt: skip
    assert make(good).heads == 2
    for kind, words, changes in wrong:
        with pytest.raises(kind, match=words):
            make(broken(**changes))
    with pytest.raises(TypeError, match="expected a mapping"):
        make([1])
