"""Every part of a score that a GPU computes, against the definition; dropout in CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
from fdma_module import fdma as core

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

# isort: split
import fdma  # noqa: E402
import score_oracle  # noqa: E402
from test_scores import PARTS, SPEC, cells, leaves, part, tensors  # noqa: E402

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or "sm90" not in core.available_backends(),
    reason="no Hopper GPU, or a build without kernels for it",
)
pytestmark = needs_gpu
attend: Any = fdma.attention
define: Any = score_oracle.attention


def on_gpu(words: dict[str, Any]) -> dict[str, Any]:
    moved = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in words.items()}
    if "relative" in words:
        moved["relative"] = words["relative"][0].cuda(), words["relative"][1]
    return moved


SUMMED = {"bias of kv heads", "bias of keys", "relative", "one table"}
"""Parts of which several pairs share a number: their gradients have no fixed order on a GPU."""


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_results_and_gradients_of_each_part(name: str, dtype: Any, deterministic: bool) -> None:
    given = [x.to(dtype) for x in tensors()]
    mine = [x.cuda().requires_grad_() for x in given]
    words, of_score = leaves(on_gpu(part(name)))
    out, lse = attend(*mine, SPEC, return_lse=True, deterministic=deterministic, **words)
    theirs = [x.double().requires_grad_() for x in given]
    exact, of_exact = leaves(part(name))
    expected, expected_lse, _ = define(*theirs, cells(), **exact)
    torch.testing.assert_close(out.cpu().double(), expected, atol=3e-2, rtol=3e-2)
    torch.testing.assert_close(lse.cpu().double(), expected_lse, atol=1e-3, rtol=1e-3)
    dout = torch.randn(out.shape).to(dtype)
    if deterministic and name in SUMMED:
        with pytest.raises(NotImplementedError, match="added in no fixed order"):
            torch.autograd.grad(out, [*mine, *of_score], dout.cuda())
        return
    grads = torch.autograd.grad(out, [*mine, *of_score], dout.cuda())
    wanted = torch.autograd.grad(expected, [*theirs, *of_exact], dout.double())
    for grad, want in zip(grads, wanted, strict=True):
        largest = max(1.0, float(want.abs().max()))
        close = {"atol": 2e-2, "rtol": 0}
        torch.testing.assert_close(grad.cpu().double() / largest, want.double() / largest, **close)


def test_a_call_advances_the_offset_of_the_generator_by_4() -> None:
    q, k, v = (x.cuda().bfloat16() for x in tensors())
    own = torch.Generator("cuda").manual_seed(5)
    before = own.get_offset()
    first = attend(q, k, v, SPEC, dropout_p=0.4, generator=own)
    assert own.get_offset() == before + 4
    fixed = attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=(5, before))
    assert torch.equal(first, fixed)
    assert not torch.equal(first, attend(q, k, v, SPEC, dropout_p=0.4, generator=own))
    torch.manual_seed(5)
    assert torch.equal(attend(q, k, v, SPEC, dropout_p=0.4), first)


def test_backward_drops_the_pairs_of_forward() -> None:
    q, k, v = (x.cuda().bfloat16() for x in tensors())
    value = v.clone().requires_grad_()
    out = attend(q, k, value, SPEC, dropout_p=0.4)
    # The result is linear in v, so that its sum is the product of v and its gradient.
    (grad,) = torch.autograd.grad(out.float().sum(), value)
    product = (grad.double() * v.double()).sum()
    assert float(product) == pytest.approx(float(out.double().sum()), rel=2e-2, abs=1.0)


def test_graphs_draw_anew_at_each_replay() -> None:
    q, k, v = (x.cuda().bfloat16() for x in tensors())
    attend(q, k, v, SPEC, dropout_p=0.4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q, k, v, SPEC, dropout_p=0.4)
    results = []
    for _ in range(2):
        graph.replay()
        results.append(out.clone())
    assert not torch.equal(*results)


def test_graphs_read_a_seed_that_changes() -> None:
    q, k, v = (x.cuda().bfloat16() for x in tensors())
    seeds = torch.tensor([1, 2], device="cuda")
    attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=seeds)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=seeds)
    for numbers in ((1, 2), (7, 1 << 40)):
        seeds.copy_(torch.tensor(numbers))
        graph.replay()
        expected = attend(q, k, v, SPEC, dropout_p=0.4, dropout_seed=numbers)
        assert torch.equal(out, expected)


def test_cpu_and_gpu_drop_the_same_pairs() -> None:
    q, k, v = (x.bfloat16() for x in tensors())
    ones = torch.ones_like(v)
    words: Any = {"dropout_p": 0.4, "dropout_seed": (3, 4)}
    host = attend(q, k, ones, SPEC, **words)
    device = attend(*(x.cuda() for x in (q, k, ones)), SPEC, **words)
    torch.testing.assert_close(device.cpu(), host, atol=2e-2, rtol=2e-2)
