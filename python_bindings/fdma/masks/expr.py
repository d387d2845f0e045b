"""Masks as Python objects: conditions and integers over the cells of an attention matrix.

`q k b h q_len kv_len pos` stand for the cell; arithmetic, comparisons and `& | ^ ~` on them build
expressions of the mask language (docs/spec-language.md), which know neither sizes nor cells.
Arrays travel with an expression as tables.

>>> from fdma import causal, k, pos, q, table
>>> mask = causal() & ((pos - k < 1024) | (k < 4))
>>> print(mask)
causal & (pos - k < 1024 | k < 4)
>>> print(mask & (table([0, 0, 1])[q] == 0))
causal & (pos - k < 1024 | k < 4) & @t0[q] == 0

Python binds `&` tighter than comparisons and turns `a < b < c` into `and`. An expression has no
truth value, so an expression without the needed parentheses raises instead of losing a clause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _fdma
from .compiled_regions import made_outside
from .expr_types import (
    _EMPTY,
    IntExpr,
    IntLike,
    MaskExpr,
    MaskLike,
    TableExpr,
    _apply,
    _condition,
    _int,
    _is_condition,
    _new_symbol,
    _type_name,
    _variable,
)
from .table_arrays import Kind, as_array, check_name, describe, kind_of, merge, rank_of

__all__ = [
    "IntExpr",
    "IntLike",
    "MaskExpr",
    "MaskLike",
    "TableExpr",
    "absolute",
    "all_of",
    "any_of",
    "at",
    "b",
    "bitand",
    "bitor",
    "bitxor",
    "clamp",
    "h",
    "k",
    "kv_len",
    "maximum",
    "minimum",
    "pos",
    "q",
    "q_len",
    "shl",
    "shr",
    "table",
    "to_int",
    "where",
]


class _DocOfVariables:
    """The docstring of a class whose instances have one of their own if they are variables."""

    def __init__(self, of_class: str, of_variables: dict[str, str]) -> None:
        self.of_class, self.of_variables = of_class, of_variables

    def __get__(self, instance: IntExpr | None, owner: type) -> str:
        own = None if instance is None else self.of_variables.get(str(instance))
        return self.of_class if own is None else own


IntExpr.__doc__ = _DocOfVariables(  # type: ignore[assignment]
    IntExpr.__doc__ or "",
    {
        "q": "The query row of a cell, from 0 to q_len - 1.",
        "k": "The key of a cell, from 0 to kv_len - 1.",
        "b": "The batch element of a cell, from 0. A mask that uses it is compiled with batch=.",
        "h": "The query head of a cell, from 0. A mask that uses it is compiled with heads=.",
        "q_len": "The number of query rows of a cell's batch element.",
        "kv_len": "The number of keys of a cell's batch element.",
        "pos": "The position of a cell's query among the keys, q + kv_len - q_len: the last query "
        "stands at the last key.",
    },
)

q: IntExpr = _variable("q")
k: IntExpr = _variable("k")
b: IntExpr = _variable("b")
h: IntExpr = _variable("h")
q_len: IntExpr = _variable("q_len")
kv_len: IntExpr = _variable("kv_len")
pos: IntExpr = _variable("pos")


# ---- tables


def table(name: Any, array: Any = None, *, dtype: type | None = None) -> TableExpr:
    """A table by name, `table("doc")`, or with its array, `table("doc", array)`, `table(array)`.

    An array has 0 to 4 dimensions and booleans or integers (float32 for the scores of topk). It
    belongs to NumPy, PyTorch or anything with DLPack. compile reads it; it is not copied before
    that. Sequences and numbers become arrays. A table without a name is called t0, t1, .. in the
    order of use. A table without an array needs one in compile; `dtype`, bool or int, gives the
    type of its entries, which otherwise follows from its use.

    Raises TypeError and ValueError for arrays that cannot be tables.

    >>> from fdma import k, q, table
    >>> lookup = table([[1, 0], [0, 1]])
    >>> print(lookup[q // 64, k // 64] != 0)
    @t0[q // 64, k // 64] != 0
    """
    if isinstance(name, TableExpr):
        if array is not None or dtype is not None:
            raise TypeError("name: expected a name or an array, got a table")
        return name
    if isinstance(name, str):
        return _table(check_name(name.removeprefix("@"), "table"), array, dtype, f"table @{name}")
    if array is not None:
        raise TypeError(f"name: expected a str, got {type(name).__name__}")
    if name is None:
        raise TypeError("table: expected an array, a sequence or a number, got NoneType")
    return _table(_new_symbol("#", "t"), name, dtype, "table")


@made_outside
def _table(symbol: str, array: Any, dtype: type | None, what: str) -> TableExpr:
    kind: Kind | None = None
    rank: int | None = None
    if dtype is not None:
        if dtype not in (bool, int):
            raise TypeError(f"dtype: expected bool or int, got {dtype!r}")
        kind = "bool" if dtype is bool else "int"
    arrays = _EMPTY
    if array is not None:
        array = as_array(array, what)
        held, rank = kind_of(array, what), rank_of(array)
        if kind not in (None, held):
            raise TypeError(f"{what}: expected entries of type {kind}, got {describe(array)}")
        kind, arrays = held, {symbol: array}
    made = TableExpr._wrap(_fdma.expr_node("table", symbol=symbol), arrays)
    made._remember(symbol, kind, rank, False)
    return made


# ---- functions


def minimum(x: IntLike, y: IntLike, *more: IntLike) -> IntExpr:
    """The least of two or more integers; `min` in the mask language.

    >>> from fdma import minimum, k, q
    >>> print(minimum(q, k, 8))
    min(q, k, 8)
    """
    return _apply(IntExpr, "min", *(_int(value, "minimum") for value in (x, y, *more)))


def maximum(x: IntLike, y: IntLike, *more: IntLike) -> IntExpr:
    """The greatest of two or more integers; `max` in the mask language.

    >>> from fdma import maximum, q
    >>> print(maximum(q - 3, 0))
    max(q - 3, 0)
    """
    return _apply(IntExpr, "max", *(_int(value, "maximum") for value in (x, y, *more)))


def absolute(x: IntLike) -> IntExpr:
    """The absolute value; `abs(x)` is the same.

    >>> from fdma import absolute, k, q
    >>> print(absolute(q - k))
    abs(q - k)
    """
    return _apply(IntExpr, "abs", _int(x, "absolute"))


def clamp(x: IntLike, lo: IntLike, hi: IntLike) -> IntExpr:
    """min(max(x, lo), hi).

    >>> from fdma import clamp, q
    >>> print(clamp(q, 1, 6))
    clamp(q, 1, 6)
    """
    return _apply(IntExpr, "clamp", *(_int(value, "clamp") for value in (x, lo, hi)))


def shl(x: IntLike, n: IntLike) -> IntExpr:
    """x * 2**n, with n in 0..62; `x << n` is the same.

    >>> from fdma import h, shl
    >>> print(shl(1, h))
    shl(1, h)
    """
    return _apply(IntExpr, "shl", _int(x, "shl"), _int(n, "shl"))


def shr(x: IntLike, n: IntLike) -> IntExpr:
    """x // 2**n, with n in 0..62; `x >> n` is the same.

    >>> from fdma import q, shr
    >>> print(shr(q, 7))
    shr(q, 7)
    """
    return _apply(IntExpr, "shr", _int(x, "shr"), _int(n, "shr"))


def bitand(x: IntLike, y: IntLike) -> IntExpr:
    """The bitwise and of two's complement integers; `x & y` is the same for integers.

    >>> from fdma import bitand, k, q
    >>> print(bitand(q, k) == 0)
    bitand(q, k) == 0
    """
    return _apply(IntExpr, "bit_and", _int(x, "bitand"), _int(y, "bitand"))


def bitor(x: IntLike, y: IntLike) -> IntExpr:
    """The bitwise or of two's complement integers; `x | y` is the same for integers.

    >>> from fdma import bitor, k, q
    >>> print(bitor(q, k) == 0)
    bitor(q, k) == 0
    """
    return _apply(IntExpr, "bit_or", _int(x, "bitor"), _int(y, "bitor"))


def bitxor(x: IntLike, y: IntLike) -> IntExpr:
    """The bitwise exclusive or of two's complement integers; `x ^ y` is the same for integers.

    >>> from fdma import bitxor, k, q
    >>> print(bitxor(q, k) == 0)
    bitxor(q, k) == 0
    """
    return _apply(IntExpr, "bit_xor", _int(x, "bitxor"), _int(y, "bitxor"))


def to_int(condition: MaskLike) -> IntExpr:
    """1 where the condition holds, else 0; `int(..)` in the mask language.

    >>> from fdma import k, q, to_int
    >>> print(to_int(k < 2) + to_int(q < 1) == 1)
    int(k < 2) + int(q < 1) == 1
    """
    return _apply(IntExpr, "from_bool", _condition(condition, "to_int"))


if TYPE_CHECKING:
    from typing import overload

    # bool is an int to mypy, but not here.
    @overload
    def where(  # type: ignore[overload-overlap]
        condition: MaskLike, x: bool | MaskExpr, y: MaskLike
    ) -> MaskExpr: ...
    @overload
    def where(  # type: ignore[overload-overlap]
        condition: MaskLike, x: TableExpr, y: bool | MaskExpr
    ) -> MaskExpr: ...
    @overload
    def where(condition: MaskLike, x: int | IntExpr, y: IntLike) -> IntExpr: ...
    @overload
    def where(condition: MaskLike, x: TableExpr, y: int | IntExpr) -> IntExpr: ...
    @overload
    def where(condition: MaskLike, x: TableExpr, y: TableExpr) -> Any: ...
    def where(condition: Any, x: Any, y: Any) -> Any: ...

else:  # typing's overload keeps what it decorates alive after the core is gone

    def where(condition, x, y):
        """x where the condition holds, y elsewhere: two integers, or two conditions.

        A branch that is not chosen may be undefined.

        >>> from fdma import k, q, where
        >>> print(k < where(q < 2, 1, 3))
        k < where(q < 2, 1, 3)
        """
        return _where(condition, x, y)


def _where(condition: Any, x: Any, y: Any) -> Any:
    choice = _condition(condition, "where: condition")
    kinds = {
        value._kind if isinstance(value, TableExpr) else _kind_of_value(value) for value in (x, y)
    }
    kinds.discard(None)
    if len(kinds) > 1:
        raise TypeError("where: expected two integers or two conditions, got one of each")
    if kinds == {"bool"}:
        return _apply(
            MaskExpr, "where", choice, _condition(x, "where: x"), _condition(y, "where: y")
        )
    if kinds:
        return _apply(IntExpr, "where", choice, _int(x, "where: x"), _int(y, "where: y"))
    either = _apply(TableExpr, "where", choice, x._value("int"), y._value("int"))
    either._remember(None, None, None, True)
    return either


def _kind_of_value(value: object) -> Kind:
    return "bool" if _is_condition(value) else "int"


def any_of(n: IntLike, body: Callable[[IntExpr], MaskLike]) -> MaskExpr:
    """True where `body(i)` is true for some i in [0, n); `any(i in n : ..)` in the mask language.

    n must be the same for every cell, so it may not use q, k or pos. Loops nest at most 16 deep.
    The text names the variable like the function's parameter if that name is free.

    >>> from fdma import any_of, k, q, table
    >>> begin, end = table("begin"), table("end")
    >>> print(any_of(2, lambda i: (begin[i, k] <= q) & (q < end[i, k])))
    any(i in 2 : @begin[i, k] <= q < @end[i, k])
    """
    return _loop("any_of", n, body)


def all_of(n: IntLike, body: Callable[[IntExpr], MaskLike]) -> MaskExpr:
    """True where `body(i)` is true for each i in [0, n); `all(i in n : ..)` in the mask language.

    >>> from fdma import all_of, k, q
    >>> print(all_of(3, lambda i: q + i != k))
    all(i in 3 : q + i != k)
    """
    return _loop("all_of", n, body)


@made_outside
def _loop(op: str, n: object, body: Callable[[IntExpr], MaskLike]) -> MaskExpr:
    bound = _int(n, f"{op}: n")
    if not callable(body):
        raise TypeError(f"{op}: body: expected a function of the index, got {_type_name(body)}")
    code = getattr(body, "__code__", None)
    wish = code.co_varnames[0] if code is not None and code.co_argcount == 1 else "i"
    symbol = _new_symbol("%", wish)
    inner = _condition(body(_variable(symbol)), f"{op}: body")
    node = _fdma.expr_node(op, [bound._node, inner._node], symbol=symbol)
    return MaskExpr._wrap(node, merge(bound._arrays, inner._arrays))


def at(mask: MaskLike, *, q: IntLike | None = None, k: IntLike | None = None) -> MaskExpr:
    """The mask at another row and key; an index that is not given stays as it is.

    >>> from fdma import at, causal, q
    >>> print(at(causal(), q=q // 2 * 2))
    at(causal, q=q // 2 * 2, k=k)
    """
    row = _variable("q") if q is None else q
    key = _variable("k") if k is None else k
    return _apply(
        MaskExpr, "at", _condition(mask, "at: mask"), _int(row, "at: q"), _int(key, "at: k")
    )
