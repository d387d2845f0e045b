"""Attention by the names of FDMA's earlier versions, on top of `fdma.attention`.

Tensors are [batch, length, heads, head_dim], of PyTorch, or arrays of NumPy, CuPy or JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fdma
import numpy as np
from fdma.attention.frameworks import framework
from fdma.attention.learned import without_zeros
from fdma.attention.shapes import Extents, checked_extents, checked_scale

from .masks import SparseMask, dtype_name, host_array

__all__ = ["flash_dma_attention", "flash_dmattn_func", "flash_dmattn_func_auto"]

_BACKENDS = {None: "auto", "auto": "auto", "cuda": "sm90", "sm90": "sm90", "cpu": "cpu"}
_AXES = "[batch or 1, heads, heads_kv or 1, q_len or 1, kv_len]"


def flash_dmattn_func(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    attn_bias: Any = None,
    scale: float | None = None,
    is_causal: bool = False,
    softcap: float = 0.0,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention with a dense mask that is compiled on the fly, and a bias.

    query is [batch, q_len, heads, head_dim]; key and value are [batch, kv_len, heads_kv, head_dim].
    attn_mask: booleans, or 0 and 1, true where a query attends: [batch or 1, heads, heads_kv or 1,
    q_len or 1, kv_len]. A tensor is compiled once and again only after it has changed; a tensor on
    a GPU is copied to the host for that.
    is_causal: apply the causal mask, in which the last query sits at the last key. A query attends
    where attn_mask and the causal mask both allow it.
    attn_bias: numbers added to the logits, [batch or 1, heads or heads_kv or 1, q_len or 1, kv_len]
    or for each key alone [batch or 1, heads_kv or 1, kv_len].
    return_attn_probs: return (result, probabilities [batch, heads, q_len, kv_len]), for PyTorch
    only and up to 2^28 probabilities.
    Gradients are those of `fdma.attention`.

    softcap: a number above 0 caps scaled products x before the bias is added, softcap * tanh(x /
    softcap); 0 means no cap.

    Raises ValueError for shapes.

    >>> import numpy as np
    >>> from flash_dmattn import flash_dmattn_func
    >>> q, k, v = (np.random.default_rng(i).random((1, 9, 2, 16), np.float32) for i in range(3))
    >>> dense = np.tri(9, dtype=bool)[None, None]
    >>> out = flash_dmattn_func(q, k, v, attn_mask=dense)
    >>> np.array_equal(out, flash_dmattn_func(q, k, v, is_causal=True))
    True
    """
    options = (attn_mask, attn_bias, scale, is_causal, softcap, deterministic, return_attn_probs)
    return _attend("auto", None, query, key, value, *options)


def flash_dmattn_func_auto(backend: str | None = None) -> Callable[..., Any]:
    """`flash_dmattn_func` on a backend: "cuda" (Hopper GPUs), "cpu", or by where tensors are.

    The returned function also takes `sparse_mask`, a mask of this package or an `fdma.BlockMask`.
    Without one, every query sees every key. Raises ValueError for another backend.

    >>> import numpy as np
    >>> from flash_dmattn import CausalWindowMask, flash_dmattn_func_auto
    >>> query = key = value = np.random.default_rng(0).random((1, 300, 2, 16), np.float32)
    >>> sparse_mask = CausalWindowMask(window_size=64, seqlen_q=300, seqlen_k=300)
    >>> attend = flash_dmattn_func_auto(backend="cpu")
    >>> attend(query=query, key=key, value=value, sparse_mask=sparse_mask).shape
    (1, 300, 2, 16)
    """
    if backend not in _BACKENDS:
        raise ValueError(
            f'backend: expected "cuda", "cpu" or None, got {backend!r}; there are no others'
        )
    chosen = _BACKENDS[backend]

    def flash_dmattn(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        attn_bias: Any = None,
        scale: float | None = None,
        is_causal: bool = False,
        softcap: float = 0.0,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        *,
        sparse_mask: SparseMask | fdma.BlockMask | None = None,
    ) -> Any:
        options = (scale, is_causal, softcap, deterministic, return_attn_probs)
        return _attend(chosen, sparse_mask, query, key, value, attn_mask, attn_bias, *options)

    return flash_dmattn


