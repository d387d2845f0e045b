"""Masks, estimates and attention by the names of FDMA's earlier versions, on top of package fdma.

>>> from flash_dmattn import CausalMask, WindowMask, estimate_speedup, calculate_memory_savings
>>> causal_mask = CausalMask(seqlen_q=4096, seqlen_k=4096)
>>> estimate_speedup(causal_mask) > 1.5, calculate_memory_savings(causal_mask)
(True, 100.0)
"""

from __future__ import annotations

from .attention import flash_dma_attention, flash_dmattn_func, flash_dmattn_func_auto
from .create import create_sparse_mask
from .dynamic_mask import DynamicMask
from .estimates import calculate_memory_savings, estimate_speedup
from .masks import BCSRMask, BlockBitsetMask, CausalMask, CausalWindowMask, SparseMask, WindowMask

__all__ = [
    "BCSRMask",
    "BlockBitsetMask",
    "CausalMask",
    "CausalWindowMask",
    "DynamicMask",
    "SparseMask",
    "WindowMask",
    "calculate_memory_savings",
    "create_sparse_mask",
    "estimate_speedup",
    "flash_dma_attention",
    "flash_dmattn_func",
    "flash_dmattn_func_auto",
]
