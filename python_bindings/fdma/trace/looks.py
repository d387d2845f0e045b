"""Whether a function of (b, h, q_idx, kv_idx) looks at b and h, found as it runs.

A function that is sampled for one batch element or head gives the cells of that one. If it has
looked at the index, the cells of others may differ. Asking for the shape or type of an index is no
look. Any other use counts as a look, whether or not the result depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["looks_in_numpy", "watched_in_torch"]

Looks = tuple[bool, bool]
"""At b, at h."""

_SHAPE_ONLY = frozenset(
    {"__get__", "size", "dim", "numel", "new_zeros", "new_ones", "new_full", "new_empty"}
    | {"zeros_like", "ones_like", "full_like", "empty_like", "new_tensor"}
)


def watched_in_torch(
    torch: Any, mask_mod: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[[], Looks]]:
    """The same function, also under vmap, and what it has looked at until now."""
    seen = [False, False]

    class Watch(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __init__(self, indices: tuple[Any, Any]) -> None:
            super().__init__()
            self.indices = indices

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") not in _SHAPE_ONLY:
                given = list(_flattened((args, kwargs or {})))
                for axis, index in enumerate(self.indices):
                    seen[axis] |= any(value is index for value in given)
            return func(*args, **(kwargs or {}))

    def watched(b: Any, h: Any, q: Any, k: Any) -> Any:
        with Watch((b, h)):
            return mask_mod(b, h, q, k)

    return watched, lambda: (seen[0], seen[1])


def _flattened(value: Any) -> Any:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for part in value:
        yield from _flattened(part)


class _WatchedIndex(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of one index that knows whether its value was used."""

    def __init__(self) -> None:
        self._value = np.zeros((1, 1, 1, 1), np.int64)
        self._is_seen = False

    def _look(self) -> Any:
        self._is_seen = True
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._look(), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        values = [x._look() if isinstance(x, _WatchedIndex) else x for x in inputs]
        return getattr(ufunc, method)(*values, **options)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim", "size"):
            return getattr(self._value, name)
        return getattr(self._look(), name)

    def __getitem__(self, place: Any) -> Any:
        return self._look()[place]

    def __len__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        return bool(self._look())

    def __int__(self) -> int:
        return int(self._look().item())

    __index__ = __int__


def looks_in_numpy(mask_mod: Callable[..., Any]) -> Looks:
    """Runs the function on cell (0, 0, 0, 0) as arrays.

    A function that takes no such arrays counts as one that looks at both.
    """
    b, h = _WatchedIndex(), _WatchedIndex()
    cell = np.zeros((1, 1, 1, 1), np.int64)
    try:
        mask_mod(b, h, cell, cell)
    except Exception:
        return True, True
    return b._is_seen, h._is_seen
