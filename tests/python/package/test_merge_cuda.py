"""fdma.merge on PyTorch's CUDA tensors, against the same on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from fdma_module import fdma as core

# isort: split
import fdma

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.skipif(
    "sm90" not in core.available_backends() or not torch.cuda.is_available(),
    reason="no GPU of compute capability 9.0",
)


def parts(dtype: Any, head_dim: int = 64, count: int = 3) -> list[Any]:
    torch.manual_seed(5)
    made = []
    for i in range(count):
        lse = 3 * torch.randn(2, 4, 77)
        lse[:, :, i::7] = -torch.inf
        made.append((torch.randn(2, 4, 77, head_dim).to(dtype), lse))
    return made


def on_gpu(made: list[Any]) -> list[Any]:
    return [(out.cuda(), lse.cuda()) for out, lse in made]


@pytest.mark.parametrize("head_dim", [64, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_is_that_of_the_cpu(dtype: Any, head_dim: int) -> None:
    host = parts(dtype, head_dim, 9)
    sinks = torch.randn(4)
    out, lse = fdma.merge(host, sinks)
    given, given_lse = fdma.merge(on_gpu(host), sinks.cuda())
    assert given.is_cuda
    torch.testing.assert_close(given.cpu(), out)
    torch.testing.assert_close(given_lse.cpu(), lse)
    turned = [(x.transpose(1, 2), y) for x, y in on_gpu(host)]
    swapped, _ = fdma.merge(turned, sinks.cuda(), layout="bshd")
    assert torch.equal(swapped.transpose(1, 2), given)


def test_gradients_are_those_of_the_cpu() -> None:
    def gradients(device: str) -> Any:
        tensors = [x.to(device).requires_grad_() for part in parts(torch.float32) for x in part]
        sinks = torch.linspace(-1, 1, 4, device=device).requires_grad_()
        out, lse = fdma.merge(list(zip(tensors[::2], tensors[1::2], strict=True)), sinks)
        loss = out.square().sum() + torch.where(lse == -torch.inf, 0, lse).sum()
        return torch.autograd.grad(loss, [*tensors, sinks])

    for got, wanted in zip(gradients("cuda"), gradients("cpu"), strict=True):
        # A gradient of lse adds up a row of out in float32.
        torch.testing.assert_close(got.cpu(), wanted, atol=1e-4, rtol=1e-4)


def test_a_graph_captures_it_on_the_current_stream() -> None:
    given = on_gpu(parts(torch.bfloat16))
    expected, expected_lse = fdma.merge(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = fdma.merge(given)
    out.zero_(), lse.zero_()
    graph.replay()
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


def test_parts_of_attention_on_the_gpu() -> None:
    torch.manual_seed(6)
    q, k, v = (torch.randn(1, 4, n, 64, device="cuda").bfloat16() for n in (200, 300, 300))
    whole, whole_lse = fdma.attention(q, k, v, return_lse=True)
    halves = [
        fdma.attention(q, k[:, :, keys], v[:, :, keys], return_lse=True)
        for keys in (slice(128), slice(128, 300))
    ]
    out, lse = fdma.merge(halves)
    torch.testing.assert_close(out, whole, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, whole_lse, atol=1e-3, rtol=1e-3)
