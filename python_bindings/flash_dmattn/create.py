"""Masks by name."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable
from typing import Any

import fdma

from .dynamic_mask import DynamicMask
from .masks import BCSRMask, BlockBitsetMask, CausalMask, CausalWindowMask, SparseMask, WindowMask

__all__ = ["create_sparse_mask"]

_MAKERS: dict[str, Callable[..., SparseMask]] = {
    "causal": CausalMask,
    "window": WindowMask,
    "causal_window": CausalWindowMask,
    "bitset": BlockBitsetMask.from_dense_mask,
    "bcsr": BCSRMask.from_dense_mask,
    "dynamic": DynamicMask,
}


def create_sparse_mask(kind: str, **parameters: Any) -> SparseMask:
    """A mask by name with the parameters of its class, or the mask of a text.

    kind: "causal", "window", "causal_window", "dynamic", "bitset" or "bcsr". The last two take the
    parameter dense_mask, booleans [.., q, k]. Any other kind is a text of the mask language
    (docs/spec-language.md). A text takes seqlen_q and optionally seqlen_k, batch, heads and
    block_size; further parameters are the arrays of its tables, by name.

    Raises TypeError for unknown and for missing parameters, and ValueError for a kind that is
    neither a name nor a text (`fdma.MaskSyntaxError`).

    >>> from flash_dmattn import create_sparse_mask
    >>> create_sparse_mask("causal_window", window_size=512, seqlen_q=4096, seqlen_k=4096)
    CausalWindowMask(window_size=512, seqlen_q=4096, seqlen_k=4096)
    >>> packed = create_sparse_mask("causal & documents(lengths=@n)", seqlen_q=2048, n=[700, 1348])
    >>> packed.mask.counts.allowed_pairs
    1154576
    """
    if not isinstance(kind, str):
        raise TypeError(f"kind: expected a str, got {type(kind).__name__}")
    maker = _MAKERS.get(kind)
    if maker is None:
        return _of_text(kind, parameters)
    try:
        inspect.signature(maker).bind(**parameters)
    except TypeError as error:
        raise TypeError(f"create_sparse_mask({kind!r}): {error}") from None
    return maker(**parameters)


def _of_text(text: str, parameters: dict[str, Any]) -> SparseMask:
    own = {"seqlen_q", "seqlen_k", "batch", "heads", "block_size"}
    tables = {name: value for name, value in parameters.items() if name not in own}
    try:
        expr = fdma.MaskExpr.parse(text, **tables)
    except fdma.MaskSyntaxError as error:
        if not re.fullmatch(r"\s*[\w-]+\s*", text):
            raise
        near = difflib.get_close_matches(text.strip(), _MAKERS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise fdma.MaskSyntaxError(
            f"kind: expected {', '.join(_MAKERS)} or the text of a mask, got {text!r}{hint}\n"
            f"{error}"
        ) from None
    if "seqlen_q" not in parameters:
        raise TypeError(f"create_sparse_mask({text!r}): missing a required argument: 'seqlen_q'")
    return SparseMask(expr, **{name: value for name, value in parameters.items() if name in own})
