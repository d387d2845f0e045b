"""PyTorch layers: multi-head attention with compiled masks, and Dynamic Mask Attention.

>>> import torch
>>> import fdma.nn
>>> layer = fdma.nn.MultiheadAttention(32, 4, batch_first=True)
>>> x = torch.randn(2, 10, 32)
>>> layer(x, x, x, attn_mask="causal", need_weights=False)[0].shape
torch.Size([2, 10, 32])
"""

from __future__ import annotations

from typing import Any

import torch

from .attention.call import attention
from .attention.learned import dynamic_mask_attention, select_topk, zoh_scores
from .attention.weights import check_size
from .interop.hugging_face import from_hf_mask
from .masks.block_mask import BlockMask
from .masks.expr_types import MaskExpr
from .masks.tensor_masks import tensor_masks

__all__ = ["DynamicMaskAttention", "MultiheadAttention"]

Mask = BlockMask | MaskExpr | str


class MultiheadAttention(torch.nn.MultiheadAttention):  # type: ignore[misc]
    """`torch.nn.MultiheadAttention`, computed by fdma.attention: same parameters, same results.

    A state_dict of either class loads into the other. attn_mask may also be a BlockMask, a MaskExpr
    or a text of the mask language; these are true where a query attends. A boolean tensor is true
    where a query does not attend, as in PyTorch. A dense attn_mask is compiled once and again only
    after the tensor has changed.

    Two things differ from PyTorch's layer. A row without keys gives the output projection of 0, not
    NaN. need_weights computes the probabilities densely beside attention, up to 2^28 elements
    (1 GiB); need_weights=False avoids that and is the faster choice in PyTorch too.

    Numbers of attn_mask other than 0 and -inf are added to the logits, and get gradients. Dropout
    in training draws from PyTorch's generator, other pairs than PyTorch's layer does; weights are
    those after dropout, as there.

    Raises NotImplementedError for nested tensors, and for add_bias_kv or add_zero_attn with a mask
    that is not a tensor.

    >>> import torch
    >>> import fdma.nn
    >>> theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    >>> ours = fdma.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    >>> _ = ours.load_state_dict(theirs.state_dict())
    >>> x = torch.randn(2, 10, 32)
    >>> torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-5)
    True
    """

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        """(result, weights or None), shapes as in PyTorch.

        is_causal: attn_mask is the causal mask, as in PyTorch; here attn_mask may then be left out.

        >>> import torch
        >>> import fdma.nn
        >>> layer = fdma.nn.MultiheadAttention(16, 2)
        >>> x = torch.randn(5, 3, 16)
        >>> out, weights = layer(x, x, x, is_causal=True)
        >>> out.shape, weights.shape, weights[0, 0, 1].item()
        (torch.Size([5, 3, 16]), torch.Size([3, 5, 5]), 0.0)
        """
        if query.is_nested or key.is_nested or value.is_nested:
            raise NotImplementedError(
                "query: no nested tensors yet; pad or pack them, and say so in a mask"
            )
        is_batched = query.dim() == 3
        if not is_batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (self._heads(x) for x in self._projected(query, key, value))
        batch, heads, q_len, _ = q.shape
        mask = "k <= q" if is_causal else attn_mask
        if self.bias_k is not None or self.add_zero_attn:
            k, v, mask, key_padding_mask = self._with_more_keys(k, v, mask, key_padding_mask)
        kv_len = k.shape[2]
        if need_weights:
            check_size("need_weights", batch, heads, q_len, kv_len)
        words: Any = {"key_bias": _of_padding(key_padding_mask, heads)}
        if isinstance(mask, torch.Tensor):
            cells = _of_attn_mask(mask, batch, heads)
            if cells is None:
                words["bias"] = (
                    mask[None, None] if mask.dim() == 2 else mask.unflatten(0, q.shape[:2])
                )
            mask = cells
        if self.training:
            words["dropout_p"] = self.dropout
        weights: Any = None
        if need_weights:
            out, weights = attention(q, k, v, mask, return_probabilities=True, **words)
        else:
            out = attention(q, k, v, mask, **words)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if need_weights:
            weights = weights.to(out.dtype)
            weights = weights.mean(1) if average_attn_weights else weights
        if not is_batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _projected(self, query: Any, key: Any, value: Any) -> list[Any]:
        if self._qkv_same_embed_dim:
            parts = self.in_proj_weight.chunk(3)
        else:
            parts = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        linear = torch.nn.functional.linear
        if self._qkv_same_embed_dim and query is key and key is value:
            return list(linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1))
        return [
            linear(x, weight, bias)
            for x, weight, bias in zip((query, key, value), parts, biases, strict=True)
        ]

    def _heads(self, x: Any) -> Any:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _with_more_keys(self, k: Any, v: Any, mask: Any, padding: Any) -> Any:
        """Appends keys that every query sees: the learned ones (add_bias_kv) and zeros."""
        if mask is not None and not isinstance(mask, torch.Tensor):
            raise NotImplementedError(
                "attn_mask: with add_bias_kv or add_zero_attn a tensor is needed, got "
                f"{type(mask).__name__}"
            )
        more: list[Any] = []
        if self.bias_k is not None:
            more.append(
                [self._heads(x.expand(k.shape[0], -1, -1)) for x in (self.bias_k, self.bias_v)]
            )
        if self.add_zero_attn:
            zeros = k.new_zeros((*k.shape[:2], 1, k.shape[3]))
            more.append((zeros, zeros))
        for new_k, new_v in more:
            k, v = torch.cat([k, new_k], 2), torch.cat([v, new_v], 2)
        pad = torch.nn.functional.pad
        mask = None if mask is None else pad(mask, (0, len(more)))
        padding = None if padding is None else pad(padding, (0, len(more)))
        return k, v, mask, padding


