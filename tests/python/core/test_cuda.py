"""Tests fdma._fdma on a GPU with PyTorch: results, streams and graphs.

Refusals are tested on any machine, the rest on a Hopper GPU. References are dense attention in
float64 on the GPU. An error may be twice that of an explicit matmul, softmax, matmul in the same
16-bit type, plus 1e-5 of the largest reference value.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest
from fdma_module import OtherDevice, fdma, random_tensors

try:
    import torch as imported_torch
except ImportError:
    imported_torch = None
torch: Any = imported_torch
attention: Any = fdma.attention  # the overloads of `attention` do not name PyTorch's types
HAS_GPU = torch is not None and "sm90" in fdma.available_backends()
needs_gpu = pytest.mark.skipif(
    not HAS_GPU, reason="no GPU of compute capability 9.0, or PyTorch is not installed"
)
without_gpu = pytest.mark.skipif(
    "sm90" in fdma.available_backends(), reason="this machine has a GPU of compute capability 9.0"
)


def tensors(
    seed: int,
    batch: int,
    q_len: int,
    kv_len: int,
    heads_q: int,
    heads_kv: int,
    head_dim: int,
    dtype: str = "bfloat16",
) -> list[Any]:
    torch.manual_seed(seed)
    shapes = [(batch, q_len, heads_q), *[(batch, kv_len, heads_kv)] * 2]
    return [
        torch.randn(*shape, head_dim, device="cuda").to(getattr(torch, dtype)) for shape in shapes
    ]


def dense(
    q: Any, k: Any, v: Any, cells: Any, wide: Any, scale: float | None = None, bias: Any = None
) -> tuple[Any, Any]:
    """Returns out [b, q, h, d] and lse [b, h, q], with logits and sums in type `wide`."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scale = q.shape[3] ** -0.5 if scale is None else scale
    logits = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), k.to(wide)) * scale
    if bias is not None:
        logits = logits + bias.to(wide).repeat_interleave(group, 1)[:, :, None]
    logits = logits.masked_fill(~cells, -torch.inf)
    lse = logits.logsumexp(-1)
    weights = torch.where(lse.isfinite()[..., None], logits.softmax(-1), 0.0)
    if wide != torch.float64:
        weights = weights.to(q.dtype).to(wide)
    out = torch.einsum("bhqk,bkhd->bqhd", weights, v.to(wide))
    return (out if wide == torch.float64 else out.to(q.dtype)), lse


def check(results: Any, q: Any, k: Any, v: Any, cells: Any, **options: Any) -> None:
    out, lse = (torch.from_dlpack(x) for x in results)
    expected, expected_lse = dense(q, k, v, cells, torch.float64, **options)
    plain, plain_lse = dense(q, k, v, cells, torch.float32, **options)
    seen = expected_lse.isfinite()
    assert (lse[~seen] == -torch.inf).all()
    assert (out.transpose(1, 2)[~seen] == 0).all()
    for got, right, yardstick in (
        (out, expected, plain),
        (lse[seen], expected_lse[seen], plain_lse[seen]),
    ):
        error = (got.double() - right).abs().max()
        allowed = 2 * (yardstick.double() - right).abs().max() + 1e-5 * right.abs().max()
        assert error <= allowed, (float(error), float(allowed))


def cells_of(mask: Any) -> Any:
    return torch.from_numpy(fdma.to_dense(mask)).cuda()


def plan_of(mask: Any, q: Any, k: Any, **options: Any) -> Any:
    plan = fdma.make_plan(
        mask,
        batch=q.shape[0],
        heads_q=q.shape[2],
        heads_kv=k.shape[2],
        head_dim=q.shape[3],
        dtype=str(q.dtype).removeprefix("torch."),  # type: ignore[arg-type]
        backend="sm90",
        **options,
    )
    return fdma.prepare(plan)


# The tests below need no GPU.


