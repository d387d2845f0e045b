"""Tests tensors of other systems on a GPU.

An import needs an explicit copy. An export goes to the device that the caller names.
"""

from __future__ import annotations

from typing import Any

import fdma_module  # noqa: F401
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
flex_attention = pytest.importorskip("torch.nn.attention.flex_attention")
fdma = pytest.importorskip("fdma")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def windows(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < 100 * (h + 1))


def test_flex_on_the_gpu() -> None:
    """The arrays are those of create_block_mask; the tables of the function lie on the GPU, too."""
    theirs = flex_attention.create_block_mask(windows, None, 4, 1000, 1300, device="cuda")
    mask = fdma.from_flex(theirs)
    ours = mask.to_flex()
    assert ours.kv_indices.is_cuda
    for name in theirs._TENSOR_ATTRS:
        expected = getattr(theirs, name)
        assert expected is None or torch.equal(getattr(ours, name), expected), name
    seen = flex_attention.create_mask(ours.mask_mod, 1, 4, 1000, 1300, device="cuda")
    expected = flex_attention.create_mask(windows, 1, 4, 1000, 1300, device="cuda")
    assert torch.equal(seen, expected)


def test_the_compiled_kernel_takes_the_exported_mask() -> None:
    mask = fdma.compile("causal & q - k < 100 * (h + 1) & (q + k) % 7 != 3", 1000, heads=4)
    q, k, v = torch.randn(3, 2, 4, 1000, 64, device="cuda", dtype=torch.bfloat16)
    out = torch.compile(flex_attention.flex_attention)(q, k, v, block_mask=mask.to_flex())
    cells = torch.from_numpy(mask.to_dense()).cuda()
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), attn_mask=cells
    )
    live = cells.any(-1).expand(2, 4, -1)
    torch.testing.assert_close(out.float()[live], expected[live], rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_arrays_on_the_gpu() -> None:
    mask = fdma.compile("causal & q // 64 == k // 64", 256)
    arguments = mask.to_cu_seqlens(device="cuda")
    assert arguments.cu_seqlens_q.is_cuda
    assert fdma.from_cu_seqlens(**arguments._asdict()) == mask
    rows = mask.to_flashmask(device="cuda")
    assert rows.startend_row_indices.is_cuda
    assert fdma.from_flashmask(**rows._asdict()) == mask
    for dtype in (torch.bool, torch.bfloat16, torch.float32):
        dense = mask.to_hf_mask(dtype, device="cuda")
        assert dense.is_cuda and dense.dtype == dtype
        assert fdma.from_hf_mask(dense) == mask
    matrix = mask.to_bsr(block=64, device="cuda")
    assert matrix.is_cuda and fdma.from_bsr(matrix) == mask
    padding = fdma.compile("causal", 256).to_hf_padding(device="cuda")
    assert padding.attention_mask.is_cuda
    assert fdma.from_hf_padding(**padding._asdict()) == fdma.compile("causal", 256)
