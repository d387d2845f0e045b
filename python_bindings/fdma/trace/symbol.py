"""Symbol: a value of a mask_mod that is not known yet, as an operand of Python, PyTorch and NumPy.

A symbol stands for the tensor that one cell of the mask would have. It has an element type and a
shape: () for the indices and values computed from them, (n,) for a row `table[b]`. Its elements are
nodes of the mask language. A symbol with axes holds a function from the indices of an element
(numbers, or variables of any(..)) to its node, so that a row of a million entries costs nothing.

Operators, methods and functions all end in one table of operations (operations.py): operators and
methods here, functions of PyTorch through `__torch_function__`, those of NumPy through
`__array_ufunc__` and `__array_function__`. What would need the value itself, `if symbol:` for
instance, raises TraceError.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from .nodes import ExprNode, Node
from .remedies import REMEDIES
from .value_types import Range

if TYPE_CHECKING:
    from .context import Trace

__all__ = ["Index", "Symbol", "TraceError", "refuse", "user_frame"]

Index: TypeAlias = int | ExprNode

_OWN_FOLDER = str(Path(__file__).parents[1])
_ADVICE = "pass sample=True to evaluate every cell instead"


class TraceError(NotImplementedError):
    """A mask_mod does something that the mask language cannot express.

    The message names the operation, the line of the function, and what to write instead.

    >>> import fdma
    >>> try:
    ...     fdma.compile(lambda b, h, q_idx, kv_idx: q_idx / 2 > kv_idx, 128)
    ... except fdma.TraceError as error:
    ...     print(error)
    mask_mod: / (true division, a float) cannot be traced (...); use // or ...
    """


class _MissingAttributeError(TraceError, AttributeError):
    """Also an AttributeError, so that hasattr() and getattr() with a default work on symbols.

    Tracebacks show it as a TraceError, and it is pickled as one.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return TraceError, self.args


_MissingAttributeError.__name__ = _MissingAttributeError.__qualname__ = TraceError.__name__


def user_frame() -> FrameType | None:
    """The innermost frame that belongs neither to this package nor to PyTorch or NumPy."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if not name.startswith(_OWN_FOLDER) and module not in ("torch", "numpy", "functools"):
            return frame
        frame = frame.f_back
    return None


def refuse(operation: str, remedy: str = "", missing: bool = False) -> NoReturn:
    """Raises TraceError with the operation, the user's line and what to do."""
    text = f"mask_mod: {operation} cannot be traced"
    frame = user_frame()
    if frame is not None:
        path = frame.f_code.co_filename
        line = linecache.getline(path, frame.f_lineno).strip()
        text += f" ({Path(path).name}:{frame.f_lineno}{': ' + line if line else ''})"
    text += f"; {remedy}, or {_ADVICE}" if remedy else f"; {_ADVICE}"
    raise (_MissingAttributeError if missing else TraceError)(text)


