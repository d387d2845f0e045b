"""Tests the arguments, results and errors of fdma.compile."""

# Wrong arguments are what some of these tests are about.
# mypy: disable-error-code="arg-type, call-overload"

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fdma_module import FOLDER, Tensor
from mask_formats import HOLD_ANY_CELLS

# isort: split
import fdma
from fdma import b, h, k, q, table

IDS = np.array([0, 0, 1, 1, 1, 2])
SAME = IDS[:, None] == IDS
CAUSAL = np.tri(6, dtype=bool)


def cells(mask: Any, *shape: Any, **arguments: Any) -> Tensor:
    return fdma.compile(mask, *(shape or (6,)), **arguments).to_dense()


def assert_cells(mask: Any, expected: Tensor, **arguments: Any) -> None:
    np.testing.assert_array_equal(cells(mask, **arguments)[0, 0], expected)


# ---- what a mask may be


def test_expression_text_and_function_agree() -> None:
    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (IDS[q_idx] == IDS[kv_idx])

    compiled = [
        fdma.compile(fdma.causal() & fdma.documents(ids=IDS), 6),
        fdma.compile("causal & documents(ids=@doc)", 6, doc=IDS),
        fdma.compile("causal & documents(ids=@doc)", 6, tables={"doc": IDS}),
        fdma.compile(fdma.causal() & (table("doc")[q] == table("doc")[k]), 6, doc=IDS),
        fdma.compile(mask_mod, 6),
        fdma.compile(mask_mod, 6, sample=True),
    ]
    for mask in compiled:
        np.testing.assert_array_equal(mask.to_dense()[0, 0], CAUSAL & SAME)
        assert mask == compiled[0]
    assert compiled[0].spec == "causal & documents(ids=@ids)"
    assert compiled[1].spec == "causal & documents(ids=@doc)"
    assert compiled[3].spec == "causal & @doc[q] == @doc[k]"


def test_constants_and_entries_are_masks() -> None:
    assert cells(True).all() and not cells(False).any() and cells(np.True_).all()
    seen = np.array([True, False] * 3)
    assert_cells(table(seen)[k], np.broadcast_to(seen, (6, 6)))
    assert_cells(table("seen")[k], np.broadcast_to(seen, (6, 6)), seen=seen)
    assert cells(table("on"), on=True).all()


def test_text_is_kept_as_it_was_given() -> None:
    text = "causal   and k<5  # a comment"
    assert fdma.compile(text, 6).spec == text
    assert fdma.compile(fdma.MaskExpr.parse(text), 6).spec == "causal & k < 5"
    for format in HOLD_ANY_CELLS:
        assert fdma.compile(text, 6, format=format).spec == text


# ---- lengths, batch, heads


@pytest.mark.parametrize(
    "lengths",
    [
        [4, 6, 0],
        (4, 6, 0),
        np.array([4, 6, 0]),
        np.array([4, 6, 0], np.int16),
        [np.int32(4), 6, np.int64(0)],
        range(4, -1, -2),
    ],
    ids=str,
)
def test_lengths_per_element(lengths: Any) -> None:
    listed = [int(length) for length in lengths]
    mask = fdma.compile(fdma.causal(), lengths)
    assert (mask.batch, mask.q_lens, mask.kv_lens) == (3, tuple(listed), tuple(listed))
    dense = mask.to_dense()
    for at, length in enumerate(listed):
        expected = np.zeros(dense.shape[2:], np.bool_)
        expected[:length, :length] = np.tri(length, dtype=bool)
        np.testing.assert_array_equal(dense[at, 0], expected)
    assert fdma.compile(fdma.causal(), lengths, batch=3) == mask
    assert fdma.compile(fdma.causal(), lengths, lengths) == mask
    uneven = fdma.compile(fdma.causal(), 2, lengths)
    assert (uneven.batch, uneven.q_lens, uneven.kv_lens) == (3, (2, 2, 2), tuple(listed))


def test_lengths_of_one() -> None:
    for length in (6, np.int32(6), np.array(6), [6], np.array([6])):
        mask = fdma.compile("causal", length)
        assert (mask.shape, mask.q_lens) == ((1, 1, 6, 6), (6,))
    assert fdma.compile("causal", 4, 9).shape == (1, 1, 4, 9)
    assert fdma.compile("causal", 0).shape == (1, 1, 0, 0)
    assert fdma.compile(fdma.sink(1 + h) & (k < 3 + b), 6, batch=2, heads=4).shape == (2, 4, 6, 6)
    torch = pytest.importorskip("torch")
    assert fdma.compile("causal", torch.tensor([4, 6])).q_lens == (4, 6)
    assert fdma.compile("causal", torch.tensor(4)).q_lens == (4,)


