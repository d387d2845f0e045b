"""A mask's state (masks/state.py) as a header for JSON and the bytes of its arrays.

Input is not trusted, like any file: sizes are compared with what arrives, and `core_of` of
masks/state.py checks every entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__: list[str] = []

_DTYPES = ("int32", "int64", "uint64")


def announced(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """`value` in a form for JSON. Its arrays are appended to `arrays` in the order found."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, list):
        return [announced(item, arrays) for item in value]
    if isinstance(value, dict):
        return {name: announced(item, arrays) for name, item in value.items()}
    return value


def bytes_of(array: NDArray[Any]) -> memoryview:
    """The bytes of an array, little-endian and without gaps."""
    ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return ordered.reshape(-1).view(np.uint8).data


def filled(value: Any, read: Callable[[int], bytes]) -> Any:
    """`value` with each array's bytes in its place; `read` gives that many, or raises.

    Errors: ValueError, TypeError, KeyError: no such header.
    """
    if isinstance(value, list):
        return [filled(item, read) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("array") not in _DTYPES:
        return {name: filled(item, read) for name, item in value.items()}
    shape = tuple(int(extent) for extent in value["shape"])
    dtype = np.dtype(value["array"]).newbyteorder("<")
    if len(shape) > 2 or min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape}")
    count = int(np.prod(shape, dtype=object)) * dtype.itemsize
    return np.frombuffer(read(count), dtype).reshape(shape)
