"""Tests compiling, cells, arrays of other systems and errors of the core module fdma._fdma."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdma_module import FOLDER, OtherDevice, Tensor, fdma
from mask_formats import HOLD_ANY_CELLS


def grid(q_len: int, kv_len: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q, k and pos = q + kv_len - q_len of every cell."""
    q, k = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    return q, k, q + kv_len - q_len


def test_counts_and_properties() -> None:
    mask = fdma.compile("causal", 300, 428)
    assert (mask.q_len, mask.kv_len, mask.q_lens, mask.kv_lens) == (300, 428, [300], [428])
    assert (mask.format, mask.block, mask.spec) == ("segment", (128, 128), "causal")
    assert (mask.num_batches, mask.num_heads, mask.num_groups) == (1, 1, 1)
    # Row q sees the keys up to q + 128.
    assert mask.counts["allowed_pairs"] == sum(q + 129 for q in range(300))
    assert sum(mask.counts[name] for name in ("empty", "full", "partial")) == 3 * 4
    assert 0 < mask.nbytes < 100_000
    assert "causal" in repr(mask) and "300 x 428" in repr(mask)


@pytest.mark.parametrize("format", HOLD_ANY_CELLS)
@pytest.mark.parametrize("block", [(128, 128), (16, 48), (256, 64)])
@pytest.mark.parametrize("lengths", [(1, 1), (257, 257), (130, 301), (301, 130)])
def test_cells_are_those_of_the_predicate(
    format: Any, block: tuple[int, int], lengths: tuple[int, int]
) -> None:
    q, k, pos = grid(*lengths)
    expected = (k <= pos) & (pos - k < 75) | (k < 3)
    mask = fdma.compile(
        "causal & window(75) | sink(3)", *lengths, format=format, block=block, num_threads=1
    )
    assert mask.format == format and mask.block == block
    cells = fdma.to_dense(mask)
    assert cells.dtype == np.bool_ and cells.shape == (1, 1, *lengths)
    np.testing.assert_array_equal(cells[0, 0], expected)
    assert mask.counts["allowed_pairs"] == expected.sum()
    raw = fdma.to_dense(fdma.compile("k <= q", *lengths, block=block))
    np.testing.assert_array_equal(raw[0, 0], k <= q)


def test_parametric_format() -> None:
    mask = fdma.compile("causal", 200, format="parametric")
    assert mask.nbytes < 200
    np.testing.assert_array_equal(fdma.to_dense(mask)[0, 0], np.tri(200, dtype=bool))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64])
def test_tables_of_any_integer_type_and_stride(dtype: Any) -> None:
    ids = np.sort(np.random.default_rng(1).integers(0, 5, 200)).astype(dtype)
    expected = ids[:, None] == ids[None, :]
    apart = np.zeros((200, 3), dtype)
    apart[:, 1] = ids
    backwards = np.ascontiguousarray(ids[::-1])[::-1]
    frozen = ids.copy()
    frozen.flags.writeable = False
    for table in (ids, apart[:, 1], backwards, frozen, memoryview(ids.data)):
        mask = fdma.compile("documents(ids=@t)", 200, tables={"t": table})
        np.testing.assert_array_equal(fdma.to_dense(mask)[0, 0], expected)


def test_batches_and_heads() -> None:
    lengths = np.array([40, 0, 100])
    mask = fdma.compile(
        "padding(lengths=@n) & k <= q & q - k < 8 * shl(1, h)",
        100,
        batch=3,
        heads=2,
        tables={"n": lengths},
    )
    q, k, _ = grid(100, 100)
    b, h = np.arange(3)[:, None, None, None], np.arange(2)[:, None, None]
    expected = (k < lengths[b]) & (k <= q) & (q - k < 8 * 2**h)
    assert mask.num_groups == 5  # the empty mask is stored once
    np.testing.assert_array_equal(fdma.to_dense(mask), expected)


def test_lengths_for_each_element() -> None:
    q_lens, kv_lens = [33, 70, 0], [70, 70, 10]
    mask = fdma.compile("causal", q_lens, kv_lens, batch=3)
    cells = fdma.to_dense(mask)
    assert cells.shape == (3, 1, 70, 70) and mask.q_lens == q_lens and mask.kv_lens == kv_lens
    for b in range(3):
        _, k, pos = grid(q_lens[b], kv_lens[b])
        expected = np.zeros((70, 70), bool)
        expected[: q_lens[b], : kv_lens[b]] = k <= pos
        np.testing.assert_array_equal(cells[b, 0], expected)


