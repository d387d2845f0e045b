"""Ranges of query rows, keys, batch elements and heads, and blocks, as users write them."""

from __future__ import annotations

import operator

__all__: list[str] = []


def pair_range(
    name: str, wanted: int | slice | range | None, length: int
) -> tuple[tuple[int, int], bool]:
    """[begin, end) of batch elements or heads, and whether the argument was one integer.

    >>> pair_range("heads", -1, 8), pair_range("heads", slice(2, 4), 8)
    (((7, 8), True), ((2, 4), False))
    """
    if wanted is None:
        return (0, length), False
    if isinstance(wanted, slice | range):
        begin, end = row_range(name, wanted, length)
        if begin == end:
            raise ValueError(f"{name}: {wanted} takes none of {length}")
        return (begin, end), False
    try:
        index = operator.index(wanted)
    except TypeError:
        raise TypeError(
            f"{name}: expected an integer, a slice, a range or None, got {type(wanted).__name__}"
        ) from None
    if not -length <= index < length:
        raise IndexError(f"{name}: {index} is outside [0, {length})")
    index %= length
    return (index, index + 1), True


def row_range(name: str, wanted: slice | range | None, length: int) -> tuple[int, int]:
    """[begin, end) of query rows or keys. Slices are cut at the length; ranges must lie inside.

    >>> row_range("q", slice(-100, None), 4096), row_range("q", range(10, 20), 4096)
    ((3996, 4096), (10, 20))
    """
    if wanted is None:
        return 0, length
    if isinstance(wanted, slice):
        begin, end, step = wanted.indices(length)
    elif isinstance(wanted, range):
        begin, end, step = wanted.start, wanted.stop, wanted.step
        if step == 1 and not 0 <= begin <= end <= length:
            raise ValueError(f"{name}: {wanted} is not inside [0, {length})")
    else:
        raise TypeError(f"{name}: expected a slice, a range or None, got {type(wanted).__name__}")
    if step != 1:
        raise ValueError(f"{name}: expected a step of 1, got {step}")
    return begin, max(begin, end)


def block_sides(block: int | tuple[int, int]) -> tuple[int, int]:
    """(query rows, keys) of a block; one number means both sides.

    >>> block_sides(64), block_sides((64, 128))
    ((64, 64), (64, 128))
    """
    sides = tuple(block) if isinstance(block, tuple | list) else (block, block)
    if len(sides) != 2:
        raise ValueError(f"block: expected one or two sides, got {len(sides)}")
    try:
        rows, keys = (operator.index(side) for side in sides)
    except TypeError:
        raise TypeError(f"block: expected one or two integers, got {block!r}") from None
    for name, side in (("block_q", rows), ("block_kv", keys)):
        if not 0 < side <= 1024:
            raise ValueError(f"{name}: {side}, expected a multiple of 16 from 16 to 1024")
    return rows, keys