def flash_dma_attention(
    query: Any,
    key: Any,
    value: Any,
    dt_proj: Any,
    a_coef: Any,
    keep_window_size: int = 1024,
    dropout_p: float = 0.0,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_attn_probs: bool = False,
    *,
    selection_method: str = "exact",
    block_size: int | None = None,
    mixed_processing: bool | None = None,
) -> Any:
    """Dynamic Mask Attention as published: a key whose score is 0 is dropped.

    query is [batch, q_len, heads, head_dim]; key and value are [batch, kv_len, heads_kv, head_dim].
    dt_proj is [heads_kv, heads_kv * head_dim] or [heads_kv, head_dim]; a_coef is [heads_kv]. Every
    query keeps the keep_window_size keys of highest score exp(softplus(V dt_proj^T) * a_coef), and
    the score is added to its logits.
    return_attn_probs: return (result, probabilities [batch, heads, q_len, kv_len]), for PyTorch
    only and up to 2^28 probabilities.
    block_size, mixed_processing: accepted without effect; the plan chooses tiles itself.

    dropout_p: drops pairs after the softmax, by PyTorch's generator; an error for other arrays.

    Raises NotImplementedError for selection_method "approximate": the exact one costs O(N log w)
    already.

    >>> import numpy as np
    >>> from flash_dmattn import flash_dma_attention
    >>> random = np.random.default_rng(0)
    >>> q, k, v = (random.standard_normal((1, 100, h, 16), np.float32) for h in (4, 2, 2))
    >>> dt_proj, a_coef = random.standard_normal((2, 32), np.float32), -np.ones(2, np.float32)
    >>> flash_dma_attention(q, k, v, dt_proj, a_coef, keep_window_size=16, causal=True).shape
    (1, 100, 4, 16)
    """
    if selection_method == "approximate":
        raise NotImplementedError(
            'selection_method: "approximate" is not there; "exact" costs O(N log w) already'
        )
    if selection_method != "exact":
        raise ValueError(f'selection_method: expected "exact", got {selection_method!r}')
    if dropout_p and framework(query) != "torch":
        raise NotImplementedError(
            "dropout_p: only tensors of PyTorch have a generator to draw from"
        )
    among = "causal" if causal else "true"
    checked_scale(softmax_scale, "softmax_scale")
    if not return_attn_probs and not dropout_p:
        return fdma.dynamic_mask_attention(
            query, key, value, dt_proj, a_coef, keep_window_size, among,
            scale=softmax_scale, layout="bshd", drop_zero_scores=True,
        )  # fmt: skip
    extents = _extents(query, key, value)
    scores = fdma.zoh_scores(value, dt_proj, a_coef, layout="bshd")
    mask = fdma.select_topk(
        scores, keep_window_size, among, q_len=extents.q_len, heads=extents.heads
    )
    words: Any = {"key_bias": without_zeros(scores, scores == 0), "dropout_p": dropout_p}
    if return_attn_probs:
        return _with_probabilities(query, key, value, mask, softmax_scale, words)
    return fdma.attention(query, key, value, mask, scale=softmax_scale, layout="bshd", **words)


def _extents(query: Any, key: Any, value: Any) -> Extents:
    return checked_extents(query.shape, key.shape, value.shape, False)


def _attend(
    backend: str,
    sparse_mask: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    attn_bias: Any,
    scale: float | None,
    is_causal: bool,
    softcap: float,
    deterministic: bool,
    return_attn_probs: bool,
) -> Any:
    extents = _extents(query, key, value)
    mask: Any = None
    if sparse_mask is not None:
        mask = sparse_mask.mask if isinstance(sparse_mask, SparseMask) else sparse_mask
    if attn_mask is not None:
        dense = _of_dense(attn_mask, extents)
        mask = dense if mask is None else mask & dense
    if is_causal:
        causal = fdma.compile("causal", extents.q_len, extents.kv_len)
        mask = "causal" if mask is None else mask & causal
    words: Any = {"deterministic": deterministic, "backend": backend, "softcap": softcap}
    if attn_bias is not None:
        words.update(_bias(attn_bias, extents))
    if return_attn_probs:
        return _with_probabilities(query, key, value, mask, scale, words)
    return fdma.attention(query, key, value, mask, scale=scale, layout="bshd", **words)


