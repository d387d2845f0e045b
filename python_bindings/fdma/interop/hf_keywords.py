"""Keywords that models of transformers hand to attention: without effect here, or refused by name.

A model would compute something else if attention ignored one of its keywords. Every keyword must
therefore be known. `attention_forward` applies some, the keywords below change nothing, and any
other keyword is an error unless it is None or False.
"""

from __future__ import annotations

from typing import Any

__all__: list[str] = []

_WITHOUT_EFFECT = frozenset(
    (
        # Rotary embeddings are applied before; packed documents are in the mask.
        "cache_position",
        "position_embeddings",
        "position_ids",
        # The cache is updated before, and its keys are those that come.
        "cache_params",
        "past_key_value",
        "past_key_values",
        "use_cache",
        # Inputs of the model from which masks, queries, keys and values were made.
        "encoder_attention_mask",
        "encoder_hidden_states",
        "input_ids",
        "mm_token_type_ids",
        "token_type_ids",
        # The model's results and loss ask for them.
        "labels",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        # The longest sequence of cu_seq_lens_q and cu_seq_lens_k, which say it themselves.
        "max_length_k",
        "max_length_q",
        "max_seqlen",
        # Sequences of convolutions and linear attention; those of attention are in the mask.
        "seq_idx",
    )
)

_EAGER = 'use attn_implementation="eager" for this model'
_EAGER_OR_SDPA = 'use attn_implementation="eager" or "sdpa" for this model'

_REFUSED = {
    "block_indices": ("blocks of keys that the model selects are", _EAGER_OR_SDPA),
    "cache": ("a paged cache (continuous batching) is", _EAGER_OR_SDPA),
    "head_mask": ("a mask of heads is", _EAGER),
    "indices": ("keys that the model selects are", _EAGER_OR_SDPA),
    "layer_head_mask": ("a mask of heads is", _EAGER),
    "output_attentions": ("the attention weights are never computed; a result of them is", _EAGER),
}


def check_keywords(options: dict[str, Any]) -> None:
    """NotImplementedError for a keyword that would change the result, were it not ignored."""
    for name, value in options.items():
        if name in _WITHOUT_EFFECT or value is None or value is False:
            continue
        if name in _REFUSED:
            what, advice = _REFUSED[name]
            raise NotImplementedError(f"{name}: {what} not there yet; {advice}")
        raise NotImplementedError(
            f"{name}: this keyword of the model is not known here (got {type(value).__name__}), "
            f"and without it the result might differ; {_EAGER}"
        )
