"""FlashMask: argument startend_row_indices of PaddlePaddle's flashmask_attention.

Of key j these query rows are masked:

    causal, 1 column       LTS               i >= LTS, or j > i + kv_len - q_len
    causal, 2 columns      LTS, LTE          LTS <= i < LTE, or j > i + kv_len - q_len
    not causal, 2 columns  LTS, UTE          i >= LTS, or i < UTE
    not causal, 4 columns  LTS LTE UTS UTE   LTS <= i < LTE, or UTS <= i < UTE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _fdma
from .arrays import flag, integers, mask_of, outgoing, pair

if TYPE_CHECKING:
    from ..masks.block_mask import BlockMask
from ..masks.compiled_regions import made_outside

__all__ = ["FlashMaskArrays", "from_flashmask", "to_flashmask"]


class FlashMaskArrays(NamedTuple):
    """What to_flashmask gives; from_flashmask(**arrays._asdict()) is the mask again."""

    startend_row_indices: Any
    """int32 [batch, heads, kv_len, columns], NumPy's or a tensor."""
    causal: bool
    """How to read it."""
    q_len: int
    """Query rows."""


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
            2 or 4 columns (the head of this module says what they mean). NumPy, PyTorch, ..; a CUDA
            tensor is copied, 4 bytes an entry, which waits for the GPU.
        causal: the flag that goes with it. "causal, 2 columns" and "not causal, 2 columns" look
            alike, so it has no default.
        q_len: query rows; by default as many as keys.
        heads: query heads of the mask, a multiple of the array's; query head h reads head
            h // (heads // array's heads). By default as many as the array has.
        block: tile of the result.

    Errors: ValueError for other extents, an index outside [0, q_len] or a number of columns that
    does not go with `causal`; TypeError for other elements.

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
    """The array of a mask, in one form for equal masks.

    Args:
        causal, num_columns: the form; by default the first of the four that holds the mask.
        device: None gives NumPy, a device of PyTorch a tensor there.

    Returns (startend_row_indices int32 [batch, heads, kv_len, columns], causal, q_len). Intervals
    ascend (UTS <= UTE <= LTS <= LTE), absent ones are [0, 0) and [q_len, q_len).

    Errors: NotImplementedError where a key's masked rows are more intervals than the form has (the
    first such key is named), and for lengths per batch element; ValueError for a form that is none.

    >>> import fdma
    >>> arrays = fdma.compile("causal & documents(lengths=@n)", 5, n=[2, 3]).to_flashmask()
    >>> arrays.causal, arrays.startend_row_indices[0, 0, :, 0].tolist()
    (True, [2, 2, 5, 5, 5])
    """
    indices, is_causal = _fdma.flash_mask_from_block_mask(mask._core, causal, num_columns)
    return FlashMaskArrays(outgoing(device)(indices), is_causal, mask._core.q_len)
