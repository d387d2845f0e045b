"""Defines dense masks against which pictures are checked, and the classes of their tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def causal_window(q_len: int, kv_len: int, width: int) -> Mask:
    """Returns k <= q and q - k < width."""
    q, k = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    return np.asarray((k <= q) & (q - k < width))


def random_mask(seed: int, q_len: int, kv_len: int) -> Mask:
    """Returns a window with blocks erased and filled, and scattered cells."""
    random = np.random.default_rng(seed)
    mask = causal_window(q_len, kv_len, int(random.integers(8, 200)))
    for _ in range(5):
        a, b = sorted(random.integers(0, q_len + 1, 2))
        c, d = sorted(random.integers(0, kv_len + 1, 2))
        mask[a:b, c:d] = random.integers(0, 2)
    return np.asarray(mask ^ (random.random(mask.shape) < 0.001))


def tile_classes(mask: Mask, block_q: int, block_kv: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns [tile rows, tile columns]: 0 empty, 1 partial, 2 full, by the cells that exist."""
    q, k = np.arange(0, mask.shape[0], block_q), np.arange(0, mask.shape[1], block_kv)
    has = np.logical_or.reduceat(np.logical_or.reduceat(mask, q, axis=0), k, axis=1)
    is_full = np.logical_and.reduceat(np.logical_and.reduceat(mask, q, axis=0), k, axis=1)
    return np.asarray(has.astype(np.int64) + is_full)
