"""Compares traced FlexAttention functions with PyTorch's create_mask of the same functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fdma_module import FOLDER

# isort: split
import fdma

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

__all__ = ["FOLDER", "MaskMod", "assert_exact", "cells_of", "expected_cells", "torch"]

MaskMod = Callable[..., Any]
Cells = np.ndarray[Any, Any]


def expected_cells(mask_mod: MaskMod, sizes: tuple[int, int, int, int]) -> Cells:
    """Returns the cells of create_mask, boolean [batch, heads, q_len, kv_len]."""
    from torch.nn.attention.flex_attention import create_mask

    def plain(
        b: Any, h: Any, q_idx: Any, kv_idx: Any
    ) -> Any:  # create_mask counts `self` of methods
        return mask_mod(b, h, q_idx, kv_idx)

    cells: Cells = create_mask(plain, *sizes, device="cpu").numpy()
    assert cells.dtype == np.bool_
    return np.broadcast_to(cells, sizes)


def cells_of(mask: fdma.MaskExpr, sizes: tuple[int, int, int, int]) -> Cells:
    """Returns the cells that FDMA compiles, boolean [batch, heads, q_len, kv_len]."""
    batch, heads, q_len, kv_len = sizes
    return np.broadcast_to(fdma.compile(mask, q_len, kv_len, batch, heads).to_dense(), sizes)


def assert_exact(mask_mod: MaskMod, sizes: tuple[int, int, int, int]) -> fdma.MaskExpr:
    """Traces and compiles the function, compares every cell, and returns the expression."""
    mask = fdma.trace_mask_mod(mask_mod)
    expected = expected_cells(mask_mod, sizes)
    given = cells_of(mask, sizes)
    differ = np.argwhere(given != expected)
    assert len(differ) == 0, f"{mask}: {len(differ)} cells, the first at b h q k = {differ[0]}"
    return mask
