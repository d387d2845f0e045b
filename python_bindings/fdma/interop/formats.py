"""Conversions from and to the masks of other systems: exact, or an error that says what is lost.

    FlexAttention BlockMask                  from_flex, to_flex, to_flex_arrays
    FlashMask startend_row_indices           from_flashmask, to_flashmask
    SciPy, PyTorch and cuSPARSE BSR          from_bsr, to_bsr
    FlashAttention cu_seqlens and windows    from_cu_seqlens, to_cu_seqlens
    Hugging Face padding masks, 2-D          from_hf_padding, to_hf_padding
    Hugging Face masks, 4-D                  from_hf_mask, to_hf_mask

The to_ functions are methods of BlockMask too. What comes out depends on the cells alone, not on
the mask's format, blocks or origin. NumPy arrays come out, or PyTorch tensors where a device is
named.
"""

from __future__ import annotations

from .bsr import BsrArrays, from_bsr, to_bsr
from .cu_seqlens import CuSeqlens, from_cu_seqlens, to_cu_seqlens
from .flash_mask import FlashMaskArrays, from_flashmask, to_flashmask
from .flex import from_flex, to_flex, to_flex_arrays
from .hugging_face import HfPadding, from_hf_mask, from_hf_padding, to_hf_mask, to_hf_padding

__all__ = [
    "BsrArrays",
    "CuSeqlens",
    "FlashMaskArrays",
    "HfPadding",
    "from_bsr",
    "from_cu_seqlens",
    "from_flashmask",
    "from_flex",
    "from_hf_mask",
    "from_hf_padding",
    "to_bsr",
    "to_cu_seqlens",
    "to_flashmask",
    "to_flex",
    "to_flex_arrays",
    "to_hf_mask",
    "to_hf_padding",
]
