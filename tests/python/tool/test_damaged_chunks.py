"""Tests dense files whose chunk index is damaged while data and checksums are intact.

No read gives another mask.
"""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from maskc_tool import MASKC, maskc, needs_tool

pytestmark = needs_tool

SIDE, CHUNK = 64, 32
STORAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fletcher32": {"fletcher32": True},
    "gzip": {"compression": "gzip"},
    "shuffle gzip fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "szip": {"compression": "szip"},
    "scaleoffset": {"scaleoffset": 0},
}


def write(path: Path, **storage: Any) -> None:
    with h5py.File(path, "w") as file:
        values = np.tri(SIDE, dtype=np.uint8)
        file.create_dataset("mask", data=values, chunks=(CHUNK, CHUNK), **storage)


def move_last_chunk(path: Path, row: int, column: int) -> None:
    """Changes the key of chunk (32, 32).

    It lies behind 24 bytes of node and 3 chunks of 40, and after size and mask.
    """
    data = bytearray(path.read_bytes())
    at = data.index(b"TREE\1") + 24 + 3 * 40 + 8
    assert struct.unpack_from("<2Q", data, at) == (CHUNK, CHUNK)
    struct.pack_into("<2Q", data, at, row, column)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", STORAGES)
@pytest.mark.parametrize("key", [(31, 31), (0, 0), (2**63, 32), (32, 0), (0, 32)], ids=str)
def test_chunk_keys_that_lead_nowhere_are_errors(
    key: tuple[int, int], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "d.h5"
    if name == "szip" and not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        pytest.skip("h5py without szip")
    write(path, **STORAGES[name])
    maskc(tmp_path, "convert", "d.h5:/mask", "-o", "right.h5", "-q")
    move_last_chunk(path, *key)
    for words in (
        ("convert", "d.h5:/mask", "-o", "out.h5"),
        ("inspect", "d.h5:/mask"),
        ("compile", "--spec", "@t[q, k]", "-t", "t=d.h5:/mask", "--q-len", "64", "-o", "out.h5"),
    ):
        done = subprocess.run(
            [MASKC, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 3, (words, done.stderr)
        assert re.search(r"'d\.h5:/mask': chunk coordinates \[.*, expected ", done.stderr)
    assert not (tmp_path / "out.h5").exists()
