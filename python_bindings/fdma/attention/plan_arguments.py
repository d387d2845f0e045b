"""What fdma.plan learns of its arguments: shapes or arrays of any framework, and a mask."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..masks.block_mask import BlockMask
from ..masks.compile import compile
from .call import runner_of
from .frameworks import framework
from .mask_argument import DENSE, block_mask, check_shape
from .plans import DType, Place
from .shapes import DTYPES, Extents

__all__: list[str] = []


def shape_of(name: str, given: Any) -> tuple[int, ...]:
    """The shape of a tensor or an array, or a shape itself."""
    shape = getattr(given, "shape", given)
    try:
        return tuple(operator.index(extent) for extent in shape)
    except TypeError:
        kind = type(given).__name__
        raise TypeError(f"{name}: expected a tensor, an array or a shape, got {kind}") from None


def described(
    tensors: dict[str, Any], dtype: str | None, device: Any
) -> tuple[DType, int | None, Place | None]:
    """Element type, CUDA device (None: the CPU) and place of a plan for tensors or shapes."""
    q = tensors["q"]
    if not hasattr(q, "shape"):
        for name, x in tensors.items():
            if hasattr(x, "shape"):
                raise TypeError(f"{name}: expected a shape, as q, got {type(x).__name__}")
        element = DTYPES.get(str(dtype or "float32").removeprefix("torch."))
        if element is None:
            raise ValueError(f"dtype: expected float32, float16 or bfloat16, got {dtype!r}")
        index = _index_of(device)
        return element, index, None if index is None else _place_on(index)
    for name, given in (("dtype", dtype), ("device", device)):
        if given is not None:
            raise ValueError(f"{name}: expected None with tensors, which have their own")
    functions = functions_of(q)
    element = DTYPES.get(functions.dtype(q))
    if element is None:
        raise NotImplementedError(
            f"q: expected float32, float16 or bfloat16, got {q.dtype}; convert it first"
        )
    index = functions.device(q)
    for name, x in tensors.items():
        if not hasattr(x, "shape") or framework(x) != framework(q):
            raise TypeError(f"{name}: expected an array like q, got {type(x).__name__}")
        if functions.dtype(x) != element:
            raise ValueError(f"{name}: expected {element}, as q, got {functions.dtype(x)}")
        if functions.device(x) != index:
            raise ValueError(f"{name}: expected it where q is")
    return element, index, None if index is None else functions.place(index)


def _index_of(device: Any) -> int | None:
    """The CUDA device of a name; None is the CPU."""
    kind, colon, number = str("cpu" if device is None else device).partition(":")
    if kind == "cpu":
        return None
    if kind != "cuda" or (colon and not number.isdigit()):
        raise ValueError(f'device: expected "cpu" or "cuda:0" and so on, got {device!r}')
    return int(number or 0)


def _place_on(index: int) -> Place:
    """The place of tensors that are still to come: PyTorch's if PyTorch is loaded."""
    if "torch" in sys.modules:
        import torch

        from .tensors import place_of

        return place_of(torch.device("cuda", index))
    return Place(index)


def compiled_mask(
    mask: Any, shape: Extents, closed_form: bool, num_threads: int, heads_first: bool
) -> BlockMask:
    """The mask of a plan; for a plan in closed form, in format "parametric"."""
    counts = shape.batch, shape.heads, shape.q_len, shape.kv_len
    if not closed_form:
        return block_mask(mask, *counts, num_threads, heads_first)
    if isinstance(mask, BlockMask):
        check_shape(mask, *counts, heads_first)
        return mask if mask.format == "parametric" else mask.to_format("parametric")
    lengths = shape.q_len, shape.kv_len, shape.batch, shape.heads
    given = DENSE if mask is None else mask
    return compile(given, *lengths, format="parametric", num_threads=num_threads)


class Functions(NamedTuple):
    """What a framework says of its arrays, and how it runs a plan."""

    dtype: Callable[[Any], str]
    device: Callable[[Any], int | None]
    place: Callable[[int], Place]
    run: Callable[..., Any]


_functions: dict[type, Functions] = {}


def functions_of(array: Any) -> Functions:
    """Those of the framework of an array. TypeError for what is no array."""
    found = _functions.get(type(array))
    if found is None:
        runner_of(array)
        found = _functions[type(array)] = _of_framework(framework(array))
    return found


def _of_framework(name: str) -> Functions:
    if name == "torch":
        from . import plan_torch, pytorch

        return Functions(
            pytorch.dtype_name, pytorch.device_index, pytorch.place, plan_torch.run_plan
        )
    from . import arrays

    return Functions(
        lambda x: str(x.dtype), arrays.device_index, arrays.cupy_place, arrays.run_plan
    )


def are_same(a: Any, b: Any) -> bool:
    """Whether two arrays of borders are one, or equal on the host."""
    if a is b:
        return True
    if framework(a) == "torch" and not (a.is_cuda or b.is_cuda):
        return tuple(a.shape) == tuple(b.shape) and bool((a == b).all())
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)
