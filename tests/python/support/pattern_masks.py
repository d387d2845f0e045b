"""A mask with patterns, made array by array, and its cells by the definition in file-format.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = (32, 16)
Q_LEN, KV_LEN = 150, 100
"""Five tile rows and seven tile columns; the last ones are ragged."""

EMPTY, FULL = -2, -1
PATTERNS = [
    (np.array([[0, EMPTY, FULL], [EMPTY, 1, 0]]), 1),
    (np.array([[1, EMPTY]]), 0),
    (np.array([[FULL], [0], [EMPTY]]), 0),
]
"""Bitmap indices by pattern row and column, and the skew."""

SEGMENTS = [
    # first and end tile, steps, kind, payload
    (0, 1, 0, 1, 4, 0),
    (4, 6, 0, 0, 4, 1),
    (6, 7, 0, 0, 0, 0),
]
"""Of tile rows 0 to 3. Tile row 4 is full from its second tile on. Nothing uses pattern 2."""


def bitmaps() -> npt.NDArray[np.bool_]:
    return np.random.default_rng(33).random((2, *BLOCK)) < 0.4


def pattern_state() -> dict[str, Any]:
    """Arrays as `BlockMask.from_arrays` takes them: head 0 has patterns, head 1 is empty."""
    offsets, tiles, patterns = [0], [], []
    for contents, skew in PATTERNS:
        patterns.append((*contents.shape, skew, len(offsets) - 1))
        for row in contents:
            tiles += [(column, bitmap) for column, bitmap in enumerate(row) if bitmap != EMPTY]
            offsets.append(len(tiles))
    words = np.packbits(bitmaps().reshape(2, -1), axis=1, bitorder="little").view("<u8")
    plain = {
        "runs": np.array([[0, 1, 5, 0, 0]], np.int64),
        "segments": np.zeros((0, 6), np.int32),
        "bitmaps": np.zeros((0, words.shape[1]), np.uint64),
        "row_offsets": np.zeros(1, np.int64),
        "row_intervals": np.zeros((0, 2), np.int32),
        "column_offsets": np.zeros(0, np.int64),
        "column_intervals": np.zeros((0, 2), np.int32),
    }
    group = {
        **plain,
        "runs": np.array([[0, 1, 4, 3, 0], [4, 1, 1, 1, 3]], np.int64),
        "segments": np.array([*SEGMENTS, (1, 7, 0, 0, 0, 0)], np.int32),
        "bitmaps": words.astype(np.uint64),
        "patterns": np.array(patterns, np.int32),
        "pattern_offsets": np.array(offsets, np.int64),
        "pattern_tiles": np.array(tiles, np.int32),
    }
    return {
        "version": 2,
        "format": "segment",
        "q_len": Q_LEN,
        "kv_len": KV_LEN,
        "num_batches": 1,
        "num_heads": 2,
        "block_q": BLOCK[0],
        "block_kv": BLOCK[1],
        "q_offset": 0,
        "kv_offset": 0,
        "batch_offset": 0,
        "head_offset": 0,
        "spec": "",
        "group_of": np.array([[0, 1]], np.int32),
        "groups": [group, plain],
    }


def pattern_cells() -> npt.NDArray[np.bool_]:
    """The cells of that mask, [1, 2, Q_LEN, KV_LEN]."""
    pictures = bitmaps()
    cells = np.zeros((1, 2, 5 * BLOCK[0], 7 * BLOCK[1]), bool)

    def write(row: int, col: int, bitmap: int) -> None:
        tile = pictures[bitmap] if bitmap >= 0 else bitmap == FULL
        q, k = row * BLOCK[0], col * BLOCK[1]
        cells[0, 0, q : q + BLOCK[0], k : k + BLOCK[1]] = tile

    for row in range(4):
        for first, end, step_first, step_end, kind, payload in SEGMENTS:
            for col in range(first + row * step_first, end + row * step_end):
                if kind == 0:
                    write(row, col, FULL)
                    continue
                contents, skew = PATTERNS[payload]
                num_rows, num_cols = contents.shape
                write(row, col, contents[row % num_rows, (col - skew * row) % num_cols])
    cells[0, 0, 4 * BLOCK[0] :, BLOCK[1] :] = True
    return cells[:, :, :Q_LEN, :KV_LEN]
