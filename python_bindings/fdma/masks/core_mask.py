"""The core's mask of an argument."""

from __future__ import annotations

from typing import Any

from .. import _fdma
from .no_mask import described


def core_of(name: str, mask: Any) -> _fdma.BlockMask:
    """The `_fdma.BlockMask` of argument `name`; a TypeError for anything but a compiled mask."""
    core = getattr(mask, "_core", mask)
    if isinstance(core, _fdma.BlockMask):
        return core
    raise TypeError(
        f"{name}: expected a BlockMask (fdma.compile makes them), got {described(mask)}"
    )
