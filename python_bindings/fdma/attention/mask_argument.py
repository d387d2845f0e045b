"""The mask argument of attention as a BlockMask of the call's shape."""

from __future__ import annotations

import threading
from typing import Any

from .. import _fdma
from ..masks.block_mask import BlockMask
from ..masks.compile import compile
from ..masks.expr_types import MaskExpr
from ..masks.no_mask import described

__all__: list[str] = []

DENSE = "true"
"""The text of the mask that None stands for."""

_MAX_TEXTS = 512
_texts: dict[tuple[Any, ...], BlockMask] = {}
_lock = threading.Lock()


def block_mask(
    mask: BlockMask | MaskExpr | str | None,
    batch: int,
    heads: int,
    q_len: int,
    kv_len: int,
    num_threads: int = 0,
    heads_first: bool | None = None,
) -> BlockMask:
    """The mask of a call. Texts, and expressions without arrays, are compiled once for a shape.

    An expression with arrays is compiled at each call, because the arrays may have changed. Raises
    TypeError and ValueError as `compile` does, and ValueError for a mask of another shape.

    heads_first: whether the tensors were read as [batch, heads, len, head_dim], for the message of
    a mask that fits the other layout; None where the caller gives no layout.

    A batch of 0 has no cells. Its mask is checked as far as that is possible without cells, and the
    result is a mask of one batch element.
    """
    if isinstance(mask, BlockMask):
        check_shape(mask, batch, heads, q_len, kv_len, heads_first)
        return mask
    if mask is None:
        mask = DENSE
    elif isinstance(mask, MaskExpr):
        if mask.tables and batch > 0:
            return compile(mask, q_len, kv_len, batch, heads, num_threads=num_threads)
        mask = DENSE if mask.tables else str(mask)
    elif not isinstance(mask, str):
        raise TypeError(
            "mask: expected a BlockMask, a MaskExpr, a text of the mask language or None, got "
            f"{described(mask, has_bias=True)}"
        )
    return _of_text(mask, max(batch, 1), heads, q_len, kv_len, num_threads)


def _of_text(
    text: str, batch: int, heads: int, q_len: int, kv_len: int, num_threads: int
) -> BlockMask:
    key = (text, batch, heads, q_len, kv_len)
    found = _texts.get(key)
    if found is None:
        if names := _fdma.parse_expr(text).table_names:
            raise ValueError(
                f"mask: the text has tables (@{', @'.join(names)}); give "
                f"fdma.compile(text, q_len, {names[0]}=..) or an expression with its arrays"
            )
        found = compile(text, q_len, kv_len, batch, heads, num_threads=num_threads)
        with _lock:
            if len(_texts) >= _MAX_TEXTS:
                _texts.clear()
            _texts[key] = found
    return found


def check_shape(
    mask: BlockMask,
    batch: int,
    heads: int,
    q_len: int,
    kv_len: int,
    heads_first: bool | None = None,
) -> None:
    """ValueError if a mask does not fit tensors of these extents.

    Lengths per batch element may be shorter than the tensors; one length for all may not.
    """
    core = mask._core
    is_uniform = len(core.q_lens) == 1, len(core.kv_lens) == 1
    for name, length, extent, is_one in (
        ("q_len", mask.q_len, q_len, is_uniform[0]),
        ("kv_len", mask.kv_len, kv_len, is_uniform[1]),
    ):
        if length > extent or (is_one and length != extent):
            hint = ""
            if heads_first is not None and mask.q_len == heads and mask.heads in (1, q_len):
                hint = _other_layout(heads_first)
            elif length < extent:
                hint = "; lengths that are shorter belong to the mask, per batch element"
            raise ValueError(f"mask: its {name} is {length}, the tensors have {extent}{hint}")
    for name, count, extent in (("batch", mask.batch, batch), ("heads", mask.heads, heads)):
        if count not in (1, extent):
            raise ValueError(f"mask: it is for {count} {name}, the tensors have {extent}")
    core.check_serves(batch, heads)


def _other_layout(heads_first: bool) -> str:
    axes, layout = ("len, heads", "bshd") if heads_first else ("heads, len", "bhsd")
    return f'; these tensors look like [batch, {axes}, head_dim]: pass layout="{layout}"'
