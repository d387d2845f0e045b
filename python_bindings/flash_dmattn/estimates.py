"""The savings of a mask as single numbers; `fdma.estimate` gives all numbers."""

from __future__ import annotations

from typing import Any

import fdma

from .masks import SparseMask

__all__ = ["calculate_memory_savings", "estimate_speedup"]


def _compiled(mask: object) -> fdma.BlockMask:
    if isinstance(mask, SparseMask):
        return mask.mask
    if isinstance(mask, fdma.BlockMask):
        return mask
    kind = type(mask).__name__
    raise TypeError(f"mask: expected a mask of flash_dmattn or an fdma.BlockMask, got {kind}")


def estimate_speedup(
    mask: SparseMask | fdma.BlockMask,
    *,
    heads: int | None = None,
    head_dim: int = 128,
    device: Any = "h200",
    **options: Any,
) -> float:
    """The predicted factor by which the mask is faster than dense attention on the same device.

    heads: the number of query heads. None means those of the mask if it differs between heads,
    otherwise 32. Other options (heads_kv, batch, dtype, direction, ..) and errors are those of
    `fdma.estimate`.

    >>> from flash_dmattn import CausalMask, estimate_speedup
    >>> 1.7 < estimate_speedup(CausalMask(seqlen_q=32768, seqlen_k=32768)) < 2.2
    True
    """
    said = fdma.estimate(_compiled(mask), heads=heads, head_dim=head_dim, device=device, **options)
    return said.speedup


def calculate_memory_savings(mask: SparseMask | fdma.BlockMask) -> float:
    """The percentage of memory that the mask saves compared with a dense float32 mask.

    The result is 100 * (1 - bytes / (4 * q_len * kv_len)). A mask that differs between batch
    elements or heads replaces one dense mask for each of them. The result is negative if the mask
    takes more bytes, as very short masks do, and 0 for a mask without cells. Raises TypeError for
    an object that is not a mask.

    >>> import numpy as np
    >>> from flash_dmattn import BlockBitsetMask, CausalMask, calculate_memory_savings
    >>> calculate_memory_savings(CausalMask(seqlen_q=4096, seqlen_k=4096))
    100.0
    >>> dense_pattern = np.tri(1024, dtype=bool)
    >>> round(calculate_memory_savings(BlockBitsetMask.from_dense_mask(dense_pattern)), 2)
    99.95
    """
    compiled = _compiled(mask)
    num_bytes = mask.nbytes
    q_lens, kv_lens = compiled.q_lens, compiled.kv_lens
    batch = range(compiled.batch)
    cells = compiled.heads * sum(
        q_lens[b if len(q_lens) > 1 else 0] * kv_lens[b if len(kv_lens) > 1 else 0] for b in batch
    )
    return 100 * (1 - num_bytes / (4 * cells)) if cells else 0.0
