"""The probabilities of attention as a dense tensor of PyTorch: O(q_len * kv_len) memory."""

from __future__ import annotations

from typing import Any

import torch

from ..masks.block_mask import BlockMask

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


def attention_weights(
    q: Any, k: Any, mask: BlockMask, bias: Any, scale: float | None, lse: Any, softcap: float = 0.0
) -> Any:
    """The probabilities, float32 [batch, heads, q_len, kv_len].

    q and k have heads before lengths; bias is [batch, heads_kv, kv_len]. Rows without keys are 0.
    The result is differentiable, also through the log-sum-exp.
    """
    group = q.shape[1] // k.shape[1]
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    logits = q.float() @ k.float().repeat_interleave(group, 1).mT * factor
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias.float().repeat_interleave(group, 1)[:, :, None]
    cells = torch.from_numpy(mask.to_dense()).to(q.device)
    padded = cells.new_zeros((*cells.shape[:2], *logits.shape[2:]))
    padded[:, :, : cells.shape[2], : cells.shape[3]] = cells
    # A row without keys has a log-sum-exp of -inf, and -inf - -inf would be NaN.
    steady = lse.masked_fill(lse == -torch.inf, 0)[..., None]
    return torch.exp(logits.masked_fill(~padded, -torch.inf) - steady)
