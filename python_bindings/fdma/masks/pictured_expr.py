"""The BlockMask that a picture of an expression shows.

An expression has no lengths. Where none are given, they are taken from its arrays (their extents,
or the sum of a list of lengths) or from the numbers in its text, so that a window is seen to end.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from .block_mask import BlockMask
from .compile import compile
from .expr_types import MaskExpr
from .table_arrays import kind_of, on_host, rank_of

__all__: list[str] = []

_LEAST, _MOST = 64, 16384
_TILES = 32
"""Tiles on a side of the picture, about."""
_SECONDS = 1.0
_MAX_TRIED = 16


def example_mask(
    expr: MaskExpr,
    q_len: int | None = None,
    kv_len: int | None = None,
    batch: int = 0,
    heads: int = 0,
    tables: dict[str, Any] | None = None,
) -> BlockMask:
    """The mask of these lengths, or of lengths that suit the expression.

    batch, heads: the pair that is to be drawn. tables: arrays that the expression lacks. Raises
    what compile raises, if nothing that is tried compiles.
    """
    tables = tables or {}
    if "head" in tables and "head" not in expr.table_names:
        raise TypeError("head: no argument of draw and plot; write heads=")
    arrays = [*expr.tables.values(), *tables.values()]
    num_batches, num_heads = (
        at + 1 if at or not expr.mentions(name) else 2 for name, at in (("b", batch), ("h", heads))
    )
    if q_len is None:
        sizes = _lengths(str(expr), arrays)
    else:
        sizes = iter([(q_len, q_len if kv_len is None else kv_len)])
    batches = {num_batches: None}
    if batch == 0:  # arrays that begin with an extent for each batch element
        batches |= dict.fromkeys(n for n in map(_first_extent, arrays) if 1 < n <= 256)
    failed: Exception | None = None
    for (rows, keys), count in itertools.islice(itertools.product(sizes, batches), _MAX_TRIED):
        keys = keys if kv_len is None else kv_len
        try:
            return compile(
                expr,
                rows,
                keys,
                count,
                num_heads,
                tables=tables,
                block=_block(max(rows, keys)),
                timeout=_SECONDS if q_len is None else None,
            )
        except (ValueError, NotImplementedError, TimeoutError) as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _block(length: int) -> int:
    return min(1024, max(16, -(-length // (_TILES * 16)) * 16))


def _first_extent(array: Any) -> int:
    shape: Any = getattr(array, "shape", ())
    return int(shape[0]) if len(shape) > 0 else 0


def _lengths(text: str, arrays: list[Any]) -> Iterator[tuple[int, int]]:
    """Lengths to try: those of the arrays, the longest first, and that of the numbers."""
    numbers = [int(number) for number in re.findall(r"(?<![\w@])\d{1,9}\b", text)]
    pairs: set[tuple[int, int]] = set()
    extents: set[int] = set()
    for array in arrays:
        if isinstance(array, int):
            numbers.append(array)
        elif not hasattr(array, "shape"):
            continue
        elif rank_of(array) == 0:
            numbers.append(int(array))
        else:
            extents.update(int(extent) for extent in array.shape)
            if rank_of(array) >= 2 and min(array.shape[-2:]) >= _TILES // 2:
                pairs.add((int(array.shape[-2]), int(array.shape[-1])))
            elif rank_of(array) == 1 and kind_of(array, "table") == "int":
                extents.add(int(on_host(array).sum()))
    length = _LEAST
    while length < min(2 * max(numbers, default=0), _MOST):
        length *= 2
    fitting = sorted((n for n in extents if 1 < n <= 1 << 20), reverse=True)
    yield from sorted(pairs, reverse=True)[:2]
    yield from ((n, n) for n in [*fitting[:4], length])
