"""A mask_mod takes (b, h, q_idx, kv_idx): what to say of functions that do not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["check_arguments"]

_EXPECTED = "mask_mod: expected a function of (b, h, q_idx, kv_idx)"
_ADVICE = {
    0: "if it makes a mask function, call it",
    1: "if it makes a mask function, call it",
    2: "write lambda b, h, q_idx, kv_idx: {call}",
    3: "write lambda b, h, q_idx, kv_idx: .. and use the indices that you need",
    5: (
        "a score_mod has five; functions of scores are not traced, and fdma.attention has "
        "softcap=, alibi_slopes=, relative= and bias= in their place"
    ),
}


def check_arguments(mask_mod: Callable[..., Any]) -> None:
    """TypeError, which says what to write, for a function that cannot be called with 4 indices."""
    try:
        signature = inspect.signature(mask_mod)
    except (TypeError, ValueError):  # of C
        return
    try:
        signature.bind(*"bhqk")
    except TypeError:
        named = list(signature.parameters.values())
        wanted = [p.name for p in named if p.default is p.empty and p.kind not in _VARIADIC]
        name = getattr(mask_mod, "__name__", "mask_mod")
        call = ".." if "<" in name else f"{name}(q_idx, kv_idx)"
        advice = _ADVICE.get(len(wanted), "").format(call=call)
        if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in named):
            advice = "its arguments after * have no place; give them by functools.partial"
        got = f"one of ({', '.join(wanted)})"
        raise TypeError(f"{_EXPECTED}, got {got}" + (f"; {advice}" if advice else "")) from None


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
