"""Tests damaged groups of every layout.

Each is an error that names the field, and no file is left.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from maskc_tool import MASKC, maskc, needs_tool

pytestmark = needs_tool

LAYOUTS = {
    "bsr": "bsr",
    "cu_seqlens": "cu_seqlens",
    "flash_mask": "flash_mask",
    "flex": "block_mask",
    "hf_mask": "hf_mask",
    "hf_mask_additive": "hf_mask",
    "hf_padding": "hf_padding",
}
OPTIONAL = {
    "bsr": {"q_len", "kv_len"},
    "cu_seqlens": {"causal", "window_size", "packed", "num_heads"},
    "flash_mask": {"q_len"},
    "hf_padding": {"q_len", "num_heads"},
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes one file for each layout, as --to does: causal, 48 tokens in blocks of 16."""
    folder = tmp_path_factory.mktemp("good")
    words = ("--spec", "causal", "--q-len", "48", "--block", "16x16")
    maskc(folder, "compile", *words, "-o", "mask.h5")
    for layout in LAYOUTS:
        maskc(folder, "convert", "mask.h5", "--to", layout, "-o", f"{layout}.h5")
    return folder


def fields_of(path: Path, group: str) -> dict[str, Any]:
    with h5py.File(path, "r") as file:
        fields = {name: values[...] for name, values in file[group].items()}
        return fields | dict(file[group].attrs)


def message_of(folder: Path, layout: str, write: Any) -> str:
    """Returns what convert says of the group that write(group) fills: a wrong mask, use or file."""
    with h5py.File(folder / "bad.h5", "w") as file:
        write(file.create_group("g"))
    words = [MASKC, "convert", "bad.h5:/g", "--from", layout, "-o", "no.h5"]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (1, 2, 3), done.stderr
    assert not (folder / "no.h5").exists()
    assert done.stderr.startswith("fdma-maskc convert: error: ")
    return done.stderr


@pytest.mark.parametrize("layout", LAYOUTS)
def test_good_groups_are_good(good: Path, tmp_path: Path, layout: str) -> None:
    maskc(
        tmp_path,
        "convert",
        f"{good / layout}.h5:/{LAYOUTS[layout]}",
        "--from",
        layout,
        "-o",
        "a.h5",
    )
    maskc(tmp_path, "diff", "a.h5", str(good / "mask.h5"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_field_missing_misspelt_or_of_another_kind(
    good: Path, tmp_path: Path, layout: str
) -> None:
    fields = fields_of(good / f"{layout}.h5", LAYOUTS[layout])
    assert fields

    def rewritten(name: str, values: Any, kept_name: str | None = None) -> str:
        def write(group: Any) -> None:
            for each, original in fields.items():
                if each != name:
                    group[each] = original
                elif values is not None:
                    group[kept_name or name] = values

        return message_of(tmp_path, layout, write)

    # An importer names the field, or what the field counts.
    said = {"fdma_bitmap_index": "bitmap_index", "num_heads": "heads"}
    for name, values in fields.items():
        array = np.asarray(values)
        if name not in OPTIONAL.get(layout, set()):
            assert name in rewritten(name, None)
        assert name in rewritten(name, values, name + "x")
        assert name in rewritten(name, "text")
        assert name in rewritten(name, array.astype(np.complex64))
        assert name in rewritten(name, np.zeros((1, 1, 1, 1, 1), np.int32))
        if array.dtype != np.float32:
            assert name in rewritten(name, array.astype(np.float32) + np.float32(0.5))
        if array.ndim > 0 and name not in ("attention_mask", "startend_row_indices"):
            assert rewritten(name, array[:0])
            if name != "fdma_bitmaps":  # Bitmaps that no tile uses do no harm
                assert rewritten(name, np.concatenate([array, array]))
        if array.dtype.kind == "i":
            assert said.get(name, name) in rewritten(name, np.full(array.shape, -5, np.int64))
            if name != "window_size":  # they may have any width
                wide = rewritten(name, np.full(array.shape, 1 << 40, np.int64))
                assert said.get(name, name) in wide
            assert rewritten(name, np.full(array.shape, (1 << 64) - 1, np.uint64))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunks", [None, True])
def test_sizes_that_the_file_does_not_hold(
    good: Path, tmp_path: Path, layout: str, chunks: Any
) -> None:
    """Datasets of 2^40 elements and more that were never written take no memory."""
    fields = fields_of(good / f"{layout}.h5", LAYOUTS[layout])
    for name, values in fields.items():
        array = np.asarray(values)
        if array.ndim == 0:
            continue

        def write(group: Any, name: str = name, array: Any = array) -> None:
            for each, original in fields.items():
                if each != name:
                    group[each] = original
            shape = (1 << 40 // array.ndim, *([1 << 40 // array.ndim] * (array.ndim - 1)))
            group.create_dataset(name, shape, array.dtype, chunks=chunks)

        assert name in message_of(tmp_path, layout, write)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_objects_instead_of_a_group(tmp_path: Path, layout: str) -> None:
    with h5py.File(tmp_path / "bad.h5", "w") as file:
        file["dataset"] = np.zeros(3)
        file.create_group("empty")
        file.create_group("nested").create_group("inner")
        file.create_group("linked")["attention_mask"] = h5py.ExternalLink("other.h5", "/x")
    for inner in ("dataset", "empty", "nested", "linked", "absent"):
        words = ("convert", f"bad.h5:/{inner}", "--from", layout, "-o", "no.h5")
        done = subprocess.run(
            [MASKC, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in (1, 2, 3), (inner, done.stderr)
        assert done.stderr.startswith("fdma-maskc convert: error: ")