def test_a_sampled_function_with_lengths_per_element() -> None:
    mask = fdma.compile(lambda b, h, q, k: q >= k, [3, 6], sample=True)
    assert mask == fdma.compile("k <= q", [3, 6])


# ---- options


@pytest.mark.parametrize("format", HOLD_ANY_CELLS)
@pytest.mark.parametrize("block", [(16, 32), [16, 32], 64])
def test_formats_and_blocks(format: Any, block: Any) -> None:
    mask = fdma.compile(fdma.causal() & fdma.window(40), 200, 150, format=format, block=block)
    assert mask.format == format
    assert mask.block == (tuple(block) if block != 64 else (64, 64))
    assert mask == fdma.compile("causal & window(40)", 200, 150)


def test_threads_do_not_change_the_result() -> None:
    mask = (q * k) % 7 < 3
    hashes = {fdma.compile(mask, 700, num_threads=n).content_hash for n in (0, 1, 2, 3)}
    assert len(hashes) == 1


def test_tables_of_every_kind() -> None:
    for ids in (IDS, IDS.tolist(), tuple(IDS), IDS.astype(np.uint8), memoryview(IDS.data)):
        assert_cells("documents(ids=@t)", SAME, t=ids)
    apart = np.zeros((6, 4), np.int32)
    apart[:, 1] = IDS
    assert_cells("documents(ids=@t)", SAME, t=apart[:, 1])
    assert_cells("documents(ids=@t)", SAME[::-1, ::-1], t=IDS[::-1])
    frozen = IDS.copy()
    frozen.flags.writeable = False
    assert_cells("documents(ids=@t)", SAME, t=frozen)
    empty: list[int] = []
    assert cells("documents(ids=@t)", 0, t=empty).shape == (1, 1, 0, 0)
    torch = pytest.importorskip("torch")
    assert_cells("documents(ids=@t)", SAME, t=torch.from_numpy(IDS))
    assert_cells("documents(ids=@t)", SAME, t=torch.from_numpy(apart)[:, 1])


def test_tables_that_look_like_gpu_tensors_are_copied_to_the_host() -> None:
    class Device:
        type = "cuda"

    class Tensor:
        device, dtype, shape = Device(), IDS.dtype, IDS.shape
        num_copies = 0

        def __dlpack__(self) -> Any:
            raise AssertionError("read on the device")

        def cpu(self) -> Any:
            Tensor.num_copies += 1
            return IDS

    assert_cells("documents(ids=@t)", SAME, t=Tensor())
    mask = fdma.documents(ids=Tensor())
    assert Tensor.num_copies == 1
    assert_cells(mask, SAME)
    assert Tensor.num_copies == 2


