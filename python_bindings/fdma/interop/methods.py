"""The functions of interop/formats.py as methods of BlockMask."""

from __future__ import annotations

from . import formats as peers

__all__ = ["InteropMethods"]


class InteropMethods:
    """Imports and exports of a mask, documented as functions in fdma.interop.formats.

    >>> import fdma
    >>> fdma.compile("causal", 4).to_flashmask().causal
    True
    """

    __slots__ = ()

    from_bsr = staticmethod(peers.from_bsr)
    from_cu_seqlens = staticmethod(peers.from_cu_seqlens)
    from_flashmask = staticmethod(peers.from_flashmask)
    from_flex = staticmethod(peers.from_flex)
    from_hf_mask = staticmethod(peers.from_hf_mask)
    from_hf_padding = staticmethod(peers.from_hf_padding)
    to_bsr = peers.to_bsr
    to_cu_seqlens = peers.to_cu_seqlens
    to_flashmask = peers.to_flashmask
    to_flex = peers.to_flex
    to_flex_arrays = peers.to_flex_arrays
    to_hf_mask = peers.to_hf_mask
    to_hf_padding = peers.to_hf_padding
