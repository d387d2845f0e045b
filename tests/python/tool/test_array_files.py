"""Tests masks and tables in .npy, .npz and safetensors files, whole and damaged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from maskc_inputs import arrays, safetensors_bytes
from maskc_tool import MASKC, maskc, maskc_json, needs_tool

pytestmark = needs_tool

SAFETENSORS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
}


def is_equal(folder: Path, a: str, b: str, *options: str) -> bool:
    done = subprocess.run(
        [MASKC, "diff", a, b, "--quiet", *options], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("dtype", [*SAFETENSORS, "float16", "float32", "float64"])
def test_every_type_in_every_kind_of_file(tmp_path: Path, dtype: str) -> None:
    random = np.random.default_rng(3)
    cells = random.random((2, 3, 33, 70)) < 0.6
    values = cells.astype(dtype)
    if dtype.startswith("float"):
        values = np.where(cells, 0, -np.inf).astype(dtype)
    with h5py.File(tmp_path / "cells.h5", "w") as file:
        file["mask"] = cells
    np.save(tmp_path / "x.npy", values)
    np.savez(tmp_path / "x.npz", other=np.arange(3), mask=values)
    np.savez_compressed(tmp_path / "y.npz", other=np.arange(3), mask=values)
    kind = SAFETENSORS.get(dtype, f"F{dtype[-2:]}")
    (tmp_path / "x.safetensors").write_bytes(
        safetensors_bytes(
            {"a": ("I8", (1,), b"\0"), "mask": (kind, values.shape, values.tobytes())}
        )
    )
    for name in ("x.npy", "x.npz:mask", "y.npz:/mask", "x.safetensors:mask"):
        assert is_equal(tmp_path, name, "cells.h5:/mask"), name
    listed = maskc_json(tmp_path, "ls", "x.npz", "x.safetensors")["files"]
    for file in listed:
        entry = next(entry for entry in file["datasets"] if entry["path"] == "/mask")
        assert entry["extents"] == [2, 3, 33, 70]


def test_options_of_dense_masks_apply(tmp_path: Path) -> None:
    keys = np.arange(20)
    np.save(tmp_path / "padding.npy", np.stack([keys < 20, keys < 7]))
    np.save(tmp_path / "ones.npy", np.tri(20, dtype=np.float32))
    np.save(tmp_path / "plain.npy", np.tri(20, dtype=bool))
    assert is_equal(tmp_path, "ones.npy", "ones.npy", "--ones-keep")
    maskc(tmp_path, "convert", "ones.npy", "--ones-keep", "-o", "ones.h5")
    assert is_equal(tmp_path, "ones.h5", "plain.npy")
    maskc(tmp_path, "convert", "padding.npy", "-o", "p.h5", status=2)
    maskc(tmp_path, "convert", "padding.npy", "--dims", "bk", "-o", "p.h5")
    spec = ("compile", "padding(lengths=@n)", "-t", "n=20,7", "--q-len", "20", "--batch", "2")
    maskc(tmp_path, *spec, "-o", "q.h5")
    assert is_equal(tmp_path, "p.h5", "q.h5")


def test_attention_runs_on_tensors_of_array_files(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    tensors = {
        name: random.standard_normal((1, 40, 2, 16)).astype(np.float32) for name in ("q", "k", "v")
    }
    np.savez(tmp_path / "qkv.npz", q=tensors["q"], k=tensors["k"], v=tensors["v"])
    (tmp_path / "qkv.safetensors").write_bytes(
        safetensors_bytes({n: ("F32", x.shape, x.tobytes()) for n, x in tensors.items()})
    )
    arrays(tmp_path)
    for file in ("qkv.npz", "qkv.safetensors"):
        words = ("run", "mask.npy", "--tensors", file, "-o", f"{file}.h5", "--check")
        maskc(tmp_path, *words)
    with h5py.File(tmp_path / "qkv.npz.h5") as a, h5py.File(tmp_path / "qkv.safetensors.h5") as b:
        assert (a["out"][...] == b["out"][...]).all()


@pytest.mark.parametrize("name", ["mask.npy", "all.npz", "packed.npz", "t.safetensors"])
def test_damaged_files_are_errors_with_words(tmp_path: Path, name: str) -> None:
    """Every outcome is a mask, or one message and a status below 70."""
    arrays(tmp_path)
    whole = (tmp_path / name).read_bytes()
    random = np.random.default_rng(len(whole))
    address = "damaged:mask" if name.endswith("npz") else "damaged"
    address = "damaged:block.mask" if name.startswith("t.") else address
    end = 1200 if name.startswith("t.") else len(whole)
    for trial in range(40):
        data = bytearray(whole)
        if trial % 4 == 3:
            data = data[: random.integers(len(data))]
        else:
            for _ in range(1 + trial % 3):
                data[random.integers(min(end, len(data)))] = random.integers(256)
        (tmp_path / "damaged").write_bytes(data)
        done = subprocess.run(
            [MASKC, "convert", address, "-o", "out.h5", "--force", "--no-isolate"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode in (0, 1, 2, 3, 4), done.stderr
        assert done.returncode == 0 or "error: " in done.stderr
