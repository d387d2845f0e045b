"""Returns cells of consecutive sequences, by the rule of FlashAttention's cu_seqlens."""

from __future__ import annotations

from typing import Any

import numpy as np


def window_cells(sq: int, sk: int, causal: bool, window: tuple[int, int]) -> Any:
    """Returns [sq, sk]: keys i + sk - sq - left to i + sk - sq + right, where -1 means no bound."""
    left, right = window[0], 0 if causal else window[1]
    distance = np.arange(sk)[None, :] - np.arange(sq)[:, None] - (sk - sq)
    return ((left < 0) | (distance >= -left)) & ((right < 0) | (distance <= right))


def sequence_cells(q: list[int], k: list[int], causal: bool, window: tuple[int, int]) -> Any:
    """Returns [sum(q), sum(k)] of consecutive sequences of these lengths."""
    cells = np.zeros((sum(q), sum(k)), bool)
    row = key = 0
    for sq, sk in zip(q, k, strict=True):
        cells[row : row + sq, key : key + sk] = window_cells(sq, sk, causal, window)
        row, key = row + sq, key + sk
    return cells


def offsets(lengths: list[int]) -> Any:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
