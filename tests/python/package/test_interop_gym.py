"""Tests every mask of attn-gym as FlexAttention's BlockMask.

The import traces the function, and the export is equal in bits.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from test_trace_gym import CASES  # this import skips the file if PyTorch or attn-gym is missing

torch = pytest.importorskip("torch")
flex_attention = pytest.importorskip("torch.nn.attention.flex_attention")
fdma = pytest.importorskip("fdma")

MASKS = [
    pytest.param(name, make, sizes, id=f"{name}-{'x'.join(map(str, sizes))}")
    for name, cases in CASES.items()
    for make, sizes in cases
]


@pytest.mark.parametrize(("name", "make", "sizes"), MASKS)
@pytest.mark.parametrize("block", [128, (32, 16)])
def test_in_and_out(name: str, make: Any, sizes: tuple[int, int, int, int], block: Any) -> None:
    module, _, generator = name.partition(".")
    mask_mod = make(getattr(importlib.import_module(f"attn_gym.masks.{module}"), generator))
    theirs = flex_attention.create_block_mask(mask_mod, *sizes, device="cpu", BLOCK_SIZE=block)
    mask = fdma.from_flex(theirs)
    cells = flex_attention.create_mask(mask_mod, *sizes, device="cpu")
    np.testing.assert_array_equal(mask.to_dense(), cells.numpy())
    ours = mask.to_flex("cpu", block=block)
    for attribute in theirs._TENSOR_ATTRS:
        expected = getattr(theirs, attribute)
        assert expected is None or torch.equal(getattr(ours, attribute), expected), attribute
    seen = flex_attention.create_mask(ours.mask_mod, *sizes, device="cpu")
    assert torch.equal(seen, cells)