def test_decode_shares_tiles_and_splits_keys() -> None:
    mask = fdma.compile("causal", 1, 65536)

    def plan(**options: Any) -> Any:
        return fdma.make_plan(
            mask,
            heads_q=16,
            heads_kv=2,
            head_dim=128,
            dtype="bfloat16",
            backend="sm90",
            **options,
        )

    both = plan()
    assert both.heads_per_tile == 8 and both.tile == (16, 128)
    assert both.num_split_rows == 2 and 100 < both.num_work_tiles <= 132
    assert "split rows 2" in str(both)
    assert plan(num_workers=2).num_split_rows == 0
    neither = plan(split="never", pack="never")
    assert (neither.heads_per_tile, neither.num_split_rows, neither.num_work_tiles) == (1, 0, 16)
    assert plan(split="never").num_work_tiles == 2
    on_cpu = fdma.make_plan(mask, heads_q=16, heads_kv=2, head_dim=128)
    assert on_cpu.num_split_rows == 0 and on_cpu.heads_per_tile == 1


def test_plans_for_sm90_are_made_anywhere() -> None:
    mask = fdma.compile("causal & window(100)", 1000)
    plan = fdma.make_plan(
        mask, heads_q=4, heads_kv=2, head_dim=128, dtype="float16", backend="sm90"
    )
    assert plan.backend == "sm90" and plan.tile == (128, 128) and plan.num_work_tiles == 4 * 8
    with pytest.raises(NotImplementedError, match=r"head_dim: sm90"):
        fdma.make_plan(mask, heads_q=1, head_dim=100, dtype="float16", backend="sm90")
    with pytest.raises(NotImplementedError, match=r"dtype: sm90"):
        fdma.make_plan(mask, heads_q=1, head_dim=64, backend="sm90")
    with pytest.raises(ValueError, match=r"backend: expected one of cpu, sm90, got 'sm80'"):
        fdma.make_plan(mask, heads_q=1, head_dim=64, backend="sm80")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"split: expected automatic or never, got 'x'"):
        fdma.make_plan(mask, heads_q=1, head_dim=64, split="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pack: expected automatic or never"):
        fdma.make_plan(mask, heads_q=1, head_dim=64, pack="")  # type: ignore[arg-type]
    best = fdma.make_plan(mask, heads_q=1, head_dim=64, dtype="bfloat16", backend="auto")
    assert best.backend == fdma.available_backends()[-1]


def test_plans_for_the_cpu_are_prepared_as_they_are() -> None:
    mask = fdma.compile("causal", 64)
    plan = fdma.make_plan(mask, heads_q=4, head_dim=64)
    prepared = fdma.prepare(plan, waits=True)
    assert (prepared.backend, prepared.device, prepared.tile) == ("cpu", -1, plan.tile)
    assert (prepared.nbytes, prepared.workspace_nbytes) == (plan.nbytes, 0)
    assert not prepared.is_captured and fdma.workspaces_nbytes() >= 0
    assert repr(prepared).startswith("<PreparedPlan cpu on the host, 1 x 4 (batch x heads), 64 x ")
    arrays = random_tensors(1, 1, 64, 64, 4, 4, 64)
    expected = attention(*arrays, mask)
    del mask
    for given in (plan, prepared):
        for one, other in zip(attention(*arrays, given), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    del plan  # the prepared plan keeps it
    np.testing.assert_array_equal(attention(*arrays, prepared)[0], expected[0])
    with pytest.raises(ValueError, match=r"device: expected None for a plan for cpu, got 0"):
        fdma.prepare(fdma.make_plan(fdma.compile("causal", 64), heads_q=1, head_dim=64), device=0)
    q = OtherDevice(2, (1, 64, 4, 64))
    with pytest.raises((ValueError, NotImplementedError), match=r"on the host, where|backend sm90"):
        attention(q, q, q, prepared)


@without_gpu
def test_without_a_gpu_errors_name_the_backends_there_are() -> None:
    mask = fdma.compile("causal", 32)
    plan = fdma.make_plan(mask, heads_q=4, head_dim=64, dtype="float16", backend="sm90")
    with pytest.raises(NotImplementedError, match=r"backend sm90: .*available: cpu"):
        fdma.prepare(plan)
    with pytest.raises(NotImplementedError, match=r"backend sm90: .*available: cpu"):
        fdma.prepare(plan, device=3)
    q = OtherDevice(2, (1, 32, 4, 64))
    for given in (mask, plan):
        with pytest.raises(NotImplementedError, match=r"backend sm90: .*available: cpu"):
            attention(q, q, q, given)


def test_a_plan_for_sm90_does_not_run_on_the_host() -> None:
    mask = fdma.compile("causal", 32)
    plan = fdma.make_plan(mask, heads_q=4, head_dim=64, dtype="float16", backend="sm90")
    q, k, v = (x.astype(np.float16) for x in random_tensors(1, 1, 32, 32, 4, 4, 64))
    with pytest.raises((ValueError, NotImplementedError), match="sm90"):
        attention(q, k, v, plan)


# The tests below need a GPU.


@needs_gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "spec", ["true", "causal", "causal & window(30)", "(q // 5) % 7 == (k // 5) % 7", "q > 200"]
)
def test_attention_equals_its_definition(spec: str, dtype: str, head_dim: int) -> None:
    q, k, v = tensors(1, 2, 333, 333, 4, 2, head_dim, dtype)
    mask = fdma.compile(spec, 333)
    check(attention(q, k, v, plan_of(mask, q, k)), q, k, v, cells_of(mask))