def _with_probabilities(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    scale: float | None,
    words: dict[str, Any],
) -> Any:
    if framework(query) != "torch":
        raise NotImplementedError("return_attn_probs: only tensors of PyTorch have probabilities")
    from fdma.attention.weights import check_size

    extents = _extents(query, key, value)
    check_size("return_attn_probs", extents.batch, extents.heads, extents.q_len, extents.kv_len)
    return fdma.attention(
        query, key, value, mask,
        scale=scale, layout="bshd", return_probabilities=True, **words,
    )  # fmt: skip


def _of_dense(attn_mask: Any, extents: Extents) -> fdma.BlockMask:
    """The mask of dense cells, with query heads."""
    shape = tuple(attn_mask.shape)
    wanted = (
        (1, extents.batch),
        (1, extents.heads_kv, extents.heads),
        (1, extents.q_len),
        (extents.kv_len,),
    )
    if len(shape) != 4 or any(
        extent not in allowed for extent, allowed in zip(shape, wanted, strict=True)
    ):
        raise ValueError(f"attn_mask: expected {_AXES} for these tensors, got {list(shape)}")
    if framework(attn_mask) != "torch":
        return _compiled(attn_mask, extents)
    from fdma.masks.tensor_masks import tensor_masks

    return tensor_masks.get(attn_mask, extents, lambda: _compiled(attn_mask.detach(), extents))


def _compiled(attn_mask: Any, extents: Extents) -> fdma.BlockMask:
    cells = host_array(attn_mask)
    if dtype_name(cells) != "bool":
        is_one = cells == 1
        if not bool((is_one | (cells == 0)).all()):
            raise ValueError("attn_mask: expected booleans, or 0 and 1, got another number")
        cells = is_one
    cells = np.asarray(cells)
    heads = cells.shape[1]
    if cells.shape[2] == 1 and extents.q_len > 1:  # one row for all queries needs no dense array
        row = fdma.b if cells.shape[0] > 1 else 0
        head = fdma.h // (extents.heads // heads) if heads > 1 else 0
        seen = fdma.table(np.ascontiguousarray(cells[:, :, 0]))[row, head, fdma.k]
        count = extents.heads if heads > 1 else 1
        return fdma.compile(seen, extents.q_len, extents.kv_len, cells.shape[0], count)
    if heads not in (1, extents.heads):
        cells = cells.repeat(extents.heads // heads, axis=1)
    return fdma.BlockMask.from_dense(cells)


def _bias(attn_bias: Any, extents: Extents) -> dict[str, Any]:
    """The argument of `fdma.attention` for a bias; a number for each key is the cheaper one."""
    shape = tuple(attn_bias.shape)
    batch, heads, heads_kv, q_len, kv_len = extents[:5]
    wanted = [(1, batch), (1, heads_kv), (kv_len,)]
    if len(shape) == 4:
        wanted = [(1, batch), (1, heads_kv, heads), (1, q_len), (kv_len,)]
    if len(shape) != len(wanted) or any(
        extent not in allowed for extent, allowed in zip(shape, wanted, strict=True)
    ):
        raise ValueError(
            "attn_bias: expected [batch or 1, heads or heads_kv or 1, q_len or 1, kv_len], or "
            f"[batch or 1, heads_kv or 1, kv_len], for these tensors, got {list(shape)}"
        )
    if len(shape) == 3:
        return {"key_bias": attn_bias}
    if shape[2] == 1 and shape[1] in (1, heads_kv):
        return {"key_bias": attn_bias[:, :, 0]}
    return {"bias": attn_bias}
