"""softcap of fdma.attention on a GPU: results and gradients of PyTorch's tensors."""

from __future__ import annotations

from typing import Any

import pytest
from fdma_module import fdma as core

# isort: split
import fdma

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.skipif(
    "sm90" not in core.available_backends() or not torch.cuda.is_available(),
    reason="no Hopper GPU",
)
attend: Any = fdma.attention
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


def by_definition(q: Any, k: Any, v: Any, bias: Any, cap: float, spec: str) -> Any:
    cells = torch.from_numpy(fdma.compile(spec, q.shape[2], k.shape[2]).to_dense()).cuda()
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    x = q @ k.mT * q.shape[3] ** -0.5
    logits = cap * torch.tanh(x / cap)
    if bias is not None:
        logits = logits + bias.repeat_interleave(2, 1)[:, :, None]
    return torch.softmax(logits.masked_fill(~cells, -torch.inf), -1) @ v


@pytest.mark.parametrize("spec", ["causal & window(100)", "causal", "k % 7 != 3 & k <= q"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_results_and_gradients(dtype: Any, head_dim: int, has_bias: bool, spec: str) -> None:
    torch.manual_seed(0)
    shapes = (2, 4, 300, head_dim), (2, 2, 420, head_dim), (2, 2, 420, head_dim)
    given = [torch.randn(*shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]
    bias = torch.randn(2, 2, 420, device="cuda", requires_grad=True) if has_bias else None
    leaves = [*given, bias] if has_bias else given
    exact = [x.detach().double().requires_grad_() for x in leaves]
    dout = torch.randn(shapes[0], device="cuda")
    for cap in (1.5, 30.0):
        out = attend(*given, spec, key_bias=bias, softcap=cap)
        expected = by_definition(*[*exact[:3], exact[3] if has_bias else None, cap, spec])
        assert (out - expected).abs().max() <= TOLERANCE[dtype]
        got = torch.autograd.grad((out * dout).sum(), leaves)
        wanted = torch.autograd.grad((expected * dout).sum(), exact)
        for x, reference in zip(got, wanted, strict=True):
            assert (x - reference).abs().max() <= TOLERANCE[dtype] * reference.abs().max()