@needs_gpu
def test_masks_and_plans_serve_as_they_are() -> None:
    q, k, v = tensors(2, 1, 200, 300, 8, 1, 64)
    mask = fdma.compile("k <= q + 100", 200, 300)
    plan = fdma.make_plan(
        mask, heads_q=8, heads_kv=1, head_dim=64, dtype="bfloat16", backend="auto"
    )
    results = [
        [torch.from_dlpack(x) for x in attention(q, k, v, given)]
        for given in (mask, plan, fdma.prepare(plan))
    ]
    check(results[0], q, k, v, cells_of(mask))
    for one, other in itertools.pairwise(results):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@needs_gpu
def test_lengths_of_their_own_and_key_bias() -> None:
    q, k, v = tensors(3, 3, 300, 300, 4, 4, 128)
    mask = fdma.compile("causal", [300, 17, 0], [300, 17, 0], batch=3)
    bias = torch.randn(3, 4, 300, device="cuda")
    plan = plan_of(mask, q, k, score=["key_bias"])
    out, lse = attention(q, k, v, plan, score=(bias,), softmax_scale=0.2)
    check((out, lse), q, k, v, cells_of(mask), scale=0.2, bias=bias)
    # An output that the caller gives keeps its values in rows that do not exist.
    out, lse = torch.full_like(q, 7), torch.full((3, 4, 300), 7.0, device="cuda")
    attention(q, k, v, plan, score=(bias,), softmax_scale=0.2, out=out, lse=lse)
    assert (out[1, 17:] == 7).all() and (lse[2] == 7).all() and (lse[1, :, :17] != 7).all()


