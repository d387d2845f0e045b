"""Lookups in captured tensors of floats, which no table of the mask language can hold.

A comparison with another entry or with an integer becomes one of integers (float_order.py). An
operation on a single entry, such as `scores[h, kv_idx] > 0.5` or `additive[q_idx, kv_idx] == 0`,
gives the same result if it is applied to all entries before the lookup. The library therefore
computes it on the whole tensor in its own arithmetic. A result of booleans or integers becomes a
table. The values are those at the time of tracing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .symbol import BINARY_OPERATORS, refuse

if TYPE_CHECKING:
    from .context import Trace

__all__ = ["FloatLookup"]

# Functions and methods that treat elements one by one, of PyTorch and NumPy.
_NAMES = (
    "eq ne lt le gt ge equal not_equal less less_equal greater greater_equal add sub "
    "subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow "
    "power neg negative abs absolute sign square sqrt rsqrt exp exp2 log log2 log1p expm1 "
    "sigmoid tanh relu floor ceil round trunc rint clamp clip clamp_min clamp_max "
    "nan_to_num isnan isinf isposinf isneginf isfinite logical_not signbit to type float "
    "double half bfloat16 bool int long astype clone detach contiguous "
)
_ELEMENTWISE = frozenset(_NAMES.split())
_REMEDY = "compute the booleans outside the function and capture them"
_COMPARISONS = (
    *("eq", "ne", "lt", "le", "gt", "ge"),
    *("less", "less_equal", "greater", "greater_equal", "not_equal"),
)


class FloatLookup:
    """An entry or a part of a tensor of floats: the tensor, and the lookups still to be made."""

    __slots__ = ("_array", "_indices", "_trace")

    def __init__(self, trace: Trace, array: Any, indices: tuple[Any, ...]) -> None:
        self._trace = trace
        self._array = array
        self._indices = indices

    @property
    def array(self) -> Any:
        """The tensor of floats."""
        return self._array

    def as_integers(self, key: tuple[Any, ...], table: Any) -> Any:
        """The same lookup in a table of integers that is made of the floats; the symbol of it.

        key: tells apart the tables that are made of one tensor.
        """
        result = self._trace.derived(self._array, key, table)
        for index in self._indices:
            result = self._trace.call("__getitem__", (result, index), {})
        return self._trace.symbol(result)

    def remedy(self) -> str:
        """What to write: for floats that are integers by accident, the cast."""
        array = self._array
        if bool((array == array.round()).all()):
            method = "long()" if self._trace.is_tensor(array) else "astype(int)"
            return f"capture {self._trace.captured_name(array) or 'ids'}.{method}"
        return "compare it with a number, an integer or another entry"

    def _outside(self) -> str:
        """The same for an operation that no comparison can take the place of."""
        found = self.remedy()
        return found if found.startswith("capture") else _REMEDY

    def _apply(self, name: str, compute: Callable[[Any], Any], others: Any = ()) -> Any:
        """The function of all entries, looked up."""
        shown = name.strip("_")
        kinds = [value for value in others if not self._is_constant(value)]
        if len(kinds) == 1 and shown in _COMPARISONS:
            return self._trace.call(shown, (self, *kinds), {})
        remedy = self._outside()
        if shown not in _ELEMENTWISE:
            refuse(f"{shown} of a lookup in floats", remedy)
        if kinds:
            refuse(f"{shown} of a lookup in floats and another value that is no number", remedy)
        result = compute(self._array)
        if self._trace.holds_floats(result):
            return FloatLookup(self._trace, result, self._indices)
        for index in self._indices:
            result = self._trace.call("__getitem__", (result, index), {})
        return result

    def _is_constant(self, value: Any) -> bool:
        torch = self._trace.torch
        if isinstance(value, bool | int | float | str | type | None):
            return True
        return torch is not None and isinstance(value, torch.dtype | torch.device)

    def __getitem__(self, index: Any) -> FloatLookup:
        return FloatLookup(self._trace, self._array, (*self._indices, index))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if name not in _ELEMENTWISE:
            refuse(f"Tensor.{name} of a lookup in floats", _REMEDY, missing=True)
        return lambda *args, **kwargs: self._apply(
            name,
            lambda array: getattr(array, name)(*args, **kwargs),
            (*args, *kwargs.values()),
        )

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return cls.of_function(func, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            refuse(f"numpy.{ufunc.__name__}.{method}")
        return self.of_function(ufunc, args, kwargs)

    @staticmethod
    def of_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of a library, one of whose arguments is such a lookup."""
        places = [i for i, value in enumerate(args) if isinstance(value, FloatLookup)]
        name = str(getattr(func, "__name__", func))
        if len(places) == 0:
            refuse(f"{name} with lookups in floats", _REMEDY)
        lookup: FloatLookup = args[places[0]]
        comparison = name.strip("_")
        if comparison == "equal" and isinstance(func, np.ufunc):
            comparison = "eq"
        if comparison in _COMPARISONS and len(args) == 2:
            other = args[1 - places[0]]
            if not lookup._is_constant(other):
                return lookup._trace.call(comparison, args, {})
        if len(places) != 1:
            refuse(f"{name} with lookups in floats", lookup._outside())
        (place,) = places
        return lookup._apply(
            name,
            lambda array: func(*args[:place], array, *args[place + 1 :], **kwargs),
            (*args[:place], *args[place + 1 :], *kwargs.values()),
        )

    def __neg__(self) -> Any:
        return self._apply("neg", operator.neg)

    def __abs__(self) -> Any:
        return self._apply("abs", abs)

    def __bool__(self) -> bool:
        refuse("bool() of a traced value", "use torch.where, & | ~")

    __hash__ = None  # type: ignore[assignment]  # == builds a condition


def _operator(name: str, operation: str, is_reflected: bool) -> Callable[..., Any]:
    function = getattr(operator, name)

    def apply(self: FloatLookup, other: Any) -> Any:
        if is_reflected:
            return self._apply(operation, lambda array: function(other, array), (other,))
        return self._apply(operation, lambda array: function(array, other), (other,))

    return apply


for _name, _operation in BINARY_OPERATORS.items():
    if hasattr(operator, _name) and _operation in _ELEMENTWISE:
        setattr(FloatLookup, f"__{_name}__", _operator(_name, _operation, False))
        setattr(FloatLookup, f"__r{_name}__", _operator(_name, _operation, True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(FloatLookup, f"__{_name}__", _operator(_name, _name, False))