def test_dense_table_comes_back() -> None:
    cells = np.random.default_rng(2).random((2, 3, 65, 90)) < 0.3
    mask = fdma.compile("bits(@m)", 65, 90, batch=2, heads=3, tables={"m": cells})
    np.testing.assert_array_equal(fdma.to_dense(mask), cells)


def test_long_mask_stays_small() -> None:
    mask = fdma.compile("causal & window(4096)", 1 << 20)
    assert mask.nbytes < 65536
    with pytest.raises(MemoryError, match="max_bytes"):
        fdma.to_dense(mask)
    with pytest.raises(MemoryError, match=r"1 x 1 x 10 x 10 .* max_bytes is 99"):
        fdma.to_dense(fdma.compile("causal", 10), max_bytes=99)


def test_syntax_error_points_at_the_place() -> None:
    with pytest.raises(fdma.MaskSyntaxError, match=r"1:10: .*windw") as caught:
        fdma.compile("causal & windw(3)", 8)
    assert "\n" in str(caught.value) and "^" in str(caught.value)
    assert issubclass(fdma.MaskSyntaxError, ValueError)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spec": "causal", "q_len": -1}, ValueError, "q_len"),
        ({"spec": "causal", "q_len": [8, 9]}, ValueError, "1"),
        ({"spec": "causal", "q_len": 8, "batch": 0}, ValueError, "batch"),
        ({"spec": "causal", "q_len": 8, "block": (100, 128)}, ValueError, "block"),
        ({"spec": "causal", "q_len": 8, "format": "dens"}, ValueError, "dens"),
        ({"spec": "causal", "q_len": 8, "num_threads": -1}, ValueError, "num_threads"),
        ({"spec": "documents(ids=@t)", "q_len": 8}, ValueError, "t"),
        (
            {"spec": "(q + k) % 2 == 0", "q_len": 8, "format": "parametric"},
            NotImplementedError,
            "parametric",
        ),
    ],
)
def test_wrong_arguments_name_themselves(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fdma.compile(**arguments)


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (None, ValueError, r"tables\['t'\]: expected an array .* got NoneType"),
        ([1, 2], ValueError, r"tables\['t'\]: expected an array .* got list"),
        (np.zeros(7, int), ValueError, "t"),
        (np.zeros((1, 1, 1, 1, 8), int), ValueError, "at most 4 dimensions, got 5"),
        (np.zeros(8, complex), NotImplementedError, r"tables\['t'\]: .*128 bits"),
        (np.zeros(8, ">i4"), ValueError, r"tables\['t'\]: expected an array"),
        (np.zeros(8, object), ValueError, r"tables\['t'\]: expected an array"),
        (OtherDevice(2, (8,)), NotImplementedError, r"in host memory, got one on cuda:0"),
        (OtherDevice(8, (8,)), NotImplementedError, r"got one on metal:0"),
    ],
)
def test_wrong_tables_name_themselves(table: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fdma.compile("documents(ids=@t)", 8, tables={"t": table})


def test_wrong_types_are_type_errors() -> None:
    compile_anything: Any = fdma.compile
    for arguments in ((1, 8), ("causal", "8"), ("causal", 8.5), ("causal",)):
        with pytest.raises(TypeError):
            compile_anything(*arguments)
    with pytest.raises(ValueError, match="names as its keys"):
        compile_anything("causal", 8, tables={1: np.zeros(8, int)})


def test_bfloat16_views_share_memory() -> None:
    bits = np.arange(12, dtype=np.uint16).reshape(3, 4)
    array = fdma.bfloat16_from_bits(bits[:, 1:3])
    assert array.__dlpack_device__() == (1, 0)
    back = fdma.bits_from_bfloat16(array)
    np.testing.assert_array_equal(back, bits[:, 1:3])
    back[1, 1] = 99
    assert bits[1, 2] == 99
    with pytest.raises(ValueError, match="bits: expected elements of type uint16, got float32"):
        fdma.bfloat16_from_bits(np.zeros(3, np.float32))


def test_compiling_from_many_threads() -> None:
    tables = {"t": np.sort(np.random.default_rng(3).integers(0, 60, 3000))}
    spec = "documents(ids=@t) & (q // 5) % 7 == (k // 5) % 7"
    expected = fdma.to_dense(fdma.compile(spec, 3000, tables=tables))
    same: list[bool] = []

    def work() -> None:
        cells = fdma.to_dense(fdma.compile(spec, 3000, tables=tables))
        same.append(bool((cells == expected).all()))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 6


def test_examples_of_the_pages() -> None:
    root = Path(__file__).parents[3]
    names: dict[str, Any] = {}
    core = root / "docs" / "developing" / "python-core.md"
    for page in (root / "python_bindings" / "README.md", core):
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            if "cuda" not in block:
                exec(block, names)
    assert names["plan"].form == "parametric"
    assert names["cells"].shape == (1, 1, 2048, 2048)
    assert np.asarray(names["out"]).shape == (1, 2048, 8, 64)
    assert np.asarray(names["lse"]).shape == (1, 8, 2048)
    assert names["learned"].num_groups == 2
    assert names["topk"].num_live_keys == 256


def run_with_target(target: str, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import numpy as np\nfrom fdma import _fdma\n{program}"],
        env={**os.environ, "PYTHONPATH": str(FOLDER), "FDMA_CPU_TARGET": target},
        capture_output=True,
        text=True,
        check=False,
    )


ATTEND = "_fdma.attention(*[np.ones((1, 20, 1, 8), np.float32)] * 3, _fdma.compile('causal', 20))"


@pytest.mark.parametrize("target", ["AVX2", "SSE4"])
def test_the_instruction_set_asked_for_is_the_one_that_runs(target: str) -> None:
    if fdma.cpu_target() not in ("AVX3", "AVX2", target):
        pytest.skip(f"this processor has no {target}")
    # The question for the running instruction set does not change it.
    done = run_with_target(
        target, f"a = _fdma.cpu_target()\n{ATTEND}\nprint(a, _fdma.cpu_target())"
    )
    assert done.stdout.split() == [target, target], done.stderr


def test_an_unknown_instruction_set_is_refused() -> None:
    done = run_with_target("AVX9", ATTEND)
    assert done.returncode != 0
    assert "ValueError: FDMA_CPU_TARGET: expected one of" in done.stderr


def test_topk_keeps_the_best_visible_keys_of_each_query() -> None:
    scores = np.random.default_rng(5).normal(size=(2, 50)).astype(np.float32)
    mask = fdma.compile("causal & topk(@s, 7)", 50, heads=4, tables={"s": scores})
    cells = fdma.to_dense(mask)
    for head in range(4):
        for q in range(50):
            best = np.argsort(-scores[head // 2, : q + 1], kind="stable")[:7]
            expected = np.isin(np.arange(50), best)
            np.testing.assert_array_equal(cells[0, head, q], expected)


def test_neither_hdf5_nor_torch_is_linked() -> None:
    program = "from fdma import _fdma; print(open('/proc/self/maps').read())"
    maps = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "_fdma" in maps
    assert re.search(r"/lib(hdf5|torch|c10)", maps) is None


def test_nothing_is_left_behind_at_exit() -> None:
    """nanobind reports objects that outlive the interpreter on standard error."""
    program = """
import numpy as np
from fdma import _fdma
kept = _fdma.compile("documents(ids=@t)", 50, tables={"t": np.zeros(50, int)})
plan = _fdma.make_plan(kept, heads_q=1, head_dim=8)
cells = _fdma.to_dense(kept)
x = np.ones((1, 50, 1, 8), np.float32)
out, lse = _fdma.attention(x, x, x, plan)
for call in (lambda: _fdma.compile("?", 5), lambda: _fdma.compile("causal", -5)):
    try:
        call()
    except ValueError as error:
        pass
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(FOLDER), "FDMA_LEAK_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_type_is_known_to_python() -> None:
    # The signature shows the C++ name of a type that nanobind cannot convert.
    named = [(name, getattr(fdma, name)) for name in dir(fdma)]
    for name, value in list(named):
        if isinstance(value, type):
            named += [(f"{name}.{member}", entry) for member, entry in vars(value).items()]
    for name, value in named:
        for function in (value, getattr(value, "fget", None)):
            assert "::" not in (getattr(function, "__doc__", None) or ""), name
            assert "::" not in str(getattr(function, "__nb_signature__", "")), name
