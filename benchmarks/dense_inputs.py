"""Dense masks in HDF5 for bench_dense and bench_dense_files.py.

    python3 dense_inputs.py <folder>

Writes what bench_dense reads: 16384 x 16384 booleans, one byte each, packed documents under causal
attention (7 of nearly equal length), as contiguous.h5 (no chunks) and gzip.h5 (chunks of 256 x
1024, gzip level 4). Files that are there are kept.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

SEED = 20261121
PANEL_ROWS = 256
LARGE_BYTES = 4 << 30


@dataclass(frozen=True)
class Input:
    """One file. `mask`: documents, eviction or random."""

    name: str
    mask: str
    length: int
    dtype: str = "bool"
    storage: dict[str, Any] = field(default_factory=dict)
    rounds: int = 7

    @property
    def mask_bytes(self) -> int:
        return self.length * self.length * np.dtype(self.dtype).itemsize


CHUNK = {"chunks": (256, 1024)}
GZIP = {**CHUNK, "compression": "gzip"}


def panels(item: Input) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """The mask's rows, PANEL_ROWS at a time, as booleans."""
    tokens = np.arange(item.length)
    document = tokens * (7 * item.length // 16384) // item.length
    rng = np.random.default_rng(SEED)
    end = tokens + rng.integers(1, item.length, item.length)
    for row in range(0, item.length, PANEL_ROWS):
        q = tokens[row : row + PANEL_ROWS, None]
        if item.mask == "documents":
            yield row, (document[q] == document[None, :]) & (tokens <= q)
        elif item.mask == "eviction":
            yield row, (tokens <= q) & (q < end)
        else:
            yield row, rng.integers(0, 2, (PANEL_ROWS, item.length), np.uint8).astype(bool)


def write_if_missing(path: Path, item: Input) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    shape = (item.length, item.length)
    with h5py.File(temporary, "w") as file:
        dataset = file.create_dataset("mask", shape, item.dtype, **item.storage)
        compressed: dict[bytes, bytes] = {}
        for row, keeps in panels(item):
            if item.mask_bytes <= LARGE_BYTES:
                values = np.where(keeps, 0, -np.inf) if item.dtype == "float16" else keeps
                dataset[row : row + PANEL_ROWS] = values
                continue
            for column in range(0, item.length, CHUNK["chunks"][1]):  # quicker than through HDF5
                chunk = keeps[:, column : column + CHUNK["chunks"][1]].tobytes()
                if chunk not in compressed:
                    compressed = compressed if len(compressed) < 64 else {}
                    compressed[chunk] = zlib.compress(chunk, 4)
                dataset.id.write_direct_chunk((row, column), compressed[chunk])
    temporary.rename(path)


def main() -> None:
    folder = Path(sys.argv[1])
    write_if_missing(folder / "contiguous.h5", Input("contiguous", "documents", 16384))
    write_if_missing(folder / "gzip.h5", Input("gzip", "documents", 16384, storage=GZIP))


if __name__ == "__main__":
    main()
