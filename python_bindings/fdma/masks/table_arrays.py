"""The arrays of tables: which objects are accepted, their kind and shape, and which are the same.

The module imports no framework. It recognizes tensors of PyTorch, JAX and CuPy by their attributes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

Kind: TypeAlias = Literal["bool", "int", "float"]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_KIND_OF: dict[str, Kind] = {
    **dict.fromkeys(("bool", "torch.bool"), "bool"),
    **{
        f"{package}{sign}int{bits}": "int"
        for package in ("", "torch.")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    **dict.fromkeys(("float32", "torch.float32"), "float"),
}
_KIND_OF_NUMPY: dict[Any, Kind] = {
    np.dtype(name): kind for name, kind in _KIND_OF.items() if "." not in name
}


def check_name(name: object, what: str = "name") -> str:
    """`name` where it can name a table: letters, digits and underscores, no digit first."""
    if not isinstance(name, str):
        raise TypeError(f"{what}: expected a str, got {type(name).__name__}")
    if not _IDENTIFIER.match(name):
        raise ValueError(
            f"{what}: expected letters, digits and underscores with no digit first, got {name!r}"
        )
    return name


def is_array(value: object) -> bool:
    """True for what can be a table's array: an array, a sequence, or a buffer."""
    return (
        hasattr(value, "__dlpack__")
        or hasattr(value, "__array__")
        or isinstance(value, list | tuple | range | memoryview | bytearray)
    )


def as_array(value: object, what: str) -> Any:
    """The array of a table: an array is returned as it is, sequences and numbers become NumPy's.

    These NumPy arrays are read-only copies. Integers become int64, booleans bool, and numbers with
    a fraction float32. Raises TypeError for objects without numbers, and ValueError for ragged
    sequences.
    """
    _refuse_fraction(value, what)
    if hasattr(value, "__dlpack__") and hasattr(value, "dtype"):
        array: Any = value
    elif isinstance(value, memoryview | bytearray) or hasattr(value, "__array__"):
        array = np.asarray(value)
    elif isinstance(value, Sequence | int | float) and not isinstance(value, str | bytes):
        array = _of_sequence(value, what)
    else:
        raise TypeError(
            f"{what}: expected an array, a sequence or a number, got {type(value).__name__}"
        )
    if rank_of(array) > 4:
        raise ValueError(f"{what}: expected at most 4 dimensions, got {rank_of(array)}")
    kind_of(array, what)
    return array


def _of_sequence(value: Any, what: str) -> Any:
    try:
        array = np.array(value)
    except ValueError as error:
        raise ValueError(f"{what}: expected rows of equal lengths ({error})") from None
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    elif array.dtype.kind == "f":
        array = array.astype(np.float32)
    elif array.dtype.kind in "iu" and array.dtype != np.uint64:
        array = array.astype(np.int64)
    elif array.dtype.kind == "O":
        _refuse_large(array, what)
    array.flags.writeable = False
    return array


def _refuse_fraction(value: Any, what: str) -> None:
    """TypeError for one number with a fraction: only whole arrays of floats are scores."""
    is_float = isinstance(value, float) or "float" in str(getattr(value, "dtype", ""))
    if not is_float or getattr(value, "shape", ()) != ():
        return
    number = float(value)
    instead = "floats serve as scores of fdma.topk only"
    if number.is_integer():
        instead = f"write {int(number)}"
    raise TypeError(f"{what}: expected an integer, got {number}; {instead}")


def _refuse_large(array: Any, what: str) -> None:
    for entry in array.flat:
        if isinstance(entry, int) and not -(1 << 63) <= entry < 1 << 63:
            raise OverflowError(f"{what}: {entry} does not fit in 64 bits")


def kind_of(array: Any, what: str) -> Kind:
    """The kind of the entries. TypeError for kinds that no table holds: float64, complex, text."""
    dtype = array.dtype
    is_numpy = isinstance(dtype, np.dtype)
    kind = _KIND_OF_NUMPY.get(dtype) if is_numpy else _KIND_OF.get(str(dtype))
    if kind is None:
        casts = _cast(array, "float"), _cast(array, "int")
        hint = f"; write {casts[0]} for scores, {casts[1]} for whole numbers"
        raise TypeError(
            f"{what}: expected booleans or integers (float32 for the scores of topk), got {dtype}"
            + (hint if "float" in str(dtype) else "")
        )
    return kind


def check_kind(what: str, array: Any, kind: Kind) -> None:
    """TypeError for an array whose entries are not of this kind, with the cast to write."""
    if not hasattr(array, "dtype"):
        return
    held = _KIND_OF.get(str(array.dtype))
    if held != kind:
        words = {"int": "integers", "bool": "booleans", "float": "float32"}
        raise TypeError(
            f"{what}: expected {words[kind]}, got {describe(array)}; write {_cast(array, kind)}"
        )


def _cast(array: Any, kind: Kind) -> str:
    """The method that converts the entries of an array."""
    if str(array.dtype).startswith("torch."):
        return {"int": ".long()", "bool": ".bool()", "float": ".float()"}[kind]
    return {"int": ".astype(int)", "bool": ".astype(bool)", "float": ".astype('float32')"}[kind]


def rank_of(array: Any) -> int:
    return len(array.shape)


def describe(array: Any) -> str:
    """ "int64 [2, 7]" """
    name = str(array.dtype).removeprefix("torch.")
    return f"{name} [{', '.join(str(extent) for extent in array.shape)}]"


def on_host(array: Any) -> Any:
    """The array in host memory. Tensors on a GPU are copied; others are returned as they are."""
    device = getattr(array, "device", None)
    if getattr(device, "type", None) == "cuda":  # PyTorch
        return array.cpu()
    if type(array).__module__.partition(".")[0] == "cupy":
        return array.get()
    return array


def is_same(a: Any, b: Any) -> bool:
    """True if two arrays cannot differ: the same object, the same memory, or equal constants."""
    return a is b or identity(a) == identity(b)


def identity(array: Any) -> tuple[Any, ...]:
    """A key that is equal for arrays that cannot differ; it is valid while the arrays live."""
    if isinstance(array, np.ndarray):
        if array.base is None and not array.flags.writeable:
            return array.dtype, array.shape, array.tobytes()
        memory = array.__array_interface__
        return memory["data"][0], array.dtype, array.shape, array.strides
    if hasattr(array, "data_ptr"):  # PyTorch
        return array.data_ptr(), array.device, array.dtype, array.shape, array.stride()
    return type(array), id(array)


def has_same_entries(a: Any, b: Any) -> bool:
    """True if two arrays have the same kind, the same shape and currently equal entries."""
    if is_same(a, b):
        return True
    if kind_of(a, "table") != kind_of(b, "table") or tuple(a.shape) != tuple(b.shape):
        return False
    return np.array_equal(np.asarray(on_host(a)), np.asarray(on_host(b)))


def merge(a: Mapping[str, Any], b: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arrays of both, by symbol. ValueError if one name stands for two arrays."""
    if not b or a is b:
        return a
    if not a:
        return b
    merged = dict(a)
    for symbol, array in b.items():
        other = merged.setdefault(symbol, array)
        if not is_same(other, array):
            raise ValueError(
                f"table @{symbol}: expected one array, got two: {describe(other)} and "
                f"{describe(array)}; give them different names"
            )
    return merged
