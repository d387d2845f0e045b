"""Training steps over packed documents that change every step, for bench_training_gpu.py.

Each step draws documents anew, makes the mask for them (its compilation is part of the step), runs
attention forward and backward on tensors [batch 1, tokens, heads, head_dim] that a projection left
packed, and waits for the GPU. What makes the mask and computes attention differs:

    fdma         fdma.compile(causal & documents), fdma.attention; plans are made, too
    flex         create_block_mask, compiled, on document numbers that stay in one tensor (so that
                 nothing is compiled again); flex_attention, compiled
    varlen       torch.nn.attention.varlen, FlashAttention's packed form, which needs no mask
    sdpa         scaled_dot_product_attention with the mask as booleans [tokens, tokens]
    sdpa_causal  the same with is_causal by cuDNN: documents see each other, which is another result
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = ("fdma", "varlen", "sdpa_causal", "sdpa", "flex")
SHORTEST, LONGEST = 128, 6144


class Documents:
    """Lengths of packed documents, other ones every time."""

    def __init__(self, tokens: int, seed: int) -> None:
        self.tokens = tokens
        self.random = random.Random(seed)

    def next(self) -> list[int]:
        lengths: list[int] = []
        left = self.tokens
        while left:
            lengths.append(min(left, self.random.randint(SHORTEST, LONGEST)))
            left -= lengths[-1]
        return lengths


def allowed_pairs(lengths: list[int]) -> int:
    return sum(n * (n + 1) // 2 for n in lengths)


class Contender:
    """Masks from lengths, and attention of q, k, v [1, tokens, heads, head_dim] by one of them."""

    def __init__(self, name: str, torch: Any, fdma: Any, tokens: int, device: str) -> None:
        self.torch = torch
        self.fdma = fdma
        self.tokens = tokens
        self.device = device
        self.ids = torch.zeros(tokens, dtype=torch.int32, device=device)
        self.mask: Callable[[list[int]], Any] = getattr(self, f"_{name}_mask")
        self.attend: Callable[..., Any] = getattr(self, f"_{name}")
        if name == "flex":
            self._compile_flex()
        if name == "varlen":
            from torch.nn.attention.varlen import varlen_attn

            # Causal is a word of its own at first, later a window.
            is_window = "window_size" in inspect.signature(varlen_attn).parameters
            words: dict[str, Any] = {"window_size": (-1, 0)} if is_window else {"is_causal": True}
            self.varlen: Callable[..., Any] = functools.partial(varlen_attn, **words)

    def set_ids(self, lengths: list[int]) -> None:
        ids = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        self.ids.copy_(self.torch.from_numpy(ids), non_blocking=True)

    def _fdma_mask(self, lengths: list[int]) -> Any:
        return self.fdma.compile(
            self.fdma.causal() & self.fdma.documents(lengths=lengths), self.tokens
        )

    def _fdma(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return self.fdma.attention(q, k, v, mask, layout="bshd")

    def _compile_flex(self) -> None:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        is_gpu = self.device == "cuda"
        self.create = self.torch.compile(create_block_mask) if is_gpu else create_block_mask
        self.flex = self.torch.compile(flex_attention, dynamic=False) if is_gpu else flex_attention
        ids = self.ids

        def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
            return (k <= q) & (ids[q] == ids[k])

        self.mask_mod = mask_mod

    def _flex_mask(self, lengths: list[int]) -> Any:
        self.set_ids(lengths)
        return self.create(self.mask_mod, None, None, self.tokens, self.tokens, device=self.device)

    def _flex(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return self.flex(q, k, v, block_mask=mask).transpose(1, 2)

    def _varlen_mask(self, lengths: list[int]) -> Any:
        borders = np.cumsum([0, *lengths], dtype=np.int32)
        return self.torch.from_numpy(borders).to(self.device, non_blocking=True), max(lengths)

    def _varlen(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        borders, longest = mask
        q, k, v = (x[0] for x in (q, k, v))
        return self.varlen(q, k, v, borders, borders, longest, longest)[None]

    def _sdpa_mask(self, lengths: list[int]) -> Any:
        self.set_ids(lengths)
        return (self.ids[:, None] == self.ids[None, :]).tril_()

    def _sdpa(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        function = self.torch.nn.functional.scaled_dot_product_attention
        return function(q, k, v, attn_mask=mask).transpose(1, 2)

    def _sdpa_causal_mask(self, lengths: list[int]) -> Any:
        return None

    def _sdpa_causal(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        attention = self.torch.nn.attention
        function = self.torch.nn.functional.scaled_dot_product_attention
        if self.device == "cpu":
            return function(q, k, v, is_causal=True).transpose(1, 2)
        with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
            return function(q, k, v, is_causal=True).transpose(1, 2)


class Layer:
    """Self-attention with its projections, or attention alone on what they gave."""

    def __init__(
        self, torch: Any, tokens: int, heads: int, head_dim: int, device: str, has_projections: bool
    ) -> None:
        self.heads, self.head_dim = heads, head_dim
        width = heads * head_dim
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        kind = {"device": device, "dtype": dtype}
        torch.manual_seed(1)
        self.projections: Any = None
        if has_projections:
            self.projections = [
                torch.nn.Linear(width, 3 * width, bias=False, **kind),
                torch.nn.Linear(width, width, bias=False, **kind),
            ]
            self.x = torch.randn(1, tokens, width, **kind).requires_grad_()
        else:
            self.x = torch.randn(1, tokens, 3 * width, **kind).requires_grad_()
        self.dout = torch.randn(1, tokens, width, **kind)

    def step(self, attend: Callable[..., Any], mask: Any) -> Any:
        """The result; gradients are in x, and in the projections."""
        packed = self.projections[0](self.x) if self.projections else self.x
        q, k, v = packed.unflatten(-1, (3, self.heads, self.head_dim)).unbind(2)
        out = attend(q, k, v, mask).flatten(2)
        out = self.projections[1](out) if self.projections else out
        out.backward(self.dout)
        return out

    def clear(self) -> None:
        self.x.grad = None
        for projection in self.projections or ():
            projection.weight.grad = None
