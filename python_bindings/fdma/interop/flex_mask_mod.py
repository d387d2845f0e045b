"""A FlexAttention mask function that looks the exact cells of a mask up in tables.

tiles[b, h, q // block_q, k // block_kv] is the number of a bitmap (bitmap 0 is all false, bitmap 1
all true), and the cell is one bit of this bitmap. The function uses only arithmetic and lookups in
two captured tensors, so it runs wherever FlexAttention runs functions: under vmap in create_mask
and create_block_mask, in eager flex_attention and in compiled kernels. Batch and head indices are
taken modulo the extents of the table, which matches the broadcasting of the kernels.

Cost: 4 bytes a tile, and block_q * block_kv / 8 bytes for each distinct bitmap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..masks.block_mask import BlockMask
from .arrays import import_torch

__all__ = ["MaskMod", "mask_mod_of_tables"]

MaskMod = Callable[[Any, Any, Any, Any], Any]
"""(b, h, q_idx, kv_idx) -> boolean tensor."""


def mask_mod_of_tables(mask: BlockMask, fields: Mapping[str, Any], device: Any) -> MaskMod:
    """The function of `mask`, whose arrays with bitmaps are `fields`; its tensors are on `device`.

    The function's attribute fdma_mask is `mask`; from_flex takes the cells from there.
    """
    torch = import_torch()
    block_q, block_kv = fields["BLOCK_SIZE"]
    tiles = torch.from_numpy(_bitmap_of_tiles(fields)).to(device)
    bits = torch.from_numpy(_bytes_of_bitmaps(fields)).to(device)
    batches, heads = tiles.shape[:2]

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        tile = tiles[b % batches, h % heads, q_idx // block_q, kv_idx // block_kv]
        bit = q_idx % block_q * block_kv + kv_idx % block_kv
        return (bits[tile, bit // 8] >> (bit % 8)) & 1 == 1

    mask_mod.fdma_mask = mask  # type: ignore[attr-defined]
    return mask_mod


def _bitmap_of_tiles(fields: Mapping[str, Any]) -> NDArray[np.int32]:
    """[batch, heads, tile rows, tile columns]: 0, 1, or 2 + the bitmap's number in the fields."""
    shape = fields["kv_indices"].shape
    tiles = np.zeros(shape, np.int32)
    for name in ("full_kv", "kv"):
        if f"{name}_indices" not in fields:
            continue
        indices = fields[f"{name}_indices"]
        listed = np.arange(shape[3]) < fields[f"{name}_num_blocks"][..., None]
        found = np.nonzero(listed)
        in_tiles = (*found[:-1], indices[found])
        tiles[in_tiles] = 1 if name == "full_kv" else fields["fdma_bitmap_index"] + 2
    return tiles


def _bytes_of_bitmaps(fields: Mapping[str, Any]) -> NDArray[np.uint8]:
    """[2 + bitmaps, block_q * block_kv / 8]: bit i of byte j is cell 8 j + i, row-major."""
    bitmaps = fields["fdma_bitmaps"].astype("<u8", copy=False).view(np.uint8)
    bytes_each = bitmaps.shape[1]
    edges = np.array([[0], [255]], np.uint8).repeat(bytes_each, axis=1)
    return np.concatenate([edges, bitmaps])
