"""Numbers that stand for masks where only numbers and tensors pass: in the operators of PyTorch."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

__all__: list[str] = []

_numbers = itertools.count(1)
_masks: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def handle_of(mask: Any) -> int:
    """A number of the mask's own, from 1 on; never given again. The mask is not kept alive."""
    handle = next(_numbers)
    _masks[handle] = mask
    return handle


def mask_of_handle(handle: int) -> Any:
    """The mask of a number. RuntimeError where it is gone."""
    mask = _masks.get(handle)
    if mask is None:
        raise RuntimeError(
            "mask: the BlockMask that this was compiled or captured with is gone; keep it for as "
            "long as what uses it"
        )
    return mask
