"""The three types of expressions and their operators.

An expression is a node of the core and the arrays of its tables by symbol. Where the user gave no
name, a symbol is "#number:wish" (a table) or "%number:wish" (a loop variable), unique in the
process. Names are chosen when the text is written (python_bindings/src/masks/expr_nodes.cpp).
Expressions are therefore combined by merging their arrays, and nodes stay shared. The file is long
because the three types name each other in every operator.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, TypeAlias, TypeVar, cast

import numpy as np

from .. import _fdma
from .compiled_regions import made_outside
from .table_arrays import (
    Kind,
    as_array,
    describe,
    has_same_entries,
    identity,
    is_array,
    merge,
)

__all__ = ["IntExpr", "IntLike", "MaskExpr", "MaskLike", "TableExpr"]

_NO_TRUTH = (
    "has no truth value: combine conditions with & | ~ instead of and, or, not; put comparisons in "
    "parentheses, (k <= q) & (q - k < 8); write a < b < c as (a < b) & (b < c); take fdma.where, "
    "fdma.minimum and fdma.maximum for if, min and max"
)
_numbers = itertools.count()
_Self = TypeVar("_Self", bound="_Expr")
_Node: TypeAlias = _fdma.ExprNode
_Arrays: TypeAlias = Mapping[str, Any]
_EMPTY: _Arrays = MappingProxyType({})


class _Expr:
    """Base of the three types of expression: a node, and the arrays of its tables."""

    __slots__ = ("_arrays", "_node")
    # Without a truth value `==` cannot serve dictionaries. NumPy's operators try ours first.
    __hash__: ClassVar[None] = None  # type: ignore[assignment]
    __array_ufunc__: ClassVar[None] = None
    __iter__: ClassVar[None] = None

    _node: _Node
    _arrays: _Arrays

    @classmethod
    def _wrap(cls: type[_Self], node: _Node, arrays: _Arrays = _EMPTY) -> _Self:
        made = object.__new__(cls)
        object.__setattr__(made, "_node", node)
        object.__setattr__(made, "_arrays", arrays)
        return made

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __bool__(self) -> bool:
        raise TypeError(f"{type(self).__name__} {_NO_TRUTH}")

    def __str__(self) -> str:
        return self._node.text(_same_symbols(self._arrays))

    def __repr__(self) -> str:
        parts = [repr(str(self))]
        parts += [f"{name}={describe(array)}" for name, array in self.tables.items()]
        return f"<{type(self).__name__} {', '.join(parts)}>"

    @property
    def tables(self) -> Mapping[str, Any]:
        """The arrays that travel with the expression, by the names that `str()` prints."""
        if not self._arrays:
            return _EMPTY
        names = self._node.table_names(_same_symbols(self._arrays))
        return MappingProxyType(
            {names.get(symbol, symbol): array for symbol, array in self._arrays.items()}
        )

    def equals(self, other: object) -> bool:
        """True iff both are the same operations on the same operands, tables by their entries.

        `==` builds the condition that two values are equal instead.

        >>> from fdma import k, q
        >>> (k <= q).equals(k <= q), (k <= q).equals(q >= k)
        (True, False)
        """
        if type(self) is not type(other) or not isinstance(other, _Expr):
            return False
        mine, mine_names = self._structure()
        others, others_names = other._structure()
        if not mine.equals(others):
            return False
        own = {mine_names.get(symbol, symbol): array for symbol, array in self._arrays.items()}
        its = {others_names.get(symbol, symbol): array for symbol, array in other._arrays.items()}
        return own.keys() == its.keys() and all(
            has_same_entries(own[name], its[name]) for name in own
        )

    def _structure(self) -> tuple[_fdma.Expr, dict[str, str]]:
        finished = _fdma.finish_expr(_as_condition(self), _same_symbols(self._arrays), True)
        return finished.expr, finished.table_names

    def __reduce__(self) -> tuple[Any, ...]:
        finished = _fdma.finish_expr(_as_condition(self), _same_symbols(self._arrays))
        names = finished.table_names
        arrays = {names.get(symbol, symbol): array for symbol, array in self._arrays.items()}
        wishes = {name: symbol.partition(":")[2] for symbol, name in names.items()}
        return _restore, (type(self), finished.expr.text, arrays, wishes, *self._details())

    def _details(self) -> tuple[Any, ...]:
        return ()


def _as_condition(expr: _Expr) -> _Node:
    """A condition that contains `expr`; the core can only check and parse conditions."""
    if isinstance(expr, MaskExpr):
        return expr._node
    return _fdma.expr_node("equal", [expr._node, expr._node])


def _restore(
    cls: type[_Self],
    text: str,
    arrays: dict[str, Any],
    wishes: dict[str, str],
    *details: Any,
) -> _Self:
    symbols = {name: _new_symbol("#", wish) for name, wish in wishes.items()}
    node = _fdma.parse_expr(text).node(symbols, next(_numbers))
    if not issubclass(cls, MaskExpr):
        node = node.operands[0]
    named = {symbols.get(name, name): array for name, array in arrays.items()}
    made = cls._wrap(node, named or _EMPTY)
    if isinstance(made, TableExpr):
        made._remember(*details)
    return made


def _new_symbol(mark: str, wish: str) -> str:
    return f"{mark}{next(_numbers)}:{wish}"


def _same_symbols(arrays: _Arrays) -> dict[str, str]:
    """Maps each automatic table to the first one with the same array, symbol to symbol."""
    automatic = [symbol for symbol in arrays if symbol[0] == "#"]
    if len(automatic) < 2:
        return {}
    first: dict[tuple[Any, ...], str] = {}
    same = {symbol: first.setdefault(identity(arrays[symbol]), symbol) for symbol in automatic}
    return {symbol: other for symbol, other in same.items() if symbol != other}


# ---- operands


def _is_int(value: object) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool | np.bool_)


@made_outside
def _literal(value: Any) -> IntExpr:
    number = operator.index(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"{number} does not fit in 64 bits")
    return IntExpr._wrap(_fdma.expr_node("literal", value=number))


def _int_or_none(value: object) -> _Expr | None:
    """`value` as an integer operand, or None where an operator should say NotImplemented."""
    if isinstance(value, IntExpr):
        return value
    if isinstance(value, TableExpr):
        return value._value("int")
    return _literal(value) if _is_int(value) and not is_array(value) else _scalar(value)


def _scalar(value: object) -> _Expr | None:
    # NumPy's integers and tensors without dimensions are arrays that serve as numbers.
    if _is_int(value) and getattr(value, "shape", None) == () and not _is_bool_scalar(value):
        try:
            return _literal(value)
        except TypeError:
            return None
    return None


def _is_bool_scalar(value: object) -> bool:
    return isinstance(value, bool | np.bool_) or (
        getattr(value, "shape", None) == () and str(getattr(value, "dtype", "")).endswith("bool")
    )


def _condition_or_none(value: object) -> _Expr | None:
    if isinstance(value, MaskExpr):
        return value
    if isinstance(value, TableExpr):
        return value._value("bool")
    if _is_bool_scalar(value):
        return MaskExpr._wrap(_fdma.expr_node("boolean", value=int(bool(value))))
    return None


def _type_name(value: object) -> str:
    return "a condition" if isinstance(value, MaskExpr) else type(value).__name__


def _int(value: object, what: str) -> _Expr:
    operand = _int_or_none(value)
    if operand is None:
        hint = "; fdma.to_int() makes an integer of a condition" if _is_condition(value) else ""
        hint = "; fdma.table(array)[index] looks an entry up" if is_array(value) else hint
        raise TypeError(f"{what}: expected an integer expression, got {_type_name(value)}{hint}")
    return operand


def _refuse_array(value: object) -> None:
    if is_array(value) and getattr(value, "shape", None) != ():
        raise TypeError(
            f"expected one value for each cell, got an array, {type(value).__name__}; "
            "fdma.table(array)[index] looks an entry up"
        )


def _refuse_float(value: object) -> None:
    if isinstance(value, float):
        whole = f"; write {int(value)}" if value.is_integer() else ""
        raise TypeError(f"unsupported operand {value}: masks have integers only{whole}")


def _condition(value: object, what: str) -> _Expr:
    operand = _condition_or_none(value)
    if operand is None:
        is_integer = isinstance(value, IntExpr) or _is_int(value)
        hint = "; compare the integer, for example with != 0" if is_integer else ""
        got = "an integer" if is_integer else _type_name(value)
        raise TypeError(f"{what}: expected a condition, got {got}{hint}")
    return operand


def _is_condition(value: object) -> bool:
    return isinstance(value, MaskExpr) or _is_bool_scalar(value)


@made_outside
def _apply(cls: type[_Self], op: str, *operands: _Expr) -> _Self:
    arrays = operands[0]._arrays
    for operand in operands[1:]:
        if operand._arrays is not arrays and operand._arrays:
            arrays = merge(arrays, operand._arrays)
    return cls._wrap(_fdma.expr_node(op, [operand._node for operand in operands]), arrays)


class _Integers(_Expr):
    """Arithmetic and comparisons, of IntExpr and of table entries."""

    __slots__ = ()

    def _arithmetic(self, op: str, other: object, is_reversed: bool = False) -> IntExpr:
        operand = _int_or_none(other)
        if operand is None:
            _refuse_array(other)
            _refuse_float(other)
            return cast(IntExpr, NotImplemented)
        own = _int(self, op)
        return (
            _apply(IntExpr, op, operand, own) if is_reversed else _apply(IntExpr, op, own, operand)
        )

    def _compare(self, op: str, other: object) -> MaskExpr:
        operand = _int_or_none(other)
        if operand is None:
            _refuse_array(other)
            if op not in ("equal", "not_equal"):  # their errors are those of _no_identity
                _refuse_float(other)
            return cast(MaskExpr, NotImplemented)
        return _apply(MaskExpr, op, _int(self, op), operand)

    def __add__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("add", other)

    def __radd__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("add", other, True)

    def __sub__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("sub", other)

    def __rsub__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("sub", other, True)

    def __mul__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("mul", other)

    def __rmul__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("mul", other, True)

    def __floordiv__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("floor_div", other)

    def __rfloordiv__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("floor_div", other, True)

    def __mod__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("mod", other)

    def __rmod__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("mod", other, True)

    def __divmod__(self, other: IntLike) -> tuple[IntExpr, IntExpr]:
        return self // other, self % other

    def __truediv__(self, other: object) -> NoReturn:
        raise TypeError("/: masks have integers only; // divides and rounds down")

    __rtruediv__ = __truediv__

    def __pow__(self, other: object) -> NoReturn:
        raise TypeError("**: masks have no powers; write x * x, and 1 << n for 2 ** n")

    __rpow__ = __pow__

    def __lshift__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("shl", other)

    def __rlshift__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("shl", other, True)

    def __rshift__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("shr", other)

    def __rrshift__(self, other: IntLike) -> IntExpr:
        return self._arithmetic("shr", other, True)

    def __neg__(self) -> IntExpr:
        return _apply(IntExpr, "negate", _int(self, "-"))

    def __pos__(self) -> IntExpr:
        return cast(IntExpr, _int(self, "+"))

    def __abs__(self) -> IntExpr:
        return _apply(IntExpr, "abs", _int(self, "abs"))

    def __lt__(self, other: IntLike) -> MaskExpr:
        return self._compare("less", other)

    def __le__(self, other: IntLike) -> MaskExpr:
        return self._compare("less_equal", other)

    def __gt__(self, other: IntLike) -> MaskExpr:
        return self._compare("greater", other)

    def __ge__(self, other: IntLike) -> MaskExpr:
        return self._compare("greater_equal", other)


class IntExpr(_Integers):
    """An integer that depends on the cell: `q - k`, `pos // 64`, `table(ids)[k]`.

    `IntExpr(5)` is the constant. Arithmetic is that of the language: 64-bit, `//` rounds down, `%`
    is never negative; `& | ^ ~ << >>` are bitand, bitor, bitxor, the complement, shl and shr.
    Comparisons, `==` included, give a MaskExpr. Operands are integers of Python and NumPy, IntExpr,
    and entries of tables; other operands raise TypeError.

    >>> from fdma import k, q
    >>> print((q - k) // 2 % 8)
    (q - k) // 2 % 8
    >>> 0 < q - k < 4
    Traceback (most recent call last):
    TypeError: MaskExpr has no truth value: ...
    """

    __slots__ = ()

    def __new__(cls, value: IntLike) -> IntExpr:
        return cls._wrap(*_parts(_int(value, "IntExpr")))

    def __and__(self, other: IntLike) -> IntExpr:
        return self._bits("bit_and", other)

    def __rand__(self, other: IntLike) -> IntExpr:
        return self._bits("bit_and", other, True)

    def __or__(self, other: IntLike) -> IntExpr:
        return self._bits("bit_or", other)

    def __ror__(self, other: IntLike) -> IntExpr:
        return self._bits("bit_or", other, True)

    def __xor__(self, other: IntLike) -> IntExpr:
        return self._bits("bit_xor", other)

    def __rxor__(self, other: IntLike) -> IntExpr:
        return self._bits("bit_xor", other, True)

    def _bits(self, op: str, other: object, is_reversed: bool = False) -> IntExpr:
        if _is_condition(other):
            raise TypeError(
                f"{_SIGN_OF[op]}: one side is an integer, the other a condition; put "
                "comparisons in parentheses, (k <= q) & (q - k < 8)"
            )
        if isinstance(other, TableExpr) and other._kind is None:
            raise _ambiguous(op)
        return self._arithmetic(op, other, is_reversed)

    def __invert__(self) -> IntExpr:
        return -1 - self

    def __index__(self) -> NoReturn:
        """Raises TypeError: no array, list or range can be indexed by an expression."""
        raise TypeError(
            "an expression is no index of an array, a list or a range: fdma.table(array)[q] looks "
            "an entry up, fdma.any_of(n, lambda i: ..) loops"
        )

    def __eq__(self, other: object) -> MaskExpr:  # type: ignore[override]
        return _no_identity(self._compare("equal", other), "==", other)

    def __ne__(self, other: object) -> MaskExpr:  # type: ignore[override]
        return _no_identity(self._compare("not_equal", other), "!=", other)


def _no_identity(made: MaskExpr, sign: str, other: object) -> MaskExpr:
    """`made`, or a TypeError if it is NotImplemented, which Python would turn into False."""
    if made is NotImplemented and not isinstance(other, _Expr):
        _refuse_other_mask(sign, other)
        hint = "; masks have integers only" if isinstance(other, float) else ""
        raise TypeError(
            f"{sign}: expected an integer, a condition or a table entry, got {_type_name(other)}"
            f"{hint}"
        )
    return made


def _pair(mask: Any, batch: int, heads: int) -> tuple[int, int]:
    """The pair to draw; a mask that serves all has one."""
    return batch if mask.batch > 1 else 0, heads if mask.heads > 1 else 0


def _refuse_other_mask(sign: str, other: object) -> None:
    """TypeError for a mask that is no expression: a text, a BlockMask of FDMA or of PyTorch."""
    from .no_mask import as_operand

    if instead := as_operand(other):
        raise TypeError(f"{sign}: expected a condition, got {instead}")


_LOGICAL = {"bit_and": "logical_and", "bit_or": "logical_or", "bit_xor": "logical_xor"}
_SIGN_OF = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
_SIGN_OF |= {_LOGICAL[op]: sign for op, sign in _SIGN_OF.items()}
_SIGN_OF |= {"equal": "==", "not_equal": "!="}


def _ambiguous(op: str) -> TypeError:
    return TypeError(
        f"{_SIGN_OF[op]}: the other side is a table whose type is not known yet: say "
        "fdma.table(name, dtype=int) or dtype=bool, or put comparisons in parentheses"
    )


class MaskExpr(_Expr):
    """A condition on cells, which is a mask or an operand of one.

    It is immutable and has no sizes; `tables` are its arrays. `MaskExpr(True)` is the constant,
    MaskExpr.parse reads a text, and fdma.compile lowers the expression. `& | ^ ~` combine
    conditions. `==` and `!=` are conditions too, cell by cell; `equals` compares the expressions.
    Combining raises ValueError if two different arrays have the same name.

    >>> from fdma import causal, sink, window
    >>> mask = causal() & (window(1024) | sink(4))
    >>> str(mask)
    'causal & (window(1024) | sink(4))'
    >>> MaskExpr.parse(str(mask)).equals(mask)
    True
    """

    __slots__ = ()

    def __new__(cls, value: MaskLike) -> MaskExpr:
        return cls._wrap(*_parts(_condition(value, "MaskExpr")))

    @classmethod
    @made_outside
    def parse(cls, text: str, /, **tables: Any) -> MaskExpr:
        """The mask of a text in the mask language; arrays for its tables, as far as given.

        Raises fdma.MaskSyntaxError, which shows line and column, and ValueError for an array that
        the text does not name.

        >>> MaskExpr.parse("causal & @seen[k] ", seen=[True, False])
        <MaskExpr 'causal & @seen[k]', seen=bool [2]>
        """
        if not isinstance(text, str):
            raise TypeError(f"text: expected a str, got {type(text).__name__}")
        parsed = _fdma.parse_expr(text)
        for name in tables:
            if name not in parsed.table_names:
                raise ValueError(f"{name}: the text names no table @{name}")
        arrays = {name: as_array(array, name) for name, array in tables.items()}
        return cls._wrap(parsed.node({}, next(_numbers)), arrays or _EMPTY)

    @property
    def table_names(self) -> list[str]:
        """The names of all tables, sorted: those in `tables`, and those that compile needs."""
        return self._finish().table_names

    def mentions(self, variable: str) -> bool:
        """True iff the expression uses a variable, "h" for instance; tables' entries do not count.

        >>> from fdma import causal, h, k
        >>> (causal() & (k < h)).mentions("h"), causal().mentions("h"), causal().mentions("pos")
        (True, False, True)
        """
        return self._finish().mentions(variable)

    def draw(
        self,
        q_len: int | None = None,
        kv_len: int | None = None,
        *,
        batch: int = 0,
        heads: int = 0,
        max_width: int = 80,
        max_height: int = 40,
        unicode: bool | None = None,
        **tables: Any,
    ) -> str:
        """A drawing for the terminal of the mask that these lengths give.

        Without lengths it has those of its arrays, or some that show the numbers in its text. The
        other options are those of `BlockMask.draw`; tables are arrays that the expression lacks.

        Raises what fdma.compile raises.

        >>> from fdma import causal, window
        >>> print((causal() & window(24)).draw(64, unicode=False))
        +...
        ++..
        +++.
        .+++
        # full 0, + partial 9, . empty 7; 64 x 64 cells, blocks 16 x 16, 1260 allowed pairs
        """
        from .pictured_expr import example_mask

        options: Any = {"max_width": max_width, "max_height": max_height, "unicode": unicode}
        mask = example_mask(self, q_len, kv_len, batch, heads, tables)
        batch, heads = _pair(mask, batch, heads)
        return mask.draw(batch=batch, heads=heads, **options)

    def plot(
        self,
        q_len: int | None = None,
        kv_len: int | None = None,
        ax: Any = None,
        *,
        batch: int = 0,
        heads: int = 0,
        max_side: int = 1024,
        legend: bool = True,
        **tables: Any,
    ) -> Any:
        """The same with matplotlib, on `ax` or new axes; returns the axes.

        >>> import matplotlib
        >>> from fdma import causal, window
        >>> matplotlib.use("agg")
        >>> (causal() & window(24)).plot(64).figure.savefig("mask.png")
        """
        from .pictured_expr import example_mask

        options: Any = {"max_side": max_side, "legend": legend}
        mask = example_mask(self, q_len, kv_len, batch, heads, tables)
        batch, heads = _pair(mask, batch, heads)
        return mask.plot(ax, batch=batch, heads=heads, **options)

    def _repr_html_(self) -> str | None:
        """A picture for notebooks; None, for which they show the text, if no lengths fit."""
        from .pictured_expr import example_mask

        try:
            return example_mask(self)._repr_html_()
        except (ValueError, TypeError, NotImplementedError, TimeoutError, MemoryError):
            return None

    def _finish(self) -> _fdma.Expr:
        """The checked expression, for the core. Raises ValueError for errors of the whole mask."""
        return _fdma.finish_expr(self._node, _same_symbols(self._arrays)).expr

    def _logical(self, op: str, other: object, is_reversed: bool = False) -> MaskExpr:
        operand = _condition_or_none(other)
        if operand is None:
            _refuse_array(other)
            if isinstance(other, IntExpr) or _is_int(other):
                _condition(other, _SIGN_OF[op])
            if callable(other):
                raise TypeError(
                    f"{_SIGN_OF[op]}: expected a condition, got a function; named masks are calls, "
                    f"{getattr(other, '__name__', 'causal')}()"
                )
            _refuse_other_mask(_SIGN_OF[op], other)
            return cast(MaskExpr, NotImplemented)
        return _apply(MaskExpr, op, *((operand, self) if is_reversed else (self, operand)))

    def __and__(self, other: MaskLike) -> MaskExpr:
        return self._logical("logical_and", other)

    def __rand__(self, other: MaskLike) -> MaskExpr:
        return self._logical("logical_and", other, True)

    def __or__(self, other: MaskLike) -> MaskExpr:
        return self._logical("logical_or", other)

    def __ror__(self, other: MaskLike) -> MaskExpr:
        return self._logical("logical_or", other, True)

    def __xor__(self, other: MaskLike) -> MaskExpr:
        return self._logical("logical_xor", other)

    def __rxor__(self, other: MaskLike) -> MaskExpr:
        return self._logical("logical_xor", other, True)

    def __invert__(self) -> MaskExpr:
        return _apply(MaskExpr, "logical_not", self)

    def __add__(self, other: object) -> NoReturn:
        raise TypeError(
            "+: unsupported operand: conditions combine with & | ^ ~; write a | b, or to_int(a) + "
            "to_int(b)"
        )

    def __sub__(self, other: object) -> NoReturn:
        raise TypeError("-: unsupported operand: conditions combine with & | ^ ~; write a & ~b")

    def __mul__(self, other: object) -> NoReturn:
        raise TypeError("*: unsupported operand: conditions combine with & | ^ ~; write a & b")

    def __eq__(self, other: object) -> MaskExpr:  # type: ignore[override]
        return _no_identity(self._logical("equal", other), "==", other)

    def __ne__(self, other: object) -> MaskExpr:  # type: ignore[override]
        return _no_identity(self._logical("not_equal", other), "!=", other)


class TableExpr(_Integers):
    """A table, or an entry of one; fdma.table makes them.

    `t[i]` to `t[i, j, k, l]` is an entry, with one index per dimension. The entry is an IntExpr or
    a MaskExpr if the array or dtype is known; otherwise it is a TableExpr, which serves as either.
    A table without dimensions is a parameter and serves as a value itself.

    >>> from fdma import k, q, table
    >>> print((table("doc")[q] == table("doc")[k]) & table("seen")[k] & (q - k < table("w")))
    @doc[q] == @doc[k] & @seen[k] & q - k < @w
    """

    __slots__ = ("_is_entry", "_kind", "_rank", "_symbol")
    _symbol: str | None  # None: no table but what a choice of two entries gives
    _kind: Kind | None
    _rank: int | None
    _is_entry: bool

    def __new__(cls, *_: object) -> TableExpr:
        raise TypeError("TableExpr: fdma.table(..) makes them")

    def _remember(
        self, symbol: str | None, kind: Kind | None, rank: int | None, is_entry: bool
    ) -> None:
        for name, value in zip(
            ("_symbol", "_kind", "_rank", "_is_entry"), (symbol, kind, rank, is_entry), strict=True
        ):
            object.__setattr__(self, name, value)

    def _details(self) -> tuple[Any, ...]:
        return self._symbol, self._kind, self._rank, self._is_entry

    def _shown(self) -> str:
        return str(self)

    def _value(self, wanted: Kind) -> _Expr:
        """This entry or parameter as an operand of type `wanted`; TypeError if it is of another."""
        if not self._is_entry and self._rank:
            index = "[" + ", ".join(("q", "k", "..", "..")[: self._rank]) + "]"
            raise TypeError(
                f"{self}: a table of {self._rank} dimensions is no value; index it, {self}{index}"
            )
        if self._kind is not None and self._kind != wanted:
            if self._kind == "float":
                raise TypeError(f"{self}: float32 tables serve as scores of fdma.topk only")
            if wanted == "int":
                raise TypeError(f"{self}: expected an integer, got a boolean table; fdma.to_int()")
            raise TypeError(f"{self}: expected a condition, got an integer table; compare, != 0")
        return (IntExpr if wanted == "int" else MaskExpr)._wrap(self._node, self._arrays)

    @property
    def name(self) -> str | None:
        """The name that the user gave, or None for an array without a name and for no table."""
        return None if self._symbol is None or self._symbol[0] == "#" else self._symbol

    def __getitem__(self, indices: IntLike | tuple[IntLike, ...]) -> Any:
        if self._is_entry:
            raise TypeError(f"{self}: expected a table, got an entry; give all indices at once")
        if self._kind == "float":
            raise TypeError(f"{self}: float32 tables serve as scores of fdma.topk only")
        listed = indices if isinstance(indices, tuple) else (indices,)
        if self._rank is not None and len(listed) != self._rank:
            raise IndexError(f"{self}: expected {self._rank} indices, got {len(listed)}")
        if not 1 <= len(listed) <= 4:
            raise IndexError(f"{self}: expected 1 to 4 indices, got {len(listed)}")
        operands = [_int(index, f"{self}: index {i + 1}") for i, index in enumerate(listed)]
        arrays = self._arrays
        for operand in operands:
            arrays = merge(arrays, operand._arrays)
        node = _fdma.expr_node(
            "table", [operand._node for operand in operands], symbol=self._symbol or ""
        )
        if self._kind is not None:
            return (IntExpr if self._kind == "int" else MaskExpr)._wrap(node, arrays)
        entry = TableExpr._wrap(node, arrays)
        entry._remember(self._symbol, None, None, True)
        return entry

    def _either(self, op: str, other: object, is_reversed: bool = False) -> Any:
        """`& | ^` of conditions, or bitwise of integers, as far as the types are known."""
        kinds = {self._kind, other._kind if isinstance(other, TableExpr) else None}
        if isinstance(other, IntExpr) or _is_int(other) or "int" in kinds:
            if self._kind is None or (isinstance(other, TableExpr) and other._kind is None):
                raise _ambiguous(op)
            return self._arithmetic(op, other, is_reversed)
        own = cast(MaskExpr, self._value("bool"))
        return own._logical(_LOGICAL[op], other, is_reversed)

    def __and__(self, other: Any) -> Any:
        return self._either("bit_and", other)

    def __rand__(self, other: Any) -> Any:
        return self._either("bit_and", other, True)

    def __or__(self, other: Any) -> Any:
        return self._either("bit_or", other)

    def __ror__(self, other: Any) -> Any:
        return self._either("bit_or", other, True)

    def __xor__(self, other: Any) -> Any:
        return self._either("bit_xor", other)

    def __rxor__(self, other: Any) -> Any:
        return self._either("bit_xor", other, True)

    def __invert__(self) -> Any:
        return ~cast(Any, self._value("int" if self._kind == "int" else "bool"))

    def _equal(self, op: str, other: object) -> MaskExpr:
        is_condition = self._kind == "bool" or _is_condition(other)
        if isinstance(other, TableExpr):
            is_condition |= other._kind == "bool"
            if self._kind is None and other._kind is None:
                return _apply(MaskExpr, op, self._value("bool"), other._value("bool"))
        if is_condition:
            return cast(MaskExpr, self._value("bool"))._logical(op, other)
        return self._compare(op, other)

    def __eq__(self, other: object) -> MaskExpr:  # type: ignore[override]
        return _no_identity(self._equal("equal", other), "==", other)

    def __ne__(self, other: object) -> MaskExpr:  # type: ignore[override]
        return _no_identity(self._equal("not_equal", other), "!=", other)


IntLike: TypeAlias = int | np.integer[Any] | IntExpr | TableExpr
"""What serves as an integer of an expression."""
MaskLike: TypeAlias = bool | np.bool_ | MaskExpr | TableExpr
"""What serves as a condition of an expression."""


def _parts(expr: _Expr) -> tuple[_Node, _Arrays]:
    return expr._node, expr._arrays


@made_outside
def _variable(name: str) -> IntExpr:
    return IntExpr._wrap(_fdma.expr_node("variable", symbol=name))