def test_arguments_that_are_tables_names() -> None:
    # Tables whose names are parameters of compile are given in `tables`.
    assert_cells(
        "window(@block)", abs(np.arange(6)[:, None] - np.arange(6)) < 2, tables={"block": 2}
    )
    assert_cells("k < @a + @b", np.broadcast_to(np.arange(6) < 3, (6, 6)), tables={"a": 1}, b=2)


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "named", "error", "message"),
    [
        ((5, 6), {}, TypeError, "mask: expected a MaskExpr, a text .* or a function .*, got int"),
        ((q, 6), {}, TypeError, "mask: expected a MaskExpr.* got IntExpr"),
        ((None, 6), {}, TypeError, "mask: .* got NoneType"),
        ((fdma.causal, 6), {}, TypeError, r"call causal\(\.\.\)"),
        ((fdma.compile("causal", 6), 6), {}, TypeError, "BlockMask, which is compiled already"),
        (("causl", 6), {}, fdma.MaskSyntaxError, "did you mean causal"),
        (("causal", 6.0), {}, TypeError, "q_len: expected an integer, got float"),
        (("causal", True), {}, TypeError, "q_len: expected an integer, got bool"),
        (("causal", "6"), {}, TypeError, "q_len: expected an integer, got str"),
        (("causal", None), {}, TypeError, "q_len: expected an integer, got NoneType"),
        (("causal", [6, 2.5]), {}, TypeError, r"q_len\[1\]: expected an integer, got float"),
        (("causal", [[6]]), {}, TypeError, r"q_len\[0\]: expected an integer, got list"),
        (("causal", []), {}, ValueError, "q_len: expected an integer or one for each"),
        (("causal", -1), {}, ValueError, "q_len"),
        (("causal", [6, -1]), {}, ValueError, "q_len"),
        (("causal", 6, -2), {}, ValueError, "kv_len"),
        (("causal", [6, 5], [6, 5, 4]), {}, ValueError, "q_len"),
        (("causal", [6, 5]), {"batch": 1}, ValueError, "q_len"),
        (("causal", 6), {"batch": 0}, ValueError, "batch"),
        (("causal", 6), {"heads": -1}, ValueError, "heads"),
        (("causal", 6), {"heads": 1.5}, TypeError, "heads: expected an integer, got float"),
        (("causal", 6), {"batch": "2"}, TypeError, "batch: expected an integer, got str"),
        (("causal", 6), {"num_threads": -1}, ValueError, "num_threads: expected 0 or more"),
        (("causal", 6), {"format": "csr"}, ValueError, "csr"),
        (("causal", 6), {"format": 3}, TypeError, "format"),
        (("causal", 6), {"block": 100}, ValueError, "block"),
        (("causal", 6), {"block": (16, 16, 16)}, ValueError, "block: expected one or two sides"),
        (("causal", 6), {"block": 16.0}, TypeError, "block: expected an integer, got float"),
        (("causal", 6), {"sample": True}, TypeError, "sample: only functions are sampled, got str"),
        (("causal", 6), {"head": 8}, ValueError, r"head: .*no table @head \(it has none\)"),
        (("@t[k]", 6), {}, ValueError, "t: no array for table @t; give it as t=.. or in tables"),
        (
            ("@t[k]", 6),
            {"s": IDS},
            ValueError,
            r"no table @s \(it has @t\), and compile no argument",
        ),
        (("@t[k]", 6), {"tables": {"s": IDS}}, ValueError, r"no table @s \(it has @t\)$"),
        (("@t[k]", 6), {"tables": [IDS]}, TypeError, "tables: expected a mapping, got list"),
        (("@t[k]", 6), {"tables": {"t": IDS}, "t": IDS}, ValueError, "t: given as an argument and"),
        (("@t[k]", 6), {"t": IDS}, ValueError, "@t"),
        (("@t[k] == 1", 6), {"t": None}, TypeError, "t: expected an array.* got NoneType"),
        (("@t[k] == 1", 6), {"t": "ids"}, TypeError, "t: expected an array.* got str"),
        (("@t[k] == 1", 6), {"t": np.zeros(6)}, TypeError, "t: expected booleans .* float64"),
        (
            ("documents(ids=@t)", 6),
            {"t": IDS[:5]},
            ValueError,
            r"table 't': expected .*got int64 \[5\]",
        ),
        (("documents(ids=@t)", 6), {"t": [IDS, IDS, IDS]}, ValueError, "t"),
        (("@t[k] == 1", 7), {"t": IDS}, ValueError, "undefined"),
        (("(q * k) % 3 == 0", 64), {"format": "parametric"}, NotImplementedError, "parametric"),
        (
            (fdma.documents(ids=IDS), 6),
            {"ids": IDS[::-1]},
            ValueError,
            "has its own array for @ids",
        ),
    ],
)
def test_errors(
    arguments: Any, named: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fdma.compile(*arguments, **named)


def test_a_table_of_the_mask_given_again() -> None:
    assert_cells(fdma.documents(ids=IDS), SAME, ids=IDS)
    assert_cells(table("doc", IDS)[q] == table("doc")[k], SAME, doc=IDS)


# ---- cost, threads, interruption


def test_threads_may_share_an_expression() -> None:
    mask = fdma.causal() & fdma.documents(ids=IDS) & ((q * k) % 7 < 5)
    expected = cells(mask)

    def work(_: int) -> bool:
        other = mask | fdma.sink(2)
        return bool((cells(mask) == expected).all()) and cells(other).sum() >= expected.sum()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_compiles() -> None:
    script = """
import os, sys, fdma
mask = (fdma.q * fdma.k) % 7 < 3
fdma.compile(mask, 2000)          # starts threads
process = os.fork()
ok = fdma.compile(mask & fdma.causal(), 2000) == fdma.compile("(q * k) % 7 < 3 & causal", 2000)
if process == 0:
    os._exit(0 if ok else 1)
_, status = os.waitpid(process, 0)
sys.exit(0 if ok and status == 0 else 1)
"""
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)


