"""Numbers that stand for masks where only numbers and tensors pass: in the operators of PyTorch.

A number is valid only in the process that made it. A graph saved by other means than torch.export
may carry it to another process, where it must not be the number of another mask. Each process
therefore counts from a random number, and a forked process from a new one.
"""

from __future__ import annotations

import itertools
import os
import secrets
import weakref
from typing import Any

__all__: list[str] = []

_BASE_BITS = 52  # numbers stay below 2^53: doubles hold them, too
_masks: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def _count_anew() -> None:
    global _numbers
    _numbers = itertools.count(2 + secrets.randbits(_BASE_BITS))


_count_anew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_anew)


def handle_of(mask: Any) -> int:
    """A new number for a mask, above 1 and never used again. It does not keep the mask alive."""
    handle = next(_numbers)
    _masks[handle] = mask
    return handle


def mask_of_handle(handle: int) -> Any:
    """The mask of a number. RuntimeError if the mask no longer exists."""
    mask = _masks.get(handle)
    if mask is None:
        raise RuntimeError(
            "mask: the BlockMask that this was compiled or captured with is gone, or of another "
            "process; keep it for as long as what uses it, and save programs by torch.export, "
            "which writes the mask down"
        )
    return mask
