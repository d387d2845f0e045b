"""FlashMask: argument startend_row_indices of PaddlePaddle's flashmask_attention.

The array says which query rows i do not see key j:

    causal, 1 column       LTS               i >= LTS, or j > i + kv_len - q_len
    causal, 2 columns      LTS, LTE          LTS <= i < LTE, or j > i + kv_len - q_len
    not causal, 2 columns  LTS, UTE          i >= LTS, or i < UTE
    not causal, 4 columns  LTS LTE UTS UTE   LTS <= i < LTE, or UTS <= i < UTE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _fdma
from ..masks.block_mask import BlockMask
from ..masks.compiled_regions import made_outside
from .arrays import flag, integers, mask_of, outgoing, pair

__all__ = ["FlashMaskArrays", "from_flashmask", "to_flashmask"]


class FlashMaskArrays(NamedTuple):
    """The result of to_flashmask; from_flashmask(**arrays._asdict()) returns the mask."""

    startend_row_indices: Any
    """int32 [batch, heads, kv_len, columns], a NumPy array or a tensor."""
    causal: bool
    """The flag that belongs to the array; the docstring of this module gives its meaning."""
    q_len: int
    """The number of query rows."""


@made_outside
def from_flashmask(
    startend_row_indices: Any,
    causal: bool,
    *,
    q_len: int | None = None,
    heads: int | None = None,
    block: int | Sequence[int] = (128, 128),
) -> BlockMask:
    """The mask of FlashMask's array.

    Args:
        startend_row_indices: integers [batch, heads, kv_len, columns], each in [0, q_len], with 1,
            2 or 4 columns, whose meaning the docstring of this module gives. It is an array of
            NumPy, PyTorch or similar; a CUDA tensor is copied, 4 bytes an entry, which waits for
            the GPU.
        causal: the flag that belongs to the array. It has no default, because an array of 2 columns
            does not show whether it is causal.
        q_len: the number of query rows; the default is the number of keys.
        heads: the number of query heads of the mask, a multiple of the array's number of heads.
            Query head h reads the array's head h // (heads // array's heads). The default is the
            array's number of heads.
        block: the block of the result.

    Errors: ValueError for other extents, an index outside [0, q_len] and a number of columns that
    does not fit `causal`; TypeError for other elements.

    >>> import fdma
    >>> import numpy as np
    >>> rows = np.array([2, 2, 5, 5, 5]).reshape(1, 1, 5, 1)    # causal documents of 2 and 3 tokens
    >>> fdma.from_flashmask(rows, causal=True).to_dense()[0, 0].astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 0, 1, 0, 0],
           [0, 0, 1, 1, 0],
           [0, 0, 1, 1, 1]])
    """
    indices = integers(
        "startend_row_indices", startend_row_indices, "[batch, heads, kv_len, columns]"
    )
    rows = indices.shape[2] if q_len is None else q_len
    core = _fdma.block_mask_from_flash_mask(
        indices, flag("causal", causal), rows, pair("block", block), 0 if heads is None else heads
    )
    return mask_of(core)


def to_flashmask(
    mask: BlockMask,
    *,
    causal: bool | None = None,
    num_columns: int | None = None,
    device: Any = None,
) -> FlashMaskArrays:
    """The array of a mask; equal masks give equal arrays.

    Args:
        causal, num_columns: the form of the array; the default is the first of the four forms that
            can hold the mask.
        device: None returns a NumPy array, a PyTorch device returns a tensor on it.

    Returns (startend_row_indices int32 [batch, heads, kv_len, columns], causal, q_len). Intervals
    ascend (UTS <= UTE <= LTS <= LTE); an absent interval is [0, 0) or [q_len, q_len).

    Errors: NotImplementedError if the masked rows of a key are more intervals than the form has
    (the message names the first such key), and for lengths per batch element; ValueError for a
    causal and num_columns that are none of the four forms.

    >>> import fdma
    >>> arrays = fdma.compile("causal & documents(lengths=@n)", 5, n=[2, 3]).to_flashmask()
    >>> arrays.causal, arrays.startend_row_indices[0, 0, :, 0].tolist()
    (True, [2, 2, 5, 5, 5])
    """
    indices, is_causal = _fdma.flash_mask_from_block_mask(mask._core, causal, num_columns)
    return FlashMaskArrays(outgoing(device)(indices), is_causal, mask._core.q_len)
