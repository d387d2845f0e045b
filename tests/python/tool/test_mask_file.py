"""Tests the mask file of docs/file-format.md with h5py against fdma-maskc.

FDMA_MASKC names the built tool; without it every test here is skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from mask_formats import FORMATS

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "file-format.md"
MASKC = os.environ.get("FDMA_MASKC", "")

pytestmark = pytest.mark.skipif(not MASKC, reason="FDMA_MASKC does not name the built tool")

Cells = npt.NDArray[np.bool_]


def maskc(*arguments: str | int | Path, expect: int = 0) -> str:
    command = [MASKC, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stderr if expect else done.stdout


def documented_reader() -> Callable[[Path, str], Cells]:
    """Returns read_dense of the example in the document, exactly as printed there."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    names: dict[str, Callable[[Path, str], Cells]] = {}
    exec(compile(blocks[0], str(DOCUMENT), "exec"), names)
    return names["read_dense"]


def only_mask(path: Path) -> str:
    with h5py.File(path, "r") as file:
        (name,) = file["masks"]
        return str(name)


def read_dense(path: Path) -> Cells:
    return documented_reader()(path, only_mask(path))


SPECS = {
    "causal": lambda q, k, n, m: k <= q + m - n,
    "causal & window(30)": lambda q, k, n, m: (k <= q + m - n) & (abs(q + m - n - k) < 30),
    "(q * 7 + k * k) % 11 < 4 | k < 20": lambda q, k, n, m: ((q * 7 + k * k) % 11 < 4) | (k < 20),
    "q // 50 == k // 50 & k % 3 != 0": lambda q, k, n, m: (q // 50 == k // 50) & (k % 3 != 0),
    "q % 5 == 2": lambda q, k, n, m: (q % 5 == 2) & (k >= 0),
    "k >= 0": lambda q, k, n, m: (k >= 0) & (q >= 0),
    "k < 0": lambda q, k, n, m: (k < 0) & (q >= 0),
}
SHAPES = [(200, 200), (130, 257), (257, 130), (1, 70)]


@pytest.mark.parametrize("kind", ["segment", "bcsr"])
@pytest.mark.parametrize("spec", SPECS)
def test_documented_reader_gives_the_cells(tmp_path: Path, spec: str, kind: str) -> None:
    for n, m in SHAPES:
        for block in ("16x16", "64x32"):
            path = tmp_path / "m.h5"
            maskc("compile", "--spec", spec, "--q-len", n, "--kv-len", m, "--block", block,
                  "--format", kind, "--force", "-o", path)  # fmt: skip
            q, k = np.ogrid[:n, :m]
            expected = np.broadcast_to(SPECS[spec](q, k, n, m), (n, m))
            np.testing.assert_array_equal(read_dense(path), expected[None, None])


def test_heads_share_groups(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    maskc("compile", "--spec", "k <= q & q - k < 8 * shl(1, h % 2)", "--q-len", "100", "--kv-len",
          "100", "--batch", "2", "--heads", "4", "-o", path)  # fmt: skip
    b, h, q, k = np.ogrid[:2, :4, :100, :100]
    expected = (k <= q) & (q - k < 8 * (1 << (h % 2))) & (b >= 0)
    np.testing.assert_array_equal(read_dense(path), expected)
    with h5py.File(path, "r") as file:
        mask = file["masks"][only_mask(path)]
        assert sorted(mask["groups"]) == ["0", "1"]
        np.testing.assert_array_equal(mask["group_of"], [[0, 1, 0, 1], [0, 1, 0, 1]])


def test_page_describes_every_format() -> None:
    page = DOCUMENT.read_text()
    (values,) = re.findall(r"^\| `format` \| (.*) \|$", page, flags=re.MULTILINE)
    assert tuple(re.findall(r"`(\w+)`", values)) == FORMATS
    assert set(FORMATS) <= set(re.findall(r"^### (\w+)$", page, flags=re.MULTILINE))


@pytest.mark.parametrize("kind", FORMATS)
def test_attributes_are_as_documented(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.h5"
    maskc("compile", "--spec", "causal", "--q-len", "90", "--kv-len", "100", "--format", kind,
          "-o", path)  # fmt: skip
    rows = re.findall(r"^\| (`.*?`) \|", DOCUMENT.read_text(), flags=re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    with h5py.File(path, "r") as file:
        mask = file["masks"][only_mask(path)]
        attributes = dict(mask.attrs)
        assert set(attributes) <= documented
        assert attributes["format"] == kind.encode()
        assert (attributes["q_len"], attributes["kv_len"], attributes["version"]) == (90, 100, 2)
        assert attributes["spec"].decode() == "causal"
        for name in ("content_hash", "mask_hash"):
            assert re.fullmatch(r"[0-9a-f]{32}", attributes[name].decode())
        for name, array in mask["groups/0"].items():
            assert name in documented | {"words", "parameters", "cu_seqlens"}
            assert array.dtype in (np.dtype("<i4"), np.dtype("<i8"), np.dtype("<u8"))


def rewrite(source: Path, target: Path, **storage: object) -> None:
    """Writes the same masks through h5py with other storage and big-endian numbers."""

    def copy(old: h5py.Group, new: h5py.Group) -> None:
        for name, value in old.attrs.items():
            new.attrs[name] = value
        for name, item in old.items():
            if isinstance(item, h5py.Group):
                copy(item, new.create_group(name))
            else:
                data = item[:].astype(item.dtype.newbyteorder(">"))
                options = storage if data.size else {}
                new.create_dataset(name, data=data, **options)

    with h5py.File(source, "r") as old, h5py.File(target, "w", libver=("v108", "v110")) as new:
        copy(old, new)


@pytest.mark.parametrize("kind", FORMATS)
def test_reads_what_h5py_writes(tmp_path: Path, kind: str) -> None:
    ours, theirs = tmp_path / "ours.h5", tmp_path / "theirs.h5"
    maskc("compile", "--spec", "causal & window(40)", "--q-len", "300", "--kv-len", "280",
          "--block", "32x16", "--format", kind, "--force", "-o", ours)  # fmt: skip
    for storage in ({}, {"compression": "gzip", "shuffle": True}, {"chunks": True}):
        rewrite(ours, theirs, **storage)
        maskc("check", theirs)
        maskc("diff", ours, theirs)


def test_writing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for path in paths:
        maskc("compile", "--spec", "causal & k % 7 != 3", "--q-len", "500", "--kv-len", "500",
              "--force", "-o", path)  # fmt: skip
    assert paths[0].read_bytes() == paths[1].read_bytes()


DENSE: dict[str, Callable[[Cells], npt.NDArray[Any]]] = {
    "bool": lambda cells: cells,
    "uint8": lambda cells: cells.astype(np.uint8),
    "int64_big": lambda cells: cells.astype(">i8"),
    "float16": lambda cells: np.where(cells, 0, -np.inf).astype(np.float16),
    "float16_lowest": lambda cells: np.where(cells, 0, np.finfo(np.float16).min).astype(np.float16),
    "float32": lambda cells: np.where(cells, 0, np.finfo(np.float32).min).astype(np.float32),
    "float64_big": lambda cells: np.where(cells, -0.0, -1e9).astype(">f8"),
}


def some_cells(*shape: int) -> Cells:
    random = np.random.default_rng(7)
    q, k = np.indices(shape[-2:])
    noise = random.random(shape) < 0.3
    cells: Cells = (k <= q) & ((q // 40 == k // 40) | noise)
    return cells


@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize("storage", [{}, {"chunks": (50, 30), "compression": "gzip"}])
def test_dense_masks_of_h5py_convert_exactly(
    tmp_path: Path, kind: str, storage: dict[str, Any]
) -> None:
    cells = some_cells(150, 170)
    with h5py.File(tmp_path / "dense.h5", "w") as file:
        file.create_dataset("mask", data=DENSE[kind](cells), **storage)
    for target in ("segment", "bcsr"):
        maskc("convert", f"{tmp_path}/dense.h5:/mask", "--format", target, "--block", "32x48",
              "--force", "-o", tmp_path / "out.h5")  # fmt: skip
        np.testing.assert_array_equal(read_dense(tmp_path / "out.h5"), cells[None, None])


@pytest.mark.parametrize("order", ["<", ">"])
def test_bfloat16_is_uint16_with_an_attribute(tmp_path: Path, order: str) -> None:
    cells = some_cells(60, 60)
    bits = np.where(cells, np.float32(0), np.float32(-np.inf)).view(np.uint32) >> 16
    with h5py.File(tmp_path / "dense.h5", "w") as file:
        dataset = file.create_dataset("mask", data=bits.astype(order + "u2"))
        dataset.attrs["dtype"] = "bfloat16"
    maskc("convert", f"{tmp_path}/dense.h5:/mask", "--format", "bcsr", "-o", tmp_path / "out.h5")
    np.testing.assert_array_equal(read_dense(tmp_path / "out.h5"), cells[None, None])


@pytest.mark.parametrize("dims, shape", [("hqk", (1, 3)), ("bqk", (3, 1)), ("bhqk", (2, 3))])
def test_dimensions(tmp_path: Path, dims: str, shape: tuple[int, int]) -> None:
    cells = some_cells(*shape, 60, 80)
    data = cells.reshape(cells.shape if dims == "bhqk" else (3, 60, 80))
    with h5py.File(tmp_path / "dense.h5", "w") as file:
        file.create_dataset("mask", data=data, chunks=(2,) * (data.ndim - 2) + (32, 32))
    maskc("convert", f"{tmp_path}/dense.h5:/mask", "--dims", dims, "--format", "bcsr", "-o",
          tmp_path / "out.h5")  # fmt: skip
    np.testing.assert_array_equal(read_dense(tmp_path / "out.h5"), cells)


def test_newer_hdf5_structures_are_explained(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "new.h5", "w", libver="latest") as file:
        file["mask"] = some_cells(20, 20)
    command = [MASKC, "convert", f"{tmp_path}/new.h5:/mask", "-o", str(tmp_path / "out.h5")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode == 0:
        pytest.skip("the tool's HDF5 reads what this h5py writes with libver='latest'")
    assert done.returncode == 3
    assert "libver=('v108', 'v110')" in done.stderr
    assert not (tmp_path / "out.h5").exists()


def test_links_out_of_the_file_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["mask"] = some_cells(20, 20)
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["external"] = h5py.ExternalLink("secret.h5", "/mask")
        layout = h5py.VirtualLayout((20, 20), bool)
        layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "mask", shape=(20, 20))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("raw", (20, 20), "u1", external=[(str(tmp_path / "secret.h5"), 0, 400)])
    for name, words in {"external": "link to another file", "virtual": "virtual dataset",
                        "raw": "external storage"}.items():  # fmt: skip
        message = maskc("convert", f"{tmp_path}/link.h5:/{name}", "-o", tmp_path / "o.h5", expect=3)
        assert words in message
