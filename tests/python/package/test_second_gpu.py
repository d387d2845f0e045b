"""Tests tensors on a second GPU while the first one is current.

The results equal those on the first GPU in bits, because both GPUs are of one kind and so have the
same plans and the same order of sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fdma_module import fdma as core

# isort: split
import fdma

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.skipif(
    "sm90" not in core.available_backends() or torch.cuda.device_count() < 2,
    reason="needs two GPUs of compute capability 9.0",
)
DEVICES = ("cuda:0", "cuda:1")
SPEC = "causal & (window(100) | sink(4))"


@pytest.fixture(autouse=True)
def first_stays_current() -> Iterator[None]:
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


def inputs() -> list[Any]:
    """Returns q, k, v [batch, heads, len, head_dim], dt_proj, a_coef and dout on the host."""
    generator = torch.Generator().manual_seed(9)
    rows = [
        torch.randn(2, heads, 300, 64, generator=generator).to(torch.bfloat16)
        for heads in (4, 2, 2)
    ]
    dt_proj = torch.randn(2, 64, generator=generator) / 8
    dout = torch.randn(2, 4, 300, 64, generator=generator).to(torch.bfloat16)
    return [*rows, dt_proj, torch.tensor([-0.7, -1.1]), dout]


def on(device: str, tensors: list[Any]) -> list[Any]:
    return [x.to(device) for x in tensors]


def test_attention_and_its_gradients() -> None:
    *rows, _, _, dout = inputs()
    bias = torch.randn(2, 2, 300, generator=torch.Generator().manual_seed(1))
    for mask in (fdma.compile(SPEC, 300, 300, 2, 4), SPEC):
        results = []
        for device in DEVICES:
            given = [x.requires_grad_() for x in on(device, rows)]
            attend: Any = fdma.attention
            out, lse = attend(
                *given, mask, key_bias=bias.to(device), return_lse=True, deterministic=True
            )
            found = (out, lse, *torch.autograd.grad(out, given, dout.to(device)))
            assert all(x.device == torch.device(device) for x in found)
            results.append([x.detach().cpu() for x in found])
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_streams_are_those_of_the_tensors_device() -> None:
    q, k, v = on("cuda:1", inputs()[:3])
    expected = fdma.attention(q, k, v, SPEC)
    torch.cuda.synchronize(1)
    stream = torch.cuda.Stream("cuda:1")
    with torch.cuda.stream(stream):
        late = torch.zeros_like(q)
        torch.cuda._sleep(20_000_000)  # q is there only after some milliseconds
        late.copy_(q)
        with torch.cuda.device(0):
            out = fdma.attention(late, k, v, SPEC)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_graphs() -> None:
    q, k, v = on("cuda:1", inputs()[:3])
    expected = fdma.attention(q, k, v, SPEC)
    static = torch.zeros_like(q)
    torch.cuda.synchronize(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream("cuda:1")):
        out = fdma.attention(static, k, v, SPEC)
    static.copy_(q)
    graph.replay()
    torch.cuda.synchronize(1)
    assert torch.equal(out, expected)


def test_uploaded_plans() -> None:
    mask = core.compile(SPEC, 300)
    made = core.make_plan(
        mask, batch=2, heads_q=4, heads_kv=2, head_dim=64, dtype="bfloat16", backend="sm90"
    )
    results = []
    for index, device in enumerate(DEVICES):
        plan = core.prepare(made, device=index, waits=True)
        assert plan.device == index and f"on {device}" in repr(plan)
        q, k, v = (x.transpose(1, 2).contiguous() for x in on(device, inputs()[:3]))
        out, lse = (torch.from_dlpack(x) for x in core.attention(q, k, v, plan))
        assert out.device == lse.device == torch.device(device)
        results.append((out.cpu(), lse.cpu()))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    with pytest.raises(ValueError, match="expected an array on cuda:1, where the plan is"):
        core.attention(q.to("cuda:0"), k.to("cuda:0"), v.to("cuda:0"), plan)
    with pytest.raises(ValueError, match="k: expected an array on cuda:1"):
        core.attention(q, k.to("cuda:0"), v, plan)


def test_dynamic_mask_attention_and_its_gradients() -> None:
    *tensors, dout = inputs()
    results = []
    for device in DEVICES:
        given = [x.requires_grad_() for x in on(device, tensors)]
        attend: Any = fdma.dynamic_mask_attention
        out, lse = attend(*given, 60, return_lse=True)
        found = (out, lse, *torch.autograd.grad(out, given, dout.to(device)))
        assert all(x.device == torch.device(device) for x in found)
        results.append([x.detach().double().cpu() for x in found])
    for i, (one, other) in enumerate(zip(*results, strict=True)):
        # Sums of gradients have no fixed order.
        limit = 0.01 * float(one.abs().max()) if i > 1 else 0.0
        assert float((one - other).abs().max()) <= limit


def test_scores_and_selection() -> None:
    _, _, v, dt_proj, a_coef, _ = inputs()
    cells = []
    for device in DEVICES:
        scores: Any = fdma.zoh_scores(*on(device, [v, dt_proj, a_coef]))
        assert scores.device == torch.device(device)
        cells.append(fdma.select_topk(scores, 60, heads=4).to_dense())
    assert np.array_equal(cells[0], cells[1]) and cells[0].any()


def test_cupy() -> None:
    cupy: Any = pytest.importorskip("cupy", reason="CuPy is not installed")
    *rows, dt_proj, a_coef, _ = [x.float().numpy() for x in inputs()]
    results = []
    for index in range(2):
        with cupy.cuda.Device(index):
            given = [cupy.asarray(x.astype(np.float16)) for x in rows]
            weights = [cupy.asarray(x) for x in (dt_proj, a_coef)]
        attend: Any = fdma.attention
        found = [*attend(*given, SPEC, return_lse=True)]
        learned: Any = fdma.dynamic_mask_attention
        found += learned(*given, *weights, 60, return_lse=True)
        assert all(x.device.id == index for x in found)
        assert cupy.cuda.Device().id == 0
        results.append([cupy.asnumpy(x) for x in found])
    assert all(np.array_equal(*pair) for pair in zip(*results, strict=True))


def test_jax() -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax: Any = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    results = []
    for device in jax.devices()[:2]:
        given = [jax.device_put(x.float().numpy().astype(np.float16), device) for x in inputs()[:3]]
        attend: Any = fdma.attention
        out = attend(*given, SPEC, backend="sm90")
        assert out.devices() == {device}
        results.append(np.asarray(out))
    torch.cuda.set_device(0)  # JAX leaves the GPU on which it last computed as the current one
    assert np.array_equal(results[0], results[1])
