"""Tests every named mask of the package against docs/spec-language.md, cell by cell.

The file is long because it has a test for every name.
"""

# Wrong arguments are what some of these tests are about.
# mypy: disable-error-code="arg-type, call-overload, operator"

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdma_module import Tensor

# isort: split
import fdma
from fdma import b, h, kv_len, q, table

SHAPES = [(6, 6), (4, 9), (9, 4), (1, 7), (7, 1), (20, 33)]
Predicate = Callable[[int, int, int], Any]


def cells_of(mask: Any, q_len: int, kv: int, **arguments: Any) -> Tensor:
    return fdma.compile(mask, q_len, kv, **arguments).to_dense()


def grid(q_len: int, kv: int, predicate: Predicate) -> Tensor:
    """Returns predicate(q, k, pos) of every cell."""
    return np.array(
        [[bool(predicate(row, key, row + kv - q_len)) for key in range(kv)] for row in range(q_len)]
    )


def assert_mask(mask: Any, q_len: int, kv: int, predicate: Predicate, **arguments: Any) -> None:
    np.testing.assert_array_equal(
        cells_of(mask, q_len, kv, **arguments)[0, 0], grid(q_len, kv, predicate)
    )


def looked_up(array: Any, place: int) -> Any:
    """Returns the entry at the position of a query, or None for a position outside the keys."""
    return array[place] if 0 <= place < len(array) else None


