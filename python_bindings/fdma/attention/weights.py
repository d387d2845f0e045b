"""The probabilities of attention as a dense tensor of PyTorch: O(q_len * kv_len) memory."""

from __future__ import annotations

from typing import Any

import torch

from ..masks.block_mask import BlockMask
from .mask_argument import block_mask
from .pytorch import attention, autocast
from .score import NO_SCORE, GivenScore, ScoreArguments
from .score_torch import fixed, score_of
from .shapes import checked_scale, is_heads_first
from .tensors import extents_of

__all__: list[str] = []

MAX_ELEMENTS = 1 << 28
"""The largest tensor of probabilities: 1 GiB in float32."""


def check_size(name: str, batch: int, heads: int, q_len: int, kv_len: int) -> None:
    """ValueError above the limit; `name` is the argument that asks for probabilities."""
    elements = batch * heads * q_len * kv_len
    if elements > MAX_ELEMENTS:
        raise ValueError(
            f"{name}: [{batch}, {heads}, {q_len}, {kv_len}] are {elements} numbers, at most "
            f"{MAX_ELEMENTS} are given; attention itself needs none of them"
        )


@torch.compiler.disable(reason="return_probabilities: the cells of a mask are read on the host")  # type: ignore[untyped-decorator]
def attention_with_probabilities(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    given: GivenScore | None,
    scale: float | None,
    layout: str,
    return_lse: bool,
    *words: Any,
) -> Any:
    """(result, the log-sum-exp if it is asked for, probabilities) of `fdma.attention`."""
    heads_first = is_heads_first(layout)
    q, k, v = autocast(q, k, v)
    extents = extents_of(q, k, v, heads_first)
    counts = extents.batch, extents.heads, extents.q_len, extents.kv_len
    check_size("return_probabilities", *counts)
    factor = extents.head_dim**-0.5 if scale is None else checked_scale(scale)
    score = NO_SCORE
    if given is not None:
        score = score_of(given, q, k, v, heads_first)
        given = fixed(given, score)
    compiled = block_mask(mask, *counts, heads_first=heads_first)
    out, lse = attention(q, k, v, compiled, given, scale, layout, True, *words)
    if not heads_first:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    weights = _weights(q, k, compiled, score, factor, lse)
    return (out, lse, weights) if return_lse else (out, weights)


def _weights(q: Any, k: Any, mask: BlockMask, score: ScoreArguments, scale: float, lse: Any) -> Any:
    """The probabilities, float32 [batch, heads, q_len, kv_len], after dropout.

    q and k have heads before lengths. Rows without keys are 0. The result is differentiable, also
    through the log-sum-exp.
    """
    batch, heads, q_len, _ = q.shape
    group, kv_len = heads // k.shape[1], k.shape[2]
    logits = q.float() @ k.float().repeat_interleave(group, 1).mT * scale
    if score.softcap:
        logits = score.softcap * torch.tanh(logits / score.softcap)
    if score.key_bias is not None:
        logits = logits + score.key_bias.float().repeat_interleave(group, 1)[:, :, None]
    if score.bias is not None:
        bias = score.bias.float()
        if bias.shape[1] not in (1, heads):
            bias = bias.repeat_interleave(group, 1)
        logits = logits + bias
    if score.alibi_slopes is not None or score.relative is not None:
        distances = _distances(mask, batch, q_len, kv_len, q.device)
        if score.alibi_slopes is not None:
            slopes = score.alibi_slopes
            slopes = slopes[None] if slopes.dim() == 1 else slopes
            logits = logits - slopes[:, :, None, None] * distances.abs()
        if score.relative is not None:
            left = score.relative_left
            right = score.relative.shape[1] - 1 - left
            entries = distances.clamp(-left, right).long() + left
            logits = logits + score.relative[:, entries[:, 0]].transpose(0, 1)
    cells = torch.from_numpy(mask.to_dense()).to(q.device)
    padded = cells.new_zeros((*cells.shape[:2], q_len, kv_len))
    padded[:, :, : cells.shape[2], : cells.shape[3]] = cells
    # A row without keys has a log-sum-exp of -inf, and -inf - -inf would be NaN.
    steady = lse.masked_fill(lse == -torch.inf, 0)
    weights = torch.exp(logits.masked_fill(~padded, -torch.inf) - steady[..., None])
    if score.sinks is not None:
        sinks = score.sinks.float()
        sinks = sinks[None, :, None] if sinks.dim() == 1 else sinks
        weights = weights * torch.sigmoid(steady - sinks)[..., None]
    if score.dropout_p:
        weights = (
            weights * _kept(score, (batch, heads, q_len, kv_len), q.device) / (1 - score.dropout_p)
        )
    return weights


def _distances(mask: BlockMask, batch: int, q_len: int, kv_len: int, device: Any) -> Any:
    """k - pos for every query and key, float32 [batch or 1, 1, q_len, kv_len]."""
    shift = torch.tensor(mask.kv_lens, device=device) - torch.tensor(mask.q_lens, device=device)
    rows = torch.arange(q_len, device=device) + shift[:, None]
    keys = torch.arange(kv_len, device=device)
    return (keys - rows[..., None])[:, None].float()


def _kept(score: ScoreArguments, shape: tuple[int, int, int, int], device: Any) -> Any:
    """1 where dropout keeps a pair, else 0, by Philox4x32-7 as DESIGN.md section 10 has it."""
    if score.seeds is None:
        seed, offset = score.seed % (1 << 64), score.offset % (1 << 64)
    else:
        seed, offset = (int(x) % (1 << 64) for x in score.seeds)
    batch, heads, q_len, kv_len = shape
    low = (1 << 32) - 1
    rows = torch.arange(q_len, dtype=torch.int64, device=device)
    keys = torch.arange(kv_len, dtype=torch.int64, device=device)
    heads_of = torch.arange(batch * heads, dtype=torch.int64, device=device)
    counter = [
        torch.full((1, 1, 1), offset & low, dtype=torch.int64, device=device),
        heads_of[:, None, None],
        (rows // 16 * 8 + rows % 8)[None, :, None],
        (keys // 16 * 8 + keys % 8)[None, None, :],
    ]
    key = seed & low, (seed >> 32) ^ (offset >> 32)
    words = _philox(counter, key)
    word = 2 * (rows // 8 % 2)[:, None] + (keys // 8 % 2)[None]
    drawn = torch.zeros((batch * heads, q_len, kv_len), dtype=torch.int64, device=device)
    for i, of_all in enumerate(words):
        drawn = torch.where(word == i, of_all, drawn)
    kept = drawn >= round(score.dropout_p * (1 << 32))
    return kept.unflatten(0, (batch, heads)).float()


def _philox(counter: list[Any], key: tuple[int, int]) -> list[Any]:
    """Philox4x32-7 of counters that broadcast; words of 32 bits in int64."""
    low = (1 << 32) - 1
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(7):
        high0, low0 = _product(c0, 0xD2511F53)
        high1, low1 = _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return [c0, c1, c2, c3]


def _product(x: Any, factor: int) -> tuple[Any, Any]:
    """The high and low words of a product of 32-bit words. int64 would wrap without the halves."""
    low = (1 << 32) - 1
    of_low, of_high = (x & 0xFFFF) * factor, (x >> 16) * factor
    carried = of_high + (of_low >> 16)
    return carried >> 16, (carried << 16 | of_low & 0xFFFF) & low
