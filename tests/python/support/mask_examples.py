"""Defines masks of many kinds with their cells in NumPy, for tests of fdma.BlockMask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mask_formats import FORMATS
from numpy.typing import NDArray

Cells = NDArray[np.bool_]
BLOCKS = ((128, 128), (16, 48), (64, 32))


@dataclass(frozen=True)
class Example:
    """The arguments of fdma.compile, and the definition of the cells."""

    name: str
    spec: str
    q_len: int | list[int]
    kv_len: int | list[int]
    batch: int = 1
    heads: int = 1
    tables: dict[str, Any] = field(default_factory=dict)
    has_closed_form: bool = False

    def compile(self, fdma: Any, **options: Any) -> Any:
        return fdma.compile(
            self.spec,
            self.q_len,
            self.kv_len,
            batch=self.batch,
            heads=self.heads,
            tables=self.tables,
            **options,
        )

    def lengths(self) -> Iterator[tuple[int, int]]:
        for b in range(self.batch):
            q_len = self.q_len if isinstance(self.q_len, int) else self.q_len[b]
            yield q_len, self.kv_len if isinstance(self.kv_len, int) else self.kv_len[b]

    def cells(self) -> Cells:
        """Returns bool [batch, heads, q_len, kv_len], False past the lengths of an element."""
        extents = list(self.lengths())
        longest = max(q for q, _ in extents), max(k for _, k in extents)
        cells = np.zeros((self.batch, self.heads, *longest), bool)
        for b, (q_len, kv_len) in enumerate(extents):
            q, k = np.ogrid[:q_len, :kv_len]
            for h in range(self.heads):
                cells[b, h, :q_len, :kv_len] = self._of(b, h, q, k, q + kv_len - q_len)
        return cells

    def _of(self, b: int, h: int, q: Any, k: Any, pos: Any) -> Any:
        names = {"b": b, "h": h, "q": q, "k": k, "pos": pos, "np": np, **self.tables}
        return eval(DEFINITIONS[self.name], names) & np.ones(
            np.broadcast_shapes(q.shape, k.shape), bool
        )


IDS = np.repeat(np.arange(6), [40, 1, 70, 20, 100, 69])
DEFINITIONS = {
    "full": "k >= 0",
    "nothing": "k < 0",
    "causal": "k <= pos",
    "window": "(k <= pos) & (pos - k < 40)",
    "documents": "(k <= pos) & (ids[np.clip(pos, 0, 299)] == ids[k]) & (pos >= 0)",
    "heads": "(k <= pos) & (pos - k < (8 << (h % 3)))",
    "lengths": "(k <= pos) & (k % 5 != 2)",
    "lengths_heads": "(np.abs(pos - k) < 20 + 30 * h) | (k < 4 + b)",
    "stripes": "(q * 7 + k * k) % 11 < 4",
    "learned": "(begin[h, k] <= q) & (q < end[h, k])",
    "one_row": "k % 3 == 1",
    "no_rows": "k >= 0",
}


def _learned(heads: int, n: int) -> dict[str, Any]:
    random = np.random.default_rng(3)
    begin = np.arange(n) + random.integers(0, 20, (heads, n))
    return {"begin": begin, "end": np.minimum(begin + random.integers(0, 90, (heads, n)), n)}


EXAMPLES = [
    Example("full", "k >= 0", 130, 257, has_closed_form=True),
    Example("nothing", "k < 0", 100, 100, has_closed_form=True),
    Example("causal", "causal", 300, 300, has_closed_form=True),
    Example("window", "causal & window(40)", 200, 333, has_closed_form=True),
    Example(
        "documents",
        "causal & documents(ids=@ids)",
        300,
        300,
        tables={"ids": IDS},
        has_closed_form=True,
    ),
    Example("heads", "causal & pos - k < shl(8, h % 3)", 150, 150, batch=2, heads=6),
    Example("lengths", "causal & k % 5 != 2", [200, 0, 77], [200, 60, 90], batch=3),
    Example("lengths_heads", "abs(pos - k) < 20 + 30 * h | k < 4 + b", [64, 130], 140, 2, 2),
    Example("stripes", "(q * 7 + k * k) % 11 < 4", 257, 130),
    Example(
        "learned", "@begin[h, k] <= q & q < @end[h, k]", 260, 260, heads=3, tables=_learned(3, 260)
    ),
    Example("one_row", "k % 3 == 1", 1, 70),
    Example("no_rows", "k >= 0", 0, 40, has_closed_form=True),
]
BY_NAME = {example.name: example for example in EXAMPLES}


def in_every_format(fdma: Any, example: Example) -> Iterator[Any]:
    """Returns the mask in every format that can hold it, in blocks of several shapes."""
    for block in BLOCKS:
        for kind in FORMATS:
            if kind != "parametric" or example.has_closed_form:
                yield example.compile(fdma, block=block).to_format(kind)


def tile_classes(cells: Cells, block: tuple[int, int]) -> NDArray[np.int8]:
    """Returns 0 for empty, 1 for partial and 2 for full of each tile of cells [q_len, kv_len]."""
    rows, cols = (-(-n // side) for n, side in zip(cells.shape, block, strict=True))
    classes = np.zeros((rows, cols), np.int8)
    for r in range(rows):
        for c in range(cols):
            tile = cells[r * block[0] : (r + 1) * block[0], c * block[1] : (c + 1) * block[1]]
            classes[r, c] = 2 if tile.all() else int(tile.any())
    return classes


def flash_mask_cells(rows: Any, causal: bool, q_len: int) -> Any:
    """Returns cells [batch, heads, q_len, kv_len] of startend_row_indices by the published rule."""
    i = np.arange(q_len)[None, None, :, None]
    j = np.arange(rows.shape[2])[None, None, None, :]
    column = [rows[:, :, None, :, c] for c in range(rows.shape[3])]
    if causal:
        masked = (i >= column[0]) if len(column) == 1 else (i >= column[0]) & (i < column[1])
        return ~(masked | (j > i + rows.shape[2] - q_len))
    if len(column) == 2:
        return ~((i >= column[0]) | (i < column[1]))
    return ~(((i >= column[0]) & (i < column[1])) | ((i >= column[2]) & (i < column[3])))
