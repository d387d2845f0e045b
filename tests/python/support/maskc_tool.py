"""Runs the built fdma-maskc (environment FDMA_MASKC) and reads its output."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from json_schema import violations

MASKC = os.environ.get("FDMA_MASKC", "")
SCHEMA = json.loads(
    (Path(__file__).resolve().parents[3] / "docs" / "maskc.schema.json").read_text()
)
# The colours of pictures with light surroundings.
FULL, EMPTY, DROPPED, KEPT = (24, 78, 119), (244, 244, 240), (255, 236, 204), (214, 96, 14)
needs_tool = pytest.mark.skipif(not MASKC, reason="FDMA_MASKC does not name the built tool")


def maskc(folder: Path, *words: str, status: int = 0, text: str = "") -> str:
    """Returns the standard output of one call in `folder`, which must end with `status`."""
    done = subprocess.run(
        [MASKC, *words],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, f"{words}: status {done.returncode}\n{done.stderr}"
    return done.stdout


def maskc_json(folder: Path, *words: str, status: int = 0) -> Any:
    """Returns the JSON document of one call, after a check of its schema."""
    document = json.loads(maskc(folder, *words, "--json", status=status))
    assert violations(document, SCHEMA["$defs"][words[0]], SCHEMA) == []
    return document


def read_png(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the pixels [height, width, 3] of an 8-bit RGB PNG file without interlacing."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at = 8
    packed = b""
    width = height = 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        assert (
            zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        )
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
            assert (depth, colour, interlace) == (8, 2, 0)
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    stride = 3 * width
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, stride + 1)
    rows = np.zeros((height, stride), np.uint8)
    for y in range(height):
        rows[y] = _unfilter(
            int(raw[y, 0]), raw[y, 1:], rows[y - 1] if y else np.zeros_like(rows[0])
        )
    return rows.reshape(height, width, 3)


def _unfilter(
    kind: int, line: np.ndarray[Any, np.dtype[np.uint8]], above: np.ndarray[Any, np.dtype[np.uint8]]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if kind == 0:
        return line
    if kind == 2:
        return line + above
    out = [0] * len(line)
    for i, value in enumerate(line.tolist()):
        left = out[i - 3] if i >= 3 else 0
        up = int(above[i])
        corner = int(above[i - 3]) if i >= 3 else 0
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + up) // 2
        else:
            estimate = left + up - corner
            guess = min((left, up, corner), key=lambda each: abs(estimate - each))
        out[i] = (value + guess) % 256
    return np.array(out, np.uint8)
