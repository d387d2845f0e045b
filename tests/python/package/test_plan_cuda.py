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


def gradients(results: Any, leaves: Any) -> Any:
    out, lse = results
    torch.manual_seed(9)
    seen = torch.where(lse > -torch.inf, lse, 0)
    return torch.autograd.grad((out * torch.randn_like(out)).sum() + seen.sum() / 8, leaves)


def expect_gradients(got: Any, expected: Any) -> None:
    for x, y in zip(got, expected, strict=True):
        assert (x - y).float().norm() <= 0.01 * y.float().norm() and y.any()


@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_in_closed_form(deterministic: bool) -> None:
    leaves = [x.requires_grad_() for x in tensors()]
    for spec in ("causal", "causal & window(100)", "causal & (window(9) | sink(4))", "prefix(70)"):
        plan = fdma.plan(
            spec, q=leaves[0], k=leaves[1], closed_form=True, gradients=True,
            deterministic=deterministic,
        )  # fmt: skip
        words: Any = {"deterministic": deterministic, "return_lse": True}
        expected = gradients(attend(*leaves, spec, **words), leaves)
        got = gradients(plan.run(*leaves, **words), leaves)
        expect_gradients(got, expected)
        if deterministic:
            again = gradients(plan.run(*leaves, **words), leaves)
            assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
        lengths = [[120, 300], [250, 170]]
        on_gpu = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in lengths]
        short = gradients(plan.run(*leaves, q_lens=on_gpu[0], kv_lens=on_gpu[1], **words), leaves)
        mask = fdma.compile(spec, lengths[0], lengths[1])
        expect_gradients(short, gradients(attend(*leaves, mask, **words), leaves))
        assert not short[0][0, :, 120:].any()
        assert not any(x[0, :, 250:].any() or x[1, :, 170:].any() for x in short[1:])


def test_gradients_of_documents_in_closed_form() -> None:
    leaves = [x.requires_grad_() for x in tensors()]
    plan = fdma.plan("causal", q=leaves[0], k=leaves[1], closed_form=True)
    for borders in ([0, 50, 300], [0, 128, 129, 300]):
        on_gpu = torch.tensor(borders, dtype=torch.int32, device="cuda")
        mask = fdma.compile(fdma.causal() & fdma.documents(cu_seqlens=borders), 300)
        expected = gradients(attend(*leaves, mask, return_lse=True), leaves)
        out = plan.run(*leaves, cu_seqlens_q=on_gpu, return_lse=True)
        expect_gradients(gradients(out, leaves), expected)


def test_a_graph_of_gradients_reads_lengths_at_every_replay() -> None:
    leaves = [x.requires_grad_() for x in tensors()]
    plan = fdma.plan("causal", q=leaves[0], k=leaves[1], closed_form=True, gradients=True)
    lengths = torch.tensor([100, 300], dtype=torch.int32, device="cuda")
    dout = torch.randn_like(leaves[0])

    def step() -> Any:
        out = plan.run(*leaves, q_lens=lengths, kv_lens=lengths)
        return torch.autograd.grad(out, leaves, dout)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for given in ([300, 40], [7, 299]):
        lengths.copy_(torch.tensor(given))
        fdma.clear_plans()  # the plan object keeps its plans, and they their captured workspaces
        graph.replay()
        torch.cuda.synchronize()
        expect_gradients(captured, step())
