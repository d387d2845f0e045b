"""Writes the dense masks that bench_dense reads: 16384 x 16384 booleans, one byte each.

    python3 dense_inputs.py <folder>

Packed documents under causal attention (7 of nearly equal length), as contiguous.h5 (no chunks) and
gzip.h5 (chunks of 256 x 1024, gzip level 4). Files that are there are kept.
"""

import sys
from pathlib import Path

import h5py
import numpy as np

LENGTH = 16384
DOCUMENTS = 7


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.arange(LENGTH)
    document = tokens * DOCUMENTS // LENGTH
    mask = (document[:, None] == document[None, :]) & (tokens[None, :] <= tokens[:, None])
    storage = {
        "contiguous.h5": {},
        "gzip.h5": {"chunks": (256, 1024), "compression": "gzip"},
    }
    for name, options in storage.items():
        if not (folder / name).exists():
            with h5py.File(folder / name, "w") as file:
                file.create_dataset("mask", data=mask, **options)


if __name__ == "__main__":
    main()
