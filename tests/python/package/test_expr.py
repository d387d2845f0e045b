"""Tests the expressions of the package.

The tests cover every operator, random expressions, tables, text, pickles and errors. The file is
long because its tests share small expressions and the comparison of cells.
"""

# Wrong operands are what many of these tests are about.
# mypy: disable-error-code="arg-type, call-overload, operator, index, attr-defined, return-value"

from __future__ import annotations

import copy
import operator
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from fdma_module import FOLDER, Tensor

pytest.importorskip("hypothesis")

import fdma
import mask_language as language
from fdma import h, k, kv_len, pos, q, q_len, table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Q, K = np.arange(6)[:, None], np.arange(9)[None, :]
POS = Q + 3


def dense(mask: Any, *shape: int, **arguments: Any) -> Tensor:
    return fdma.compile(mask, *(shape or (6, 9)), **arguments).to_dense()


def assert_cells(mask: Any, expected: Tensor, **arguments: Any) -> None:
    np.testing.assert_array_equal(dense(mask, **arguments)[0, 0], np.broadcast_to(expected, (6, 9)))


# ---- operators


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (q + k, Q + K),
        (q - 3, Q - 3),
        (3 - q, 3 - Q),
        (2 + k, 2 + K),
        (q * k, Q * K),
        (3 * q, 3 * Q),
        ((q - 4) // 3, (Q - 4) // 3),
        (20 // (k + 1), 20 // (K + 1)),
        ((q - 4) % 3, (Q - 4) % 3),
        (20 % (k + 1), 20 % (K + 1)),
        (divmod(k, 4)[0] * 10 + divmod(k, 4)[1], K // 4 * 10 + K % 4),
        (-q, -Q),
        (+q, Q),
        (abs(q - k), abs(Q - K)),
        (fdma.absolute(q - k), abs(Q - K)),
        (fdma.abs(q - k), abs(Q - K)),
        (fdma.minimum(q, k, 4), np.minimum(np.minimum(Q, K), 4)),
        (fdma.maximum(q, k), np.maximum(Q, K)),
        (fdma.min(q, k), np.minimum(Q, K)),
        (fdma.max(q, k, 3), np.maximum(np.maximum(Q, K), 3)),
        (fdma.clamp(k, 2, q), np.minimum(np.maximum(K, 2), Q)),
        (q << 2, Q << 2),
        (1 << q, 1 << Q),
        (k >> 1, K >> 1),
        (64 >> q, 64 >> Q),
        (fdma.shl(q, 3), Q << 3),
        (fdma.shr(k, 2), K >> 2),
        (q & k, Q & K),
        (5 & k, 5 & K),
        (q | k, Q | K),
        (4 | k, 4 | K),
        (q ^ k, Q ^ K),
        (7 ^ k, 7 ^ K),
        (~k, ~K),
        (fdma.bitand(q, 3), Q & 3),
        (fdma.bitor(q, 3), Q | 3),
        (fdma.bitxor(q, 3), Q ^ 3),
        (fdma.where(k < q, q, 2), np.where(K < Q, Q, 2)),
        (fdma.where(k < q, 7, k), np.where(K < Q, 7, K)),
        (fdma.to_int(k < q) + fdma.to_int(q == 2), (K < Q).astype(int) + (Q == 2)),
        (pos, POS),
        (q_len + kv_len + h, np.array(15)),
        (fdma.IntExpr(4) + fdma.IntExpr(np.int8(3)), np.array(7)),
        (np.int64(3) - q, 3 - Q),
        (np.array(3) - q, 3 - Q),
        (np.uint8(2) << q, 2 << Q),
    ],
    ids=str,
)
def test_integer_operators(built: fdma.IntExpr, expected: Tensor) -> None:
    assert isinstance(built, fdma.IntExpr)
    for offset in (-5, 0, 1, 3, 8):
        assert_cells(built <= k + offset, expected <= K + offset)


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_of_integers(name: str) -> None:
    compare = getattr(operator, name)
    assert_cells(compare(q, k - 2), compare(Q, K - 2))
    assert_cells(compare(k, 4), compare(K, 4))
    assert_cells(compare(4, k), compare(4, K))
    assert_cells(compare(np.int32(4), k), compare(4, K))


@pytest.mark.parametrize("name", ["and_", "or_", "xor", "eq", "ne"])
def test_operators_on_conditions(name: str) -> None:
    combine = getattr(operator, name)
    x, y, x_cells, y_cells = k < 4, q > 2, K < 4, Q > 2
    assert isinstance(combine(x, y), fdma.MaskExpr)
    assert_cells(combine(x, y), combine(x_cells, y_cells))
    for constant in (True, False, np.True_, np.False_):
        assert_cells(combine(x, constant), combine(x_cells, constant))
        assert_cells(combine(constant, x), combine(constant, x_cells))
    assert_cells(~combine(x, y), ~combine(x_cells, y_cells))


def test_functions_of_conditions() -> None:
    assert_cells(fdma.where(q < 2, k < 3, True), np.where(Q < 2, K < 3, True))
    assert_cells(fdma.where(q < 2, False, k < 3), np.where(Q < 2, False, K < 3))
    assert_cells(fdma.MaskExpr(True), np.ones((6, 9), bool))
    assert_cells(fdma.at(fdma.causal(), q=q // 2 * 2), Q // 2 * 2 + 3 >= K)
    assert_cells(fdma.at(k <= q, q=k, k=q), Q <= K)
    assert_cells(fdma.at(k <= q), K <= Q)


def test_loops() -> None:
    any_cells = np.logical_or.reduce([Q + 2 * i == K for i in range(3)])
    assert_cells(fdma.any_of(3, lambda i: q + 2 * i == k), any_cells)
    assert_cells(fdma.any(3, lambda i: q + 2 * i == k), any_cells)
    all_cells = np.logical_and.reduce([Q + i != K for i in range(3)])
    assert_cells(fdma.all_of(3, lambda i: q + i != k), all_cells)
    assert_cells(fdma.all(q_len - 3, lambda i: q + i != k), all_cells)
    nested = fdma.any_of(3, lambda i: fdma.all_of(2, lambda j: (q + i + j != k) & (i < 2)))
    expected = np.logical_or.reduce(
        [np.logical_and.reduce([Q + i + j != K for j in range(2)]) for i in range(2)]
    )
    assert_cells(nested, expected)
    assert_cells(fdma.any_of(0, lambda i: i == i), np.zeros((6, 9), bool))


def test_loop_variables_are_called_as_in_the_function() -> None:
    assert str(fdma.any_of(2, lambda i: q < i)) == "any(i in 2 : q < i)"
    assert str(fdma.any_of(2, lambda doc: q < doc)) == "any(doc in 2 : q < doc)"
    # The names are a word of the language, a name that is used inside, and no name at all.
    assert str(fdma.any_of(2, lambda k: q < k)) == "any(i in 2 : q < i)"
    inner = fdma.any_of(3, lambda i: i < q)
    assert str(fdma.all_of(2, lambda i: inner & (i < k))) == (
        "all(j in 2 : any(i in 3 : i < q) & j < k)"
    )
    assert str(fdma.any_of(2, q.__lt__)) == "any(i in 2 : q < i)"
    assert str(inner & fdma.any_of(2, lambda i: i < k)) == (
        "any(i in 3 : i < q) & any(i in 2 : i < k)"
    )


def test_sixteen_loops_nest_and_seventeen_do_not() -> None:
    mask: fdma.MaskExpr = k < 3
    for _ in range(16):
        mask = fdma.any_of(1, (lambda inner: lambda i: inner & (i == 0))(mask))
    assert_cells(mask, np.broadcast_to(K < 3, (6, 9)))
    with pytest.raises(ValueError, match="nest at most 16"):
        fdma.compile(fdma.any_of(1, lambda i: mask), 6)


# ---- random expressions

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(
    tree=language.masks(4),
    arrays=language.random_tables(),
    q_size=st.integers(1, 6),
    kv_size=st.integers(1, 6),
    given_as=st.sampled_from(["name", "array", "named array", "typed name"]),
)
def test_random_expressions(
    tree: Any, arrays: dict[str, Tensor], q_size: int, kv_size: int, given_as: str
) -> None:
    handles = {}
    for name, array in arrays.items():
        if given_as in ("name", "typed name"):
            kind = bool if name[0] == "c" else int
            handles[name] = table(name, dtype=kind if given_as == "typed name" else None)
        else:
            handles[name] = table(array) if given_as == "array" else table(name, array)
    mask = fdma.MaskExpr(language.build(tree, handles, {}))
    expected = language.cells(tree, arrays, 2, 2, q_size, kv_size)
    by_name = {} if "array" in given_as else {name: arrays[name] for name in mask.table_names}
    parsed = fdma.MaskExpr.parse(str(mask), **mask.tables)
    assert parsed.equals(fdma.MaskExpr.parse(str(parsed), **mask.tables))
    assert str(parsed) == str(mask)
    for each in (mask, parsed, pickle.loads(pickle.dumps(mask))):
        if expected is None:
            with pytest.raises(ValueError, match=r"undefined|overflow|not positive|outside|range"):
                dense(each, q_size, kv_size, batch=2, heads=2, **by_name)
        else:
            cells = dense(each, q_size, kv_size, batch=2, heads=2, **by_name)
            np.testing.assert_array_equal(np.broadcast_to(cells, expected.shape), expected)


# ---- tables


def test_tables_of_each_rank_and_type() -> None:
    random = np.random.default_rng(0)
    for rank in range(1, 5):
        shape = (9,) * rank
        for dtype in (np.int8, np.uint16, np.int32, np.int64, np.bool_):
            array = random.integers(0, 2, shape).astype(dtype)
            index = [k, q, q // 2, k // 2][:rank]
            cells = array[tuple(np.broadcast_arrays(*[K, Q, Q // 2, K // 2][:rank]))]
            for made in (table(array), table("t", array)):
                entry = made[tuple(index)]
                assert isinstance(entry, fdma.MaskExpr if dtype is np.bool_ else fdma.IntExpr)
                assert_cells(entry if dtype is np.bool_ else entry != 0, cells != 0)
            by_name = table("t")[tuple(index)]
            assert_cells(by_name == (dtype is np.bool_ or 1), cells != 0, t=array)


def test_parameters() -> None:
    for w in (table("w"), table("@w"), table("w", dtype=int)):
        assert_cells(pos - k < w, POS - K < 4, w=4)
        assert_cells(pos - k < w + 1, POS - K < 4, w=np.int16(3))
    for w in (table(4), table("w", 4), table(np.array(4)), table(np.int64(4))):
        assert_cells(pos - k < w, POS - K < 4)
    assert_cells(table("on") & (k < 3), K < 3, on=True)
    assert_cells(table(True) ^ (k < 3), K >= 3)


def test_an_untyped_entry_serves_as_integer_and_as_condition() -> None:
    t, s = table("t")[k], table("s")[k]
    integers, flags = np.arange(9) % 3, np.arange(9) % 2 == 0
    assert isinstance(t, fdma.TableExpr) and t.name == "t"
    assert_cells(t == s, integers == integers[::-1], t=integers, s=integers[::-1])
    assert_cells(t == s, flags == (integers == 1), t=flags, s=integers == 1)
    assert_cells(t != 1, integers != 1, t=integers)
    assert_cells(t == True, flags, t=flags)  # noqa: E712
    assert_cells(t & s, flags & (integers == 1), t=flags, s=integers == 1)
    assert_cells((q < 3) | t, (Q < 3) | flags, t=flags)
    assert_cells(~t ^ (q < 3), ~flags ^ (Q < 3), t=flags)
    assert_cells(
        fdma.where(q < 3, t, s) == 0, np.where(Q < 3, integers, 0) == 0, t=integers, s=integers * 0
    )
    assert_cells(
        fdma.where(q < 3, t, s) & (k < 8),
        np.where(Q < 3, flags, False) & (K < 8),
        t=flags,
        s=~flags & flags,
    )
    assert_cells(fdma.where(t, k, 1) < 4, np.where(flags, K, 1) < 4, t=flags)
    assert_cells(t - 1 < s * 2, integers - 1 < integers * 2, t=integers, s=integers)
    with pytest.raises(ValueError, match="t"):
        dense(t == s, t=flags, s=integers)


def test_automatic_names_come_by_first_use() -> None:
    a, b, c = table([1, 2]), table([3, 4]), table([5, 6])
    mask = (c[q] == a[k]) & (b[q] == a[k])
    assert str(mask) == "@t0[q] == @t1[k] & @t2[q] == @t1[k]"
    assert [list(array) for array in mask.tables.values()] == [[5, 6], [1, 2], [3, 4]] or {
        name: list(array) for name, array in mask.tables.items()
    } == {"t0": [5, 6], "t1": [1, 2], "t2": [3, 4]}
    # The name that a user gave stays with the user's table.
    assert str((a[q] == 1) & (table("t0")[k] == 2)) == "@t1[q] == 1 & @t0[k] == 2"
    # One array is one table, however often it is handed in.
    array = np.arange(9)
    assert str(table(array)[q] == table(array)[k]) == "@t0[q] == @t0[k]"
    assert str(table(array)[q] == table(array[:])[k]) == "@t0[q] == @t0[k]"
    assert str(table(array)[q] == table(array.copy())[k]) == "@t0[q] == @t1[k]"


def test_many_tables() -> None:
    mask = k < 0
    for i in range(1000):
        mask = mask | (table(np.array([i, i + 1]))[fdma.minimum(q, 1)] == k)
    assert list(mask.tables) == [f"t{i}" for i in range(1000)]
    assert_cells(mask, np.broadcast_to(np.minimum(Q, 1) <= K, (6, 9)))


def test_names_stand_for_one_array() -> None:
    array = np.arange(9)
    same = (table("t", array)[q] == 0) | (table("t", array)[k] == 0)
    assert list(same.tables) == ["t"] and same.tables["t"] is array
    assert list(((table("t", [1, 2])[q] == 0) | (table("t", [1, 2])[k] == 0)).tables) == ["t"]
    with pytest.raises(ValueError, match=r"table @t: expected one array, got two: int64 \[9\]"):
        _ = (table("t", array)[q] == 0) | (table("t", array.copy())[k] == 0)
    with pytest.raises(ValueError, match="@t"):
        _ = (table("t", [1, 2])[q] == 0) | (table("t", [1, 3])[k] == 0)
    assert_cells((table("t", array)[k] == 4) | (table("t")[q] == 1), (K == 4) | (Q == 1))


def test_arrays_are_read_when_the_mask_is_compiled() -> None:
    array = np.zeros(9, np.int64)
    mask = table(array)[k] == 1
    assert not dense(mask).any()
    array[4] = 1
    assert_cells(mask, K == 4)
    with pytest.raises(TypeError):
        mask.tables["t0"] = array


def test_arrays_of_other_kinds() -> None:
    expected = np.arange(9) % 2 == 1
    for array in (
        memoryview((np.arange(9) % 2).data),
        range(0, 9),
        (0, 1, 0, 1, 0, 1, 0, 1, 0),
        bytearray(b"\0\1\0\1\0\1\0\1\0"),
    ):
        assert_cells(table(array)[k] % 2 == 1, expected)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    expected = np.arange(9) % 2 == 1
    ids = torch.arange(9)
    mask = table(ids)[k] % 2 == 1
    assert_cells(mask, expected)
    assert mask.tables["t0"] is ids
    assert_cells(table(ids % 2 == 1)[k], expected)
    assert_cells(k % torch.tensor(2) == 1, expected)
    assert str(table(ids)[q] == table(ids.view(9))[k]) == "@t0[q] == @t0[k]"
    assert_cells(k < table("w"), K < 4, w=torch.tensor(4))
    with pytest.raises(TypeError, match="float64"):
        table(ids.double())


# ---- text


@pytest.mark.parametrize(
    "text",
    [
        "causal & (window(1024) | sink(4))",
        "k <= q & q - k < 16 * shl(1, h % 8)",
        "0 < q - k <= 2",
        "~k <= q & q - k > -3 | k == 0",
        "any(i in 2 : @begin[i, k] <= q < @end[i, k])",
        "let x1 = q // 9 % 2; x1 == 0 | x1 == k",
        "at(causal, q=q // 2 * 2, k=k)",
        "topk(@s, @w, among=causal)",
        "padding(lengths=@n, side=left)",
        "window(inf, 1) ^ true",
        "-(5) < k",
        "k > -9223372036854775808",
    ],
)
def test_texts_round_trip(text: str) -> None:
    mask = fdma.MaskExpr.parse(text)
    assert str(mask) == text and mask.equals(fdma.MaskExpr.parse(str(mask)))
    assert pickle.loads(pickle.dumps(mask)).equals(mask)


def test_parsed_masks_combine_with_built_ones() -> None:
    mask = fdma.MaskExpr.parse("any(i in 3 : q + i == k) & @t[k]", t=[True] * 9)
    both = fdma.any_of(2, lambda i: mask & (i < 5)) | (q == 5)
    assert str(both) == "any(j in 2 : any(i in 3 : q + i == k) & @t[k] & j < 5) | q == 5"
    expected = np.logical_or.reduce([Q + i == K for i in range(3)]) | (Q == 5)
    assert_cells(both, expected)


def test_shared_nodes_stay_shared() -> None:
    mask = (q * k + 1) % 7 < 3
    for _ in range(200):  # without sharing these are 2 ** 200 nodes
        mask = (mask & fdma.at(mask, q=q, k=k)) | mask
    text = str(mask)
    assert len(text) < 40_000
    assert fdma.MaskExpr.parse(text).equals(mask)


def test_sharing_inside_loops_is_bounded() -> None:
    def body(i: fdma.IntExpr, depth: int) -> fdma.MaskExpr:
        number = q + i
        for _ in range(depth):
            number = fdma.minimum(number, number - 1)
        return number < k

    fine = fdma.any_of(3, lambda i: body(i, 10))
    assert len(str(fine)) > 10_000
    assert_cells(fine, Q - 10 < K)
    long = fdma.any_of(3, lambda i: body(i, 60))  # the text would have 2 ** 60 operations
    assert str(long) == "(more than 1048576 operations)"
    with pytest.raises(ValueError, match="more than 1048576 operations when it is written out"):
        fdma.compile(long, 6)
    with pytest.raises(ValueError, match="written out"):
        pickle.dumps(long)
    mask: fdma.MaskExpr = k < 3
    for n in range(200):  # these loops stand side by side, and the outer one is shared
        each = fdma.any_of(2, lambda i: q + i == n)  # noqa: B023
        mask = (mask ^ each) | (mask & each)
    assert len(str(mask)) < 50_000
    assert dense(mask).shape == (1, 1, 6, 9)
    links = " & ".join(f"i + {n} < k + {n} < i + {n + 9}" for n in range(100))
    assert len(str(fdma.MaskExpr.parse(f"any(i in 9 : {links})"))) > 2000


def test_long_chains() -> None:
    mask: fdma.MaskExpr = k == 0
    number = q
    for i in range(50_000):
        mask = mask | (k == i)
        number = number + 1
    assert len(str(mask)) > 300_000 and len(str(number)) > 100_000
    assert dense(mask).all()
    pickled = pickle.dumps(mask)
    del mask, number
    assert len(pickled) > 300_000


def test_equals() -> None:
    assert (k <= q).equals(k <= q) and not (k <= q).equals(q >= k)
    assert not (k <= q).equals("k <= q") and not q.equals(5) and q.equals(q + 0) is False
    assert (table([1, 2])[q] == 1).equals(table(np.array([1, 2]))[q] == 1)
    assert not (table([1, 2])[q] == 1).equals(table([1, 3])[q] == 1)
    assert not (table([1, 2])[q] == 1).equals(table("t0")[q] == 1)
    assert fdma.any_of(2, lambda i: i < q).equals(fdma.any_of(2, lambda other: other < q))


# ---- as Python objects


def test_pickles_and_copies() -> None:
    ids = np.array([0, 0, 1, 1, 1, 0])
    mask = (table(ids)[q] == table(ids)[k]) & (table("seen", ids == 0)[k] | (table("w") < k))
    for again in (pickle.loads(pickle.dumps(mask)), copy.copy(mask), copy.deepcopy(mask)):
        assert str(again) == str(mask) and again.equals(mask)
        np.testing.assert_array_equal(dense(again, 6, w=3), dense(mask, 6, w=3))
        # Its automatic table is still automatic and combines with that of the other expression.
        assert again.tables["seen"] is not mask.tables["seen"] or again.equals(mask)
    number = pickle.loads(pickle.dumps(table(ids)[q] * 2))
    assert isinstance(number, fdma.IntExpr) and str(number) == "@t0[q] * 2"
    either = pickle.loads(pickle.dumps(table("t")[q]))
    assert isinstance(either, fdma.TableExpr) and str(either & (k < 3)) == "@t[q] & k < 3"
    whole = pickle.loads(pickle.dumps(table("t", ids)))
    assert str(whole[k] < 1) == "@t[k] < 1" and whole.name == "t"
    first = pickle.loads(pickle.dumps(table(ids)[q] == 1))
    assert str(first & (table([1])[k] == 1)) == "@t0[q] == 1 & @t1[k] == 1"


def test_syntax_errors_pickle() -> None:
    with pytest.raises(fdma.MaskSyntaxError) as caught:
        fdma.MaskExpr.parse("causal & windw(4)")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is fdma.MaskSyntaxError and str(again) == str(caught.value)
    assert "did you mean window?" in str(again) and "^" in str(again)


def test_immutable_and_without_truth_value() -> None:
    for each in (q, k <= q, table("t"), table("t")[q]):
        with pytest.raises(TypeError, match="no truth value"):
            bool(each)
        with pytest.raises(TypeError, match="unhashable"):
            hash(each)
        with pytest.raises(AttributeError, match="immutable"):
            each.other = 1
        with pytest.raises(TypeError):
            list(each)
    with pytest.raises(TypeError, match=r"\(a < b\) & \(b < c\)"):
        _ = 0 < q - k < 4
    with pytest.raises(TypeError, match="parentheses"):
        _ = k <= q & q - k < 1024
    with pytest.raises(TypeError, match="no truth value"):
        _ = (k < 3) and (q < 3)
    with pytest.raises(TypeError, match=r"fdma\.minimum"):
        min(q, k)


def test_repr() -> None:
    assert repr(q - 1) == "<IntExpr 'q - 1'>"
    assert repr(table([1, 2])[q] == 1) == "<MaskExpr '@t0[q] == 1', t0=int64 [2]>"


def test_nothing_leaks_at_exit() -> None:
    script = (
        "import fdma, pickle; from fdma import q, k\n"
        "m = fdma.any_of(3, lambda i: (q + i <= k) & (fdma.table([1, 2])[i] == 1))\n"
        "m2 = pickle.loads(pickle.dumps(m)); str(m2); c = fdma.compile(k <= q, 64)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(FOLDER), "FDMA_LEAK_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""


# ---- errors


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: q / 2, "// divides"),
        (lambda: 2 / q, "// divides"),
        (lambda: q + (k < 3), "unsupported operand"),
        (lambda: q + 1.5, "unsupported operand"),
        (lambda: q + "1", "unsupported operand"),
        (lambda: q + True, "unsupported operand"),
        (lambda: q & (k < 3), "one side is an integer, the other a condition"),
        (lambda: (k < 3) & q, "expected a condition, got an integer"),
        (lambda: (k < 3) | 1, "expected a condition, got an integer"),
        (lambda: (k < 3) & fdma.causal, r"named masks are calls, causal\(\)"),
        (lambda: q + np.arange(3), r"got an array, ndarray; fdma.table\(array\)"),
        (lambda: np.arange(3) <= q, "got an array, ndarray"),
        (lambda: (q < 3) & np.array([True]), "got an array, ndarray"),
        (lambda: q == [1, 2], "got an array, list"),
        (lambda: q == 1.5, "==: expected an integer, a condition or a table entry, got float"),
        (lambda: q != None, "!=: .* got NoneType"),  # noqa: E711
        (lambda: (q < 3) == "x", "==: .* got str"),
        (lambda: table("t")[q] == 0.5, "==: .* got float"),
        (lambda: q == (k < 3), "==: expected a condition, got an integer"),
        (lambda: (k < 3) != q, "!=: expected a condition, got an integer"),
        (lambda: q**2, r"\*\*: masks have no powers"),
        (lambda: 2**h, "1 << n"),
        (lambda: fdma.minimum(q, k < 3), r"minimum: expected an integer .* fdma.to_int"),
        (lambda: fdma.minimum(q, np.arange(3)), r"fdma.table\(array\)\[index\]"),
        (lambda: fdma.to_int(q), "to_int: expected a condition, got an integer; compare"),
        (lambda: fdma.where(q, 1, 2), "where: condition: expected a condition"),
        (lambda: fdma.where(q < 2, 1, k < 3), "got one of each"),
        (lambda: fdma.any_of(2, q < 3), "any_of: body: expected a function"),
        (lambda: fdma.any_of(2, lambda i: i), "any_of: body: expected a condition"),
        (lambda: fdma.all_of(q < 3, lambda i: i < q), "all_of: n: expected an integer"),
        (lambda: fdma.at(q), "at: mask: expected a condition"),
        (lambda: fdma.at(q < k, q=k < 3), "at: q: expected an integer"),
        (lambda: table([1, 2]) + 1, "index it, @t0"),
        (lambda: table([[1, 2]]) & (k < 3), r"@t0\[q, k\]"),
        (lambda: table([1, 2])[q] & (k < 3), "one side is an integer"),
        (lambda: table([True])[q] + 1, "unsupported operand"),
        (lambda: table("t", dtype=bool)[q] < 1, "not supported"),
        (lambda: table("t")[q] & 3, "type is not known yet"),
        (lambda: table("t")[q][k], "got an entry"),
        (lambda: table(1.5) + q, "scores of fdma.topk only"),
        (lambda: table([0.5])[q], "scores of fdma.topk only"),
        (lambda: table(np.zeros(3)), "expected booleans or integers .* got float64"),
        (lambda: table(["a"]), "expected booleans or integers"),
        (lambda: table(None), "expected an array, a sequence or a number, got NoneType"),
        (lambda: table(3, [1]), "name: expected a str, got int"),
        (lambda: table("t", [1], dtype=bool), "expected entries of type bool, got int64"),
        (lambda: table("t", dtype=float), "dtype: expected bool or int"),
        (lambda: fdma.MaskExpr(q), "MaskExpr: expected a condition, got an integer"),
        (lambda: fdma.MaskExpr("causal"), "MaskExpr: expected a condition, got str"),
        (lambda: fdma.IntExpr(q < 1), "IntExpr: expected an integer"),
        (lambda: fdma.TableExpr("t"), "fdma.table"),
        (lambda: fdma.MaskExpr.parse(q < 1), "text: expected a str"),
    ],
)
def test_wrong_types(attempt: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        attempt()


@pytest.mark.parametrize(
    ("attempt", "error", "message"),
    [
        (lambda: table([1, 2])[q, k], IndexError, "expected 1 indices, got 2"),
        (lambda: table("t")[q, k, q, k, q], IndexError, "expected 1 to 4"),
        (lambda: table(np.zeros((1,) * 5, int)), ValueError, "at most 4 dimensions, got 5"),
        (lambda: table([[1], [2, 3]]), ValueError, "rows of equal lengths"),
        (lambda: table("2x"), ValueError, "letters, digits and underscores"),
        (lambda: q + (1 << 63), OverflowError, "does not fit in 64 bits"),
        (lambda: fdma.MaskExpr.parse("causl"), fdma.MaskSyntaxError, "did you mean causal"),
        (lambda: fdma.MaskExpr.parse("causal", t=[1]), ValueError, "names no table @t"),
        (lambda: dense(fdma.any_of(q, lambda i: i < k)), ValueError, "bound|cannot depend"),
    ],
)
def test_wrong_values(attempt: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attempt()


def test_a_loop_variable_stays_in_its_loop() -> None:
    kept: list[fdma.IntExpr] = []

    def body(i: fdma.IntExpr) -> fdma.MaskExpr:
        kept.append(i)
        return i < q

    fdma.any_of(3, body)
    assert str(kept[0] < 4) == "i < 4"
    with pytest.raises(ValueError, match='"i" is used outside'):
        fdma.compile(kept[0] < 4, 6)
