"""Tests scores and selection of fdma._fdma on PyTorch's CUDA tensors against those on the host."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from fdma_module import fdma

try:
    import torch as imported_torch
except ImportError:
    imported_torch = None
torch: Any = imported_torch
HAS_GPU = torch is not None and "sm90" in fdma.available_backends()
needs_gpu = pytest.mark.skipif(
    not HAS_GPU, reason="no GPU of compute capability 9.0, or PyTorch is not installed"
)


@pytest.mark.skipif(
    "sm90" in fdma.available_backends(), reason="this machine has a GPU of compute capability 9.0"
)
def test_without_a_gpu_selection_on_it_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        fdma.DeviceTopk(fdma.compile("causal", q_len=10), 3)
    with pytest.raises(NotImplementedError):
        fdma.DeviceIncrementalTopk(3, 10)


def test_rows_that_a_mask_does_not_serve_are_refused() -> None:
    with pytest.raises(ValueError, match=r"among: a mask of 1 x 2 \(batch x heads\) serves no"):
        fdma.DeviceTopk(fdma.compile("causal", q_len=10, heads=2), 3, heads_kv=3)


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


@needs_gpu
@pytest.mark.parametrize("mode", ["exp", "log"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_scores_are_those_of_the_host(mode: Literal["exp", "log"], dtype: str) -> None:
    values = normal(2, 300, 4, 64).to(getattr(torch, dtype))
    a_coef = -normal(4, seed=2).abs()
    for width in (64, 256):
        dt_proj = (normal(4, width, seed=1) / 16).to(values.dtype)
        got = torch.from_dlpack(fdma.zoh_scores(values, dt_proj, a_coef, mode=mode))
        host = fdma.zoh_scores(values.cpu(), dt_proj.cpu(), a_coef.cpu(), mode=mode)
        assert got.device == values.device
        np.testing.assert_allclose(got.cpu().numpy(), np.asarray(host), rtol=1e-4, atol=1e-7)


@needs_gpu
def test_scores_into_a_given_tensor_on_a_stream() -> None:
    values, dt_proj, a_coef = normal(1, 100, 2, 64), normal(2, 64), normal(2)
    out = torch.empty(1, 2, 100, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    assert fdma.zoh_scores(values, dt_proj, a_coef, out=out, stream=stream.cuda_stream) is out
    stream.synchronize()
    again = torch.from_dlpack(fdma.zoh_scores(values, dt_proj, a_coef))
    assert torch.equal(out, again)


@needs_gpu
@pytest.mark.parametrize("mode", ["exp", "log"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gradients_are_those_of_the_host(mode: Literal["exp", "log"], dtype: str) -> None:
    values = normal(2, 300, 4, 64).to(getattr(torch, dtype))
    a_coef, dscores = -normal(4, seed=2).abs(), normal(2, 4, 300, seed=3)
    dscores[:, :, ::3] = 0
    for width in (64, 256):
        dt_proj = (normal(4, width, seed=1) / 16).to(values.dtype)
        inputs = (values, dt_proj, a_coef, dscores)
        grads = [torch.empty_like(x, dtype=torch.float32) for x in inputs[:3]]
        names = ("dvalues", "ddt_proj", "da_coef")
        size = fdma.zoh_backward_workspace_nbytes(2, 300, 4, 64, width == 256)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        given: Any = dict(zip(names, grads, strict=True))
        made = fdma.zoh_scores_backward(*inputs, **given, mode=mode, workspace=workspace)
        assert all(x is y for x, y in zip(made, grads, strict=True))
        hosts = [torch.empty(x.shape) for x in grads]
        given = dict(zip(names, hosts, strict=True))
        fdma.zoh_scores_backward(*(x.cpu() for x in inputs), **given, mode=mode)
        for grad, host in zip(grads, hosts, strict=True):
            torch.testing.assert_close(grad.cpu(), host, rtol=2e-4, atol=2e-5)
        assert not grads[0][:, ::3].any()
        again = fdma.zoh_scores_backward(*inputs, mode=mode, ddt_proj=False)
        assert again[1] is None and torch.from_dlpack(again[0]).dtype == values.dtype


@needs_gpu
def test_gradients_in_place_and_in_a_graph() -> None:
    values, dt_proj, a_coef = normal(1, 500, 2, 64), normal(2, 64), normal(2)
    dscores = normal(1, 2, 500, seed=4)
    plain = torch.from_dlpack(fdma.zoh_scores_backward(values, dt_proj, a_coef, dscores)[0])
    dvalues = torch.ones_like(values)
    size = fdma.zoh_backward_workspace_nbytes(1, 500, 2, 64, wide=False)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")

    def add() -> None:
        fdma.zoh_scores_backward(
            values, dt_proj, a_coef, dscores, dvalues=dvalues, other_dvalues=dvalues,
            ddt_proj=False, da_coef=False, workspace=workspace,
        )  # fmt: skip

    add()
    torch.testing.assert_close(dvalues, plain + 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(dvalues, 2 * plain + 1, rtol=1e-5, atol=1e-5)


@needs_gpu
def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dt_proj: expected an array on cuda:0"):
        fdma.zoh_scores(normal(1, 10, 2, 64), normal(2, 64).cpu(), normal(2))


@needs_gpu
@pytest.mark.parametrize(
    "among", ["causal", "causal & documents(lengths=@n)", "prefix(700)", "padding(lengths=@p)"]
)
@pytest.mark.parametrize("w", [1, 100, 3000])
def test_selection_is_that_of_the_host(among: str, w: int) -> None:
    tables = {"n": np.array([700, 2000, 300], np.int32), "p": np.array([2500], np.int32)}
    used = {name: table for name, table in tables.items() if f"@{name}" in among}
    scores = normal(1, 2, 3000)
    topk = fdma.DeviceTopk(fdma.compile(among, q_len=3000, tables=used), w, heads_kv=2)
    kept = topk.select(scores)
    assert torch.from_dlpack(kept).shape == (1, 2, 3000, 2)
    mask = topk.to_mask(kept, heads_q=4)
    expected = fdma.compile(
        f"topk(@s, {w}, among={among})",
        q_len=3000,
        heads=4,
        tables={**used, "s": scores.cpu().numpy()},
    )
    assert mask.counts == expected.counts
    assert np.array_equal(fdma.to_dense(mask), fdma.to_dense(expected))
    assert not topk.saw_nan()


@needs_gpu
def test_selection_reports_nan_once() -> None:
    scores = normal(1, 1, 500)
    scores[0, 0, 17] = float("nan")
    topk = fdma.DeviceTopk(fdma.compile("causal", q_len=500), 20)
    topk.select(scores)
    assert topk.saw_nan()
    assert not topk.saw_nan()


@needs_gpu
def test_selection_in_a_cuda_graph() -> None:
    scores = normal(1, 3, 5000)
    topk = fdma.DeviceTopk(fdma.compile("causal", q_len=5000), 128, heads_kv=3)
    kept = torch.empty(1, 3, 5000, 2, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        topk.select(scores, out=kept)
    for seed in range(3):
        scores.copy_(normal(1, 3, 5000, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        again = torch.from_dlpack(topk.select(scores))
        assert torch.equal(kept, again)


@needs_gpu
def test_masks_beyond_the_class_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="select_topk"):
        fdma.DeviceTopk(fdma.compile("causal & window(64)", q_len=500), 20)


@needs_gpu
def test_decoding_follows_the_host() -> None:
    scores = normal(1, 2, 400)
    topk = fdma.DeviceIncrementalTopk(30, 400, heads_kv=2)
    rows = [fdma.IncrementalTopk(30) for _ in range(2)]
    host = scores.cpu().numpy()
    at = 0
    for count in (250, 1, 1, 40, 1, 107):
        topk.append(scores[..., at : at + count])
        for h, row in enumerate(rows):
            row.append(host[0, h, at : at + count])
        at += count
        intervals = np.asarray(topk.intervals())
        keys, counts = (torch.from_dlpack(x).cpu().numpy() for x in topk.live_keys())
        for h, row in enumerate(rows):
            np.testing.assert_array_equal(intervals[0, h], np.asarray(row.intervals()))
            np.testing.assert_array_equal(keys[0, h, : counts[0, h]], np.asarray(row.live_keys()))
    topk.end_group()
    assert int(torch.from_dlpack(topk.live_keys()[1]).sum()) == 0
