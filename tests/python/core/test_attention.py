"""Tests attention of the core module fdma._fdma on arrays, without the package around it.

Results are compared with float64. Other tests cover plans, threads and errors.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdma_module import OtherDevice, Tensor, definition, fdma, random_tensors, round_bf16

# The largest error over all elements. tests/unit/kernels and tests/gpu have tighter bounds.
TOLERANCE = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 3e-2}


def check(out: Any, lse: Any, expected: tuple[Tensor, Tensor], dtype: str = "float32") -> None:
    values = np.asarray(fdma.bits_from_bfloat16(out)) if dtype == "bfloat16" else np.asarray(out)
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(values.astype(np.float64), expected[0], atol=TOLERANCE[dtype])
    np.testing.assert_allclose(np.asarray(lse), expected[1], atol=TOLERANCE[dtype])
    assert np.asarray(lse).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("spec", "q_len", "kv_len", "heads_q", "heads_kv", "head_dim", "head_dim_v"),
    [
        ("true", 130, 200, 2, 2, 64, 64),
        ("causal", 257, 257, 4, 2, 80, 80),
        ("causal & window(50)", 200, 300, 6, 2, 128, 32),
        ("causal", 150, 90, 3, 1, 8, 24),  # these rows have no keys
        ("documents(ids=@t) & causal", 300, 300, 2, 1, 33, 17),
        ("(q * 7 + k * 3) % 11 < 4", 65, 140, 1, 1, 256, 256),
    ],
)
def test_attention(
    dtype: str,
    spec: str,
    q_len: int,
    kv_len: int,
    heads_q: int,
    heads_kv: int,
    head_dim: int,
    head_dim_v: int,
) -> None:
    tensors = random_tensors(5, 2, q_len, kv_len, heads_q, heads_kv, head_dim, head_dim_v)
    tables = {"t": np.sort(np.random.default_rng(6).integers(0, 6, kv_len))}
    mask = fdma.compile(spec, q_len, kv_len, tables=tables if "@t" in spec else None)
    given: tuple[Any, Any, Any] = tensors
    if dtype == "float16":
        q, k, v = (x.astype(np.float16) for x in tensors)
        tensors = given = (q, k, v)
    elif dtype == "bfloat16":
        (q_bits, q), (k_bits, k), (v_bits, v) = (round_bf16(x) for x in tensors)
        tensors = (q, k, v)
        view = fdma.bfloat16_from_bits
        given = (view(q_bits), view(k_bits), view(v_bits))
    out, lse = fdma.attention(*given, mask)
    check(out, lse, definition(*tensors, fdma.to_dense(mask)), dtype)


def test_masks_for_each_batch_element_and_head() -> None:
    q, k, v = random_tensors(7, 3, 90, 90, 4, 2, 32)
    mask = fdma.compile("k <= q & q - k < 4 * shl(1, h) & k != b", 90, batch=3, heads=4)
    check(*fdma.attention(q, k, v, mask), definition(q, k, v, fdma.to_dense(mask)))


def test_lengths_for_each_element() -> None:
    q, k, v = random_tensors(8, 3, 100, 150, 2, 1, 16)
    q_lens, kv_lens = [100, 20, 0], [150, 64, 7]
    mask = fdma.compile("causal", q_lens, kv_lens, batch=3)
    out, lse = fdma.attention(q, k, v, mask)
    # Rows past the length of a batch element are 0 and -inf, as rows without keys are.
    cells = np.zeros((3, 1, 100, 150), bool)
    cells[..., : mask.q_len, : mask.kv_len] = fdma.to_dense(mask)
    check(out, lse, definition(q, k, v, cells))
    assert not np.asarray(out)[1, 20:].any() and np.isneginf(np.asarray(lse)[2]).all()
    # The call writes none of these rows to an output that the caller gives.
    given = np.full((3, 100, 2, 16), 7, np.float32)
    _, again = fdma.attention(q, k, v, mask, out=given)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(lse))
    assert (given[1, 20:] == 7).all() and (given[2] == 7).all()
    np.testing.assert_array_equal(given[0], np.asarray(out)[0])


def test_key_bias_and_scale() -> None:
    q, k, v = random_tensors(9, 2, 120, 140, 4, 2, 48)
    bias = np.random.default_rng(10).standard_normal((2, 2, 140)).astype(np.float32)
    mask = fdma.compile("causal", 120, 140)
    out, lse = fdma.attention(q, k, v, mask, score=(bias,), softmax_scale=0.31)
    check(out, lse, definition(q, k, v, fdma.to_dense(mask), 0.31, bias))
    plan = fdma.make_plan(mask, batch=2, heads_q=4, heads_kv=2, head_dim=48, score=["key_bias"])
    again, _ = fdma.attention(q, k, v, plan, score=(bias,), softmax_scale=0.31)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(again))


def test_strides() -> None:
    q, k, v = random_tensors(11, 2, 100, 100, 3, 3, 24)
    mask = fdma.compile("causal", 100)
    expected, expected_lse = (np.asarray(x) for x in fdma.attention(q, k, v, mask))
    packed = np.stack([q, k, v], axis=2)  # [batch, len, 3, heads, head_dim]
    heads_first = [
        np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)
    ]
    padded = [np.pad(x, ((0, 0), (0, 5), (0, 0), (0, 7)))[..., :24] for x in (q, k, v)]
    backwards = [np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1] for x in (q, k, v)]
    frozen = [x.copy() for x in (q, k, v)]
    for x in frozen:
        x.flags.writeable = False
    layouts: tuple[list[Any], ...] = (
        [packed[:, :, i] for i in range(3)],
        heads_first,
        padded,
        backwards,
        frozen,
        [x.data for x in (q, k, v)],
    )
    for one, two, three in layouts:
        out, lse = (np.asarray(x) for x in fdma.attention(one, two, three, mask))
        np.testing.assert_array_equal(out[:, :100], expected)
        np.testing.assert_array_equal(lse[..., :100], expected_lse)
    shared = np.broadcast_to(k[:, :, :1], k.shape)  # One head stands for all heads, with stride 0
    np.testing.assert_array_equal(
        np.asarray(fdma.attention(q, shared, v, mask, return_lse=False)),
        np.asarray(fdma.attention(q, shared.copy(), v, mask, return_lse=False)),
    )


def test_out_is_written_in_place() -> None:
    q, k, v = random_tensors(12, 2, 70, 70, 2, 2, 40)
    mask = fdma.compile("causal", 70)
    expected = np.asarray(fdma.attention(q, k, v, mask, return_lse=False))
    room = np.full((2, 2, 72, 44), np.nan, np.float32)
    out = room.transpose(0, 2, 1, 3)[:, 1:71, :, 2:42]
    result = fdma.attention(q, k, v, mask, out=out, return_lse=False)
    assert result is out
    np.testing.assert_array_equal(out, expected)
    assert np.isnan(room[:, :, [0, 71]]).all() and np.isnan(room[..., [0, 1, 42, 43]]).all()
    half = np.empty((2, 70, 2, 40), np.float16)
    _, lse = fdma.attention(q, k, v, mask, out=half)
    np.testing.assert_allclose(half, expected, atol=2e-3)
    assert np.asarray(lse).shape == (2, 2, 70)


def test_head_dim_one_takes_any_last_stride() -> None:
    q, k, v = random_tensors(13, 1, 40, 40, 1, 1, 8)
    mask = fdma.compile("causal", 40)
    q, k, v = (x[..., 3:4] for x in (q, k, v))
    check(*fdma.attention(q, k, v, mask), definition(q, k, v, fdma.to_dense(mask)))


def test_plan() -> None:
    mask = fdma.compile("causal & window(100)", 512)
    plan = fdma.make_plan(mask, batch=2, heads_q=4, heads_kv=2, head_dim=64, tile=(64, 128))
    assert plan.backend == "cpu" and plan.tile == (64, 128)
    assert plan.num_work_tiles == 2 * 4 * 512 // 64 and plan.nbytes > 0
    assert plan.counts["full_tiles"] >= 0 and sum(plan.counts.values()) > 0
    assert "tile 64x128" in str(plan)
    q, k, v = random_tensors(14, 2, 512, 512, 4, 2, 64)
    check(*fdma.attention(q, k, v, plan), definition(q, k, v, fdma.to_dense(mask)))
    with pytest.raises(ValueError):
        fdma.attention(q[:1], k[:1], v[:1], plan)
    with pytest.raises(NotImplementedError, match="sm90"):
        fdma.make_plan(mask, heads_q=1, head_dim=64, backend="sm90")
    expected = "columns: expected automatic, scan, gather or reorder, got 'x'"
    with pytest.raises(ValueError, match=expected):
        fdma.make_plan(mask, heads_q=1, head_dim=64, columns="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype"):
        fdma.make_plan(mask, heads_q=1, head_dim=64, dtype="float31")  # type: ignore[arg-type]


def parametric_cells(
    q_len: int,
    kv_len: int,
    shape: tuple[int, int],
    left: int | None = None,
    sink: int = 0,
    cu_seqlens: Any = None,
) -> Any:
    """Returns the causal cells of an element of these lengths in a dense mask of `shape`."""
    q, k = np.arange(shape[0])[:, None], np.arange(shape[1])[None]
    pos = q + kv_len - q_len
    cells = (k <= pos) & (k < kv_len) & (q < q_len)
    if left is not None:
        cells &= (k >= pos - left) | (k < sink)
    if cu_seqlens is not None:
        of_q = np.searchsorted(cu_seqlens, pos, "right")
        of_k = np.searchsorted(cu_seqlens, k, "right")
        cells &= (of_q == of_k) & (of_q > 0) & (of_q < len(cu_seqlens))
    return cells


@pytest.mark.parametrize("q_len", [1, 150])
def test_parametric_plans_take_lengths_from_each_call(q_len: int) -> None:
    kv_len = 300
    mask = fdma.compile(
        "causal & (window(64) | sink(4))", q_len, kv_len, format="parametric", block=(16, 16)
    )
    sizes: dict[str, Any] = {"batch": 3, "heads_q": 4, "heads_kv": 2, "head_dim": 32}
    plan = fdma.make_plan(mask, **sizes, form="parametric")
    assert plan.form == "parametric" and plan.nbytes < 100
    assert plan.num_work_tiles == 3 * 4 * -(-q_len // 128)
    assert plan.counts["formula_tiles"] > 0 and plan.counts["bitmap_tiles"] == 0
    assert "left 63 right 0 prefix 0 sink 4" in str(plan)
    q, k, v = random_tensors(21, 3, q_len, kv_len, 4, 2, 32)
    segments = fdma.make_plan(mask, **sizes)
    assert segments.form == "segments"
    for one, other in zip(
        fdma.attention(q, k, v, plan), fdma.attention(q, k, v, segments), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    for q_lens, kv_lens in (
        ([q_len, 1, 0], [kv_len, 17, 230]),
        ([q_len, q_len, q_len], [200, 0, 1]),
    ):
        cells = np.stack(
            [
                parametric_cells(a, b, (q_len, kv_len), left=63, sink=4)
                for a, b in zip(q_lens, kv_lens, strict=True)
            ]
        )[:, None]
        result = fdma.attention(
            q,
            k,
            v,
            plan,
            q_lens=np.array(q_lens, np.int32),
            kv_lens=np.array(kv_lens, np.int32),
        )
        check(*result, definition(q, k, v, cells))


def test_parametric_plans_take_documents_from_each_call() -> None:
    lengths = np.array([90, 0, 110], np.int32)
    mask = fdma.compile("causal & documents(lengths=@t)", 200, tables={"t": lengths})
    plan = fdma.make_plan(mask, batch=2, heads_q=2, head_dim=16, form="parametric")
    q, k, v = random_tensors(22, 2, 200, 200, 2, 2, 16)
    check(*fdma.attention(q, k, v, plan), definition(q, k, v, fdma.to_dense(mask)))
    for borders in ([0, 50, 50, 200], [0, 128, 180], [[0, 10, 200], [5, 100, 101]]):
        given = np.array(borders, np.int32)
        each = given if given.ndim == 2 else np.stack([given] * 2)
        cells = np.stack([parametric_cells(200, 200, (200, 200), cu_seqlens=x) for x in each])
        result = fdma.attention(q, k, v, plan, cu_seqlens=given)
        check(*result, definition(q, k, v, cells[:, None]))


def test_parametric_plans_refuse_what_they_cannot_have() -> None:
    mask = fdma.compile("causal", 40)
    q, k, v = random_tensors(23, 1, 40, 40, 1, 1, 16)
    plan = fdma.make_plan(mask, heads_q=1, head_dim=16, form="parametric")
    lens = np.array([40], np.int32)
    with pytest.raises(NotImplementedError, match="form = parametric"):
        fdma.attention(q, k, v, mask, kv_lens=lens)
    with pytest.raises(ValueError, match=r"kv_lens\[0\]: expected 0 to 40, .*got 41"):
        fdma.attention(q, k, v, plan, kv_lens=lens + np.int32(1))
    with pytest.raises(ValueError, match="q_lens: expected int32"):
        fdma.attention(q, k, v, plan, q_lens=lens.astype(np.int64))
    with pytest.raises(ValueError, match=r"q_lens: expected \[batch\] = \[1\]"):
        fdma.attention(q, k, v, plan, q_lens=np.array([40, 40], np.int32))
    with pytest.raises(ValueError, match=r"cu_seqlens\[1\]: expected 7 to 40, got 3"):
        fdma.attention(q, k, v, plan, cu_seqlens=np.array([7, 3, 40], np.int32))
    with pytest.raises(ValueError, match="cu_seqlens: expected an array on"):
        fdma.attention(q, k, v, plan, cu_seqlens=OtherDevice(2, (3,)))
    with pytest.raises(ValueError, match="form: expected segments or parametric, got 'x'"):
        fdma.make_plan(mask, heads_q=1, head_dim=16, form="x")  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="closed form"):
        odd = fdma.compile("(q + k) % 3 == 0", 40)
        fdma.make_plan(odd, heads_q=1, head_dim=16, form="parametric")


def test_same_bits_for_any_number_of_threads() -> None:
    q, k, v = random_tensors(15, 2, 400, 400, 4, 4, 64)
    mask = fdma.compile("causal & window(90) | sink(5)", 400)
    results = [
        np.asarray(fdma.attention(q, k, v, mask, num_threads=threads, return_lse=False))
        for threads in (1, 2, 3, 0)
    ]
    for one, other in itertools.pairwise(results):
        np.testing.assert_array_equal(one, other)


def wrong(**changes: Any) -> dict[str, Any]:
    """Returns the arguments of a call that would succeed, with some of them changed."""
    q, k, v = random_tensors(16, 2, 32, 32, 4, 2, 16)
    return {"q": q, "k": k, "v": v, "mask": fdma.compile("causal", 32)} | changes


def frozen(*shape: int) -> Tensor:
    array = np.zeros(shape, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"q": np.zeros((32, 4, 16), np.float32)},
            ValueError,
            r"q: expected 4 dimensions .* got 3",
        ),
        ({"k": np.zeros((2, 31, 2, 16), np.float32)}, ValueError, "k"),
        ({"k": np.zeros((2, 32, 2, 8), np.float32)}, ValueError, "k"),
        ({"k": np.zeros((2, 32, 3, 16), np.float32)}, ValueError, "heads_kv"),
        ({"v": np.zeros((1, 32, 2, 16), np.float32)}, ValueError, "v"),
        ({"q": np.zeros((2, 32, 4, 32), np.float32)[..., ::2]}, ValueError, "q"),
        ({"q": np.zeros((2, 32, 4, 16))}, NotImplementedError, "float64"),
        ({"q": np.zeros((2, 32, 4, 16), np.int32)}, NotImplementedError, "int32"),
        ({"q": [1.0]}, ValueError, r"q: expected an array .* got list"),
        (
            {"k": OtherDevice(2, (2, 32, 2, 16))},
            ValueError,
            "k: expected an array on the host, where q is, got one on cuda:0",
        ),
        (
            {"q": OtherDevice(8, (2, 32, 4, 16))},
            NotImplementedError,
            "q: expected an array on the host or on a CUDA device, got one on metal:0",
        ),
        (
            {"score": (np.zeros((2, 32), np.float32),)},
            ValueError,
            "key_bias: expected .batch, heads_kv, kv_len. .*, got .2, 32.",
        ),
        ({"score": (np.zeros((2, 2, 31), np.float32),)}, ValueError, "key_bias"),
        ({"score": (np.zeros((2, 2, 32)),)}, (ValueError, NotImplementedError), "key_bias"),
        ({"softmax_scale": 0.0}, ValueError, "softmax_scale: expected a finite number"),
        ({"softmax_scale": float("nan")}, ValueError, "softmax_scale: expected a finite number"),
        ({"stream": 7}, ValueError, "stream: expected None or 0 on the CPU, got 7"),
        ({"stream": "x"}, ValueError, "stream: expected None or 0 on the CPU, got x"),
        ({"lse": np.zeros((2, 4, 31), np.float32)}, ValueError, "lse"),
        ({"lse": np.zeros((2, 32, 4, 1), np.float32)}, ValueError, "lse: expected 3 dimensions"),
        ({"lse": np.zeros((2, 4, 32))}, (ValueError, NotImplementedError), "lse"),
        (
            {"lse": np.zeros((2, 4, 32), np.float32), "return_lse": False},
            ValueError,
            "lse: expected None with return_lse=False",
        ),
        ({"num_threads": -2}, ValueError, "num_threads"),
        ({"out": np.zeros((2, 32, 4, 8), np.float32)}, ValueError, "out"),
        ({"out": np.zeros((2, 32, 4), np.float32)}, ValueError, "out: expected 4 dimensions"),
        ({"out": np.zeros((2, 32, 4, 16))}, NotImplementedError, "out_dtype"),
        ({"out": frozen(2, 32, 4, 16)}, ValueError, "out: expected a writable array"),
        (
            {"out": np.lib.stride_tricks.as_strided(frozen(9), (2, 32, 4, 16), (0, 0, 0, 4))},
            ValueError,
            "out",
        ),
    ],
)
def test_wrong_arguments_name_themselves(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fdma.attention(**wrong(**changes))


def test_out_whose_elements_overlap_is_refused() -> None:
    room = np.zeros(32 * 64 + 64, np.float32)
    for shape, strides in (((2, 32, 4, 16), (0, 256, 64, 4)), ((2, 32, 4, 16), (64, 128, 64, 4))):
        out = np.lib.stride_tricks.as_strided(room, shape, strides)
        with pytest.raises(ValueError, match=r"out: .* overlap"):
            fdma.attention(**wrong(out=out))


def test_out_that_lies_in_an_input_is_refused() -> None:
    arguments = wrong()
    with pytest.raises(ValueError, match="out"):
        fdma.attention(**arguments, out=arguments["q"])


def test_outputs_that_were_given_are_written_and_returned() -> None:
    arguments = wrong()
    expected_out, expected_lse = fdma.attention(**arguments)
    out, lse = np.empty((2, 32, 4, 16), np.float32), np.empty((2, 4, 32), np.float32)
    results = fdma.attention(**arguments, out=out, lse=lse)
    assert results[0] is out and results[1] is lse
    np.testing.assert_array_equal(out, np.asarray(expected_out))
    np.testing.assert_array_equal(lse, np.asarray(expected_lse))
    room = np.empty(2 * 32 * 4 * 16, np.float32)
    out, lse = room.reshape(2, 32, 4, 16), room[: 2 * 4 * 32].reshape(2, 4, 32)
    with pytest.raises(ValueError, match="lse: expected memory of its own"):
        fdma.attention(**arguments, out=out, lse=lse)


def test_stream_zero_and_none_are_the_cpu() -> None:
    assert "cpu" in fdma.available_backends() and fdma.cpu_target()
    for stream in (None, 0):
        fdma.attention(**wrong(stream=stream))


def test_tables_and_tensors_are_let_go() -> None:
    arguments = wrong()
    kept = [weakref.ref(arguments[name]) for name in ("q", "k", "v")]
    out, lse = fdma.attention(**arguments)
    view = np.asarray(out)
    del arguments, out, lse
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
    assert np.isfinite(view).all()  # the view keeps the output alive


def test_memory_does_not_grow() -> None:
    q, k, v = random_tensors(17, 1, 256, 256, 8, 8, 64)
    mask = fdma.compile("window(16)", 256)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(20):
        fdma.attention(q, k, v, mask)
    before = resident_bytes()
    for _ in range(200):  # the outputs have 100 MiB
        fdma.attention(q, k, v, mask)
        fdma.to_dense(mask)
    assert resident_bytes() - before < 16 << 20


def test_other_threads_of_python_go_on() -> None:
    q, k, v = random_tensors(18, 1, 2048, 2048, 4, 4, 128)
    plan = fdma.make_plan(fdma.compile("true", 2048), heads_q=4, head_dim=128)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for _ in range(3):
            begin = time.perf_counter()
            fdma.attention(q, k, v, plan, num_threads=1)
            end = time.perf_counter()
            inside = sum(begin + 0.002 < at < end - 0.002 for at in ticks)
            if inside >= 5:
                return
    finally:
        done.set()
        thread.join()
    pytest.fail(f"{inside} ticks of another thread in {end - begin:.3f} s of attention")


def test_attention_from_many_threads() -> None:
    q, k, v = random_tensors(19, 1, 300, 300, 2, 2, 64)
    mask = fdma.compile("causal", 300)
    expected = np.asarray(fdma.attention(q, k, v, mask, return_lse=False))
    same: list[bool] = []

    def work() -> None:
        for _ in range(5):
            out = np.asarray(fdma.attention(q, k, v, mask, return_lse=False))
            same.append(bool((out == expected).all()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 20
