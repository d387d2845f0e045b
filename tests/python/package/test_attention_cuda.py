"""Tests fdma.attention on a Hopper GPU under PyTorch.

The tests cover results, torch.compile, streams, graphs, autocast and gradients.
"""

from __future__ import annotations

import gc
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
SPECS = ["true", "causal", "causal & (window(100) | sink(4))", "k <= pos & (h < 3 | q % 7 < 3)"]


def tensors(
    dtype: str = "bfloat16", head_dim: int = 128, q_len: int = 300, kv_len: int = 420
) -> list[Any]:
    torch.manual_seed(3)
    return [
        torch.randn(2, heads, length, head_dim, device="cuda").to(getattr(torch, dtype))
        for heads, length in ((8, q_len), (2, kv_len), (2, kv_len))
    ]


def definition(q: Any, k: Any, v: Any, mask: fdma.BlockMask, bias: Any = None) -> Any:
    """Returns attention in float64; it is differentiable if every row has keys."""
    q, k, v = (x.double() for x in (q, k, v))
    logits = q @ k.repeat_interleave(4, 1).mT * q.shape[-1] ** -0.5
    if bias is not None:
        logits = logits + bias.double().repeat_interleave(4, 1)[:, :, None]
    cells = torch.from_numpy(mask.to_dense()).to(q.device)
    logits = logits.masked_fill(~cells, -torch.inf)
    weights = logits.softmax(-1).masked_fill(~cells, 0)
    return weights @ v.repeat_interleave(4, 1), logits.logsumexp(-1)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("spec", SPECS)
def test_equals_the_definition(spec: str, dtype: str, head_dim: int) -> None:
    q, k, v = tensors(dtype, head_dim)
    mask = fdma.compile(spec, 300, 420, 2, 8)
    bias = torch.randn(2, 2, 420, device="cuda")
    expected, expected_lse = definition(q, k, v, mask, bias)
    for given in (mask, spec):
        out, lse = attend(q, k, v, given, key_bias=bias, return_lse=True, backend="sm90")
        assert out.dtype == q.dtype and (out - expected).abs().max() < 3e-2
        torch.testing.assert_close(lse.double(), expected_lse, atol=1e-2, rtol=0)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    for some in (turned, [x.contiguous() for x in turned]):
        again = attend(*some, mask, key_bias=bias, layout="bshd")
        assert torch.equal(again.transpose(1, 2), out)


def test_strides_that_no_kernel_reads_are_copied() -> None:
    q, k, v = tensors()
    expected = attend(q, k, v, "causal")
    wide = torch.zeros(2, 8, 300, 129, device="cuda", dtype=q.dtype)
    wide[..., 1:] = q
    assert torch.equal(attend(wide[..., 1:], k.mT.contiguous().mT, v, "causal"), expected)


def test_lengths_per_element() -> None:
    q, k, v = tensors(q_len=420)
    mask = fdma.compile("causal", [120, 420], [120, 420])
    out, lse = attend(q, k, v, mask, return_lse=True)
    assert not out[0, :, 120:].any() and (lse[0, :, 120:] == -torch.inf).all()
    alone = attend(q[:1, :, :120], k[:1, :, :120], v[:1, :, :120], "causal")
    torch.testing.assert_close(out[:1, :, :120], alone, atol=2e-2, rtol=0)


def test_streams_and_graphs() -> None:
    q, k, v = tensors()
    expected = attend(q, k, v, "causal")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        late = q * 1
        out = attend(late, k, v, "causal")
    stream.synchronize()
    assert torch.equal(out, expected)
    graph = torch.cuda.CUDAGraph()
    static = torch.zeros_like(q)
    with torch.cuda.graph(graph):
        out = attend(static, k, v, "causal")
    static.copy_(q)
    for window in range(1, 40):  # other plans are made and dropped; the captured plan stays
        attend(q, k, v, f"causal & window({window})")
    graph.replay()
    assert torch.equal(out, expected)


def test_a_capture_needs_a_plan() -> None:
    q, k, v = tensors()
    torch.cuda.synchronize()
    with (
        pytest.raises(RuntimeError, match="make one call with them before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        attend(q, k, v, "causal & window(333)")


def test_compile_and_autocast() -> None:
    torch._dynamo.reset()
    q, k, v = tensors()

    def layer(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return attend(q * 2, k, v, mask).transpose(1, 2).flatten(2).relu()

    function = torch.compile(layer, fullgraph=True)
    for window in (30, 60, 90):
        mask = fdma.compile(f"causal & window({window})", 300, 420)
        torch.testing.assert_close(
            function(q, k, v, mask), layer(q, k, v, mask), atol=2e-2, rtol=2e-2
        )
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = attend(q.float(), k, v.half(), "causal")
    assert out.dtype == torch.bfloat16
    torch._dynamo.reset()


@pytest.mark.parametrize("has_bias", [False, True])
def test_opcheck(has_bias: bool) -> None:
    q, k, v = tensors()
    attend(q, k, v)  # this call registers the operators
    bias = torch.randn(2, 2, 420, device="cuda") if has_bias else None
    torch.library.opcheck(
        torch.ops.fdma.attention, (q, k, v, "causal", 0, 0.0, True, False, -1, False, bias)
    )


def test_what_the_gpu_lacks_is_named() -> None:
    q, k, v = tensors("float32")
    with pytest.raises(NotImplementedError, match="float32"):
        attend(q, k, v)
    q, k, v = tensors()
    with pytest.raises(ValueError, match='"cpu" computes on the host, q is on cuda:0'):
        attend(q, k, v, backend="cpu")
    with pytest.raises(ValueError, match="k: expected a tensor on cuda:0"):
        attend(q, k.cpu(), v)


@pytest.mark.parametrize("spec", SPECS[:3])
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients(spec: str, deterministic: bool) -> None:
    q, k, v = (x.requires_grad_() for x in tensors())
    bias = torch.randn(2, 2, 420, device="cuda", requires_grad=True)
    mask = fdma.compile(spec, 300, 420)
    out, lse = attend(q, k, v, mask, key_bias=bias, return_lse=True, deterministic=deterministic)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    try:
        grads = torch.autograd.grad((out, lse), (q, k, v, bias), (dout, dlse))
    except NotImplementedError as error:
        pytest.skip(f"no gradients yet: {error}")
    exact = definition(q, k, v, mask, bias)
    expected = torch.autograd.grad(exact, (q, k, v, bias), (dout.double(), dlse.double()))
    for grad, wanted in zip(grads, expected, strict=True):
        assert (grad - wanted).abs().max() < 2e-2 * wanted.abs().max()


def test_no_leaks() -> None:
    q, k, v = tensors()
    mask = fdma.compile("causal", 300, 420)
    attend(q, k, v, mask, return_lse=True)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(50):
        attend(q, k, v, mask, return_lse=True)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before[0]
    assert torch.cuda.mem_get_info()[0] >= before[1] - (64 << 20)


def test_masks_that_change_every_step_share_workspaces() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(q_len=2000, kv_len=2000))

    def step(window: int) -> None:
        attend(q, k, v, fdma.compile(f"causal & window({window})", 2000)).sum().backward()
        q.grad = k.grad = v.grad = None

    for window in range(1, 4):
        step(window)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for window in range(4, 40):  # each gradient has 17 MB
        step(window)
    torch.cuda.synchronize()
    # Each plan holds one number, from which tensors like the log-sum-exp are made.
    assert torch.cuda.memory_allocated() <= before[0] + 40 * 2 * 512
    assert torch.cuda.mem_get_info()[0] >= before[1] - (64 << 20)
