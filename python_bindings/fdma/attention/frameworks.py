"""Which framework an array belongs to, without importing any of them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__: list[str] = []


def framework(array: Any) -> str:
    """ "torch", "cupy", "jax", else "numpy"."""
    torch = sys.modules.get("torch")  # asked first, since torch.compile cannot look at the kinds
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    kinds = {kind.__module__.partition(".")[0] for kind in type(array).__mro__}
    for name, home in (("torch", "torch"), ("cupy", "cupy"), ("jax", "jax"), ("jax", "jaxlib")):
        if home in kinds:
            return name
    return "numpy"


def in_framework(array: Any, name: str) -> Any:
    """An array that the core allocated as an array of a framework; they share memory."""
    if name == "torch":
        import torch

        return torch.from_dlpack(array)
    if name == "cupy":
        import cupy

        return cupy.from_dlpack(array)
    if name == "jax":
        import jax

        return jax.numpy.from_dlpack(array)
    return np.asarray(array)
