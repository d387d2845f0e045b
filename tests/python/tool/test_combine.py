"""Tests fdma-maskc combine against NumPy: operators, unequal blocks, dense datasets, errors."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from maskc_tool import MASKC, maskc, maskc_json, needs_tool

pytestmark = needs_tool

Cells = np.ndarray[Any, np.dtype[np.bool_]]
Q_LEN, KV_LEN = 150, 200
q = np.arange(Q_LEN)[:, None]
k = np.arange(KV_LEN)[None, :]
CAUSAL: Cells = k <= q + KV_LEN - Q_LEN
WINDOW: Cells = abs(q + KV_LEN - Q_LEN - k) < 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Writes causal.h5 in blocks of 32 x 16 and window.h5 in 64 x 64, in other formats."""
    lengths = ["--q-len", str(Q_LEN), "--kv-len", str(KV_LEN)]
    for name, spec, storage, block in (
        ("causal", "causal", "bcsr", "32x16"),
        ("window", "window(30)", "columns", "64x64"),
    ):
        words = ["--spec", spec, *lengths, "--format", storage, "--block", block]
        maskc(tmp_path, "compile", *words, "--name", name, "-o", f"{name}.h5")
    return tmp_path


def holds(folder: Path, cells: Cells, mask: str = "out.h5") -> bool:
    """True if a mask of `folder` has these cells, [b, h, q, k] or [q, k]."""
    with h5py.File(folder / "expected.h5", "w") as file:
        file["mask"] = cells
    done = subprocess.run([MASKC, "diff", mask, "expected.h5:/mask", "-q"], cwd=folder, check=False)
    assert done.returncode in (0, 1)
    return done.returncode == 0


@pytest.mark.parametrize(
    ("operator", "cells"),
    [
        ("and", CAUSAL & WINDOW),
        ("or", CAUSAL | WINDOW),
        ("xor", CAUSAL ^ WINDOW),
        ("minus", CAUSAL & ~WINDOW),
    ],
)
def test_two_masks(folder: Path, operator: str, cells: Cells) -> None:
    document = maskc_json(folder, "combine", operator, "causal.h5", "window.h5", "-o", "out.h5")
    assert document["operator"] == operator
    assert document["inputs"] == ["causal.h5:/masks/causal", "window.h5:/masks/window"]
    assert document["mask"]["name"] == "causal"
    assert document["mask"]["format"] == "segment"
    assert document["mask"]["block"] == {"q": 32, "kv": 16}
    assert document["mask"]["allowed_pairs"] == cells.sum()
    assert holds(folder, cells)
    maskc(folder, "check", "out.h5")


def test_not(folder: Path) -> None:
    words = ["not", "window.h5", "--format", "bitset", "--block", "16x128", "--name", "far"]
    document = maskc_json(folder, "combine", *words, "-o", "out.h5")
    assert document["mask"]["name"] == "far"
    assert document["mask"]["format"] == "bitset"
    assert document["mask"]["block"] == {"q": 16, "kv": 128}
    assert holds(folder, ~WINDOW, "out.h5:far")


@pytest.mark.parametrize("by", [(3, -70), (-64, 64), (0, 1), (500, 0)])
def test_shift(folder: Path, by: tuple[int, int]) -> None:
    maskc(folder, "combine", "shift", "causal.h5", f"--by={by[0]},{by[1]}", "-o", "out.h5")
    from_q, from_k = np.meshgrid(np.arange(Q_LEN) - by[0], np.arange(KV_LEN) - by[1], indexing="ij")
    inside = (from_q >= 0) & (from_q < Q_LEN) & (from_k >= 0) & (from_k < KV_LEN)
    moved = CAUSAL[from_q.clip(0, Q_LEN - 1), from_k.clip(0, KV_LEN - 1)] & inside
    assert holds(folder, moved)


def test_transpose(folder: Path) -> None:
    document = maskc_json(folder, "combine", "transpose", "causal.h5", "-o", "out.h5")
    assert document["mask"]["lengths"] == {"q": [KV_LEN], "kv": [Q_LEN]}
    assert document["mask"]["block"] == {"q": 16, "kv": 32}
    assert holds(folder, CAUSAL.T)


def test_crop(folder: Path) -> None:
    words = ["crop", "causal.h5", "--crop", "10:70,33:", "--format", "dense"]
    document = maskc_json(folder, "combine", *words, "-o", "out.h5")
    assert document["mask"]["origin"] == {"q": 10, "kv": 33, "batch": 0, "head": 0}
    assert document["mask"]["format"] == "dense"
    assert holds(folder, CAUSAL[10:70, 33:])