def test_other_threads_run_while_it_compiles() -> None:
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.wait(0.001):
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    begin = time.perf_counter()
    fdma.compile((q * k) % 7 < 3, 6000, num_threads=1)
    took = time.perf_counter() - begin
    done.set()
    thread.join()
    assert took < 0.02 or counted >= 3


def test_an_interrupt_stops_it() -> None:
    # This mask takes minutes unless something stops it.
    mask = fdma.any_of(64, lambda i: (q * i + k * k) % 1009 == (q * q + i * k) % 1013)
    thread = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begin = time.perf_counter()
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            fdma.compile(mask, 60_000)
        assert time.perf_counter() - begin < 10
    finally:
        thread.cancel()
        signal.signal(signal.SIGINT, before)
    assert cells("causal").sum() == 21


# ---- explain


def test_explain_says_which_engine_and_from_how_many_tiles() -> None:
    (program,) = fdma.explain("bitand(q, k) == 0", 4096, num_threads=1).programs
    assert program.engine == "box"
    assert "bitand(q, k)" in dict(program.declined)["interval"]
    assert program.num_tiles == 1024
    assert program.num_evaluated_tiles == 1
    assert program.num_bounded_tiles + program.num_repeated_tiles == 1023
    assert {what for what, _ in program.phases} >= {"bounding tiles", "evaluating cells"}
    (causal,) = fdma.explain(fdma.causal(), 100, 200).programs
    assert (causal.engine, causal.declined, causal.phases) == ("interval", (), ())


def test_explain_has_a_report_for_each_program() -> None:
    explanation = fdma.explain("k <= q & q - k < @w * (h + 1)", 1024, heads=3, w=32)
    assert len(explanation.programs) == 3
    assert str(explanation).startswith("program 0:\ninterval form: ")
    assert str(fdma.explain("causal", 64)) == fdma.explain("causal", 64).programs[0].lines[0]


def test_explain_takes_what_compile_takes() -> None:
    assert fdma.explain(lambda b, h, q, k: q >= k, 64).programs[0].engine == "interval"
    with pytest.raises(ValueError, match="no array for table @w"):
        fdma.explain("causal & window(@w)", 64)
    with pytest.raises(NotImplementedError, match="topk"):
        fdma.explain("causal & topk(@s, 4)", 4, s=np.ones(4, np.float32))
    with pytest.raises(NotImplementedError, match="a loop of 4611686018427387904 turns"):
        fdma.explain(ENDLESS, 1000)


# ---- limits of work

ENDLESS = "any(i in 4611686018427387904 : i * k == q + 7)"


def test_loops_without_end_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="a loop of 4611686018427387904 turns"):
        fdma.compile(ENDLESS, 1000)
    with pytest.raises(NotImplementedError, match="more than 1000000 evaluations"):
        fdma.compile("any(i in 100000 : i * k % 100003 == q)", 16, max_work=1_000_000)
    assert fdma.compile("any(i in 100000 : i * k % 100003 == q)", 16, max_work=0).to_dense().any()


def test_attention_with_a_text_has_the_same_bound() -> None:
    zeros = np.zeros((1, 1, 64, 16), np.float32)
    with pytest.raises(NotImplementedError, match="max_work"):
        fdma.attention(zeros, zeros, zeros, ENDLESS)


def test_a_timeout_stops_it() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"stopped after 0\.3 s \(timeout\)"):
        fdma.compile(ENDLESS, 1000, max_work=0, timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 30
    assert fdma.compile("causal", 64, timeout=100) == fdma.compile("causal", 64)


def test_limits_of_wrong_type_and_value() -> None:
    for wrong in (0, -1.5, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout: expected seconds above 0"):
            fdma.compile("causal", 8, timeout=wrong)
    for wrong_type in ("1", True, [1]):
        with pytest.raises(TypeError, match="timeout: expected seconds"):
            fdma.compile("causal", 8, timeout=wrong_type)
    with pytest.raises(TypeError, match="max_work: expected an integer"):
        fdma.compile("causal", 8, max_work=1.5)
    with pytest.raises(ValueError, match="max_work: expected"):
        fdma.compile("causal", 8, max_work=-1)
