"""Tests large dense masks: memory stays bounded, and storage does not change the result."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from maskc_tool import MASKC, maskc, needs_tool

pytestmark = needs_tool

# A child's peak of memory begins with that of its parent, so a small process starts it.
STARTER = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(json.dumps(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024))
"""


def causal_128k(path: Path) -> None:
    """Writes 16 GiB of causal booleans as gzip'd chunks, without those above the diagonal."""
    length, side = 131072, 1024
    ones = zlib.compress(b"\1" * (side * side))
    diagonal = zlib.compress(np.tri(side, dtype=np.uint8).tobytes())
    with h5py.File(path, "w") as file:
        mask = file.create_dataset(
            "mask", (length, length), bool, chunks=(side, side), compression="gzip"
        )
        for row in range(0, length, side):
            for column in range(0, row + 1, side):
                chunk = diagonal if row == column else ones
                mask.id.write_direct_chunk((row, column), chunk)


def test_16_gib_convert_in_a_fraction_of_1_gib(tmp_path: Path) -> None:
    causal_128k(tmp_path / "dense.h5")
    words = [MASKC, "convert", "dense.h5:/mask", "--force", "-o", "out.h5", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", STARTER, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) < 512 << 20
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "131072", "-o", "causal.h5", "-q")
    maskc(tmp_path, "diff", "out.h5", "causal.h5")  # status 0 means equal


def test_storage_makes_no_difference(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(0, 2, (3, 150, 333)).astype(bool)
    values[:, :, 100:260] = False
    storages: dict[str, dict[str, Any]] = {
        "contiguous": {},
        "gzip": {"chunks": (2, 64, 100), "compression": "gzip", "shuffle": True},
        "sums": {"chunks": (1, 150, 64), "fletcher32": True},
        "hdf5": {"chunks": (1, 50, 333), "scaleoffset": 0},
    }
    with h5py.File(tmp_path / "dense.h5", "w", userblock_size=1024) as file:
        for name, storage in storages.items():
            for dtype in ("int32", ">i8") if name == "hdf5" else ("bool", "int32", ">i8", "f2"):
                stored = np.where(values, 0.0, -np.inf) if dtype == "f2" else values
                data = stored.astype(dtype)
                file.create_dataset(f"{name}_{dtype.strip('>')}", data=data, **storage)
        names = list(file)
    hashes = set()
    for name in names:
        maskc(
            tmp_path,
            "convert",
            f"dense.h5:/{name}",
            "--dims",
            "hqk",
            "--force",
            "-o",
            "out.h5",
            "-q",
        )
        with h5py.File(tmp_path / "out.h5") as file:
            hashes.add(str(file["masks/mask"].attrs["mask_hash"]))
    assert len(names) == 14
    assert len(hashes) == 1