@needs_gpu
def test_strided_tensors_are_read_in_place() -> None:
    mask = fdma.compile("causal", 256)
    packed = torch.randn(2, 256, 3, 4, 64, device="cuda").bfloat16()
    q, k, v = packed.unbind(2)
    plan = plan_of(mask, q, k)
    check(attention(q, k, v, plan), q, k, v, cells_of(mask))
    q, k, v = (torch.randn(2, 4, 256, 64, device="cuda").bfloat16().transpose(1, 2) for _ in "qkv")
    out = torch.empty(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    result, lse = attention(q, k, v, plan, out=out)
    assert result is out
    check((out, lse), q, k, v, cells_of(mask))


@needs_gpu
def test_streams_and_workspaces() -> None:
    q, k, v = tensors(4, 1, 512, 512, 8, 8, 64)
    plan = plan_of(fdma.compile("causal", 512), q, k)
    assert plan.device == 0 and plan.nbytes > 0
    fdma.release_workspaces()
    before = fdma.workspaces_nbytes()  # those of graphs that still live
    one = plan.workspace_nbytes
    expected = torch.from_dlpack(attention(q, k, v, plan, return_lse=False))
    assert fdma.workspaces_nbytes() == before + one
    torch.cuda.synchronize()
    out = torch.empty_like(q)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # the call uses the current stream of the framework
        attention(q, k, v, plan, out=out, return_lse=False)
    stream.synchronize()
    assert torch.equal(out, expected) and fdma.workspaces_nbytes() == before + 2 * one
    for given in (stream, stream.cuda_stream, 0):  # a stream is given as an object and as a number
        out.zero_()
        torch.cuda.synchronize()
        attention(q, k, v, plan, out=out, return_lse=False, stream=given)
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
    assert fdma.workspaces_nbytes() == before + 2 * one
    longer = tensors(4, 1, 1, 20000, 8, 1, 64)
    split = plan_of(fdma.compile("causal", 1, 20000), *longer[:2])
    attention(*longer, split)
    both = max(one, split.workspace_nbytes) + one
    assert fdma.workspaces_nbytes() == before + both, "plans share the workspace of a stream"
    attention(q, k, v, plan, out=out, return_lse=False)
    torch.cuda.synchronize()
    assert torch.equal(out, expected) and fdma.workspaces_nbytes() == before + both
    fdma.release_workspaces()
    assert fdma.workspaces_nbytes() == before
    with pytest.raises(TypeError, match="stream: expected None, an integer or an object"):
        attention(q, k, v, plan, stream="x")


@needs_gpu
def test_graph_capture() -> None:
    q, k, v = tensors(5, 1, 700, 700, 4, 2, 128)
    mask = fdma.compile("causal & window(300)", 700)
    plan = plan_of(mask, q, k)
    out, lse = torch.empty_like(q), torch.empty(1, 4, 700, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, plan, out=out, lse=lse)
        out.mul_(2)
    for seed in (6, 7):
        for tensor, new in zip((q, k, v), tensors(seed, 1, 700, 700, 4, 2, 128), strict=True):
            tensor.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        check((out / 2, lse), q, k, v, cells_of(mask))


@needs_gpu
def test_graphs_keep_their_workspaces() -> None:
    q, k, v = tensors(5, 1, 1, 20000, 8, 1, 64)
    mask = fdma.compile("causal", 1, 20000)
    plan = plan_of(mask, q, k)
    expected = torch.from_dlpack(attention(q, k, v, plan, return_lse=False))
    fdma.release_workspaces()
    before = fdma.workspaces_nbytes()
    out = torch.empty_like(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, plan, out=out, return_lse=False)
        attention(q, k, v, plan, out=out, return_lse=False)
    captured = before + plan.workspace_nbytes
    assert plan.is_captured and fdma.workspaces_nbytes() == captured, "one for both calls"
    longer = tensors(6, 4, 1, 60000, 8, 1, 64)
    larger = plan_of(fdma.compile("causal", 1, 60000), *longer[:2])
    for _ in range(3):
        out.zero_()
        attention(*longer, larger)
        fdma.release_workspaces()
        assert fdma.workspaces_nbytes() == captured
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
    del graph, plan
    assert fdma.workspaces_nbytes() == before


@needs_gpu
@pytest.mark.parametrize("columns", ["scan", "gather", "reorder", "automatic"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_graph_capture_of_scattered_keys(columns: str, has_bias: bool) -> None:
    shape = (1, 900, 900, 4, 2, 128)
    q, k, v = tensors(5, *shape)
    end = np.random.default_rng(5).integers(450, 901, 900).astype(np.int32)
    mask = fdma.compile("causal & q < @end[k]", 900, tables={"end": end})
    plan = plan_of(mask, q, k, columns=columns, score=["key_bias"] if has_bias else [])
    bias = torch.randn(1, 2, 900, device="cuda") if has_bias else None
    out, lse = torch.empty_like(q), torch.empty(1, 4, 900, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, plan, out=out, lse=lse, score=(bias,))
    for seed in (6, 7):
        for tensor, new in zip((q, k, v), tensors(seed, *shape), strict=True):
            tensor.copy_(new)
        if bias is not None:
            bias.normal_()
        graph.replay()
        torch.cuda.synchronize()
        check((out, lse), q, k, v, cells_of(mask), bias=bias)


@needs_gpu
def test_two_runs_give_the_same_bits() -> None:
    q, k, v = tensors(8, 2, 1024, 1024, 8, 8, 128)
    plan = plan_of(fdma.compile("causal & (q // 3) % 5 != (k // 7) % 5", 1024), q, k)
    runs = [torch.from_dlpack(attention(q, k, v, plan, return_lse=False)) for _ in range(5)]
    assert all(torch.equal(runs[0], run) for run in runs)


@needs_gpu
def test_cupy_arrays() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    mask = fdma.compile("causal", 300)
    q, k, v = (cupy.asarray(x.astype(np.float16)) for x in random_tensors(9, 1, 300, 300, 4, 4, 64))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        out, lse = (cupy.from_dlpack(x) for x in attention(q, k, v, mask))
    stream.synchronize()
    q, k, v = (torch.from_dlpack(x) for x in (q, k, v))
    check((out, lse), q, k, v, cells_of(mask))


@needs_gpu
def test_wrong_arguments_name_themselves() -> None:
    q, k, v = tensors(10, 1, 256, 256, 4, 4, 64)
    mask = fdma.compile("causal", 256)
    plan = plan_of(mask, q, k)
    host = fdma.make_plan(mask, heads_q=4, head_dim=64, dtype="bfloat16")
    flat = torch.randn(1 * 256 * 4 * 64 + 1, device="cuda").bfloat16()[1:].view(1, 256, 4, 64)
    cases: list[tuple[dict[str, Any], type[Exception] | tuple[type[Exception], ...], str]] = [
        ({"k": k.cpu()}, ValueError, "k: expected an array on cuda:0, where q is"),
        ({"out": torch.empty_like(q).cpu()}, ValueError, "out: expected an array on cuda:0"),
        ({"out": q}, ValueError, "out: expected memory of its own"),
        ({"q": q[:, :255]}, ValueError, "q"),
        ({"v": v.half()}, (ValueError, NotImplementedError), "v"),
        ({"q": q.float()}, (ValueError, NotImplementedError), "q"),
        ({"q": flat}, (ValueError, NotImplementedError), "q"),
        ({"mask": host}, ValueError, "q: expected an array on the host, where plans for cpu run"),
        ({"q": q.clone().requires_grad_()}, ValueError, "requires a gradient"),
    ]
    for changes, error, message in cases:
        with pytest.raises(error, match=message):
            attention(**({"q": q, "k": k, "v": v, "mask": plan} | changes))
    with pytest.raises(ValueError, match=r"q: expected an array on cuda:0, where the plan is"):
        attention(q.cpu(), k.cpu(), v.cpu(), plan)


@needs_gpu
def test_memory_does_not_grow() -> None:
    q, k, v = tensors(11, 1, 2048, 2048, 8, 8, 128)
    mask = fdma.compile("causal", 2048)
    free = []
    for _ in range(4):
        for _ in range(8):
            attention(q, k, v, mask)
        gc.collect()
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[-1] >= free[0]


def causal_cells(
    q_lens: Any, kv_lens: Any, shape: tuple[int, int], left: int | None = None, borders: Any = None
) -> Any:
    """Returns the causal cells [batch, 1, q, k] of elements of these lengths."""
    q = torch.arange(shape[0], device="cuda")[None, :, None]
    k = torch.arange(shape[1], device="cuda")[None, None]
    q_len, kv_len = (x.long()[:, None, None] for x in (q_lens, kv_lens))
    pos = q + kv_len - q_len
    cells = (k <= pos) & (k < kv_len) & (q < q_len)
    if left is not None:
        cells &= k >= pos - left
    if borders is not None:
        edges = borders.long().contiguous()
        of_q = torch.searchsorted(edges, pos.flatten(), right=True).reshape(pos.shape)
        of_k = torch.searchsorted(edges, k.flatten(), right=True).reshape(k.shape)
        cells &= (of_q == of_k) & (of_q > 0) & (of_q < len(edges))
    return cells[:, None]


@needs_gpu
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 3000), (700, 1300), (1024, 1024)])
def test_parametric_plans_take_lengths_from_each_call(q_len: int, kv_len: int) -> None:
    mask = fdma.compile("causal & window(400)", q_len, kv_len, format="parametric")
    q, k, v = tensors(41, 3, q_len, kv_len, 8, 2, 128)
    plan = plan_of(mask, q, k, form="parametric")
    check(attention(q, k, v, plan), q, k, v, cells_of(mask))
    for q_lens, kv_lens in (
        ([q_len, 1, 0], [kv_len, 17, 230]),
        ([q_len] * 3, [kv_len // 2, 0, kv_len]),
    ):
        ours, theirs = (
            torch.tensor(x, dtype=torch.int32, device="cuda") for x in (q_lens, kv_lens)
        )
        result = attention(q, k, v, plan, q_lens=ours, kv_lens=theirs)
        check(result, q, k, v, causal_cells(ours, theirs, (q_len, kv_len), left=399))


@needs_gpu
def test_graphs_of_parametric_plans_read_lengths_when_they_run() -> None:
    size = 900
    mask = fdma.compile(
        "causal & documents(lengths=@t)", size, tables={"t": np.array([300, 200, 400])}
    )
    q, k, v = tensors(42, 2, size, size, 4, 4, 64)
    plan = plan_of(mask, q, k, form="parametric")
    out = torch.zeros_like(q)
    lse = torch.zeros(2, 4, size, device="cuda")
    lens = torch.tensor([size, size], dtype=torch.int32, device="cuda")
    borders = torch.tensor([0, 300, 500, size], dtype=torch.int32, device="cuda")
    given = {"q_lens": lens, "kv_lens": lens, "cu_seqlens": borders}
    attention(q, k, v, plan, out=out, lse=lse, **given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, plan, out=out, lse=lse, **given)
    for new_lens, new_borders in (
        ([900, 900], [0, 300, 500, 900]),
        ([900, 641], [0, 10, 10, 900]),
        ([5, 0], [0, 450, 470, 800]),
    ):
        lens.copy_(torch.tensor(new_lens, dtype=torch.int32))
        borders.copy_(torch.tensor(new_borders, dtype=torch.int32))
        out.zero_()
        lse.fill_(-torch.inf)
        graph.replay()
        torch.cuda.synchronize()
        check((out, lse), q, k, v, causal_cells(lens, lens, (size, size), borders=borders))


@needs_gpu
def test_parametric_plans_refuse_lengths_elsewhere() -> None:
    mask = fdma.compile("causal", 256)
    q, k, v = tensors(43, 1, 256, 256, 2, 2, 64)
    lens = torch.tensor([256], dtype=torch.int32)
    with pytest.raises(ValueError, match="kv_lens: expected an array on"):
        attention(q, k, v, plan_of(mask, q, k, form="parametric"), kv_lens=lens)
    with pytest.raises(NotImplementedError, match="form = parametric"):
        attention(q, k, v, plan_of(mask, q, k), kv_lens=lens.cuda())


@needs_gpu
def test_parametric_plans_without_documents_take_them_from_a_call() -> None:
    mask = fdma.compile("causal", 500)
    q, k, v = tensors(44, 2, 500, 500, 4, 2, 64)
    plan = plan_of(mask, q, k, form="parametric")
    lens = torch.tensor([500, 333], dtype=torch.int32, device="cuda")
    borders = torch.tensor([0, 100, 290, 500], dtype=torch.int32, device="cuda")
    for given in (borders, torch.stack([borders] * 2)):
        result = attention(q, k, v, plan, q_lens=lens, kv_lens=lens, cu_seqlens=given)
        check(result, q, k, v, causal_cells(lens, lens, (500, 500), borders=borders))
