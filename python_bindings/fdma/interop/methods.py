"""The functions of interop/formats.py as methods of BlockMask."""

from __future__ import annotations

from ..masks.block_mask import add_methods
from . import formats

__all__: list[str] = []


class InteropMethods:
    """Imports and exports of a mask, documented as functions in fdma.interop.formats.

    >>> import fdma
    >>> fdma.compile("causal", 4).to_flashmask().causal
    True
    """

    from_bsr = staticmethod(formats.from_bsr)
    from_cu_seqlens = staticmethod(formats.from_cu_seqlens)
    from_flashmask = staticmethod(formats.from_flashmask)
    from_flex = staticmethod(formats.from_flex)
    from_hf_mask = staticmethod(formats.from_hf_mask)
    from_hf_padding = staticmethod(formats.from_hf_padding)
    to_bsr = formats.to_bsr
    to_cu_seqlens = formats.to_cu_seqlens
    to_flashmask = formats.to_flashmask
    to_flex = formats.to_flex
    to_flex_arrays = formats.to_flex_arrays
    to_hf_mask = formats.to_hf_mask
    to_hf_padding = formats.to_hf_padding


add_methods(InteropMethods)
