"""Keywords of other libraries' attention, and of FDMA's other functions: what to write instead.

A function of FDMA that takes keywords hands the ones that it does not know to `refuse_keywords`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

__all__: list[str] = []

_CAUSAL = (
    'write mask="causal", in which the last query stands at the last key as in flash-attn, or '
    'mask="k <= q" for PyTorch\'s is_causal, which differs where q_len != kv_len'
)
_WINDOW = (
    'write mask="causal & window(w)", or mask="window(left, right)" with inf for a side without a '
    "bound (-1 in flash-attn)"
)
_CU_SEQLENS = (
    "write mask=fdma.from_cu_seqlens(cu_seqlens_q, cu_seqlens_k, causal=..) and give packed "
    'tensors as q[None] with layout="bshd"'
)
_LENGTHS = (
    'lengths belong to the mask, fdma.compile("causal", q_lens, kv_lens); '
    "fdma.plan(.., closed_form=True).run(.., kv_lens=..) takes those of one call"
)
_PAGED = "paged caches are not there; gather the pages of a sequence before the call"
_PER_QUERY = (
    "bias= of 4 dimensions [batch, heads, q_len, kv_len], or for numbers of keys alone "
    "key_bias= [batch, heads_kv, kv_len]"
)
_DROPOUT = "write dropout_p="
_WEIGHTS = "write return_probabilities=True, for at most 2^28 of them"
_SINKS = "write sinks="
_GROUPED = "leave it out: k and v may have fewer heads than q, whose number they divide"
_FP8 = "8-bit types are not there; give float16 or bfloat16"
_LAYOUT = 'write layout="bhsd" or layout="bshd"'
_THREADS = "write num_threads="
_INSTEAD = {
    # torch.nn.functional.scaled_dot_product_attention
    "is_causal": _CAUSAL,
    "attn_mask": (
        "write mask=fdma.BlockMask.from_dense(attn_mask) for booleans, "
        "fdma.from_hf_mask(attn_mask) for floats of 0 and -inf, and keep it for all calls; "
        f"other floats are {_PER_QUERY}"
    ),
    "enable_gqa": _GROUPED,
    # torch.nn.attention.flex_attention
    "score_mod": (
        "functions of scores are not traced; write softcap=, alibi_slopes=, relative=(table, left) "
        "or bias=, and a condition into the mask, fdma.compile(mask_mod, q_len)"
    ),
    "block_mask": "write mask=fdma.from_flex(block_mask)",
    "mask_mod": "write mask=fdma.compile(mask_mod, q_len, kv_len)",
    "kernel_options": "leave it out: tiles are chosen by the plan",
    "return_aux": "write return_lse=True",
    # flash-attn
    "causal": _CAUSAL,
    "window_size": _WINDOW,
    "softmax_scale": "write scale=",
    "return_attn_probs": _WEIGHTS,
    "return_softmax_lse": "write return_lse=True",
    "cu_seqlens_q": _CU_SEQLENS,
    "cu_seqlens_k": _CU_SEQLENS,
    "max_seqlen_q": "leave it out: the mask knows the lengths",
    "max_seqlen_k": "leave it out: the mask knows the lengths",
    "seqused_q": _LENGTHS,
    "seqused_k": _LENGTHS,
    "cache_seqlens": _LENGTHS,
    "block_table": _PAGED,
    "page_table": _PAGED,
    "q_descale": _FP8,
    "k_descale": _FP8,
    "v_descale": _FP8,
    "num_splits": "leave it out: the plan splits rows where that is faster",
    "pack_gqa": "leave it out: the plan packs heads where that is faster",
    "s_aux": _SINKS,
    "sink": _SINKS,
    "learnable_sink": _SINKS,
    # xformers, Hugging Face, JAX
    "attn_bias": (
        'write the mask by its name, mask="k <= q" for LowerTriangularMask, '
        'fdma.compile("causal & documents(lengths=@n)", q_len, n=lengths) for '
        f"BlockDiagonalCausalMask; a tensor is {_PER_QUERY}"
    ),
    "p": _DROPOUT,
    "dropout": _DROPOUT,
    "scaling": "write scale=",
    "position_bias": f"write {_PER_QUERY}",
    "attention_mask": (
        "write mask=fdma.from_hf_padding(attention_mask, causal=..) for [batch, len], "
        "fdma.from_hf_mask(attention_mask) for [batch, heads, q, k]"
    ),
    "key_padding_mask": (
        "write mask=fdma.from_hf_padding(tokens, causal=..), tokens 1 where a key is real, which "
        "is the opposite of PyTorch's key_padding_mask"
    ),
    "sliding_window": _WINDOW,
    "local_window_size": _WINDOW,
    "output_attentions": _WEIGHTS,
    "need_weights": _WEIGHTS,
    "logits_soft_cap": "write softcap=",
    "attn_logits_soft_cap": "write softcap=",
    # FDMA's own words, of another function
    "heads": "leave it out: the tensors have it",
    "kv_lens": _LENGTHS,
    "q_lens": _LENGTHS,
    "return_log_sum_exp": "write return_lse=True",
    "device": "leave it out: attention runs where the tensors are",
    "tensor_layout": _LAYOUT,
    "qkv_format": _LAYOUT,
    "threads": _THREADS,
    "n_threads": _THREADS,
    "n_jobs": _THREADS,
}


_AMONG = "write among="
_OF_RUN = "it belongs to each run, fdma.plan(..).run(.., softmax_scale=)"
_INSTEAD_OF = {
    "plan": {
        "scale": _OF_RUN,
        "softmax_scale": _OF_RUN,
        "dropout_p": "write dropout=True, and dropout_p= in each run",
        "return_lse": "it belongs to each run, fdma.plan(..).run(.., return_lse=True)",
        "backend": "write device=",
        "kv_lens": "write closed_form=True, and kv_lens= in each run",
        "q_lens": "write closed_form=True, and q_lens= in each run",
        "cu_seqlens_q": "write closed_form=True, and cu_seqlens_q= in each run",
        "cu_seqlens_k": "write closed_form=True, and cu_seqlens_k= in each run",
    },
    "AttentionPlan.run": {
        "mask": "the plan has its mask; fdma.plan makes one for another mask",
        "scale": "write softmax_scale=",
        "layout": "the plan has its layout; fdma.plan(.., layout=) makes one for another",
        "return_probabilities": "fdma.attention(.., return_probabilities=True) has them",
        "return_attn_probs": "fdma.attention(.., return_probabilities=True) has them",
        "seqused_q": "write q_lens=",
        "seqused_k": "write kv_lens=",
        "cache_seqlens": "write kv_lens=",
    },
    "dynamic_mask_attention": {
        "mask": _AMONG,
        "attn_mask": f"{_AMONG}, a text or an expression",
        "is_causal": 'write among="causal", which is the default',
        "causal": 'write among="causal", which is the default',
        "w": "write keep_window_size=",
        "softcap": (
            "learned masks have no cap on logits; select_topk gives their mask, and "
            "fdma.attention(.., softcap=) computes with it"
        ),
        "dropout_p": (
            "learned masks have no dropout; select_topk gives their mask, and "
            "fdma.attention(.., key_bias=scores, dropout_p=) computes with it"
        ),
        "window_size": "write keep_window_size= for the number of keys that a query keeps",
    },
}


def refuse_keywords(function: Callable[..., Any], given: Iterable[str]) -> NoReturn:
    """TypeError for the first of the keywords that a public function does not have."""
    name, path = next(iter(given)), function.__qualname__
    parameters = inspect.signature(function).parameters.values()
    own = [p.name for p in parameters if p.kind != p.VAR_KEYWORD and p.name != "self"]
    advice = {**_INSTEAD, **_INSTEAD_OF.get(path, {})}.get(name, "")
    if not advice:
        import difflib

        near = difflib.get_close_matches(name, own, 1)
        advice = f"did you mean {near[0]}=?" if near else f"it has {', '.join(own)}"
    raise TypeError(f"{name}: no argument of fdma.{path}; {advice}")