@pytest.mark.parametrize(("q_len", "kv"), SHAPES)
@pytest.mark.parametrize("w", [1, 3, 100])
def test_masks_of_positions(q_len: int, kv: int, w: int) -> None:
    shape = (q_len, kv)
    assert_mask(fdma.causal(), *shape, lambda q, k, pos: k <= pos)
    assert_mask(fdma.window(w), *shape, lambda q, k, pos: abs(pos - k) < w)
    assert_mask(fdma.sink(w), *shape, lambda q, k, pos: k < w)
    assert_mask(fdma.prefix(min(w, kv)), *shape, lambda q, k, pos: k < w)
    assert_mask(fdma.global_(w), *shape, lambda q, k, pos: k < w or pos < w)
    assert_mask(fdma.chunked(w), *shape, lambda q, k, pos: pos // w == k // w)
    assert_mask(fdma.block_causal(w), *shape, lambda q, k, pos: k // w <= pos // w)
    assert_mask(
        fdma.dilated(w, 2), *shape, lambda q, k, pos: abs(pos - k) < w and (pos - k) % 2 == 0
    )
    assert_mask(fdma.window(w, 0), *shape, lambda q, k, pos: -w <= k - pos <= 0)
    assert_mask(fdma.window(left=1, right=w), *shape, lambda q, k, pos: -1 <= k - pos <= w)
    for infinite in (math.inf, None):
        assert_mask(fdma.window(infinite, w), *shape, lambda q, k, pos: k - pos <= w)
        assert_mask(fdma.window(left=w, right=infinite), *shape, lambda q, k, pos: -w <= k - pos)
        assert cells_of(fdma.window(infinite, infinite), *shape).all()
    assert cells_of(fdma.window(math.inf), *shape).all()
    assert cells_of(fdma.sink(math.inf), *shape).all()
    assert_mask(fdma.dilated(math.inf, 2), *shape, lambda q, k, pos: (pos - k) % 2 == 0)


@pytest.mark.parametrize(("q_len", "kv"), SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_documents(q_len: int, kv: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    ids = random.integers(-1, 3, kv)
    parts = random.integers(0, 3, kv)

    def same(q: int, k: int, pos: int) -> bool:
        own = looked_up(ids, pos)
        return own is not None and own >= 0 and bool(own == ids[k])

    assert_mask(fdma.documents(ids=ids), q_len, kv, same)
    assert_mask(fdma.documents(ids="@doc"), q_len, kv, same, doc=ids)
    assert_mask(fdma.documents(ids=table("doc", ids)), q_len, kv, same)

    lengths = random.multinomial(kv - 1, [0.3, 0.0, 0.5, 0.2])
    of_key = np.repeat(np.arange(4), lengths)
    of_key = np.concatenate([of_key, np.full(kv - len(of_key), -1)])
    consecutive = grid(
        q_len,
        kv,
        lambda q, k, pos: (
            looked_up(of_key, pos) is not None and of_key[k] >= 0 and of_key[pos] == of_key[k]
        ),
    )
    by_lengths = fdma.documents(lengths=lengths)
    np.testing.assert_array_equal(cells_of(by_lengths, q_len, kv)[0, 0], consecutive)
    np.testing.assert_array_equal(
        cells_of(fdma.documents(lengths=lengths.tolist()), q_len, kv)[0, 0], consecutive
    )
    cumulative = np.concatenate([[0], np.cumsum(lengths)])
    by_offsets = fdma.documents(cu_seqlens=cumulative)
    np.testing.assert_array_equal(cells_of(by_offsets, q_len, kv)[0, 0], consecutive)

    q_ids = random.integers(-1, 3, q_len)
    assert_mask(
        fdma.documents(q_ids=q_ids, k_ids=ids),
        q_len,
        kv,
        lambda q, k, pos: q_ids[q] >= 0 and q_ids[q] == ids[k],
    )

    counts = random.integers(0, min(3, kv) + 1, 3)
    rank = [int(np.sum(ids[:key] == ids[key])) for key in range(kv)]
    assert_mask(
        fdma.prefix_documents(ids=ids, prefix=counts),
        q_len,
        kv,
        lambda q, k, pos: same(q, k, pos) and (k <= pos or rank[k] < counts[ids[k]]),
    )
    assert_mask(
        fdma.share_question(ids=ids, parts=parts),
        q_len,
        kv,
        lambda q, k, pos: same(q, k, pos) and (parts[k] == 0 or parts[pos] == parts[k]),
    )
    real = np.flatnonzero(ids >= 0)
    last = ids[real[-1]] if len(real) else -1
    assert_mask(
        fdma.causal_blockwise(ids),
        q_len,
        kv,
        lambda q, k, pos: (
            k <= pos
            and looked_up(ids, pos) is not None
            and ids[pos] >= 0
            and ids[k] >= 0
            and (ids[k] == ids[pos] or ids[pos] == last)
        ),
    )


@pytest.mark.parametrize(("q_len", "kv"), SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_masks_given_piece_by_piece(q_len: int, kv: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    flags = random.integers(0, 2, kv).astype(np.bool_)
    assert_mask(fdma.global_(flags), q_len, kv, lambda q, k, pos: flags[k] or looked_up(flags, pos))

    begin, end = random.integers(0, q_len + 1, (2, 3, kv))
    assert_mask(
        fdma.intervals(begin=begin, end=end),
        q_len,
        kv,
        lambda q, k, pos: any(begin[i, k] <= q < end[i, k] for i in range(3)),
    )
    assert_mask(
        fdma.intervals(begin=begin[0], end=end[0]),
        q_len,
        kv,
        lambda q, k, pos: begin[0, k] <= q < end[0, k],
    )
    first, past = random.integers(0, kv + 1, (2, 2, q_len))
    assert_mask(
        fdma.rows(begin=first, end=past),
        q_len,
        kv,
        lambda q, k, pos: any(first[i, q] <= k < past[i, q] for i in range(2)),
    )

    given = random.integers(0, 2, (-(-q_len // 2), -(-kv // 3))).astype(np.bool_)
    assert_mask(fdma.tiles(given, 2, 3), q_len, kv, lambda q, k, pos: given[q // 2, k // 3])
    dense = random.integers(0, 2, (2, 3, q_len, kv)).astype(np.bool_)
    for shape in ((q_len, kv), (2, q_len, kv), (2, 3, q_len, kv)):
        part = dense[(0,) * (4 - len(shape))] if len(shape) < 4 else dense
        part = dense[:, 0] if len(shape) == 3 else part
        cells = cells_of(fdma.bits(part), q_len, kv, batch=2, heads=3)
        wanted = part[:, None] if len(shape) == 3 else part
        np.testing.assert_array_equal(
            np.broadcast_to(cells, dense.shape), np.broadcast_to(wanted, dense.shape)
        )


@pytest.mark.parametrize("seed", range(3))
def test_padding(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 9, 4)
    for q_len, kv in ((5, 8), (8, 8)):
        right = cells_of(fdma.padding(lengths), q_len, kv, batch=4)
        left = cells_of(fdma.padding(lengths, side="left"), q_len, kv, batch=4)
        prefix = cells_of(fdma.prefix(lengths), q_len, kv, batch=4)
        for at, length in enumerate(lengths):
            np.testing.assert_array_equal(right[at, 0], np.arange(kv) < np.full((q_len, 1), length))
            np.testing.assert_array_equal(
                left[at, 0], np.arange(kv) >= np.full((q_len, 1), kv - length)
            )
        np.testing.assert_array_equal(prefix, right)


@pytest.mark.parametrize(("q_len", "kv"), [(6, 6), (4, 9), (9, 6)])
def test_tree(q_len: int, kv: int) -> None:
    parents = [-1, 0, 0, 1, -1]
    first = kv - len(parents)

    def sees(q: int, k: int, pos: int) -> bool:
        if k < first:
            return True
        node = pos - first
        while 0 <= node < len(parents):
            if node == k - first:
                return True
            node = parents[node]
        return False

    assert_mask(fdma.tree(parents), q_len, kv, sees)


@pytest.mark.parametrize("q_len", [12, 5, 15])
def test_block_diffusion(q_len: int) -> None:
    n, size = 6, 2

    def sees(q: int, k: int, pos: int) -> bool:
        if not 0 <= pos < 2 * n:
            return False
        own, other = pos % n // size, k % n // size
        if (pos < n) == (k < n) and own == other:
            return True
        if pos < n <= k:
            return own > other
        return pos >= n and k >= n and own >= other

    assert_mask(fdma.block_diffusion(n, size), q_len, 2 * n, sees)


@pytest.mark.parametrize("q_len", [20, 7, 25])
def test_natten2d(q_len: int) -> None:
    height, width, kh, kw = 4, 5, 3, 2

    def sees(q: int, k: int, pos: int) -> bool:
        if not 0 <= pos < height * width:
            return False
        y0 = min(max(pos // width - kh // 2, 0), height - kh)
        x0 = min(max(pos % width - kw // 2, 0), width - kw)
        return y0 <= k // width < y0 + kh and x0 <= k % width < x0 + kw

    assert_mask(fdma.natten2d(height, width, kh, kw), q_len, height * width, sees)


@pytest.mark.parametrize("q_len", [24, 7, 30])
def test_natten3d(q_len: int) -> None:
    sides, window = (2, 3, 4), (1, 2, 3)

    def sees(q: int, k: int, pos: int) -> bool:
        if not 0 <= pos < 24:
            return False
        for at, key, side, size in zip(
            np.unravel_index(pos, sides), np.unravel_index(k, sides), sides, window, strict=True
        ):
            begin = min(max(int(at) - size // 2, 0), side - size)
            if not begin <= key < begin + size:
                return False
        return True

    assert_mask(fdma.natten3d(*sides, *window), q_len, 24, sees)


@pytest.mark.parametrize("seed", range(4))
def test_topk(seed: int) -> None:
    random = np.random.default_rng(seed)
    batch, heads, heads_kv, q_len, kv = 2, 4, 2, 7, 11
    scores = random.integers(0, 5, (batch, heads_kv, kv)).astype(np.float32)  # the scores have ties
    visible = grid(q_len, kv, lambda q, k, pos: k <= pos or k == 0)
    for w in (1, 3, 11):
        expected = np.zeros((batch, heads, q_len, kv), np.bool_)
        for at_b, at_h, row in np.ndindex(batch, heads, q_len):
            keys = np.flatnonzero(visible[row])
            order = sorted(keys, key=lambda key: (-scores[at_b, at_h // 2, key], key))
            expected[at_b, at_h, row, order[:w]] = True
        among = fdma.causal() | fdma.sink(1)
        arguments: dict[str, Any] = {"batch": batch, "heads": heads}
        for mask in (
            fdma.topk(scores, w, among=among),
            fdma.topk(scores, w, among),
            among & fdma.topk(scores, w),
            fdma.topk("@s", table("w"), among=among),
        ):
            tables = {"s": scores, "w": w} if "@w" in str(mask) else {}
            cells = cells_of(mask, q_len, kv, **arguments, **tables)
            np.testing.assert_array_equal(cells, expected)
    np.testing.assert_array_equal(
        cells_of(fdma.topk(scores[0, 0], 2, among=among), q_len, kv),
        cells_of("topk(@s, 2, among=causal | sink(1))", q_len, kv, s=scores[0, 0]),
    )
    assert str(fdma.causal() & fdma.topk("@s", 3)) == "causal & topk(@s, 3)"
    whole = fdma.causal() & fdma.topk("@s", 3) & fdma.sink(9)
    assert fdma.compile(whole, 11, s=scores[0, 0]).spec == "topk(@s, 3, among=causal & sink(9))"


@pytest.mark.parametrize(
    "mask",
    [
        fdma.causal() | fdma.topk("@s", 2),
        fdma.topk("@s", 2),
        fdma.causal() & fdma.topk("@s", 2) & fdma.topk("@s", 3),
    ],
    ids=str,
)
def test_topk_needs_among_outside_the_conjunction(mask: fdma.MaskExpr) -> None:
    with pytest.raises(ValueError, match="among="):
        fdma.compile(mask, 4, s=np.zeros(4, np.float32))


def windows(length: int, w: int) -> Tensor:
    return grid(length, length, lambda q, k, pos: abs(pos - k) < w)


def test_parameters_are_expressions_of_batch_and_head() -> None:
    for at_h, cells in enumerate(cells_of(fdma.window(1 << h), 9, 9, heads=4)[0]):
        np.testing.assert_array_equal(cells, windows(9, 1 << at_h))
    widths = [2, 5]
    for at_b, cells in enumerate(cells_of(fdma.window(table(widths)[b]), 9, 9, batch=2)):
        np.testing.assert_array_equal(cells[0], windows(9, widths[at_b]))
    assert_mask(fdma.sink(kv_len // 3), 5, 9, lambda q, k, pos: k < 3)
    for w in ("@w", table("w"), table("@w")):
        assert_mask(fdma.window(w), 5, 9, lambda q, k, pos: abs(pos - k) < 4, w=4)
        assert_mask(fdma.window(w, None), 5, 9, lambda q, k, pos: k - pos >= -4, w=4)
        assert_mask(fdma.prefix(w), 5, 9, lambda q, k, pos: k < 4, w=4)
        assert_mask(fdma.global_(w), 5, 9, lambda q, k, pos: k < 4 or pos < 4, w=4)
    assert_mask(fdma.prefix(table("w") + 1), 5, 9, lambda q, k, pos: k < 5, w=4)
    assert_mask(fdma.prefix(np.int32(4)), 5, 9, lambda q, k, pos: k < 4)
    assert_mask(fdma.prefix(np.array(4)), 5, 9, lambda q, k, pos: k < 4)


def test_batch_extents() -> None:
    random = np.random.default_rng(0)
    ids = random.integers(0, 3, (3, 8))
    cells = cells_of(fdma.causal() & fdma.documents(ids=ids), 8, 8, batch=3)
    for row, own in zip(ids, cells, strict=True):
        np.testing.assert_array_equal(own[0], np.tri(8, dtype=bool) & (row[:, None] == row))
    lengths = [[3, 5, 0], [8, 0, 0], [1, 2, 3]]
    cells = cells_of(fdma.documents(lengths=lengths), 8, 8, batch=3)
    for row_lengths, own in zip(lengths, cells, strict=True):
        of_key = np.repeat([0, 1, 2], row_lengths)
        inside = np.zeros((8, 8), np.bool_)
        inside[: len(of_key), : len(of_key)] = of_key[:, None] == of_key
        np.testing.assert_array_equal(own[0], inside)


def test_text_of_each_name() -> None:
    """Python can write each signature of the reference, and prints it as the language does."""
    one, two = [1, 2], [True, False]
    masks = [
        (fdma.causal(), "causal"),
        (fdma.window(4), "window(4)"),
        (fdma.window(w=4), "window(4)"),
        (fdma.window(left=4, right=0), "window(4, 0)"),
        (fdma.dilated(8, 2), "dilated(8, 2)"),
        (fdma.documents(ids=one), "documents(ids=@ids)"),
        (fdma.documents(lengths=one), "documents(lengths=@lengths)"),
        (fdma.documents(cu_seqlens=[0, 2]), "documents(cu_seqlens=@cu_seqlens)"),
        (fdma.documents(q_ids=one, k_ids=[3]), "documents(q_ids=@q_ids, k_ids=@k_ids)"),
        (fdma.prefix(3), "prefix(3)"),
        (fdma.prefix(one), "prefix(@p)"),
        (fdma.prefix_documents(one, [3]), "prefix_documents(ids=@ids, prefix=@prefix)"),
        (fdma.share_question(one, [3]), "share_question(ids=@ids, parts=@parts)"),
        (fdma.causal_blockwise(one), "causal_blockwise(ids=@ids)"),
        (fdma.chunked(4), "chunked(4)"),
        (fdma.block_causal(4), "block_causal(4)"),
        (fdma.global_(4), "global(4)"),
        (fdma.global_(two), "global(@t0)"),
        (fdma.sink(4), "sink(4)"),
        (fdma.padding(one), "padding(lengths=@lengths)"),
        (fdma.padding(one, "left"), "padding(lengths=@lengths, side=left)"),
        (fdma.intervals(one, [3]), "intervals(begin=@begin, end=@end)"),
        (fdma.rows(one, [3]), "rows(begin=@begin, end=@end)"),
        (fdma.tiles([two], 64, 128), "tiles(@tiles, 64, 128)"),
        (fdma.tree([-1, 0]), "tree(parents=@parents)"),
        (fdma.block_diffusion(64, 16), "block_diffusion(64, 16)"),
        (fdma.natten2d(8, 8, 3, 3), "natten2d(8, 8, 3, 3)"),
        (fdma.natten3d(4, 8, 8, 3, 3, 3), "natten3d(4, 8, 8, 3, 3, 3)"),
        (fdma.bits([two]), "bits(@bits)"),
        (fdma.topk([0.5], 4, fdma.causal()), "topk(@scores, 4, among=causal)"),
    ]
    for mask, text in masks:
        assert str(mask) == text
        assert fdma.MaskExpr.parse(text).equals(fdma.MaskExpr.parse(str(mask)))
    reference = Path(__file__).parents[3] / "docs" / "spec-language.md"
    section = reference.read_text(encoding="utf-8").split("## Named masks")[1].split("\n## ")[0]
    documented = set(re.findall(r"^### (\w+)\n", section, re.MULTILINE))
    assert documented == {text.partition("(")[0] for _, text in masks}
    for name in documented:
        assert hasattr(fdma, "global_" if name == "global" else name)


def test_two_tables_of_one_wish() -> None:
    mask = fdma.documents(ids=[0, 0]) & fdma.documents(ids=[0, 1]) & (table("ids2")[q] == 1)
    assert str(mask) == "documents(ids=@ids) & documents(ids=@ids1) & @ids2[q] == 1"
    assert str(fdma.documents(ids=[0, 0]) & (table("ids")[q] == 1)) == (
        "documents(ids=@ids1) & @ids[q] == 1"
    )


@pytest.mark.parametrize(
    ("attempt", "error", "message"),
    [
        (lambda: fdma.window("4"), ValueError, "window: w: expected a table as \"@name\", got '4'"),
        (lambda: fdma.window(1.5), TypeError, "window: w: expected an integer.* got float"),
        (lambda: fdma.window(None), TypeError, "window: w: expected an integer.* got NoneType"),
        (lambda: fdma.window(q), ValueError, "window: w is one number for every cell"),
        (lambda: fdma.window(), TypeError, r"expected window\(w\) or window\(left, right\)"),
        (lambda: fdma.window(1, 2, 3), TypeError, r"got window\(1, 2, 3\)"),
        (lambda: fdma.window(1, w=2), TypeError, r"got window\(1, w=\)"),
        (lambda: fdma.window(-math.inf, 2), TypeError, "window: left: expected an integer"),
        (lambda: fdma.dilated(4, q < 3), TypeError, "dilated: step: .* got a condition"),
        (lambda: fdma.sink([1, 2]), TypeError, "sink: s: expected an integer.* got list"),
        (lambda: fdma.sink(table([1, 2])), TypeError, "index it"),
        (lambda: fdma.documents(), TypeError, "documents: expected ids=, lengths=.* got nothing"),
        (lambda: fdma.documents(ids=[1], lengths=[1]), TypeError, "got ids=, lengths="),
        (lambda: fdma.documents(q_ids=[1]), TypeError, "q_ids= and k_ids="),
        (lambda: fdma.documents(ids="doc"), ValueError, 'documents: ids: .* "@name"'),
        (lambda: fdma.documents(ids="@2"), ValueError, "documents: ids: expected letters"),
        (lambda: fdma.documents(ids=3), TypeError, "documents: ids: expected an array.* got int"),
        (lambda: fdma.documents(ids=q), TypeError, "documents: ids: .* got IntExpr"),
        (lambda: fdma.documents(ids=table("t")[q]), TypeError, r"got an entry, @t\[q\]"),
        (
            lambda: fdma.documents(ids=[[[1]]]),
            ValueError,
            r"documents: ids: expected 1 or 2 dimensions, got int64 \[1, 1, 1\]",
        ),
        (
            lambda: fdma.documents(ids=np.zeros(4, np.float32)),
            TypeError,
            r"documents: ids: expected integers, got float32 \[4\]",
        ),
        (lambda: fdma.documents(ids=[0.5, 1]), TypeError, "documents: ids: expected integers"),
        (lambda: fdma.documents(ids=[True]), TypeError, "documents: ids: expected integers"),
        (lambda: fdma.documents(lengths=np.zeros(3)), TypeError, "documents: lengths: .*float64"),
        (lambda: fdma.prefix([[1]]), ValueError, "prefix: p: expected 1 dimensions, got"),
        (lambda: fdma.global_([1, 0]), TypeError, "global_: g: expected booleans, got int64"),
        (lambda: fdma.bits([True]), ValueError, "bits: t: expected 2 or 3 or 4 dimensions"),
        (lambda: fdma.tiles([[1]], 4, 4), TypeError, "tiles: t: expected booleans"),
        (lambda: fdma.tiles([[True]], 4, "x"), ValueError, "tiles: n: expected a table as"),
        (
            lambda: fdma.padding([1], side="top"),
            ValueError,
            "padding: side: .*\"right\", got 'top'",
        ),
        (lambda: fdma.topk([1, 2], 3), TypeError, "topk: scores: expected float32, got int64"),
        (lambda: fdma.topk(np.zeros(3), 3), TypeError, "topk: scores: .*float64"),
        (lambda: fdma.topk([0.5], 3, among=q), TypeError, "topk: among: expected a condition"),
        (lambda: fdma.topk([0.5], q), ValueError, "topk: w is one number"),
        (lambda: fdma.natten2d(4, 4, 3, None), TypeError, "natten2d: kw: expected an integer"),
        (
            lambda: fdma.window(-1, 0),
            ValueError,
            "window: left: .* got -1; write math.inf for a side",
        ),
        (
            lambda: fdma.window(0, -1),
            ValueError,
            "window: right: expected 0 or more, or math.inf, ",
        ),
        (lambda: fdma.window(np.int64(-1), 0), ValueError, "window: left: expected 0 or more, or"),
        (
            lambda: fdma.window(-5),
            ValueError,
            "window: w: expected 1 or more, or math.inf, got -5;",
        ),
        (lambda: fdma.window(0), ValueError, "window: w: expected 1 or more, or math.inf, got 0; "),
        (lambda: fdma.sink(-1), ValueError, "sink: s: .* got -1; write math.inf for every key"),
        (lambda: fdma.sink(None), TypeError, "sink: s: expected an integer"),
        (lambda: fdma.dilated(0, 2), ValueError, "dilated: w: expected 1 or more, or math.inf"),
        (lambda: fdma.dilated(4, 0), ValueError, "dilated: step: expected 1 or more, got 0"),
        (lambda: fdma.global_(-1), ValueError, "global_: g: expected 0 or more, got -1"),
        (lambda: fdma.prefix(-3), ValueError, "prefix: p: expected 0 or more, got -3"),
        (lambda: fdma.chunked(0), ValueError, "chunked: n: expected 1 or more, got 0"),
        (lambda: fdma.block_causal(-1), ValueError, "block_causal: n: expected 1 or more, got -1"),
        (lambda: fdma.tiles([[True]], 0, 4), ValueError, "tiles: m: expected 1 or more, got 0"),
        (
            lambda: fdma.natten2d(4, 4, -1, 3),
            ValueError,
            "natten2d: kh: expected 0 or more, got -1",
        ),
        (lambda: fdma.compile(fdma.prefix(9), 8), ValueError, "p: expected 0 to kv_len = 8, got 9"),
        (
            lambda: fdma.compile(fdma.padding([9]), 8),
            ValueError,
            "entry 0 of table 'lengths': expected 0 to kv_len = 8, got 9",
        ),
        (
            lambda: fdma.compile(fdma.window(fdma.h - 2, 0), 8, heads=4),
            ValueError,
            "left: expected at least 0 or inf, got -2 for batch element 0, head 0; write inf",
        ),
        (
            lambda: fdma.compile(fdma.tiles(np.ones((2, 2), bool), 4, 4), 4),
            ValueError,
            r"expected \[ceil\(q_len / 4\) = 1, ceil\(kv_len / 4\) = 1\], .* got boolean \[2, 2\]",
        ),
        (
            lambda: fdma.compile(fdma.documents(lengths=[5, 6]), 8),
            ValueError,
            "documents.*lengths|lengths",
        ),
        (lambda: fdma.compile(fdma.tree([1, 0]), 8), ValueError, "parents"),
        (lambda: fdma.compile(fdma.documents(ids=[1, 2, 3]), 8), ValueError, "ids"),
    ],
)
def test_errors_name_mask_and_argument(attempt: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attempt()


def test_tensors_as_tables() -> None:
    torch = pytest.importorskip("torch")
    ids = torch.tensor([0, 0, 1, 1, 1])
    mask = fdma.causal() & fdma.documents(ids=ids)
    expected = np.tri(5, dtype=bool) & (ids[:, None] == ids).numpy()
    np.testing.assert_array_equal(cells_of(mask, 5, 5)[0, 0], expected)
    scores = torch.rand(1, 2, 5)
    kept = cells_of(fdma.causal() & fdma.topk(scores, 2), 5, 5, heads=4)
    assert kept.shape == (1, 4, 5, 5) and kept[0, 0].sum() == 9
    with pytest.raises(ValueError, match="requires a gradient"):
        cells_of(fdma.causal() & fdma.topk(scores.requires_grad_(), 2), 5, 5, heads=4)
    with pytest.raises(TypeError, match=r"topk: scores: .*bfloat16"):
        fdma.topk(scores.detach().bfloat16(), 2)
