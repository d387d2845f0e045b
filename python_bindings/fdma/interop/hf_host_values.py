"""Numbers that transformers keeps in tensors, and that FDMA reads on the host as rarely as it can.

Reading waits for the GPU. A value is cached while the tensor lives and its version shows that
nobody has written to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

__all__: list[str] = []

_values: Any = WeakIdKeyDictionary()


def host_value(tensor: Any, read: Callable[[], Any]) -> Any:
    """What `read` gives for a tensor; not asked again while the tensor stays as it is."""
    if tensor.is_inference():
        return read()
    found = _values.get(tensor)
    if found is not None and found[0] == tensor._version:
        return found[1]
    version = tensor._version
    value = read()
    _values[tensor] = version, value
    return value


def offset_of(tensor: Any, q_length: int) -> tuple[int, Callable[[], None] | None]:
    """The number of tokens that a static cache has seen, and what its first layer has to call.

    The cache counts in a tensor that it adds q_length to when a layer hands it keys: between the
    mask and that layer's attention the count is written exactly once. Where its version says so,
    the new count is known without reading it, and the next token's mask finds it.
    """
    value: int = host_value(tensor, lambda: int(tensor))
    if tensor.is_inference():
        return value, None
    version = tensor._version

    def count() -> None:
        if tensor._version == version + 1:
            _values[tensor] = version + 1, value + q_length

    return value, count
