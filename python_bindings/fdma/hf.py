"""Attention of Hugging Face's models: importing this registers attn_implementation="fdma".

    import fdma.hf
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="fdma")

What the model says of its mask (causal, sliding window, chunks, padding on either side, packed
documents by position_ids, caches with offsets) arrives as a function of indices; it is traced and
compiled into a BlockMask, once for a forward pass and kind of layer. Padding and positions are read
on the host for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask as FlexMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    add_offsets_to_mask_function,
    and_masks,
    causal_mask_function,
    padding_mask_function,
    prepare_padding_mask,
)

from .attention import attention
from .block_mask import BlockMask
from .compile import compile
from .peer_hugging_face import from_hf_mask
from .tensor_masks import tensor_masks

__all__ = ["LayerMask", "attention_forward", "mask_function", "register"]

_REFUSED = {
    "softcap": "a cap on logits",
    "s_aux": "attention sinks",
    "position_bias": "a bias per query and key",
    "head_mask": "a mask of heads",
}


class LayerMask(FlexMask):  # type: ignore[misc]
    """A BlockMask of ours, as `mask`, that passes for a prepared mask in transformers.

    `generate` hands masks of caches of a fixed size around, and tells one that is ready from a
    padding mask by its type: PyTorch's.

    >>> import transformers
    >>> from fdma.hf import LayerMask, mask_function
    >>> layers = mask_function(1, 4, 4)
    >>> layers.shape, layers.mask.spec
    ((1, 1, 4, 4), 'k <= q')
    """

    def __init__(self, mask: BlockMask) -> None:
        self.mask = mask

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, q_len, kv_len)."""
        return self.mask.shape

    def contiguous(self) -> LayerMask:
        """The mask itself.

        >>> import transformers
        >>> from fdma.hf import mask_function
        >>> mask_function(1, 4, 4).contiguous().shape
        (1, 1, 4, 4)
        """
        return self

    def __repr__(self) -> str:
        return f"LayerMask({self.mask!r})"

    __str__ = __repr__


def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Any = None,
    **options: Any,
) -> LayerMask:
    """The mask of a model's layers, as `transformers.masking_utils` asks for it.

    Raises `fdma.TraceError` for a function of the model that is no formula of its indices.

    >>> import transformers  # the package that this module is for
    >>> from fdma.hf import mask_function
    >>> mask_function(1, 4, 4).mask.counts.allowed_pairs
    10
    """
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    function = mask_function
    if padding is not None:
        function = and_masks(function, padding_mask_function(padding.bool().cpu()))
    if isinstance(q_offset, torch.Tensor):
        q_offset = int(q_offset)
    if q_offset or kv_offset:
        function = add_offsets_to_mask_function(function, q_offset, kv_offset)
    return LayerMask(compile(function, q_length, kv_length, batch_size))


def attention_forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Any, None]:
    """Attention of one layer: (result [batch, q_len, heads, head_dim], no weights).

    attention_mask: what `mask_function` made, or a dense mask [batch, 1 or heads, q, k] of yours,
    compiled once. Raises NotImplementedError for dropout, a cap on logits, attention sinks and
    biases per query, by name.

    >>> import torch, transformers
    >>> from fdma.hf import attention_forward
    >>> q, k, v = torch.randn(3, 1, 2, 8, 16)
    >>> attention_forward(torch.nn.Module(), q, k, v, None, is_causal=True)[0].shape
    torch.Size([1, 8, 2, 16])
    """
    if dropout:
        raise NotImplementedError(
            f"dropout: attention has none (got {dropout}); set attention_dropout=0 in the config"
        )
    for name, what in _REFUSED.items():
        if options.get(name) is not None:
            raise NotImplementedError(
                f'{name}: {what} is not there yet; use attn_implementation="sdpa" for this model'
            )
    mask = attention_mask
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = "k <= q" if causal and query.shape[2] > 1 else None
    elif isinstance(mask, torch.Tensor):
        mask = _of_tensor(mask, query.shape[1])
    elif isinstance(mask, LayerMask):
        mask = mask.mask
    elif not isinstance(mask, BlockMask):
        raise TypeError(f"attention_mask: expected a mask of fdma.hf, got {type(mask).__name__}")
    out = attention(query, key, value, mask, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def _of_tensor(mask: Any, heads: int) -> BlockMask:
    shared = mask.shape[1] == 1 and heads > 1
    return tensor_masks.get(
        mask, ("hf", heads), lambda: from_hf_mask(mask.detach(), heads=heads if shared else None)
    )


def register() -> None:
    """Makes attn_implementation="fdma" known to transformers; importing the module does it.

    >>> import transformers
    >>> import fdma.hf
    >>> "fdma" in transformers.AttentionInterface.valid_keys(transformers.AttentionInterface())
    True
    """
    AttentionInterface.register("fdma", attention_forward)
    AttentionMaskInterface.register("fdma", mask_function)


register()
