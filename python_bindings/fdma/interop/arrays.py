"""Arrays of other systems on their way in and out of FDMA's core.

In: arrays of NumPy, PyTorch and any library with DLPack or the buffer protocol become contiguous
NumPy arrays of the element type that the core needs; other objects raise an error that names the
argument. Integers of any width are accepted if their values fit. Tensors on a GPU are copied to the
host, which waits for the GPU. Masks are host objects; each function says how much it copies.

Out: NumPy arrays, or PyTorch tensors if the caller names a device. PyTorch is imported only in that
case; if a tensor came in, PyTorch is loaded already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _fdma
from ..masks.block_mask import BlockMask

__all__: list[str] = []

Host = NDArray[Any]


def mask_of(core: _fdma.BlockMask) -> BlockMask:
    """The BlockMask of a core mask."""
    return BlockMask._wrap(core)


def is_tensor(array: object) -> bool:
    """True for a tensor of PyTorch. The test does not import PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def host_tensor(array: Any) -> Any:
    """A PyTorch tensor in host memory, contiguous and without a gradient."""
    return array.detach().cpu().contiguous()


def host_array(name: str, array: Any) -> Host:
    """`array` as a NumPy array; CUDA tensors are copied, PyTorch's bfloat16 becomes float32.

    Errors: TypeError for an object that is not an array of numbers.
    """
    if is_tensor(array):
        tensor = host_tensor(array)
        is_bfloat16 = str(tensor.dtype) == "torch.bfloat16"
        return np.asarray((tensor.float() if is_bfloat16 else tensor).numpy())
    if isinstance(array, np.ndarray):
        return array
    module = type(array).__module__.partition(".")[0]
    try:
        if module == "cupy":
            return np.asarray(array.get())
        result = np.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: expected an array, got {type(array).__name__}: {error}"
        ) from error
    if result.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected an array of numbers, got {type(array).__name__}")
    return result


def with_rank(name: str, array: Host, rank: int, axes: str) -> Host:
    """`array` if it has `rank` dimensions, else a ValueError that names them."""
    if array.ndim != rank:
        raise ValueError(
            f"{name}: expected {rank} dimension{'s' if rank > 1 else ''} {axes}, got shape "
            f"{tuple(array.shape)}{_with_axes(name, array.ndim, axes)}"
        )
    return array


def _with_axes(name: str, rank: int, axes: str) -> str:
    """How to give a mask without batch elements or heads."""
    if axes == "[batch, heads, queries, keys]" and rank in (2, 3):
        return f"; write {name}[None, None]" if rank == 2 else f"; write {name}[:, None]"
    return ""


def integers(name: str, array: object, axes: str, dtype: type[np.integer[Any]] = np.int32) -> Host:
    """Contiguous integers of `dtype`, of as many dimensions as `axes` ("[batch, keys]") has.

    Errors: TypeError unless the elements are integers; ValueError for another rank, or for a value
    that does not fit.
    """
    values = with_rank(name, host_array(name, array), axes.count(",") + 1, axes)
    if values.size == 0:
        return np.empty(values.shape, dtype)
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {values.dtype}")
    limits = np.iinfo(dtype)
    if values.dtype.itemsize >= np.dtype(dtype).itemsize and values.dtype != dtype:
        for extreme in (int(values.min()), int(values.max())):
            if not limits.min <= extreme <= limits.max:
                raise ValueError(f"{name}: {extreme}, expected values that fit {limits.dtype}")
    return np.ascontiguousarray(values, dtype)


def zeros_and_ones(name: str, array: object, axes: str) -> Host:
    """Contiguous uint8 of booleans or of numbers that are all 0 or 1.

    Errors: ValueError for another rank, or that names the first other value.
    """
    values = with_rank(name, host_array(name, array), axes.count(",") + 1, axes)
    if values.dtype == np.bool_ or values.size == 0:
        return np.ascontiguousarray(values, np.bool_).view(np.uint8)
    ones = np.ascontiguousarray(values == 1)
    wrong = ~ones & (values != 0)
    if wrong.any():
        place = [int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape)]
        raise ValueError(f"{name}{place}: {values[tuple(place)]}, expected 0 or 1")
    return ones.view(np.uint8)


def pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """(queries, keys) from one number that serves both, or from a pair of numbers."""
    if isinstance(value, (int, np.integer)):
        return int(value), int(value)
    sides = tuple(value)
    if len(sides) != 2 or not all(isinstance(side, (int, np.integer)) for side in sides):
        raise TypeError(f"{name}: expected an integer or a pair of them, got {value!r}")
    return int(sides[0]), int(sides[1])


def flag(name: str, value: object) -> bool:
    """A boolean, of Python or NumPy, or 0 or 1."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name}: expected True or False, got {value!r}")


def outgoing(device: object) -> Callable[[Host], Any]:
    """The function that leaves NumPy arrays as they are, or makes tensors on `device` of them."""
    if device is None:
        return lambda array: array
    torch: Any = import_torch()
    return lambda array: torch.from_numpy(array).to(device)


def import_torch() -> Any:
    """PyTorch, or an ImportError that says what it is needed for."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "torch: PyTorch is needed for tensors; without a device the same function gives NumPy "
            "arrays"
        ) from error
    return torch
