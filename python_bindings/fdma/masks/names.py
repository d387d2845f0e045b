"""The named masks of the language as functions: `causal()`, `documents(lengths=[700, 1300])`, ..

Each function is a row of docs/spec-language.md. Its first line says where the mask is true, with
`pos = q + kv_len - q_len`, the query's position among the keys. `global` is a keyword of Python, so
the function is called `global_`. Arguments are

- integers: Python's, or expressions that are the same for every cell of a batch element and head
  (of `b`, `h`, lengths and tables, not of `q`, `k` or `pos`); "@w" and `table("w")` are a parameter
  that compile binds;
- tables: an array or sequence, which travels with the mask; "@name" or `table("name")`, which
  compile binds; `table("name", array)`. Any table may have a batch extent in front.

Wrong types raise TypeError, and wrong values and shapes ValueError; messages name the mask and the
argument. Errors that depend on the lengths are raised when the mask is compiled.

The file is long because it holds every named mask of the language, with an example.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from .. import _fdma
from .compiled_regions import made_outside
from .expr import _table
from .expr_types import (
    IntLike,
    MaskExpr,
    MaskLike,
    TableExpr,
    _condition,
    _Expr,
    _int_or_none,
    _is_condition,
    _new_symbol,
    _type_name,
    _variable,
)
from .table_arrays import Kind, check_kind, check_name, describe, is_array, merge

if TYPE_CHECKING:
    from typing import overload

__all__ = [
    "bits",
    "block_causal",
    "block_diffusion",
    "causal",
    "causal_blockwise",
    "chunked",
    "dilated",
    "documents",
    "global_",
    "intervals",
    "natten2d",
    "natten3d",
    "padding",
    "prefix",
    "prefix_documents",
    "rows",
    "share_question",
    "sink",
    "tiles",
    "topk",
    "tree",
    "window",
]

Number: TypeAlias = "IntLike | str"
"""An integer, an integer expression, or "@name"."""
TableLike: TypeAlias = "TableExpr | str | Any"
"""An array or sequence, "@name", or fdma.table(..)."""

_NO_WINDOW = "write math.inf for every key, k < 0 for none"
_OPEN_SIDE = "write math.inf for a side without a bound, k and pos for a band beside the diagonal"


# ---- arguments


def _number(mask: str, parameter: str, value: object) -> _Expr:
    if isinstance(value, str):
        value = _by_name(f"{mask}: {parameter}", value)
    try:
        operand = _int_or_none(value)
    except OverflowError as error:
        raise OverflowError(f"{mask}: {parameter}: {error}") from None
    if operand is None:
        is_whole = isinstance(value, float) and value.is_integer()
        raise TypeError(
            f'{mask}: {parameter}: expected an integer, an integer expression or "@name", got '
            f"{_type_name(value)}" + (f"; write {int(cast(float, value))}" if is_whole else "")
        )
    return operand


def _bound(mask: str, parameter: str, value: object, least: int, hint: str) -> _Expr:
    """An integer of at least `least`, or inf. An expression is checked when it is compiled."""
    if isinstance(value, float) and value == math.inf:
        return _variable("inf")
    number = _number(mask, parameter, value)
    _check_least(mask, parameter, value, least, f", or math.inf; {hint}")
    return number


def _check_least(mask: str, parameter: str, value: object, least: int, hint: str = "") -> None:
    if isinstance(value, Integral) and int(value) < least:
        expected, _, remedy = hint.partition(";")
        raise ValueError(
            f"{mask}: {parameter}: expected {least} or more{expected}, got {value}"
            + (f";{remedy}" if remedy else "")
        )


def _by_name(what: str, text: str) -> TableExpr:
    if not text.startswith("@"):
        raise ValueError(f'{what}: expected a table as "@name", got {text!r}')
    name = check_name(text[1:], what)
    return _table(name, None, None, what)


def _whole(
    mask: str, parameter: str, value: object, ranks: tuple[int, int], kind: Kind = "int"
) -> TableExpr:
    """`value` as a table of `kind` with ranks[0] to ranks[1] dimensions."""
    what = f"{mask}: {parameter}"
    if isinstance(value, str):
        return _by_name(what, value)
    if isinstance(value, TableExpr):
        table = value
        if table._is_entry:
            raise TypeError(f"{what}: expected the table itself, got an entry, {table}")
    elif is_array(value):
        check_kind(what, value, kind)
        table = _table(_new_symbol("#", parameter), value, None, what)
    else:
        raise TypeError(
            f'{what}: expected an array, a sequence, "@name" or fdma.table(..), got '
            f"{_type_name(value)}"
        )
    words = {"int": "integers", "bool": "booleans", "float": "float32"}
    if table._kind not in (None, kind):
        raise TypeError(f"{what}: expected {words[kind]}, got {_shown(table)}")
    if table._rank is not None and not ranks[0] <= table._rank <= ranks[1]:
        wanted = " or ".join(str(rank) for rank in range(ranks[0], ranks[1] + 1))
        is_padding = (mask, table._rank) == ("padding", 2)
        hint = "; fdma.from_hf_padding reads an attention_mask [batch, len]" if is_padding else ""
        raise ValueError(f"{what}: expected {wanted} dimensions, got {_shown(table)}{hint}")
    return table


def _shown(table: TableExpr) -> str:
    array = next(iter(table._arrays.values()), None)
    return f"{table} of {table._kind}" if array is None else describe(array)


@made_outside
def _named(name: str, *operands: _Expr, keywords: tuple[str, ...] = ()) -> MaskExpr:
    arrays = operands[0]._arrays if operands else {}
    for operand in operands[1:]:
        arrays = merge(arrays, operand._arrays)
    given = list(keywords) or [""] * len(operands)
    return MaskExpr._wrap(
        _fdma.named_node(name, [operand._node for operand in operands], given), arrays
    )


def _numbers(name: str, least: int | None = None, /, **values: object) -> MaskExpr:
    """A mask with integer parameters, which must be at least `least` if it is given."""
    operands = [_number(name, parameter, value) for parameter, value in values.items()]
    if least is not None:
        for parameter, value in values.items():
            _check_least(name, parameter, value, least)
    return _named(name, *operands)


# ---- position


def causal() -> MaskExpr:
    """k <= pos: a query sees no later key.

    >>> from fdma import causal, sink, window
    >>> print(causal() & (window(1024) | sink(4)))
    causal & (window(1024) | sink(4))
    """
    return _named("causal")


if TYPE_CHECKING:

    @overload
    def window(w: Number | float) -> MaskExpr: ...
    @overload
    def window(left: Number | float | None, right: Number | float | None) -> MaskExpr: ...
    def window(*bounds: Any, **named: Any) -> MaskExpr: ...

else:  # typing's overload keeps what it decorates alive after the core is gone

    def window(*bounds, **named):
        """`window(w)`: abs(pos - k) < w. `window(left, right)`: -left <= k - pos <= right.

        With `causal()`, a query of window(w) sees w keys, its own included. w is 1 or more, or
        math.inf. `left` and `right` are 0 or more; None and math.inf mean no bound on that side,
        which flash-attn writes as -1.

        >>> from fdma import causal, window
        >>> print(causal() & window(512), window(255, 0), window(left=None, right=16), sep="; ")
        causal & window(512); window(255, 0); window(inf, 16)
        """
        return _window(bounds, named)


def _window(bounds: tuple[Any, ...], named: dict[str, Any]) -> MaskExpr:
    parameters = ("w",) if len(bounds) + len(named) == 1 else ("left", "right")
    given = dict(zip(parameters, bounds, strict=False)) | named
    if len(bounds) + len(named) != len(parameters) or set(given) != set(parameters):
        shown = ", ".join([*(str(value) for value in bounds), *(f"{name}=" for name in named)])
        raise TypeError(f"window: expected window(w) or window(left, right), got window({shown})")
    if parameters == ("w",):
        return _named("window", _bound("window", "w", given["w"], 1, _NO_WINDOW))
    sides = (math.inf if given[name] is None else given[name] for name in parameters)
    named_sides = zip(parameters, sides, strict=True)
    return _named("window", *(_bound("window", n, side, 0, _OPEN_SIDE) for n, side in named_sides))


def dilated(w: Number | float, step: Number) -> MaskExpr:
    """abs(pos - k) < w and (pos - k) % step == 0; both 1 or more, w may be math.inf.

    >>> from fdma import dilated
    >>> print(dilated(4096, 8))
    dilated(4096, 8)
    """
    every = _number("dilated", "step", step)
    _check_least("dilated", "step", step, 1)
    return _named("dilated", _bound("dilated", "w", w, 1, _NO_WINDOW), every)


def chunked(n: Number) -> MaskExpr:
    """pos // n == k // n: chunks of n that do not see each other.

    >>> from fdma import causal, chunked
    >>> print(causal() & chunked(8192))
    causal & chunked(8192)
    """
    return _numbers("chunked", 1, n=n)


def block_causal(n: Number) -> MaskExpr:
    """k // n <= pos // n: causal between blocks of n keys, full within a block.

    >>> from fdma import block_causal
    >>> print(block_causal(64))
    block_causal(64)
    """
    return _numbers("block_causal", 1, n=n)


def sink(s: Number | float) -> MaskExpr:
    """k < s: the first keys; s is 0 or more, or math.inf for all.

    >>> from fdma import causal, sink, window
    >>> print(causal() & (window(1024) | sink(4)))
    causal & (window(1024) | sink(4))
    """
    return _named("sink", _bound("sink", "s", s, 0, "write math.inf for every key"))


def global_(g: Number | TableLike) -> MaskExpr:
    """k < g or pos < g, g 0 or more; with a boolean table `[kv_len]`, t[k] or t[pos].

    >>> from fdma import global_, window
    >>> print(window(256) | global_(16), global_([True, False, True]), sep="; ")
    window(256) | global(16); global(@t0)
    """
    operand = _number_or_table("global_", "g", g, "bool", ("t", (1, 2)))
    _check_least("global_", "g", g, 0)
    return _named("global", operand)


def prefix(p: Number | TableLike) -> MaskExpr:
    """k < p: keys that all queries see; p is an integer or integers `[batch]`, 0 to kv_len.

    >>> from fdma import causal, prefix
    >>> print(causal() | prefix(128), causal() | prefix([128, 7]), sep="; ")
    causal | prefix(128); causal | prefix(@p)
    """
    operand = _number_or_table("prefix", "p", p, "int", ("p", (1, 1)))
    _check_least("prefix", "p", p, 0)
    return _named("prefix", operand)


def _number_or_table(
    mask: str, parameter: str, value: object, kind: Kind, table: tuple[str, tuple[int, int]]
) -> _Expr:
    wish, ranks = table
    if isinstance(value, str):
        return _by_name(f"{mask}: {parameter}", value)
    if isinstance(value, TableExpr) and not value._is_entry and value._rank != 0:
        return _whole(mask, parameter, value, ranks, kind)
    number = _int_or_none(value)
    if number is None and is_array(value):
        made = _whole(mask, parameter, value, ranks, kind)
        symbol = _new_symbol("#", wish)
        return _table(symbol, next(iter(made._arrays.values())), None, mask)
    return _number(mask, parameter, value) if number is None else number


# ---- documents


if TYPE_CHECKING:

    @overload
    def documents(*, ids: TableLike) -> MaskExpr: ...
    @overload
    def documents(*, lengths: TableLike) -> MaskExpr: ...
    @overload
    def documents(*, cu_seqlens: TableLike) -> MaskExpr: ...
    @overload
    def documents(*, q_ids: TableLike, k_ids: TableLike) -> MaskExpr: ...
    def documents(**tables: Any) -> MaskExpr: ...

else:

    def documents(*unnamed, **tables):
        """Query and key are in the same document of packed sequences.

        The documents are given in one of four forms, all of integer tables:
        - `ids` [kv_len]: t[pos] == t[k]. A negative id marks padding, which sees no key and which
          no query sees.
        - `lengths` [docs], padded with 0 if it has a batch extent: consecutive documents. Keys
          after the last document are padding.
        - `cu_seqlens` [docs + 1]: the same documents by their offsets.
        - `q_ids` [q_len] and `k_ids` [kv_len]: a[q] == b[k], without alignment by `pos`.

        >>> from fdma import causal, documents
        >>> print(causal() & documents(lengths=[700, 1300, 48]))
        causal & documents(lengths=@lengths)
        >>> print(documents(q_ids="@a", k_ids="@b"))
        documents(q_ids=@a, k_ids=@b)
        """
        return _documents(tables, unnamed)


def _documents(tables: dict[str, Any], unnamed: tuple[Any, ...]) -> MaskExpr:
    forms = (("ids",), ("lengths",), ("cu_seqlens",), ("q_ids", "k_ids"))
    for form in forms:
        if set(form) == set(tables) and not unnamed:
            return _tables("documents", (1, 2), **{name: tables[name] for name in form})
    raise TypeError(
        "documents: expected ids=, lengths=, cu_seqlens=, or q_ids= and k_ids=, got "
        + (", ".join(f"{name}=" for name in tables) or ("nothing" if not unnamed else ""))
        + (
            "an argument without a name; write lengths=, or ids= for the id of each key"
            if unnamed
            else ""
        )
    )


def _tables(name: str, ranks: tuple[int, int], **values: object) -> MaskExpr:
    operands = [_whole(name, parameter, value, ranks) for parameter, value in values.items()]
    return _named(name, *operands, keywords=tuple(values))


def prefix_documents(ids: TableLike, prefix: TableLike) -> MaskExpr:
    """The same document, and k <= pos or k is among the first prefix[id] keys of that document.

    Integers `ids` [kv_len], each below docs; `prefix` [docs].

    >>> from fdma import prefix_documents
    >>> print(prefix_documents(ids=[0, 0, 1, 1], prefix=[1, 2]))
    prefix_documents(ids=@ids, prefix=@prefix)
    """
    return _tables("prefix_documents", (1, 2), ids=ids, prefix=prefix)


def share_question(ids: TableLike, parts: TableLike) -> MaskExpr:
    """The same document, and parts[k] == 0 or parts[pos] == parts[k]: answers share a question.

    `ids` and `parts` are integers [kv_len]; part 0 is the question.

    >>> from fdma import causal, share_question
    >>> print(causal() & share_question(ids="@doc", parts="@part"))
    causal & share_question(ids=@doc, parts=@part)
    """
    return _tables("share_question", (1, 2), ids=ids, parts=parts)


def causal_blockwise(ids: TableLike) -> MaskExpr:
    """k <= pos, and pos and k have the same id or pos is in the last document, which sees all.

    `ids` are integers [kv_len]. A position with a negative id sees no key, and no query sees it.

    >>> from fdma import causal_blockwise
    >>> print(causal_blockwise("@doc"))
    causal_blockwise(ids=@doc)
    """
    return _tables("causal_blockwise", (1, 2), ids=ids)


def padding(lengths: TableLike, side: Literal["right", "left"] = "right") -> MaskExpr:
    """k < lengths[b]; with side="left", where padding comes first, k >= kv_len - lengths[b].

    Integers `lengths` [batch], 0 to kv_len.

    >>> from fdma import padding
    >>> print(padding([700, 1300]), padding("@n", side="left"), sep="; ")
    padding(lengths=@lengths); padding(lengths=@n, side=left)
    """
    table = _whole("padding", "lengths", lengths, (1, 1))
    if side not in ("left", "right"):
        raise ValueError(f'padding: side: expected "left" or "right", got {side!r}')
    if side == "right":
        return _named("padding", table, keywords=("lengths",))
    return _named("padding", table, _variable(side), keywords=("lengths", "side"))


# ---- given by tables of intervals, tiles or cells


def intervals(begin: TableLike, end: TableLike) -> MaskExpr:
    """begin[i, k] <= q < end[i, k] for some i: each key lists the query rows that see it.

    Integers `begin`, `end` [kv_len] or [n, kv_len], with batch [batch, n, kv_len].

    >>> from fdma import intervals
    >>> print(intervals(begin=[[0, 1, 0]], end=[[2, 4, 1]]))
    intervals(begin=@begin, end=@end)
    """
    return _tables("intervals", (1, 3), begin=begin, end=end)


def rows(begin: TableLike, end: TableLike) -> MaskExpr:
    """begin[i, q] <= k < end[i, q] for some i: each query row lists the keys that it sees.

    Integers `begin`, `end` [q_len] or [n, q_len], with batch [batch, n, q_len].

    >>> from fdma import rows
    >>> print(rows(begin=[0, 1, 4], end=[2, 4, 4]))
    rows(begin=@begin, end=@end)
    """
    return _tables("rows", (1, 3), begin=begin, end=end)


def tiles(t: TableLike, m: Number, n: Number) -> MaskExpr:
    """t[.., q // m, k // n]: the table has a boolean for each tile of m query rows and n keys.

    The table has 2 dimensions, 3 with batch in front, or 4 with batch and head in front. The last
    two extents are ceil(q_len / m) and ceil(kv_len / n).

    >>> from fdma import tiles
    >>> print(tiles([[True, False], [True, True]], 128, 128))
    tiles(@tiles, 128, 128)
    """
    table = _given("tiles", "t", t)
    sides = _number("tiles", "m", m), _number("tiles", "n", n)
    _check_least("tiles", "m", m, 1)
    _check_least("tiles", "n", n, 1)
    return _named("tiles", table, *sides)


def bits(t: TableLike) -> MaskExpr:
    """A dense mask: booleans `[q_len, kv_len]`, with batch, or with batch and heads, in front.

    >>> import numpy as np
    >>> from fdma import bits, causal
    >>> print(causal() & bits(np.ones((64, 64), bool)))
    causal & bits(@bits)
    """
    return _named("bits", _given("bits", "t", t))


def _given(name: str, parameter: str, value: object) -> TableExpr:
    """A boolean table of 2 to 4 dimensions that has the name of its mask."""
    table = _whole(name, parameter, value, (2, 4), "bool")
    if is_array(value):
        return _table(_new_symbol("#", name), next(iter(table._arrays.values())), None, name)
    return table


def tree(parents: TableLike) -> MaskExpr:
    """The last n keys are nodes of a forest; k comes before them, or is pos or its ancestor.

    The mask serves speculative decoding with a tree of drafts. `parents` are integers [n], -1 for a
    root. Compiling raises an error for a cycle.

    >>> from fdma import tree
    >>> print(tree([-1, 0, 0, 1]))
    tree(parents=@parents)
    """
    return _tables("tree", (1, 2), parents=parents)


# ---- others


def block_diffusion(n: Number, size: Number) -> MaskExpr:
    """Keys are n noised tokens and the same n clean ones, in blocks of `size`; kv_len is 2 n.

    A query at pos sees key k in three cases: both are in the same block and the same half; pos is
    noised and k is clean and in an earlier block; both are clean and k's block is not later.

    >>> from fdma import block_diffusion
    >>> print(block_diffusion(4096, 16))
    block_diffusion(4096, 16)
    """
    return _numbers("block_diffusion", n=n, size=size)


def natten2d(height: Number, width: Number, kh: Number, kw: Number) -> MaskExpr:
    """The kh x kw keys around the query on a canvas of height x width, row-major.

    The neighbourhood is shifted so that it stays on the canvas; kv_len is height * width.

    >>> from fdma import natten2d
    >>> print(natten2d(64, 128, 13, 13))
    natten2d(64, 128, 13, 13)
    """
    return _numbers("natten2d", 0, height=height, width=width, kh=kh, kw=kw)


def natten3d(
    depth: Number, height: Number, width: Number, kd: Number, kh: Number, kw: Number
) -> MaskExpr:
    """The kd x kh x kw keys around the query in a volume of depth x height x width.

    The width is the fastest coordinate, the depth the slowest: frames of a video, row-major each.
    The neighbourhood is shifted so that it stays in the volume; kv_len is depth * height * width.

    >>> from fdma import natten3d
    >>> print(natten3d(8, 32, 32, 3, 7, 7))
    natten3d(8, 32, 32, 3, 7, 7)
    """
    return _numbers("natten3d", 0, depth=depth, height=height, width=width, kd=kd, kh=kh, kw=kw)


def topk(scores: TableLike, w: Number, among: MaskLike | None = None) -> MaskExpr:
    """For each query, the w keys with the highest scores among the keys where `among` is true.

    `scores` are float32 [kv_len], [heads_kv, kv_len] or [batch, heads_kv, kv_len], without NaN.
    Among equal scores the lower index wins. Query head h reads KV head h // (heads / heads_kv).
    `w` is one number for all queries, at least 1. Without `among`, `M & topk(scores, w)` selects
    among the rest of the top-level conjunction, which must have no other topk; in any other place
    compile raises ValueError.

    >>> from fdma import causal, topk
    >>> print(topk([0.5, 0.25, 1.0], 2, among=causal()), causal() & topk("@s", "@w"), sep="; ")
    topk(@scores, 2, among=causal); causal & topk(@s, @w)
    """
    table = _whole("topk", "scores", scores, (1, 3), "float")
    count = _number("topk", "w", w)
    if among is None:
        return _named("topk", table, count)
    if not isinstance(among, MaskExpr | TableExpr) and not _is_condition(among):
        raise TypeError(f"topk: among: expected a condition, got {_type_name(among)}")
    condition = _condition(among, "topk: among")
    return _named("topk", table, count, condition, keywords=("", "", "among"))
