"""Attention for Hugging Face's models: importing this module registers attn_implementation="fdma".

    import fdma.hf
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="fdma")

transformers describes the mask of a model (causal, sliding window, chunks, padding on either side,
packed documents by position_ids, caches with offsets) as a function of indices. The function is
traced and compiled into a BlockMask, once for each forward pass and kind of layer. This reads
padding and positions on the host. torch.compile and torch.export cannot read tensors, so inside
them the mask is a text of the mask language (interop/hf_mask_text.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    add_offsets_to_mask_function,
    and_masks,
    causal_mask_function,
    padding_mask_function,
    prepare_padding_mask,
)

from .attention.call import attention
from .attention.mask_argument import block_mask
from .attention.score import GivenScore
from .interop.cu_seqlens import from_cu_seqlens
from .interop.hf_host_values import host_value, offset_of
from .interop.hf_keywords import check_keywords
from .interop.hf_layer_mask import LayerMask
from .interop.hf_mask_text import mask_text_of
from .interop.hf_operators import attention_with_tables, table_mask
from .interop.hugging_face import from_hf_mask
from .masks.block_mask import BlockMask
from .masks.compile import compile
from .masks.tensor_masks import tensor_masks

__all__ = ["LayerMask", "attention_forward", "mask_function", "register"]

_NOT_IN_GRAPHS = (
    "it is read on the host, which torch.export and torch.compile(fullgraph=True) cannot do; use "
    "torch.compile without fullgraph"
)


def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Any = None,
    device: Any = "cpu",
    **options: Any,
) -> LayerMask:
    """The mask of a model's layers, with the arguments that `transformers.masking_utils` passes.

    Raises `fdma.TraceError` for a function of the model that is no expression of its indices.

    >>> import transformers  # the package that this module is for
    >>> from fdma.hf import mask_function
    >>> mask_function(1, 4, 4).mask.counts.allowed_pairs
    10
    """
    shape = batch_size, 1, q_length, kv_length
    if torch.compiler.is_compiling():
        function = mask_function
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        if padding is not None:
            function = and_masks(function, padding_mask_function(padding))
        found = mask_text_of(function, q_length, kv_length, q_offset, kv_offset)
        if found is not None:
            return LayerMask(found[0], shape, device, tables=found[1])
        _leave_graph(
            "mask_function: it is no expression of its indices and of tensors that it indexes"
        )
    layers: LayerMask = _compiled(mask_function, shape, q_offset, kv_offset, attention_mask, device)
    return layers


def _leave_graph(what: str) -> None:
    """Makes Dynamo run the following code outside of the graph; torch.export has no outside."""
    if not torch.compiler.is_dynamo_compiling():
        raise NotImplementedError(f"{what}; {_NOT_IN_GRAPHS}")


@torch.compiler.disable(reason=f"mask_function: {_NOT_IN_GRAPHS}")  # type: ignore[untyped-decorator]
def _compiled(
    function: Callable[..., Any],
    shape: tuple[int, int, int, int],
    q_offset: Any,
    kv_offset: int,
    attention_mask: Any,
    device: Any,
) -> LayerMask:
    batch_size, _, q_length, kv_length = shape
    when_used = None
    if attention_mask is not None:
        on_host = host_value(
            attention_mask, lambda: attention_mask.to("cpu", torch.bool, copy=True)
        )
        padding = prepare_padding_mask(on_host, kv_length, kv_offset)
        function = and_masks(function, padding_mask_function(padding))
    if isinstance(q_offset, torch.Tensor):
        q_offset, when_used = offset_of(q_offset, q_length)
    if q_offset or kv_offset:
        function = add_offsets_to_mask_function(function, q_offset, kv_offset)
    mask = compile(function, q_length, kv_length, batch_size)
    return LayerMask(mask, device=device, when_used=when_used)


def attention_forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    deterministic: bool | None = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    softcap: float | None = None,
    position_bias: Any = None,
    s_aux: Any = None,
    sinks: Any = None,
    **options: Any,
) -> tuple[Any, None]:
    """Attention of one layer: (result [batch, q_len, heads, head_dim], no weights).

    attention_mask: the mask that `mask_function` made, or a dense mask [batch, 1 or heads, q, k],
    which is compiled once. Floats other than 0 and -inf are added to the logits, as a bias. The
    mask includes causality and the window. Without a mask, is_causal and sliding_window apply, and
    row q sees keys up to q as in PyTorch's attention.
    dropout: drops weights, as the `dropout_p` of `fdma.attention`.
    softcap: caps the logits, as `fdma.attention` does (Gemma 2).
    position_bias: [1 or batch, heads, q, k], added to the logits (T5).
    s_aux, sinks: [heads] or [batch, heads, q, 1], the sinks of `fdma.attention` (gpt-oss).
    cu_seq_lens_q, cu_seq_lens_k: offsets of sequences packed along q_len, which see only
    themselves.

    Tensors of different dtypes, such as float32 activations of adapters, are cast as for
    FlashAttention: to the dtype of autocast, otherwise to that of the layer's weights.

    Raises NotImplementedError, which names the keyword, for attention weights, keys that a model
    selects, masks of heads and every unknown keyword.

    >>> import torch, transformers
    >>> from fdma.hf import attention_forward
    >>> q, k, v = torch.randn(3, 1, 2, 8, 16)
    >>> attention_forward(torch.nn.Module(), q, k, v, None, is_causal=True)[0].shape
    torch.Size([1, 8, 2, 16])
    """
    check_keywords(options)
    mask, bias = attention_mask, position_bias
    if isinstance(mask, torch.Tensor):
        compiled = _of_tensor(mask, query.shape[1])
        if compiled is None:
            bias = mask if bias is None else bias + mask
        mask = "true" if compiled is None else compiled
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = _without_mask(bool(causal), sliding_window, query.shape[2], key.shape[2])
    elif isinstance(mask, LayerMask):
        mask = _of_layer(mask, query.shape[2], key.shape[2])
    elif not isinstance(mask, BlockMask | str) or isinstance(attention_mask, str):
        raise TypeError(f"attention_mask: expected a mask of fdma.hf, got {type(mask).__name__}")
    if cu_seq_lens_q is not None:
        if torch.compiler.is_compiling():
            _leave_graph("cu_seq_lens_q")
        mask = _of_sequences(mask, query, key, cu_seq_lens_q, cu_seq_lens_k)
    query, key, value = _of_one_type(module, query, key, value)
    score = {"bias": bias, "softcap": softcap, "sinks": _rows_of_sinks(s_aux, sinks)}
    if isinstance(mask, LayerMask):
        given = GivenScore(**score, dropout_p=dropout)
        words = mask.tables, str(mask.mask), scaling, bool(deterministic), given
        out = attention_with_tables(query, key, value, *words)
    else:
        out = attention(
            query,
            key,
            value,
            mask,
            scale=scaling,
            deterministic=bool(deterministic),
            dropout_p=dropout,
            **score,
        )
    return out.transpose(1, 2).contiguous(), None


def _without_mask(causal: bool, window: int | None, q_len: int, kv_len: int) -> str | None:
    """The text of a mask that a model leaves to attention. A single row is the last position."""
    is_local = window is not None and kv_len > window
    if not causal:
        return f"abs(pos - k) < {window}" if is_local else None
    if q_len == 1:
        return f"pos - k < {window}" if is_local else None
    return f"k <= q & q - k < {window}" if is_local else "k <= q"


def _of_layer(layers: LayerMask, q_len: int, kv_len: int) -> BlockMask | str | LayerMask:
    if not isinstance(layers.mask, str):
        if not torch.compiler.is_compiling() and layers.when_used is not None:
            layers.when_used()
    elif layers.shape[2] != q_len or layers.shape[3] != kv_len:
        # A BlockMask of another shape is an error of attention itself; a text fits any shape.
        raise ValueError(
            f"attention_mask: it is for {layers.shape[2]} queries and {layers.shape[3]} keys, the "
            f"tensors have {q_len} and {kv_len}"
        )
    return layers if layers.tables else layers.mask


def _rows_of_sinks(s_aux: Any, sinks: Any) -> Any:
    """The sinks of a model, without the axis of keys that some have."""
    given = sinks if s_aux is None else s_aux
    return given[..., 0] if given is not None and given.dim() == 4 else given


def _of_tensor(mask: Any, heads: int) -> BlockMask | None:
    """The mask of a dense tensor; None for floats other than 0 and -inf, which are a bias."""
    if mask.requires_grad:
        return None
    shared = mask.dim() == 4 and mask.shape[1] == 1 and heads > 1

    def compiled() -> BlockMask | None:
        cells = mask.as_subclass(torch.Tensor).detach()
        try:
            return from_hf_mask(cells, heads=heads if shared else None)
        except ValueError:
            if cells.dim() == 4 and cells.is_floating_point():
                return None
            raise

    return tensor_masks.get(mask, ("hf", heads), compiled)


@torch.compiler.disable(reason=f"cu_seq_lens_q: {_NOT_IN_GRAPHS}")  # type: ignore[untyped-decorator]
def _of_sequences(mask: Any, query: Any, key: Any, cu_q: Any, cu_k: Any) -> BlockMask:
    if isinstance(mask, LayerMask):
        mask = table_mask(str(mask.mask), mask.tables, query.shape[0], query.shape[2], key.shape[2])
    whole = block_mask(mask, query.shape[0], 1, query.shape[2], key.shape[2])
    lens_q, lens_k = (None if x is None else tuple(host_value(x, x.tolist)) for x in (cu_q, cu_k))
    words = "hf sequences", whole._handle, lens_k
    return tensor_masks.get(cu_q, words, lambda: whole & from_cu_seqlens(lens_q, lens_k))


def _of_one_type(module: Any, *tensors: Any) -> Any:
    query, key, value = tensors
    dtype = _type_of_layer(module, query) if query.dtype == torch.float32 else query.dtype
    if torch.is_autocast_enabled(query.device.type) or (
        query.dtype == dtype and key.dtype == dtype and value.dtype == dtype
    ):
        return tensors  # attention itself applies autocast
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _type_of_layer(module: Any, query: Any) -> Any:
    """The dtype in which a layer with float32 queries computes, found as transformers finds it."""
    config = getattr(module, "config", None)
    if config is not None and hasattr(config, "_is_quantized"):
        return config.dtype
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear):
            return layer.weight.dtype
    return query.dtype


def register() -> None:
    """Registers attn_implementation="fdma" in transformers; importing the module calls this.

    >>> import transformers
    >>> import fdma.hf
    >>> "fdma" in transformers.AttentionInterface.valid_keys(transformers.AttentionInterface())
    True
    """
    AttentionInterface.register("fdma", attention_forward)
    AttentionMaskInterface.register("fdma", mask_function)


register()
