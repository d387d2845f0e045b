"""Tests the core module fdma._fdma on PyTorch's CPU tensors. PyTorch is required."""

from __future__ import annotations

from typing import Any

import pytest
from fdma_module import fdma

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

TOLERANCE = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 3e-2}


def tensors(dtype: Any, requires_grad: bool = False) -> list[Any]:
    torch.manual_seed(1)
    return [
        torch.randn(2, 200, heads, 64).to(dtype).requires_grad_(requires_grad)
        for heads in (4, 2, 2)
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spec", ["true", "causal", "causal & window(30)"])
def test_attention_equals_sdpa(dtype: str, spec: str) -> None:
    q, k, v = tensors(getattr(torch, dtype))
    mask = fdma.compile(spec, 200)
    cells = torch.from_dlpack(fdma.to_dense(mask))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).double() for x in (q, k, v)), attn_mask=cells, enable_gqa=True
    ).transpose(1, 2)
    out, lse = fdma.attention(q, k, v, mask)
    result = torch.from_dlpack(out)
    assert result.dtype == q.dtype and result.shape == q.shape
    assert (result.double() - expected).abs().max() <= TOLERANCE[dtype]
    assert torch.from_dlpack(lse).shape == (2, 4, 200)
    # Heads come first in memory, and the result goes into a tensor with the same layout.
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    given = torch.empty(2, 4, 200, 64, dtype=q.dtype).transpose(1, 2)
    assert fdma.attention(q, k, v, mask, out=given, return_lse=False) is given
    assert torch.equal(given, result)


def test_tables_from_tensors() -> None:
    ids = torch.tensor([0] * 50 + [1] * 150)
    cells = torch.from_dlpack(
        fdma.to_dense(fdma.compile("documents(ids=@t)", 200, tables={"t": ids}))
    )
    assert torch.equal(cells[0, 0], ids[:, None] == ids[None, :])


def test_tensors_that_require_gradients_say_so() -> None:
    q, k, v = tensors(torch.float32, requires_grad=True)
    mask = fdma.compile("causal", 200)
    with pytest.raises(ValueError, match=r"q: a tensor that requires a gradient"):
        fdma.attention(q, k, v, mask)
    fdma.attention(q.detach(), k.detach(), v.detach(), mask)


def test_tensors_without_memory_are_refused() -> None:
    q, k, v = tensors(torch.float32)
    with pytest.raises((ValueError, NotImplementedError), match="k: "):
        fdma.attention(q, k.to("meta"), v, fdma.compile("causal", 200))


@pytest.mark.skipif(
    not torch.cuda.is_available() or "sm90" in fdma.available_backends(),
    reason="no GPU that attention cannot run on",
)
def test_cuda_tensors_are_refused_by_name() -> None:
    q, k, v = (x.cuda() for x in tensors(torch.float32))
    with pytest.raises(NotImplementedError, match=r"q: an array on cuda:0.*backends are: cpu"):
        fdma.attention(q, k, v, fdma.compile("causal", 200))
