"""One trace: it records which arrays became tables, turns values of the libraries into symbols, and
passes calls to operations.

While the function runs, a torch.overrides.TorchFunctionMode is active. PyTorch therefore passes
every call that involves a symbol to the trace, `tensor[symbol]` included; FlexAttention itself sees
lookups in the same way. PyTorch computes calls on tensors alone as usual, so that
`offsets[1:] - offsets[:-1]` inside a mask_mod is an ordinary tensor.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from .floats import FloatLookup
from .nodes import Node, lookup, variable
from .remedies import REMEDIES
from .symbol import Index, Symbol, refuse, user_frame
from .value_types import INDEX, Range, range_of_type

__all__ = ["Trace", "TracedArray", "current", "tracing"]

_active = threading.local()
_table_numbers = itertools.count()

# Entry types that are converted to a wider type, because PyTorch has little arithmetic for them.
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")


class TracedArray(np.ndarray[Any, Any]):
    """A view of a captured NumPy array whose entries can be looked up by symbols."""

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Symbol) for part in parts):
            return current().call("__getitem__", (self, index), {})
        return super().__getitem__(index)


def current() -> Trace:
    """The current trace of this thread."""
    trace: Trace | None = getattr(_active, "trace", None)
    if trace is None:
        refuse("a symbol that outlived its trace")
    return trace


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class Trace:
    """The tables and symbols of one run of a mask_mod.

    `numpy_rules` says that types combine by NumPy's rules. It is set for functions that capture
    NumPy arrays, and if PyTorch is not loaded.

    Owner       holds the arrays that became tables, by symbol; they are referenced, not copied,
                unless their type has to be widened
    """

    def __init__(self) -> None:
        self.numpy_rules = self.torch is None
        self.arrays: dict[str, Any] = {}
        # By identity, or for tensors by memory; the object is kept so that neither can be reused.
        self._symbols: dict[Any, tuple[str, Any]] = {}
        self._lifted: dict[int, tuple[Any, Symbol]] = {}  # by id, which the array kept here holds
        self._derived: dict[tuple[Any, ...], tuple[Any, Any]] = {}  # by id of the array, and a key
        self._device: Any = None

    @property
    def torch(self) -> Any:
        """PyTorch, if anything (the function itself, for instance) has loaded it."""
        return sys.modules.get("torch")

    def indices(self) -> tuple[Symbol, Symbol, Symbol, Symbol]:
        """b, h, q_idx, kv_idx."""
        b, h, q, k = (Symbol(self, "int64", INDEX, variable(name)) for name in "bhqk")
        return b, h, q, k

    # ---- values of the libraries

    def size(self, shape: tuple[int, ...]) -> Any:
        return shape if self.torch is None else self.torch.Size(shape)

    def library_dtype(self, dtype: str) -> Any:
        return np.dtype(dtype) if self.torch is None else getattr(self.torch, dtype)

    def dtype_name(self, dtype: Any) -> str:
        """The name of an integer or boolean type given as PyTorch's, NumPy's or Python's."""
        name = _name_of(dtype)
        if name not in _INTEGERS and isinstance(dtype, type | np.dtype | str):
            name = np.dtype(dtype).name
        if name not in _INTEGERS:
            refuse(f"a value of type {name}", "use integers and booleans")
        return name

    def device(self) -> Any:
        """The device of the first captured tensor that the user's function can see."""
        if self.torch is None:
            return "cpu"
        if self._device is None:
            self._device = self.torch.device("cpu")
            frame = user_frame()
            for value in frame.f_locals.values() if frame is not None else ():
                if isinstance(value, self.torch.Tensor):
                    self._device = value.device
                    break
        return self._device

    def is_tensor(self, value: object) -> bool:
        return self.torch is not None and isinstance(value, self.torch.Tensor)

    def is_array(self, value: object) -> bool:
        return isinstance(value, np.ndarray) or self.is_tensor(value)

    def symbol(self, value: Any) -> Symbol:
        """A symbol, a number, or an array as a table."""
        if isinstance(value, Symbol):
            return value
        if isinstance(value, bool | np.bool_):
            return Symbol(self, "bool", Range(int(value), int(value)), bool(value), weight=0)
        if isinstance(value, int):
            return Symbol(self, "int64", Range(value, value), value, weight=0)
        if isinstance(value, np.integer):
            name = _WIDER.get(value.dtype.name, value.dtype.name)
            return Symbol(self, name, Range(int(value), int(value)), int(value), weight=1)
        if self.is_array(value):
            known = self._lifted.get(id(value))
            if known is None:
                known = self._lifted[id(value)] = (value, self._lift(value))
            return known[1]
        if isinstance(value, list | tuple):
            if self._mentions(value):
                stacked: Symbol = self.call("stack", (value,), {})
                return stacked
            return self._lift(np.asarray(value))
        if isinstance(value, FloatLookup):
            refuse("a float of a table as a condition or an integer", value.remedy())
        if isinstance(value, float | np.floating):
            refuse(
                f"arithmetic with the float {value}",
                "use integers: q // 2, or 2 * k < q instead of k < q * 0.5; return conditions "
                "instead of 0.0 and -inf",
            )
        refuse(f"a value of type {type(value).__name__} among integers")

    def derived(self, array: Any, key: tuple[Any, ...], table: np.ndarray[Any, Any]) -> Any:
        """An array of integers that was made of a captured one; its table has the name of that."""
        entry = (id(array), *key)
        known = self._derived.get(entry)
        if known is None:
            made = self.torch.from_numpy(table) if self.is_tensor(array) else table
            known = self._derived[entry] = (array, made)
            self._lifted[id(made)] = (made, self._lift(made, self.captured_name(array)))
        return known[1]

    def _lift(self, array: Any, wish: str | None = None) -> Symbol:
        name = _name_of(array.dtype)
        if name in _WIDER:
            name = _WIDER[name]
            is_numpy = isinstance(array, np.ndarray)
            array = array.astype(name) if is_numpy else array.to(getattr(self.torch, name))
        if name not in _INTEGERS:
            refuse(
                f"a captured array of type {name}",
                "compare it outside the mask_mod and capture the booleans",
            )
        if len(array.shape) > 4:
            refuse(f"a captured array of {len(array.shape)} dimensions", "capture at most 4")
        shape = tuple(int(extent) for extent in array.shape)
        wish = self.captured_name(array) if wish is None else wish
        if not shape and not wish:  # made in the function: a number
            value = array.item()
            return Symbol(self, name, Range(int(value), int(value)), value, weight=1)
        table = self._table(array, wish)
        if not shape:
            return Symbol(self, name, range_of_type(name), lookup(table, []), weight=1)

        def entry(index: tuple[Index, ...]) -> Node:
            return lookup(table, list(index))

        return Symbol(self, name, range_of_type(name), None, shape, entry)

    def _table(self, array: Any, wish: str) -> str:
        if isinstance(array, np.ndarray):
            interface = array.__array_interface__
            key: Any = (interface["data"], interface["typestr"], array.shape, array.strides)
            if isinstance(array, TracedArray):
                array = array.view(np.ndarray)
        else:
            array = array.detach()
            key = (array.device, array.data_ptr(), array.dtype, array.shape, array.stride())
        known = self._symbols.get(key)
        if known is None:
            known = self._symbols[key] = (f"#f{next(_table_numbers)}:{wish or 't'}", array)
            self.arrays[known[0]] = array
        return known[0]

    def captured_name(self, array: Any) -> str:
        """The variable, attribute or key in the user's function that holds the array, else ""."""
        frame = user_frame()
        if frame is None:
            return ""
        code = frame.f_code
        local = frame.f_locals
        # A number that the function makes is not its parameter, although a variable holds it.
        named = code.co_varnames if array.shape else code.co_varnames[: code.co_argcount]
        variables = {name: local.get(name) for name in (*code.co_freevars, *named)}
        variables |= {name: frame.f_globals.get(name) for name in code.co_names}
        for name, value in variables.items():
            if value is array:
                return name
        for value in variables.values():
            parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
            # PyTorch modules keep their tensors in dicts of their own.
            for held in (parts, *(parts.get(part, {}) for part in ("_buffers", "_parameters"))):
                for name, part in held.items() if isinstance(held, dict) else ():
                    if part is array and isinstance(name, str):
                        return name.lstrip("_")
        return ""

    def holds_floats(self, value: Any) -> bool:
        if isinstance(value, np.ndarray):
            return bool(value.dtype.kind == "f")
        return self.is_tensor(value) and bool(value.dtype.is_floating_point)

    # ---- calls

    def _mentions(self, value: Any) -> bool:
        if isinstance(value, Symbol | FloatLookup):
            return True
        return isinstance(value, list | tuple) and any(self._mentions(part) for part in value)

    def method(self, name: str) -> str | None:
        """The operation behind a tensor's method; None where there is none."""
        from .operations import METHODS

        return METHODS.get(name)

    def call(
        self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any], shown: str = ""
    ) -> Any:
        """One operation on operands of which at least one is a symbol."""
        from .operations import FUNCTIONS

        apply = FUNCTIONS.get(operation)
        if apply is None:
            refuse(shown or f"torch.{operation}", REMEDIES.get(operation.rpartition(".")[2], ""))
        try:
            return apply(self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                refuse(f"{shown or 'torch.' + operation} with these arguments")
            raise

    def torch_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of PyTorch: an operation if a symbol takes part, else PyTorch's own."""
        if not self._mentions(args) and not self._mentions(tuple(kwargs.values())):
            return func(*args, **kwargs)
        if any(isinstance(value, FloatLookup) for value in (*args, *kwargs.values())):
            return FloatLookup.of_function(func, args, kwargs)
        from .operations import METHODS

        name = str(getattr(func, "__name__", func))
        is_method = type(func).__name__ in ("method_descriptor", "wrapper_descriptor") or str(
            getattr(func, "__qualname__", "")
        ).startswith("Tensor.")
        operation = METHODS.get(name, name) if is_method else name
        return self.call(operation, args, kwargs, f"{'Tensor' if is_method else 'torch'}.{name}")

    def numpy_function(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_ufunc: bool
    ) -> Any:
        """A function of NumPy as an operation on symbols."""
        from .operations import NUMPY, UFUNCS

        shown = f"numpy.{func.__name__}"
        operation = (UFUNCS if is_ufunc else NUMPY).get(func.__name__)
        if operation is None:
            refuse(shown, REMEDIES.get(func.__name__, ""))
        return self.call(operation, args, kwargs, shown)


@contextlib.contextmanager
def tracing() -> Iterator[Trace]:
    """Makes a trace the current one of this thread. If PyTorch is loaded, its calls go to it."""
    trace = Trace()
    before = getattr(_active, "trace", None)
    _active.trace = trace
    try:
        if trace.torch is None:
            yield trace
        else:
            with _mode_class()(trace):
                yield trace
    finally:
        _active.trace = before
        trace._lifted.clear()  # symbols refer to the trace


@functools.cache
def _mode_class() -> Any:
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):  # type: ignore[misc]
        def __init__(self, trace: Trace) -> None:
            super().__init__()
            self.trace = trace

        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            return self.trace.torch_function(func, args, kwargs or {})

    return Mode
