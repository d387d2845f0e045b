"""Dense masks of PyTorch as BlockMasks, compiled once and again only after a tensor's change."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from .block_mask import BlockMask

__all__: list[str] = []

_Mask = TypeVar("_Mask", BlockMask, BlockMask | None)

_MAX_MASKS = 64


class TensorMasks:
    """Masks by tensor identity, tensor version (every write to it counts) and further key words."""

    def __init__(self) -> None:
        self._masks: dict[tuple[int, Hashable], tuple[Any, int, Any]] = {}
        self._lock = threading.Lock()

    def get(self, tensor: Any, words: Hashable, make: Callable[[], _Mask]) -> _Mask:
        """The mask of a tensor for these key words; `make` makes it if it is not cached.

        None, where `make` gives it, says that the tensor is no mask.
        """
        key = (id(tensor), words)
        found = self._masks.get(key)
        if found is not None and found[0]() is tensor and found[1] == tensor._version:
            mask: _Mask = found[2]
            return mask
        version = tensor._version
        mask = make()
        with self._lock:
            if len(self._masks) >= _MAX_MASKS:
                self._masks.clear()
            self._masks[key] = weakref.ref(tensor), version, mask
        return mask


tensor_masks = TensorMasks()
