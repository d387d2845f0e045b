"""What a mask saves, in one number each; `fdma.estimate` says everything."""

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
    """Times faster than dense attention on the same device, predicted.

    heads: query heads; None: those of the mask if it tells them apart, else 32. Other options
    (heads_kv, batch, dtype, direction, ..) and errors are those of `fdma.estimate`.

    >>> from flash_dmattn import CausalMask, estimate_speedup
    >>> 1.7 < estimate_speedup(CausalMask(seqlen_q=32768, seqlen_k=32768)) < 2.2
    True
    """
    said = fdma.estimate(_compiled(mask), heads=heads, head_dim=head_dim, device=device, **options)
    return said.speedup


def calculate_memory_savings(mask: SparseMask | fdma.BlockMask) -> float:
    """Percent that storing the mask saves of the dense float32 mask that it replaces.

    100 * (1 - bytes / (4 * q_len * kv_len)), where a mask that tells batch elements or heads apart
    replaces a dense one for each of them. Negative where the mask takes more (very short ones); 0
    for a mask without cells. Raises TypeError for what is no mask.

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