def test_a_dense_dataset_and_heads(folder: Path) -> None:
    """One head of a compiled mask stands for every batch element and head of a dense one."""
    random = np.random.default_rng(1)
    seen: Cells = random.random((2, 3, Q_LEN, KV_LEN)) < 0.3
    with h5py.File(folder / "seen.h5", "w") as file:
        file["mask"] = seen
    document = maskc_json(folder, "combine", "and", "window.h5", "seen.h5:/mask", "-o", "out.h5")
    assert document["mask"]["num_batches"] == 2
    assert document["mask"]["num_heads"] == 3
    assert holds(folder, seen & WINDOW)


def test_crop_of_batch_elements_and_heads(folder: Path) -> None:
    random = np.random.default_rng(2)
    seen: Cells = random.random((2, 3, Q_LEN, KV_LEN)) < 0.3
    with h5py.File(folder / "seen.h5", "w") as file:
        file["mask"] = seen
    words = ["crop", "seen.h5:/mask", "--crop", "5:,:40,:1,1:3", "--name", "part"]
    document = maskc_json(folder, "combine", *words, "-o", "out.h5")
    assert document["mask"]["origin"] == {"q": 5, "kv": 0, "batch": 0, "head": 1}
    assert holds(folder, seen[:1, 1:3, 5:, :40], "out.h5:part")


def test_equal_masks_differ_in_nothing(folder: Path) -> None:
    """A mask in other blocks and another format is equal: xor is empty, and diff reports it."""
    words = ["causal.h5", "--format", "bcsr", "--block", "64x16"]
    maskc(folder, "convert", *words, "-o", "same.h5")
    document = maskc_json(folder, "combine", "xor", "causal.h5", "same.h5", "-o", "out.h5")
    assert document["mask"]["allowed_pairs"] == 0
    maskc(folder, "diff", "causal.h5", "same.h5")


def test_closed_forms_of_a_million_tokens_stay_closed(tmp_path: Path) -> None:
    for name, spec in (("causal", "causal"), ("window", "window(1024)")):
        words = ["--spec", spec, "--q-len", "1048576", "--format", "parametric"]
        maskc(tmp_path, "compile", *words, "-o", f"{name}.h5")
    words = ["and", "causal.h5", "window.h5", "--format", "parametric", "-o", "both.h5"]
    document = maskc_json(tmp_path, "combine", *words)
    assert document["mask"]["stored_bytes"] == 72
    n, w = 1048576, 1024
    assert document["mask"]["allowed_pairs"] == n * w - w * (w - 1) // 2


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nand", "causal.h5", "window.h5"], 2, "expected an operator, one of and, or"),
        (["and", "causal.h5"], 2, "and: expected two masks, got 1"),
        (["not", "causal.h5", "window.h5"], 2, "not: expected one mask, got 2"),
        (["shift", "causal.h5"], 2, "--by: expected DQ,DK, got nothing"),
        (["shift", "causal.h5", "--by", "5"], 2, "two whole numbers DQ,DK, got '5'"),
        (["not", "causal.h5", "--by", "1,1"], 2, "--by: goes with shift, not with not"),
        (["crop", "causal.h5", "--crop", "1:2"], 2, "--crop: expected Q0:Q1,K0:K1 or"),
        (["crop", "causal.h5", "--crop", ":,:,:"], 2, "Q0:Q1,K0:K1,B0:B1,H0:H1, got ':,:,:'"),
        (["crop", "causal.h5", "--crop", ":,:,:,:,:"], 2, "got ':,:,:,:,:'"),
        (["crop", "causal.h5", "--crop", ":,:,:,1:2"], 2, "heads [1, 2), expected a range"),
        (["crop", "causal.h5", "--crop", "0:9999,:"], 2, "query rows [0, 9999)"),
        (["and", "causal.h5", "turned.h5"], 2, "q_len 200, kv_len 150"),
        (["xor", "causal.h5", "window.h5", "--format", "parametric"], 4, "no closed form"),
        (["and", "causal.h5", "absent.h5"], 3, "absent.h5"),
    ],
)
def test_mistakes(folder: Path, words: list[str], status: int, message: str) -> None:
    if "turned.h5" in words:
        maskc(folder, "combine", "transpose", "causal.h5", "-o", "turned.h5")
    done = subprocess.run(
        [MASKC, "combine", *words, "-o", "out.h5"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert not (folder / "out.h5").exists()
