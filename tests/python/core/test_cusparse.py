"""Tests fdma._fdma.CusparseAttention against attention by FDMA's kernel on a GPU.

Refusals are tested on any machine. The tests on a GPU are skipped where the build or the machine
has no cuSPARSE.
"""

from __future__ import annotations

from typing import Any

import pytest
from fdma_module import fdma

try:
    import torch as imported_torch
except ImportError:
    imported_torch = None
torch: Any = imported_torch
core: Any = fdma  # the overloads of `attention` do not name PyTorch's types


def why_not() -> str:
    if torch is None or "sm90" not in fdma.available_backends():
        return "no GPU of compute capability 9.0, or PyTorch is not installed"
    try:
        fdma.cusparse_version()
    except NotImplementedError as error:
        return str(error)
    return ""


needs_cusparse = pytest.mark.skipif(bool(why_not()), reason=why_not())


def test_a_library_that_is_not_there_is_an_error_that_says_how_to_get_it() -> None:
    with pytest.raises(NotImplementedError, match=r"pip install"):
        fdma.cusparse_version("/no/such/folder/libcusparse.so.12")


def test_what_does_not_fit_is_refused() -> None:
    mask = fdma.compile("causal", 64)
    with pytest.raises(ValueError, match=r"precision: expected float32 or tensor, got 'double'"):
        core.CusparseAttention(mask, heads_q=2, head_dim=64, precision="double")
    with pytest.raises(ValueError, match=r"spmm: expected alg1, alg2 or alg3, got 'fast'"):
        core.CusparseAttention(mask, heads_q=2, head_dim=64, spmm="fast")
    with pytest.raises(ValueError, match=r"dtype"):
        core.CusparseAttention(mask, heads_q=2, head_dim=64, dtype="half")
    with pytest.raises(ValueError, match=r"heads_q: expected a count below 2\^31, got -1"):
        core.CusparseAttention(mask, heads_q=-1, head_dim=64)


@needs_cusparse
@pytest.mark.parametrize("precision", ["float32", "tensor"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("spec", ["causal", "causal & window(100) | k < 7", "(q + k) % 3 == 0"])
def test_it_agrees_with_the_kernel(spec: str, dtype: str, precision: str) -> None:
    torch.manual_seed(len(spec))
    q, k, v = (
        torch.randn(2, 500, heads, 128, device="cuda").to(getattr(torch, dtype))
        for heads in (4, 2, 2)
    )
    bias = torch.randn(2, 2, 500, device="cuda")
    mask = fdma.compile(spec, 500)
    out, lse = torch.full_like(q, torch.nan), torch.full((2, 4, 500), torch.nan, device="cuda")
    prepared = core.CusparseAttention(
        mask,
        batch=2,
        heads_q=4,
        heads_kv=2,
        head_dim=128,
        dtype=dtype,
        key_bias=True,
        precision=precision,
    )
    assert prepared.num_cells == mask.counts["allowed_pairs"]
    assert prepared.nbytes >= 8 * prepared.num_cells
    for _ in range(2):
        prepared.run(q, k, v, out=out, lse=lse, key_bias=bias, softmax_scale=0.2)
    results = core.attention(q, k, v, mask, score=(bias,), softmax_scale=0.2)
    expected, expected_lse = (torch.from_dlpack(x) for x in results)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-5, atol=1e-4)
    largest = expected.float().abs().max()
    assert (out.float() - expected.float()).abs().max() <= largest / 64
    with pytest.raises(ValueError, match=r"out: expected an array on cuda:0, got one on the host"):
        prepared.run(q, k, v, out=out.cpu(), key_bias=bias)
