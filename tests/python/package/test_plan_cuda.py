"""fdma.plan on PyTorch's CUDA tensors: given outputs, lengths on the device, graphs."""

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
attend: Any = fdma.attention


def tensors(q_len: int = 300, kv_len: int = 300) -> list[Any]:
    """q, k, v [batch, heads, len, head_dim]."""
    torch.manual_seed(7)
    return [
        torch.randn(2, heads, length, 64, device="cuda").bfloat16()
        for heads, length in ((4, q_len), (2, kv_len), (2, kv_len))
    ]


def test_runs_as_attention_does() -> None:
    q, k, v = tensors()
    plan = fdma.plan("causal & window(100)", q=q, k=k, gradients=True)
    assert (plan.backend, plan.device, plan.dtype) == ("sm90", f"cuda:{q.device.index}", "bfloat16")
    expected, expected_lse = fdma.attention(q, k, v, "causal & window(100)", return_lse=True)
    assert torch.equal(plan.run(q, k, v), expected)
    out, lse = torch.full_like(expected, torch.nan), torch.full_like(expected_lse, torch.nan)
    plan.run(q, k, v, out=out, lse=lse, return_lse=True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    with pytest.raises(ValueError, match=r"q: expected it on cuda:\d, for which the plan was made"):
        plan.run(q.cpu(), k.cpu(), v.cpu())
    shapes: Any = {"q": q.shape, "k": k.shape, "dtype": "bfloat16", "device": q.device}
    assert fdma.plan("causal & window(100)", **shapes)._forward is plan._forward


def test_lengths_and_documents_lie_on_the_device() -> None:
    q, k, v = tensors()
    plan = fdma.plan("causal", q=q, k=k, closed_form=True)
    lengths = torch.tensor([120, 300], dtype=torch.int32, device="cuda")
    out, lse = plan.run(q, k, v, q_lens=lengths, kv_lens=lengths, return_lse=True)
    alone = attend(*(x[:1, :, :120] for x in (q, k, v)), "causal")
    torch.testing.assert_close(out[:1, :, :120], alone, atol=1e-2, rtol=1e-2)
    assert not out[0, :, 120:].any() and (lse[0, :, 120:] == -torch.inf).all()
    borders = torch.tensor([0, 50, 300], dtype=torch.int32, device="cuda")
    packed = plan.run(q, k, v, cu_seqlens_q=borders, cu_seqlens_k=borders)
    alone = attend(*(x[:, :, 50:].contiguous() for x in (q, k, v)), "causal")
    torch.testing.assert_close(packed[:, :, 50:], alone, atol=1e-2, rtol=1e-2)


def test_a_graph_reads_lengths_at_every_replay() -> None:
    q, k, v = tensors(q_len=1)
    plan = fdma.plan("causal", q=q, k=k, closed_form=True)
    lengths = torch.tensor([10, 20], dtype=torch.int32, device="cuda")
    plan.run(q, k, v, kv_lens=lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = plan.run(q, k, v, kv_lens=lengths)
    for given in ([300, 40], [10, 299]):
        lengths.copy_(torch.tensor(given))
        graph.replay()
        expected = plan.run(q, k, v, kv_lens=lengths)
        assert torch.equal(out, expected)
