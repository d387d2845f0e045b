"""The error message of torch.compile at a function that makes masks: what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__: list[str] = []

_Function = TypeVar("_Function", bound=Callable[..., Any])

MADE_OUTSIDE = (
    "NotImplementedError of fdma: masks are made outside of what torch.compile compiles; make the "
    "expression or fdma.compile(..) before and hand it in, or write the mask as a text, "
    'fdma.attention(q, k, v, "causal & window(16)")'
)


def made_outside(function: _Function) -> _Function:
    """Marks a function that torch.compile must leave to Python.

    With fullgraph=True, torch.compile raises an error with the text `MADE_OUTSIDE`; otherwise the
    graph ends before the call. The marks are those of torch.compiler.disable, which fdma cannot
    call because it does not import PyTorch.
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = MADE_OUTSIDE
    return function
