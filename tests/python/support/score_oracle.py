"""Defines attention with every part of a score in float64, on dense tensors of PyTorch.

Gradients of the definition are PyTorch's own. Dropout draws its words one by one, as the
definition says, apart from the library and from the package.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

WORD = (1 << 32) - 1


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """The four words of Philox4x32 with 7 rounds."""
    c, (k0, k1) = list(counter), key
    for _ in range(7):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k0, b & WORD, a >> 32 ^ c[3] ^ k1, a & WORD]
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return c


@functools.cache
def kept(
    shape: tuple[int, int, int, int], dropout_p: float, seed: int, offset: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which pairs [batch, heads, q_len, kv_len] dropout keeps."""
    result = np.zeros(shape, bool)
    batch, heads, q_len, kv_len = shape
    key = seed & WORD, seed >> 32 & WORD ^ offset >> 32 & WORD
    for head in range(batch * heads):
        for q in range(0, q_len + 8, 16):
            for k in range(0, kv_len + 8, 16):
                for i in range(64):
                    rows, keys = q // 16 * 8 + i // 8, k // 16 * 8 + i % 8
                    words = philox((offset & WORD, head, rows, keys), key)
                    for word, bits in enumerate(words):
                        row, column = q + i // 8 + 8 * (word // 2), k + i % 8 + 8 * (word % 2)
                        if row < q_len and column < kv_len:
                            is_kept = bits >= round(dropout_p * 2**32)
                            result[head // heads, head % heads, row, column] = is_kept
    return result


def attention(
    q: Any,
    k: Any,
    v: Any,
    cells: Any,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    key_bias: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    relative: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    lengths: Sequence[tuple[int, int]] | None = None,
) -> tuple[Any, Any, Any]:
    """(out [batch, heads, q_len, dim_v], lse, probabilities), heads before lengths.

    cells are booleans that broadcast to [batch, heads, q_len, kv_len]. lengths are the (q_len,
    kv_len) of each batch element, by which positions count.
    """
    q, k, v = (x.double() for x in (q, k, v))
    batch, heads, q_len, _ = q.shape
    heads_kv, kv_len = k.shape[1:3]
    group = heads // heads_kv
    logits = q @ k.repeat_interleave(group, 1).mT * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    if key_bias is not None:
        per_key = key_bias.double().expand(batch, heads_kv, kv_len)
        logits = logits + per_key.repeat_interleave(group, 1)[:, :, None]
    if bias is not None:
        if bias.shape[1] not in (1, heads):
            bias = bias.repeat_interleave(group, 1)
        logits = logits + bias.double()
    shifts = [kv - rows for rows, kv in lengths or [(q_len, kv_len)] * batch]
    positions = torch.arange(q_len) + torch.tensor(shifts)[:, None]
    distances = (torch.arange(kv_len) - positions[..., None])[:, None]
    if alibi_slopes is not None:
        slopes = alibi_slopes.double()
        slopes = slopes[None] if slopes.dim() == 1 else slopes
        logits = logits - slopes[..., None, None] * distances.abs()
    if relative is not None:
        table, left = relative
        table = table.double().expand(heads, -1)
        entries = distances.clamp(-left, table.shape[1] - 1 - left) + left
        logits = logits + torch.stack([table[:, x[0]] for x in entries])
    logits = logits.masked_fill(~cells, -torch.inf)
    seen = (logits > -torch.inf).any(-1)
    top = logits.detach().amax(-1).masked_fill(~seen, 0)
    # The log-sum-exp of a row without keys is -inf, through which no gradient may flow.
    sums = torch.exp(logits - top[..., None]).sum(-1)
    lse = torch.where(seen, torch.log(torch.where(seen, sums, 1.0)) + top, -torch.inf)
    steady = torch.where(seen, lse, 0.0)
    weights = torch.exp(logits - steady[..., None])
    if sinks is not None:
        wide = sinks.double()
        wide = wide[None, :, None] if wide.dim() == 1 else wide
        weights = weights * torch.sigmoid(steady - wide)[..., None]
    if dropout_p:
        seed, offset = dropout_seed if isinstance(dropout_seed, tuple) else (dropout_seed, 0)
        shape = batch, heads, q_len, kv_len
        weights = weights * torch.from_numpy(kept(shape, dropout_p, seed, offset)) / (1 - dropout_p)
    return weights @ v.repeat_interleave(group, 1), lse, weights
