"""Mask functions of transformers as texts of the mask language, where no tensor can be read.

Inside torch.compile and torch.export a mask travels as a text. A function of transformers
(`causal_mask_function`, `sliding_window_overlay`, ..) is run once on MaskText objects, as the
tracer runs it on symbols. This code is simple enough for Dynamo to follow. Tensors that the
function indexes (padding, packed documents, the count of a static cache) become tables t0, t1, ..
of the text, and are passed beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__: list[str] = []


class NoMaskTextError(Exception):
    """A mask function does something that the mask language cannot express."""


def _word(value: Any) -> str:
    if isinstance(value, MaskText):
        return value.text
    if isinstance(value, int):
        return str(int(value))
    raise NoMaskTextError


class MaskText:
    """An index, a number or a condition of a mask function, as a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _with(self, sign: str, other: Any) -> MaskText:
        return MaskText(f"({self.text} {sign} {_word(other)})")

    def __add__(self, other: Any) -> MaskText:
        return self._with("+", other)

    def __sub__(self, other: Any) -> MaskText:
        return self._with("-", other)

    def __floordiv__(self, other: Any) -> MaskText:
        return self._with("//", other)

    def __mod__(self, other: Any) -> MaskText:
        return self._with("%", other)

    def __lt__(self, other: Any) -> MaskText:
        return self._with("<", other)

    def __le__(self, other: Any) -> MaskText:
        return self._with("<=", other)

    def __gt__(self, other: Any) -> MaskText:
        return self._with(">", other)

    def __ge__(self, other: Any) -> MaskText:
        return self._with(">=", other)

    def __eq__(self, other: Any) -> MaskText:  # type: ignore[override]
        return self._with("==", other)

    def __ne__(self, other: Any) -> MaskText:  # type: ignore[override]
        return self._with("!=", other)

    def __and__(self, other: Any) -> MaskText:
        return self._with("&", other)

    def __or__(self, other: Any) -> MaskText:
        return self._with("|", other)

    def __abs__(self) -> MaskText:
        return MaskText(f"abs({self.text})")

    def __invert__(self) -> MaskText:
        return MaskText(f"(~{self.text})")

    def __bool__(self) -> bool:
        raise NoMaskTextError

    __hash__ = None  # type: ignore[assignment]

    # Methods that transformers' own functions call on an index, besides arithmetic.

    device = None

    def to(self, *_: Any, **__: Any) -> MaskText:
        return self

    def new_ones(self, *_: Any, **__: Any) -> MaskText:
        return MaskText("true")

    def new_zeros(self, *_: Any, **__: Any) -> MaskText:
        return MaskText("false")


class _Tables:
    """Copies of the tensors that a function indexes.

    Copies are needed because a cache changes its count before its layers run.
    """

    def __init__(self) -> None:
        self.known: list[Any] = []
        self.copies: list[Any] = []

    def name(self, tensor: Any) -> str:
        for i, known in enumerate(self.known):
            if known is tensor:
                return f"@t{i}"
        self.known.append(tensor)
        self.copies.append(tensor.clone())
        return f"@t{len(self.known) - 1}"


class _Lookups(TorchFunctionMode):  # type: ignore[misc]
    """Makes tables of the tensors that a function indexes while it runs on MaskText objects."""

    def __init__(self, tables: _Tables) -> None:
        super().__init__()
        self.tables = tables

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.to or function is torch.Tensor.device.__get__:
            return function(*args, **(kwargs or {}))
        if function is not torch.Tensor.__getitem__:
            raise NoMaskTextError
        tensor, index = args
        words = [_word(part) for part in (index if isinstance(index, tuple) else (index,))]
        if len(words) != tensor.ndim or tensor.is_floating_point():
            raise NoMaskTextError
        return MaskText(f"{self.tables.name(tensor)}[{', '.join(words)}]")


def mask_text_of(
    function: Callable[..., Any], q_length: int, kv_length: int, q_offset: Any, kv_offset: int
) -> tuple[str, list[Any]] | None:
    """The text of a mask function and its tables, or None where it has no text.

    Offsets that put the last query at the last key, as in a growing cache, are written as `pos`, so
    that one text serves all lengths. q_offset: an integer, or a tensor with one element. Masks of
    transformers are the same for all heads, so the function is called for head 0.
    """
    tables = _Tables()
    q, k = MaskText("q"), MaskText("k")
    if isinstance(q_offset, torch.Tensor):
        q = q + MaskText(tables.name(q_offset))
    elif q_offset or kv_offset:
        is_last = q_offset - kv_offset == kv_length - q_length
        q = MaskText("pos") if is_last else q
        q_at = kv_offset if is_last else q_offset
        q = q + q_at if q_at else q
    if kv_offset:
        k = k + kv_offset
    try:
        with _Lookups(tables):
            return str(function(MaskText("b"), MaskText("0"), q, k).text), tables.copies
    except (NoMaskTextError, AttributeError, TypeError):
        return None
