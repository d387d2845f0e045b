"""What `BlockMask.diff` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DifferingCell", "DifferingTile", "MaskDifference"]


class DifferingCell(NamedTuple):
    """A query-key pair that only one of two masks has."""

    batch: int
    head: int
    q: int
    k: int
    in_self: bool
    """The pair's value in the mask whose `diff` was called; the other mask has the opposite."""


class DifferingTile(NamedTuple):
    """A tile with differing cells: its tile row and tile column in `MaskDifference.block`."""

    batch: int
    head: int
    row: int
    col: int


@dataclass(frozen=True)
class MaskDifference:
    """How two masks differ. Its truth value is True if they differ and False if they are equal.

    >>> import fdma
    >>> a, b = fdma.compile("causal", 512), fdma.compile("window(512, 1)", 512)
    >>> print(a.diff(b))
    511 cells differ, in 7 tiles of 128 x 128: 0 only in the first mask, 511 only in the second; \
first at batch 0, head 0, q 0, k 1
    >>> a.diff(b).tiles[:2]
    (DifferingTile(batch=0, head=0, row=0, col=0), DifferingTile(batch=0, head=0, row=0, col=1))
    >>> bool(a.diff(a))
    False
    """

    equal: bool
    """True iff counts, lengths and cells are the same, as for `==`."""
    reason: str
    """Not empty if counts or lengths differ; no cell was compared then."""
    block: tuple[int, int]
    """The block to which tiles refer, that of the mask whose `diff` was called."""
    only_in_self: int
    """Cells that the other mask lacks, over all batch elements and heads."""
    only_in_other: int
    """Cells that only the other mask has."""
    num_tiles: int
    """Tiles that hold a differing cell, over all batch elements and heads."""
    first_cell: DifferingCell | None
    """The first differing cell, in order of batch element, head, tile row, query row and key."""
    tiles: tuple[DifferingTile, ...]
    """The first differing tiles, at most `max_tiles`."""

    @property
    def num_cells(self) -> int:
        """Cells that differ."""
        return self.only_in_self + self.only_in_other

    def __bool__(self) -> bool:
        return not self.equal

    def __str__(self) -> str:
        if self.equal:
            return "equal"
        if self.first_cell is None:
            return self.reason
        cell = self.first_cell
        return (
            f"{self.num_cells} cells differ, in {self.num_tiles} tiles of {self.block[0]} x "
            f"{self.block[1]}: {self.only_in_self} only in the first mask, {self.only_in_other} "
            f"only in the second; first at batch {cell.batch}, head {cell.head}, q {cell.q}, "
            f"k {cell.k}"
        )
