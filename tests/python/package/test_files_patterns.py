"""Tests masks with patterns in files and as arrays, by package, tool and documented reader."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import fdma_module  # noqa: F401
import numpy as np
import pytest
from maskc_tool import maskc, needs_tool
from pattern_masks import pattern_cells, pattern_state

fdma = pytest.importorskip("fdma")
h5py = pytest.importorskip("h5py")

ROOT = Path(__file__).resolve().parents[3]
PATTERN_ARRAYS = {"patterns", "pattern_offsets", "pattern_tiles"}


def pattern_mask() -> Any:
    return fdma.BlockMask.from_arrays(pattern_state())


def has_same_arrays(mask: Any, state: dict[str, Any]) -> bool:
    groups = mask.arrays()["groups"]
    return len(groups) == len(state["groups"]) and all(
        ours.keys() == theirs.keys() and all(np.array_equal(ours[n], theirs[n]) for n in ours)
        for ours, theirs in zip(groups, state["groups"], strict=True)
    )


def test_arrays_there_and_back() -> None:
    mask = pattern_mask()
    np.testing.assert_array_equal(mask.to_dense(), pattern_cells())
    assert has_same_arrays(mask, pattern_state())
    again = pickle.loads(pickle.dumps(mask))
    assert has_same_arrays(again, pattern_state())
    assert (again.content_hash, again.mask_hash) == (mask.content_hash, mask.mask_hash)
    assert again == mask
    dense = fdma.BlockMask.from_dense(pattern_cells(), block=mask.block)
    assert dense == mask
    assert dense.mask_hash == mask.mask_hash


def test_files_there_and_back(tmp_path: Path) -> None:
    mask = pattern_mask()
    mask.save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        stored = file["masks/mask"]
        assert stored.attrs["version"] == 2
        assert set(stored["groups/0"]) - set(stored["groups/1"]) == PATTERN_ARRAYS
    assert has_same_arrays(fdma.load(tmp_path / "m.h5"), pattern_state())
    assert has_same_arrays(fdma.load(tmp_path / "m.h5", isolate=True), pattern_state())


@needs_tool
def test_the_tool_reads_and_writes_them(tmp_path: Path) -> None:
    mask = pattern_mask()
    mask.save(tmp_path / "ours.h5", name="m")
    assert "/masks/m" in maskc(tmp_path, "check", "ours.h5")
    found = json.loads(maskc(tmp_path, "inspect", "ours.h5", "--json"))["masks"][0]
    assert (found["content_hash"], found["mask_hash"]) == (mask.content_hash, mask.mask_hash)
    maskc(tmp_path, "pack", "ours.h5", "-o", "theirs.h5")
    theirs = fdma.load(tmp_path / "theirs.h5")
    assert has_same_arrays(theirs, pattern_state())
    # Both writers write the same arrays and attributes.
    with h5py.File(tmp_path / "ours.h5") as a, h5py.File(tmp_path / "theirs.h5") as b:
        (a,), (b,) = a["masks"].values(), b["masks"].values()
        assert dict(a.attrs) == dict(b.attrs)
        names: list[str] = []
        a.visit(names.append)
        for name in names:
            assert isinstance(a[name], h5py.Dataset) == isinstance(b[name], h5py.Dataset)
            if isinstance(a[name], h5py.Dataset):
                assert a[name].dtype == b[name].dtype
                np.testing.assert_array_equal(a[name][()], b[name][()])
    isolated = maskc(tmp_path, "inspect", "ours.h5", "--isolate", "--json")
    assert json.loads(isolated)["masks"][0]["content_hash"] == mask.content_hash


def test_the_documented_reader_gives_the_cells(tmp_path: Path) -> None:
    pattern_mask().save(tmp_path / "m.h5")
    page = (ROOT / "docs" / "file-format.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program, "file-format.md", "exec"), names)
    np.testing.assert_array_equal(names["read_dense"](tmp_path / "m.h5", "mask"), pattern_cells())


WRONG = [
    ("patterns", (0, 0), 0, r"patterns\[0\]: 0 x 3 tiles"),
    ("patterns", (0, 2), 3, r"patterns\[0\]: skew 3, expected 0 to 2"),
    ("patterns", (0, 1), 2**31 - 1, "expected at most 67108864 of all patterns"),
    ("patterns", (1, 3), 0, r"patterns\[1\]: first_row 0, expected 2"),
    ("pattern_offsets", 1, 99, r"pattern_offsets\[2\]"),
    ("pattern_tiles", (0, 0), 5, r"pattern_tiles\[0\]: column 5"),
    ("pattern_tiles", (0, 1), 2, r"pattern_tiles\[0\]: bitmap 2"),
    ("segments", (0, 5), 3, r"segments\[0\]: payload 3, expected less than 3"),
]


@pytest.mark.parametrize("name, at, value, words", WRONG)
def test_wrong_arrays_are_named(name: str, at: Any, value: int, words: str) -> None:
    state = pattern_state()
    state["groups"][0][name][at] = value
    with pytest.raises(ValueError, match=words):
        fdma.BlockMask.from_arrays(state)


def test_version_1_has_no_patterns() -> None:
    state = {**pattern_state(), "version": 1}
    with pytest.raises(ValueError, match=r"groups/0/patterns: unknown array \(version 1\)"):
        fdma.BlockMask.from_arrays(state)
    for name in PATTERN_ARRAYS:
        state = pattern_state()
        del state["groups"][0][name]
        with pytest.raises(ValueError, match=r"missing|unknown array"):
            fdma.BlockMask.from_arrays(state)


OLD = ROOT / "tests" / "data" / "masks_version_1.h5"
"""Written by a program of before version 2, with mask hashes of another definition."""


def test_files_of_version_1_are_read() -> None:
    with h5py.File(OLD) as file:
        versions = {mask.attrs["version"] for mask in file["masks"].values()}
        old_hash = file["masks/segment"].attrs["mask_hash"].decode()
    assert versions == {1}
    expected = fdma.compile("causal & window(30)", 90, 100, block=(16, 16))
    assert expected.mask_hash != old_hash
    for name in ("segment", "parametric", "bitset", "bcsr", "columns", "dense"):
        mask = fdma.load(OLD, name)
        assert mask.format == name
        assert mask == expected
        assert mask.mask_hash == expected.mask_hash
    for name, lengths in {"scattered": (90, 100), "heads": (90, 90)}.items():
        mask = fdma.load(OLD, name)
        heads = {"batch": 2, "heads": 4} if name == "heads" else {}
        assert mask == fdma.compile(mask.spec, *lengths, block=mask.block, **heads)


@needs_tool
def test_the_tool_reads_files_of_version_1(tmp_path: Path) -> None:
    said = maskc(tmp_path, "check", str(OLD))
    assert said.count("/masks/") >= 8
    maskc(tmp_path, "pack", str(OLD), "-o", "new.h5")
    with h5py.File(tmp_path / "new.h5") as file:
        assert {mask.attrs["version"] for mask in file["masks"].values()} == {2}
    assert fdma.load(tmp_path / "new.h5", "bcsr") == fdma.load(OLD, "bcsr")