class Symbol:
    """One traced value; the docstring of the module describes it.

    Invariants `node` is set for shape () only, `element` for the others; both are conditions iff
    dtype is bool
    """

    __slots__ = ("_dtype", "_element", "_node", "_range", "_shape", "_trace", "weight")

    def __init__(
        self,
        trace: Trace,
        dtype: str,
        bounds: Range,
        node: Node | None = None,
        shape: tuple[int, ...] = (),
        element: Callable[[tuple[Index, ...]], Node] | None = None,
        weight: int = 2,
    ) -> None:
        self._trace = trace
        self._dtype = dtype
        self._range = bounds
        self._node = node
        self._shape = shape
        self._element = element
        # Of its type among others: 0 a number of Python, 1 a table without axes, 2 of the cell.
        self.weight = weight

    def at(self, index: tuple[Index, ...]) -> Node:
        """The node of one element."""
        if self._element is None:
            assert self._node is not None
            return self._node
        return self._element(index)

    def _call(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        return self._trace.call(operation, (self, *args), kwargs)

    # ---- attributes of a tensor

    @property
    def shape(self) -> Any:
        return self._trace.size(self._shape)

    @property
    def dtype(self) -> Any:
        return self._trace.library_dtype(self._dtype)

    @property
    def device(self) -> Any:
        return self._trace.device()

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def requires_grad(self) -> bool:
        return False

    @property
    def is_cuda(self) -> bool:
        return str(self._trace.device()).startswith("cuda")

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self._shape[dim]

    def dim(self) -> int:
        return len(self._shape)

    def numel(self) -> int:
        count = 1
        for extent in self._shape:
            count *= extent
        return count

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a 0-d tensor")
        return self._shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self._shape:
            refuse("iteration over an index")
        return iter([self[i] for i in range(self._shape[0])])

    def __repr__(self) -> str:
        return f"<traced {self._dtype}{list(self._shape) if self._shape else ''}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        operation = self._trace.method(name)
        if operation is None:
            refuse(f"Tensor.{name}", REMEDIES.get(name, ""), missing=True)
        return lambda *args, **kwargs: self._call(operation, *args, **kwargs)

    # ---- functions of the libraries

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        from .context import current

        return current().torch_function(func, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            refuse(f"numpy.{ufunc.__name__}.{method}")
        return self._trace.numpy_function(ufunc, args, kwargs, is_ufunc=True)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._trace.numpy_function(func, args, kwargs, is_ufunc=False)

    def __getitem__(self, index: Any) -> Any:
        return self._call("__getitem__", index)

    # ---- operations that need the value

    def __bool__(self) -> bool:
        refuse(
            "bool() of a traced value, that is if, while, and, or, not, min(), max() or a chained "
            "comparison,",
            "use torch.where, & | ~ with parentheses around comparisons, torch.minimum, "
            "torch.maximum, torch.isin for `in`",
        )

    def __int__(self) -> int:
        refuse("int() of a traced value", "use .to(torch.int64) or .long()")

    def __float__(self) -> float:
        refuse("float() of a traced value", "use integers")

    def __index__(self) -> int:
        refuse(
            "a traced value as an index of a list, a range, a slice or a shape",
            "index a tensor, or look up every entry and select with torch.where",
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        refuse("numpy.asarray() of a traced value", "use operators and lookups")

    def __contains__(self, item: Any) -> bool:
        refuse("`in` on a traced value", "compare and use .any()")

    def __setitem__(self, index: Any, value: Any) -> None:
        refuse("assignment to an element", "use torch.where")

    def __round__(self, *args: Any) -> Any:
        refuse("round() of a traced value", "use integers")

    def __floor__(self) -> Any:
        refuse("math.floor() of a traced value", "use // instead of / and floor")

    def __ceil__(self) -> Any:
        refuse("math.ceil() of a traced value", "use -(-x // n)")

    __hash__ = None  # type: ignore[assignment]  # == builds a condition


def _operator(operation: str) -> Callable[..., Any]:
    def apply(self: Symbol, *operands: Any) -> Any:
        return self._trace.call(operation, (self, *operands), {})

    return apply


def _reflected(operation: str) -> Callable[[Symbol, Any], Any]:
    def apply(self: Symbol, other: Any) -> Any:
        return self._trace.call(operation, (other, self), {})

    return apply


BINARY_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "divmod": "divmod",
    "pow": "pow",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "matmul": "matmul",
}
for _name, _operation in BINARY_OPERATORS.items():
    setattr(Symbol, f"__{_name}__", _operator(_operation))
    setattr(Symbol, f"__r{_name}__", _reflected(_operation))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Symbol, f"__{_name}__", _operator(_name))
for _name, _operation in {
    "neg": "neg",
    "pos": "positive",
    "invert": "bitwise_not",
    "abs": "abs",
}.items():
    setattr(Symbol, f"__{_name}__", _operator(_operation))
