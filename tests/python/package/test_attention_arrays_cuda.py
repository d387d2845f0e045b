"""Tests fdma.attention on arrays of CuPy and JAX on a GPU: results, streams, memory."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest
from fdma_module import fdma as core

# isort: split
import fdma

pytestmark = pytest.mark.skipif(
    "sm90" not in core.available_backends(), reason="no GPU of compute capability 9.0"
)
attend: Any = fdma.attention
SPEC = "causal & (window(100) | sink(4))"


def host_arrays(q_len: int = 300, kv_len: int = 420) -> list[Any]:
    """Returns arrays [batch, heads, len, head_dim] with eight query heads and two KV heads."""
    random = np.random.default_rng(5)
    return [
        random.standard_normal((2, heads, length, 64)).astype(np.float16)
        for heads, length in ((8, q_len), (2, kv_len), (2, kv_len))
    ]


def definition(q: Any, k: Any, v: Any, cells: Any, bias: Any = None) -> tuple[Any, Any]:
    """Returns (out, lse) in float64 of a mask in which every row has keys."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    logits = q @ k.repeat(4, 1).swapaxes(2, 3) * q.shape[-1] ** -0.5
    if bias is not None:
        logits = logits + bias.astype(np.float64).repeat(4, 1)[:, :, None]
    logits = np.where(cells, logits, -np.inf)
    largest = logits.max(-1, keepdims=True)
    weights = np.exp(logits - largest)
    total = weights.sum(-1, keepdims=True)
    return weights / total @ v.repeat(4, 1), (np.log(total) + largest)[..., 0]


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture
def jax() -> Any:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    module: Any = pytest.importorskip("jax", reason="JAX is not installed")
    if module.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    return module


def check(out: Any, lse: Any, mask: fdma.BlockMask, bias: Any, inputs: list[Any]) -> None:
    """Compares out and lse, as NumPy arrays with heads first, with the definition."""
    q, k, v = inputs
    expected, expected_lse = definition(q, k, v, mask.to_dense(), bias)
    assert out.shape == expected.shape and np.abs(out - expected).max() < 1e-2
    assert lse.shape == expected_lse.shape and np.abs(lse - expected_lse).max() < 1e-2


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_cupy_arrays(cupy: Any, layout: str) -> None:
    inputs = host_arrays()
    mask = fdma.compile(SPEC, 300, 420)
    bias = np.random.default_rng(6).standard_normal((2, 2, 420))
    on_gpu = [cupy.asarray(x) for x in inputs]
    given = on_gpu if layout == "bhsd" else [x.swapaxes(1, 2) for x in on_gpu]
    for some in (mask, SPEC):
        out, lse = attend(*given, some, key_bias=cupy.asarray(bias), layout=layout, return_lse=True)
        assert isinstance(out, cupy.ndarray) and out.dtype == np.float16
        out = out if layout == "bhsd" else out.swapaxes(1, 2)
        check(cupy.asnumpy(out), cupy.asnumpy(lse), mask, bias, inputs)
    with pytest.raises(ValueError, match='backend: "cpu" computes on the host'):
        attend(*given, layout=layout, backend="cpu")


def test_cupy_runs_on_its_current_stream(cupy: Any) -> None:
    q, k, v = (cupy.asarray(x) for x in host_arrays())
    expected = attend(q, k, v, SPEC)
    cupy.cuda.Device().synchronize()
    late = cupy.zeros_like(q)
    large = cupy.ones((4096, 4096), np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(20):  # q is there only after some milliseconds
            large = large @ large * 0
        late += q
        out = attend(late, k, v, SPEC)
    stream.synchronize()
    assert (out == expected).all()


def test_cupy_captures_a_graph(cupy: Any) -> None:
    q, k, v = (cupy.asarray(x) for x in host_arrays())
    expected = attend(q, k, v, SPEC)
    static = cupy.zeros_like(q)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        attend(static, k, v, SPEC)
        stream.synchronize()
        stream.begin_capture()
        out = attend(static, k, v, SPEC)
        graph = stream.end_capture()
        static[...] = q
        graph.launch(stream)
    stream.synchronize()
    assert (out == expected).all()


def test_cupy_leaks_nothing(cupy: Any) -> None:
    q, k, v = (cupy.asarray(x) for x in host_arrays())
    attend(q, k, v, SPEC, return_lse=True)
    gc.collect()
    used = cupy.get_default_memory_pool().used_bytes()
    for _ in range(30):
        attend(q, k, v, SPEC, return_lse=True)
    assert cupy.get_default_memory_pool().used_bytes() == used


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_jax_arrays(jax: Any, layout: str) -> None:
    inputs = host_arrays()
    mask = fdma.compile(SPEC, 300, 420)
    bias = np.random.default_rng(6).standard_normal((2, 2, 420)).astype(np.float32)
    on_gpu = [jax.numpy.asarray(x) for x in inputs]
    given = on_gpu if layout == "bhsd" else [x.swapaxes(1, 2) for x in on_gpu]
    for _ in range(3):
        out, lse = attend(
            *given,
            mask,
            key_bias=jax.numpy.asarray(bias),
            layout=layout,
            return_lse=True,
            backend="sm90",
        )
        assert isinstance(out, jax.Array) and out.devices() == on_gpu[0].devices()
        out = out if layout == "bhsd" else out.swapaxes(1, 2)
        check(np.asarray(out), np.asarray(lse), mask, bias, inputs)


def test_jax_waits_for_what_is_still_computed(jax: Any) -> None:
    q, k, v = (jax.numpy.asarray(x) for x in host_arrays())
    expected = np.asarray(attend(q, k, v, SPEC))
    large = jax.numpy.ones((4096, 4096), np.float32)
    for _ in range(20):
        large = large @ large * 0
    late = q + large[0, 0].astype(q.dtype)
    assert np.array_equal(np.asarray(attend(late, k, v, SPEC)), expected)
