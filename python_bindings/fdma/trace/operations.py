"""The table of operations on symbols, by the name of the PyTorch or NumPy function, method or
operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arithmetic import ARITHMETIC
from .conditions import CONDITIONS
from .lookup import LOOKUPS
from .reductions import REDUCTIONS
from .symbol import BINARY_OPERATORS
from .views import VIEWS

__all__ = ["FUNCTIONS", "METHODS", "NUMPY", "UFUNCS"]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **ARITHMETIC,
    **CONDITIONS,
    **LOOKUPS,
    **VIEWS,
    **REDUCTIONS,
}


def _reflected(name: str) -> Callable[..., Any]:
    apply = FUNCTIONS[name]
    return lambda trace, input, other: apply(trace, other, input)


# Operators by the names that tensors give them when a symbol is the other operand.
for _name, _operation in {**BINARY_OPERATORS, "div": "true_divide"}.items():
    if _operation in FUNCTIONS:
        FUNCTIONS[f"__{_name}__"] = FUNCTIONS[f"__i{_name}__"] = FUNCTIONS[_operation]
        FUNCTIONS[f"__r{_name}__"] = _reflected(_operation)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    FUNCTIONS[f"__{_name}__"] = FUNCTIONS[_name]

# Methods of tensors: the functions of the same name, and operations that exist only as methods.
METHODS: dict[str, str] = {name: name for name in FUNCTIONS if "." not in name}
METHODS["where"] = "Tensor.where"

# NumPy's functions by NumPy's names: first those of elements, then those of arrays.
_UFUNCS = (
    "add subtract multiply floor_divide remainder fmod divide true_divide divmod negative positive "
    "absolute sign square minimum maximum bitwise_and bitwise_or bitwise_xor logical_and "
    "logical_or logical_xor logical_not less less_equal greater greater_equal not_equal"
)
UFUNCS: dict[str, str] = {
    **{name: name for name in _UFUNCS.split()},
    "equal": "eq",
    "mod": "remainder",
    "power": "pow",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "invert": "bitwise_not",
}
_NUMPY = (
    "where any all sum amin amax isin take broadcast_to stack ravel squeeze ones_like zeros_like "
    "full_like searchsorted count_nonzero reshape"
)
NUMPY: dict[str, str] = {
    **{name: name for name in _NUMPY.split()},
    "clip": "clamp",
    "concatenate": "cat",
    "expand_dims": "unsqueeze",
    "max": "amax",
    "min": "amin",
}
