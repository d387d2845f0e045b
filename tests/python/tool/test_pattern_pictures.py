"""Tests inspect and render on a mask with patterns against the same mask without."""

from __future__ import annotations

import json
from pathlib import Path

import fdma_module  # noqa: F401
import numpy as np
import pytest
from maskc_tool import maskc, needs_tool
from pattern_masks import BLOCK, pattern_cells, pattern_state

fdma = pytest.importorskip("fdma")

pytestmark = needs_tool


def write_both(folder: Path) -> tuple[Path, Path]:
    """Returns two folders whose m.h5 has the same cells, with patterns and without."""
    with_patterns, plain = folder / "patterns", folder / "plain"
    for path in (with_patterns, plain):
        path.mkdir()
    mask = fdma.BlockMask.from_arrays(pattern_state())
    mask.save(with_patterns / "m.h5")
    dense = fdma.BlockMask.from_dense(pattern_cells(), block=BLOCK)
    assert "patterns" not in dense.arrays()["groups"][0]
    dense.save(plain / "m.h5")
    return with_patterns, plain


def test_pictures_are_those_of_the_cells(tmp_path: Path) -> None:
    both = write_both(tmp_path)
    for name, size in (("m.png", "1024"), ("m.svg", "1024"), ("s.svg", "64"), ("s.png", "16")):
        pictures = []
        for folder in both:
            maskc(folder, "render", "m.h5", "-o", name, "--size", size)
            pictures.append((folder / name).read_bytes())
        assert pictures[0] == pictures[1], name
    drawings = [maskc(folder, "render", "m.h5") for folder in both]
    assert drawings[0] == drawings[1]


def test_inspect_says_what_patterns_there_are(tmp_path: Path) -> None:
    with_patterns, plain = write_both(tmp_path)
    said = maskc(with_patterns, "inspect", "m.h5", "--no-draw")
    assert "  patterns         3: 2 x 3, 1 x 2 and 3 x 1 tiles\n" in said
    assert "patterns" not in maskc(plain, "inspect", "m.h5", "--no-draw")
    masks = [
        json.loads(maskc(folder, "inspect", "m.h5", "--json"))["masks"][0]
        for folder in (with_patterns, plain)
    ]
    assert masks[0]["num_patterns"] == 3
    assert masks[0]["groups"][0]["patterns"] == [
        {"num_rows": 2, "num_cols": 3, "skew": 1},
        {"num_rows": 1, "num_cols": 2, "skew": 0},
        {"num_rows": 3, "num_cols": 1, "skew": 0},
    ]
    assert masks[0]["groups"][1]["patterns"] == masks[1]["groups"][0]["patterns"] == []
    assert masks[1]["num_patterns"] == 0
    for name in ("allowed_pairs", "tiles", "mask_hash"):
        assert masks[0][name] == masks[1][name]
    assert masks[0]["allowed_pairs"] == np.count_nonzero(pattern_cells())
