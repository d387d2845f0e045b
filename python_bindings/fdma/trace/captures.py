"""The values that a mask_mod captures: closures, globals that it names, defaults, partials, bound
objects, and functions inside those.

A lookup `array[symbol]` in a NumPy array does not call the symbol. A function that captures NumPy
arrays is therefore run as a copy whose closure cells hold views of the same memory; these views
(TracedArray) call the symbol. PyTorch's tensors need no such copy.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .context import TracedArray

__all__ = ["captured_values", "with_traced_arrays"]

_MOST_DEEP = 8


def _parts(value: Any) -> Iterator[Any]:
    """The values that a function, partial, method, callable object or sequence of these holds."""
    if isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            with_value = getattr(cell, "cell_contents", None) if _is_filled(cell) else None
            yield with_value
        for name in value.__code__.co_names:
            if name in value.__globals__:
                yield value.__globals__[name]
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
    elif isinstance(value, functools.partial):
        yield value.func
        yield from value.args
        yield from value.keywords.values()
    elif isinstance(value, types.MethodType):
        yield value.__func__
        yield value.__self__
    elif isinstance(value, list | tuple):
        yield from value[:64]
    elif callable(value) and not isinstance(value, type | types.BuiltinFunctionType):
        yield type(value).__call__
        yield from getattr(value, "__dict__", {}).values()
    elif hasattr(value, "__dict__") and not isinstance(value, types.ModuleType | type):
        yield from vars(value).values()


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def captured_values(function: Any) -> Iterator[Any]:
    """The function and everything that it can reach by its captures. Captures of library functions
    are not followed.
    """
    seen: set[int] = set()
    level = [function]
    for _ in range(_MOST_DEEP):
        following: list[Any] = []
        for value in level:
            if value is None or id(value) in seen:
                continue
            seen.add(id(value))
            yield value
            module = str(getattr(value, "__module__", "")).partition(".")[0]
            if module in ("torch", "numpy") and not getattr(value, "__closure__", None):
                continue
            following.extend(_parts(value))
        level = following


def is_of_numpy(captured: list[Any]) -> bool:
    """True for functions that hold NumPy arrays or name NumPy, and do not use PyTorch."""
    libraries = _libraries(captured)
    return "numpy" in libraries and "torch" not in libraries


def uses_jax(captured: list[Any]) -> bool:
    """True for functions that hold arrays of JAX or name one of its modules."""
    return not _libraries(captured).isdisjoint({"jax", "jaxlib"})


def _libraries(captured: list[Any]) -> set[str]:
    """The packages of the modules and objects that a function captures."""
    modules = [value for value in captured if isinstance(value, types.ModuleType)]
    names = {str(getattr(module, "__name__", "")).partition(".")[0] for module in modules}
    return names | {type(value).__module__.partition(".")[0] for value in captured}


def with_traced_arrays(function: Callable[..., Any], captured: list[Any]) -> Callable[..., Any]:
    """The function itself, or, if it captures NumPy arrays, a copy that captures views of them."""
    if not any(type(value) is np.ndarray for value in captured):
        return function
    replaced: Callable[..., Any] = _replace(function, {}, 0)
    return replaced


def _replace(value: Any, known: dict[int, Any], depth: int) -> Any:
    if type(value) is np.ndarray:
        return value.view(TracedArray)
    if id(value) in known or depth > _MOST_DEEP:
        return known.get(id(value), value)
    if isinstance(value, types.FunctionType):
        return _replace_function(value, known, depth)
    if isinstance(value, functools.partial):
        return functools.partial(
            _replace(value.func, known, depth + 1),
            *[_replace(part, known, depth + 1) for part in value.args],
            **{name: _replace(part, known, depth + 1) for name, part in value.keywords.items()},
        )
    if isinstance(value, types.MethodType):
        return types.MethodType(
            _replace(value.__func__, known, depth + 1), _replace(value.__self__, known, depth + 1)
        )
    if type(value) in (list, tuple):
        return type(value)(_replace(part, known, depth + 1) for part in value)
    held = getattr(value, "__dict__", None)
    if (
        held
        and any(type(part) is np.ndarray for part in held.values())
        and not isinstance(value, type | types.ModuleType)
    ):
        copy = object.__new__(type(value))
        known[id(value)] = copy
        copy.__dict__.update({n: _replace(part, known, depth + 1) for n, part in held.items()})
        return copy
    return value


def _replace_function(value: types.FunctionType, known: dict[int, Any], depth: int) -> Any:
    code = value.__code__
    names = [name for name in code.co_names if name in value.__globals__]
    scope = value.__globals__
    module = str(value.__module__ or "").partition(".")[0]
    if module not in ("torch", "numpy"):
        new = {name: _replace(scope[name], known, depth + 1) for name in names}
        if any(new[name] is not scope[name] for name in names):
            scope = {**scope, **new}
    cells = tuple(types.CellType() for _ in value.__closure__ or ())
    copy = types.FunctionType(
        code,
        scope,
        value.__name__,
        tuple(_replace(part, known, depth + 1) for part in value.__defaults__ or ()) or None,
        cells,
    )
    copy.__kwdefaults__ = {
        name: _replace(part, known, depth + 1)
        for name, part in (value.__kwdefaults__ or {}).items()
    }
    known[id(value)] = copy
    for old, cell in zip(value.__closure__ or (), cells, strict=True):
        if _is_filled(old):
            cell.cell_contents = _replace(old.cell_contents, known, depth + 1)
    return copy
