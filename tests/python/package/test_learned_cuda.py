"""Tests fdma.dynamic_mask_attention under autograd on a Hopper GPU.

The tests cover the definition, graphs and layouts.
"""

from __future__ import annotations

from typing import Any

import pytest
from fdma_module import fdma as core

# isort: split
import fdma
from fdma.attention.plans import plans

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.skipif(
    "sm90" not in core.available_backends() or not torch.cuda.is_available(),
    reason="no GPU of compute capability 9.0",
)
attend: Any = fdma.dynamic_mask_attention


def inputs(length: int = 700, head_dim: int = 64, wide: bool = False) -> list[Any]:
    """Returns q, k, v [batch, heads, length, head_dim], dt_proj and a_coef."""
    torch.manual_seed(5)
    made = [
        torch.randn(2, heads, length, head_dim, device="cuda").to(torch.bfloat16)
        for heads in (4, 2, 2)
    ]
    columns = 2 * head_dim if wide else head_dim
    made.append(torch.randn(2, columns, device="cuda") / columns**0.5)
    made.append(torch.tensor([-0.7, -1.1], device="cuda"))
    return [x.requires_grad_() for x in made]


def relative_error(got: Any, wanted: Any) -> float:
    wanted = wanted.double()
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("bias", ["exp", "log", "none"])
@pytest.mark.parametrize("w", [60, 700])
def test_gradients_are_those_of_the_steps(bias: str, w: int, wide: bool) -> None:
    given = inputs(wide=wide)
    q, k, v, dt_proj, a_coef = given
    out, lse = attend(*given, w, bias=bias, return_lse=True)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    got = torch.autograd.grad((out, lse), given, (dout, dlse), allow_unused=True)
    scores: Any = fdma.zoh_scores(v, dt_proj, a_coef, "log" if bias == "log" else "exp")
    mask = fdma.select_topk(scores, w, heads=4)
    cells = torch.from_numpy(mask.to_dense()).cuda()
    exact = [x.detach().double().requires_grad_() for x in given]
    q, k, v, dt_proj, a_coef = exact
    values = v.transpose(1, 2)
    terms = ("bkf,hf->bhk", values.flatten(2)) if wide else ("bkhd,hd->bhk", values)
    log = torch.nn.functional.softplus(torch.einsum(terms[0], terms[1], dt_proj))
    log = log * a_coef[:, None]
    logits = q @ k.repeat_interleave(2, 1).mT / 8
    if bias != "none":
        added = log if bias == "log" else log.exp()
        logits = logits + added.repeat_interleave(2, 1)[:, :, None]
    logits = logits.masked_fill(~cells, -torch.inf)
    by_definition = logits.softmax(-1) @ v.repeat_interleave(2, 1)
    wanted = torch.autograd.grad(
        (by_definition, logits.logsumexp(-1)),
        exact,
        (dout.double(), dlse.double()),
        allow_unused=True,
    )
    assert relative_error(out, by_definition) < 0.01
    for name, grad, want in zip(("q", "k", "v", "dt_proj", "a_coef"), got, wanted, strict=True):
        if want is None:
            assert grad is None or not grad.any(), name
        else:
            assert grad.shape == want.shape and relative_error(grad, want) < 0.03, name
    kept = cells[:, ::2].any(2)
    assert not got[1][~kept].any()


def test_layouts_and_strides() -> None:
    q, k, v, dt_proj, a_coef = (x.detach() for x in inputs())
    made = [x.clone().requires_grad_() for x in (q, k, v, dt_proj, a_coef)]
    out = attend(*made, 60)
    dout = torch.randn_like(out)
    wanted = torch.autograd.grad(out, made, dout)
    packed = torch.cat((q, k, v), 1).transpose(1, 2).contiguous().requires_grad_()
    parts = packed.split((4, 2, 2), 2)
    out = attend(*parts, *made[3:], 60, layout="bshd")
    got = torch.autograd.grad(out, (packed, *made[3:]), dout.transpose(1, 2).contiguous())
    assert relative_error(got[0].transpose(1, 2), torch.cat(wanted[:3], 1)) < 0.01
    for grad, want in zip(got[1:], wanted[3:], strict=True):
        assert relative_error(grad, want) < 0.01


def test_a_step_is_captured() -> None:
    given = inputs()
    dout = torch.randn_like(given[0])

    def step() -> Any:
        return torch.autograd.grad(attend(*given, 60), given, dout)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            expected = step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, expected, strict=True):
        assert relative_error(got, want) < 0.01
    with torch.no_grad():
        given[2].mul_(-1)  # other values have other scores
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, step(), strict=True):
        assert relative_error(got, want) < 0.01


def test_a_captured_call_keeps_its_workspace_and_its_place_in_the_cache() -> None:
    given = [x.detach() for x in inputs()]
    expected = attend(*given, 60)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attend(*given, 60)
    pinned = [entry for entry in plans._entries.values() if entry.is_pinned]
    assert any(isinstance(entry.plan, core.DynamicMaskAttention) for entry in pinned)
    for _ in range(2):
        core.release_workspaces()
        attend(*(x.detach() for x in inputs(2300)), 600)
        captured.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, expected)


@pytest.mark.parametrize("length", [300, 2300])
def test_deterministic_calls_have_the_same_bits(length: int) -> None:
    given = inputs(length)
    dout = torch.randn_like(given[0])

    def step(deterministic: bool) -> Any:
        result = attend(*given, 150, deterministic=deterministic)
        return torch.autograd.grad(result, given, dout)

    ordinary, expected = step(False), step(True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(True)
    graph.replay()
    torch.cuda.synchronize()
    for got in (step(True), captured):
        for a, b, c in zip(got, expected, ordinary, strict=True):
            assert torch.equal(a, b)
            assert relative_error(a, c) < 0.01
