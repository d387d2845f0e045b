"""Traced FlexAttention functions against what PyTorch's create_mask makes of the same functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fdma_module import fdma as core

from fdma.expr_types import MaskExpr
from fdma.trace import trace_mask_mod

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
warnings.filterwarnings("ignore", message=".*vmap.*", category=UserWarning)

__all__ = ["MaskMod", "assert_exact", "cells_of", "expected_cells", "torch"]

MaskMod = Callable[..., Any]
Cells = np.ndarray[Any, Any]


def expected_cells(mask_mod: MaskMod, sizes: tuple[int, int, int, int]) -> Cells:
    """What create_mask says, boolean [batch, heads, q_len, kv_len]."""
    from torch.nn.attention.flex_attention import create_mask

    cells: Cells = create_mask(mask_mod, *sizes, device="cpu").numpy()
    assert cells.dtype == np.bool_
    return np.broadcast_to(cells, sizes)


def cells_of(mask: MaskExpr, sizes: tuple[int, int, int, int]) -> Cells:
    """What FDMA compiles, boolean [batch, heads, q_len, kv_len]."""
    batch, heads, q_len, kv_len = sizes
    tables = {name: np.asarray(array) for name, array in mask.tables.items()}
    compiled = core.compile(
        str(mask), q_len, kv_len, batch=batch, heads=heads, tables=tables
    )
    return np.broadcast_to(np.asarray(core.to_dense(compiled)), sizes)


def assert_exact(mask_mod: MaskMod, sizes: tuple[int, int, int, int]) -> MaskExpr:
    """Traces, compiles, compares every cell; returns the expression."""
    mask = trace_mask_mod(mask_mod)
    expected = expected_cells(mask_mod, sizes)
    given = cells_of(mask, sizes)
    differ = np.argwhere(given != expected)
    assert len(differ) == 0, f"{mask}: {len(differ)} cells, the first at b h q k = {differ[0]}"
    return mask