def _of_attn_mask(mask: Any, batch: int, heads: int) -> BlockMask | None:
    """The BlockMask of PyTorch's attn_mask, [q, k] or [batch * heads, q, k]. The elements are
    booleans, true where a query does not attend, or floats, which are added to the logits. None
    stands for floats other than 0 and -inf.
    """
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise TypeError(f"attn_mask: expected booleans or floats, got {mask.dtype}")
    if mask.dim() != 2 and (mask.dim() != 3 or mask.shape[0] != batch * heads):
        raise ValueError(
            f"attn_mask: expected [q_len, kv_len] or [{batch * heads}, q_len, kv_len], got "
            f"{list(mask.shape)}"
        )
    if mask.requires_grad:
        return None

    def make() -> BlockMask | None:
        cells = mask.detach()
        cells = ~cells if cells.dtype == torch.bool else cells
        cells = cells[None, None] if cells.dim() == 2 else cells.unflatten(0, (batch, heads))
        try:
            return from_hf_mask(cells)
        except ValueError:
            if mask.dtype == torch.bool:
                raise
            return None

    return tensor_masks.get(mask, ("mha", batch, heads), make)


def _of_padding(padding: Any, heads: int) -> Any:
    """The padding mask as a bias for each key, [batch, heads, kv_len]."""
    if padding is None:
        return None
    if padding.dtype == torch.bool:
        zeros = torch.zeros(padding.shape, dtype=torch.float32, device=padding.device)
        padding = zeros.masked_fill(padding, -torch.inf)
    return padding[:, None].expand(-1, heads, -1)


class DynamicMaskAttention(torch.nn.Module):  # type: ignore[misc]
    """Self-attention in which every query keeps the keys that a learned score ranks highest.

    embed_dim: the size of input and output.
    num_heads, num_kv_heads: query heads and KV heads; num_kv_heads is num_heads by default.
    head_dim: the size of a head; embed_dim / num_heads by default.
    keep_window_size: the number of keys that a query keeps.
    dropout: the probability with which a kept pair is dropped in training.

    The parameters are q_proj, k_proj, v_proj, o_proj, dt_proj [num_kv_heads, num_kv_heads *
    head_dim] and a_coef [num_kv_heads]. a_coef starts at 0, so that every score is 1. A kept score
    is added to the logits, and dt_proj and a_coef are learned through this bias
    (`fdma.dynamic_mask_attention`).

    >>> import torch
    >>> import fdma.nn
    >>> layer = fdma.nn.DynamicMaskAttention(64, 4, num_kv_heads=2, keep_window_size=16)
    >>> layer(torch.randn(2, 50, 64)).shape
    torch.Size([2, 50, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        keep_window_size: int = 2048,
        bias: bool = False,
        dropout: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads: expected a divisor of {num_heads}, got {num_kv_heads}")
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(f"embed_dim: expected a multiple of {num_heads}, got {embed_dim}")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.keep_window_size, self.dropout = keep_window_size, dropout
        kind = {"device": device, "dtype": dtype}
        inner, kv = num_heads * self.head_dim, num_kv_heads * self.head_dim
        self.q_proj = torch.nn.Linear(embed_dim, inner, bias, **kind)
        self.k_proj = torch.nn.Linear(embed_dim, kv, bias, **kind)
        self.v_proj = torch.nn.Linear(embed_dim, kv, bias, **kind)
        self.o_proj = torch.nn.Linear(inner, embed_dim, bias, **kind)
        self.dt_proj = torch.nn.Linear(kv, num_kv_heads, False, **kind)
        self.a_coef = torch.nn.Parameter(torch.zeros(num_kv_heads, **kind))

    def forward(self, x: Any, among: Mask = "causal") -> Any:
        """Attention on x [batch, len, embed_dim]; the result has the same shape.

        among: the mask of the keys that queries may see at all.

        >>> import torch
        >>> import fdma.nn
        >>> layer = fdma.nn.DynamicMaskAttention(16, 2, keep_window_size=4)
        >>> layer(torch.randn(1, 9, 16), among="causal & window(8)").shape
        torch.Size([1, 9, 16])
        """
        q = self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim))
        k = self.k_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        learned = self.dt_proj.weight, self.a_coef
        if self.training and self.dropout:
            scores = zoh_scores(v, *learned, layout="bshd")
            lengths = {"q_len": x.shape[1], "heads": self.num_heads}
            mask = select_topk(scores, self.keep_window_size, among, **lengths)
            dropped: Any = {"dropout_p": self.dropout, "layout": "bshd"}
            out = attention(q, k, v, mask, key_bias=scores, **dropped)
        else:
            out = dynamic_mask_attention(
                q, k, v, *learned, self.keep_window_size, among, layout="bshd"
            )
        return self.o_proj(out.flatten(2))

    def extra_repr(self) -> str:
        """The text that `print` shows beside the layers.

        >>> import fdma.nn
        >>> fdma.nn.DynamicMaskAttention(16, 2, keep_window_size=4).extra_repr()
        'num_heads=2, num_kv_heads=2, head_dim=8, keep_window_size=4'
        """
        names = ["num_heads", "num_kv_heads", "head_dim", "keep_window_size"]
        names += ["dropout"] if self.dropout else []
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)
