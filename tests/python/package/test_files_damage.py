"""Tests damaged mask files: each is an error that says where the damage is.

The damage is accidental or deliberate.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fdma_module
import numpy as np
import pytest
from mask_formats import FORMATS
from pattern_masks import pattern_state

fdma = pytest.importorskip("fdma")
h5py = pytest.importorskip("h5py")


KINDS = (*FORMATS, "patterns")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes one mask of every format, with two groups and lengths for each batch element."""
    path = tmp_path_factory.mktemp("files") / "masks.h5"
    mask = fdma.compile("causal & window(40 + 30 * h)", [300, 120], 310, batch=2, heads=2)
    masks = {kind: mask.to_format(kind) for kind in FORMATS}
    masks["patterns"] = fdma.BlockMask.from_arrays(pattern_state())
    fdma.save(path, masks)
    return path


def changed(intact: Path, folder: Path, change: Callable[..., Any]) -> Path:
    path = folder / "changed.h5"
    shutil.copy(intact, path)
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def refused(path: Path, kind: str, words: str) -> None:
    with pytest.raises(OSError, match=words) as caught:
        fdma.load(path, kind)
    assert str(path) in str(caught.value)


def replace(group: Any, name: str, values: Any, **storage: Any) -> None:
    del group[name]
    group.create_dataset(name, data=values, **storage)


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_is_needed_and_no_other(kind: str, intact: Path, tmp_path: Path) -> None:
    with h5py.File(intact) as file:
        mask = file["masks"][kind]
        attributes = list(mask.attrs)
        names: list[str] = []
        mask.visit(names.append)
    for attribute in attributes:
        path = changed(intact, tmp_path, lambda f, a=attribute: f["masks"][kind].attrs.pop(a))
        refused(path, kind, f"attribute {attribute} is missing")
    for name in names:
        path = changed(intact, tmp_path, lambda f, n=name: f["masks"][kind].pop(n))
        # Without `patterns` a mask has none, and their other two arrays have no place in it.
        words = "unknown object pattern_" if name.endswith("/patterns") else "missing"
        refused(path, kind, words)
    for place in ("", "groups", "groups/0"):

        def add(file: Any, place: str = place) -> None:
            file["masks"][kind][place or "."].create_dataset("more", data=1)

        refused(changed(intact, tmp_path, add), kind, "unknown object more")
    path = changed(intact, tmp_path, lambda f: f["masks"][kind].attrs.create("more", 1))
    refused(path, kind, "unknown attribute more")


@pytest.mark.parametrize("kind", KINDS)
def test_every_array_has_its_type_and_extents(kind: str, intact: Path, tmp_path: Path) -> None:
    with h5py.File(intact) as file:
        arrays = {name: array[()] for name, array in file["masks"][kind]["groups/0"].items()}
    for name, values in arrays.items():
        sign = str(values.dtype).replace("int", "uint") if values.dtype.kind == "i" else "i8"
        wrong = [
            (values.astype(float), "type float64"),
            (values.astype(sign), "type "),
            (values[None], "extents"),
            (np.concatenate([values, values, values]) if values.size else None, "extents|: "),
            (values[:-1] if values.size else None, "."),
            (h5py.Empty(values.dtype), "extents None"),
        ]  # fmt: skip
        for other, words in wrong:
            if other is not None:
                path = changed(
                    intact,
                    tmp_path,
                    lambda f, n=name, o=other: replace(f["masks"][kind]["groups/0"], n, o),
                )
                refused(path, kind, words)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_counts(kind: str, intact: Path, tmp_path: Path) -> None:
    """The hash finds the changes that the checks of single entries allow."""
    with h5py.File(intact) as file:
        arrays = {name: array[()] for name, array in file["masks"][kind]["groups/1"].items()}
    for name, values in arrays.items():
        for at in range(0, values.size, max(values.size // 5, 1)):
            other = values.copy()
            other.flat[at] ^= 1
            path = changed(
                intact,
                tmp_path,
                lambda f, n=name, o=other: replace(f["masks"][kind]["groups/1"], n, o),
            )
            refused(path, kind, ".")


ATTRIBUTES: list[tuple[str, Any, str]] = [
    ("format", np.bytes_("csr"), "one of segment"),
    ("format", "segment", "fixed length"),
    ("format", np.bytes_("x" * 65), "65 bytes"),
    ("format", 3, "expected a string"),
    ("num_heads", 3, "group_of: extents"),
    ("num_heads", 0, r"0 is outside \[1"),
    ("num_batches", 2.0, "expected an integer"),
    ("num_batches", [2, 2], "expected one value"),
    ("num_batches", h5py.Empty("i8"), "expected one value"),
    ("num_batches", 1 << 40, "outside"),
    ("block_q", 100, "block_q: 100"),
    ("block_kv", 2048, r"2048 is outside"),
    ("kv_len", -1, "outside"),
    ("kv_len", 311, "."),
    ("q_offset", np.uint64(2**63), "outside"),
    ("q_len", 300, "both attribute q_len and dataset q_lens"),
    ("spec", np.bytes_(b"\xff\xfe"), "not UTF-8"),
    ("content_hash", np.bytes_("0" * 32), "content_hash is 0000"),
    ("content_hash", np.bytes_("zz"), "not 32 hexadecimal digits"),
    ("mask_hash", np.bytes_("A" * 32), "not 32 hexadecimal digits"),
    ("mask_hash", np.bytes_("0" * 32), "mask_hash is 0000"),
    ("version", 0, "outside"),
    ("is_per_head", 0, "is_per_head: 0 is outside"),
    ("is_per_head", 2, "is_per_head: 2 is outside"),
    ("is_per_batch", np.bytes_("1"), "is_per_batch: expected an integer"),
    ("is_per_batch", [1, 1], "is_per_batch: expected one value"),
]


@pytest.mark.parametrize("name, value, words", ATTRIBUTES)
def test_attributes(name: str, value: Any, words: str, intact: Path, tmp_path: Path) -> None:
    path = changed(intact, tmp_path, lambda f: f["masks/segment"].attrs.create(name, value))
    refused(path, "segment", words)


def test_mask_hash_of_version_1_is_not_compared(intact: Path, tmp_path: Path) -> None:
    """Version 1 was written with two definitions of this hash."""

    def edit(file: Any) -> None:
        file["masks/segment"].attrs.create("version", 1)
        file["masks/segment"].attrs.create("mask_hash", np.bytes_("0" * 32))

    path = changed(intact, tmp_path, edit)
    assert fdma.load(path, "segment").mask_hash == fdma.load(intact, "segment").mask_hash


def test_version_1_has_no_patterns(intact: Path, tmp_path: Path) -> None:
    path = changed(intact, tmp_path, lambda f: f["masks/patterns"].attrs.create("version", 1))
    refused(path, "patterns", "unknown object pattern_offsets")


def test_newer_versions_are_told(intact: Path, tmp_path: Path) -> None:
    path = changed(intact, tmp_path, lambda f: f["masks/bcsr"].attrs.create("version", 3))
    with pytest.raises(NotImplementedError, match=r"written by a newer FDMA.*version 3"):
        fdma.load(path, "bcsr")
    assert fdma.load(path, "dense").heads == 2


def test_structures_of_a_newer_hdf5_are_explained(intact: Path, tmp_path: Path) -> None:
    path = tmp_path / "newer.h5"
    data = bytearray(intact.read_bytes())
    data[8] = 99  # this byte is the version of the superblock
    path.write_bytes(data)
    with pytest.raises(OSError, match=r"newer.h5.*version number.*libver=\('v108', 'v110'\)"):
        fdma.load(path)


def test_links_out_of_the_file_are_refused(intact: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.h5"
    shutil.copy(intact, outside)

    def external(file: Any) -> None:
        del file["masks/bcsr/group_of"]
        file["masks/bcsr/group_of"] = h5py.ExternalLink("outside.h5", "/masks/bcsr/group_of")
        file["masks/linked"] = h5py.ExternalLink("outside.h5", "/masks/bcsr")

    def virtual(file: Any) -> None:
        group = file["masks/dense/groups/0"]
        layout = h5py.VirtualLayout(group["words"].shape, "u8")
        layout[:] = h5py.VirtualSource(outside, "masks/dense/groups/0/words", group["words"].shape)
        del group["words"]
        group.create_virtual_dataset("words", layout)

    def raw(file: Any) -> None:
        group = file["masks/dense/groups/0"]
        shape = group["words"].shape
        del group["words"]
        group.create_dataset("words", shape, "u8", external=[(str(outside), 0, h5py.h5f.UNLIMITED)])

    refused(changed(intact, tmp_path, external), "bcsr", "link to another file")
    refused(tmp_path / "changed.h5", "linked", "link to another file")
    refused(changed(intact, tmp_path, virtual), "dense", "virtual dataset")
    refused(changed(intact, tmp_path, raw), "dense", "external storage")


def test_links_inside_the_file_are_followed(intact: Path, tmp_path: Path) -> None:
    def link(file: Any) -> None:
        file["elsewhere"] = file["masks/bcsr"]
        del file["masks/bcsr"]
        file["masks/bcsr"] = h5py.SoftLink("/elsewhere")
        file["masks/circle"] = h5py.SoftLink("/masks/circle")
        file["masks/dangling"] = h5py.SoftLink("/nowhere")
        file["masks/up"] = file["masks"]

    path = changed(intact, tmp_path, link)
    assert fdma.load(path, "bcsr") == fdma.load(intact, "bcsr")
    refused(path, "circle", "too many soft links")
    refused(path, "dangling", "no object 'nowhere'")
    refused(path, "up", "attribute version is missing")


def test_storage_of_others(intact: Path, tmp_path: Path) -> None:
    """Any byte order and chunks and two filters are read; other filters and huge chunks are not."""

    def stored(**storage: Any) -> Path:
        def change(file: Any) -> None:
            group = file["masks/dense/groups/0"]
            replace(group, "words", group["words"][()].astype(storage.pop("type", "u8")), **storage)

        return changed(intact, tmp_path, change)

    good: list[dict[str, Any]] = [
        {"type": ">u8"},
        {"chunks": (7, 3)},
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True, "compression_opts": 9, "type": ">u8"},
        {"maxshape": (None, None)},
    ]
    for storage in good:
        assert fdma.load(stored(**storage), "dense") == fdma.load(intact, "dense")
    for storage in ({"compression": "lzf"}, {"fletcher32": True}, {"scaleoffset": 0}):
        refused(stored(**storage), "dense", "filters are not shuffle and deflate")

    def giant(file: Any) -> None:
        del file["masks/columns/groups/0/intervals"]
        file["masks/columns/groups/0"].create_dataset(
            "intervals", (10, 2), "i4", chunks=(1 << 23, 2), maxshape=(None, 2), compression="gzip"
        )

    refused(changed(intact, tmp_path, giant), "columns", "chunks .* are larger|holds only")


CHILD = """
import sys, fdma
import numpy as np
whole = open(sys.argv[1], "rb").read()
intact = {name: fdma.load(sys.argv[1], name).content_hash for name in fdma.list_masks(sys.argv[1])}
random = np.random.default_rng(int(sys.argv[3]))
for _ in range(int(sys.argv[4])):
    data = bytearray(whole)
    for _ in range(random.integers(1, 4)):
        at = random.integers(len(data))
        flipped = data[at] ^ (1 << random.integers(8))
        data[at] = random.choice([0, 255, flipped, random.integers(256)])
    if random.random() < 0.2:
        del data[random.integers(len(data)):]
    open(sys.argv[2], "wb").write(data)
    try:
        for name in fdma.list_masks(sys.argv[2]):
            try:
                mask = fdma.load(sys.argv[2], name)
            except (OSError, NotImplementedError, KeyError) as error:
                assert str(error)
                continue
            if name in intact and mask.content_hash != intact[name]:
                mask.validate("structure")  # another mask, but a whole one
    except OSError as error:
        assert str(error)
print("done")
"""


def test_random_damage_is_an_error_or_the_mask(intact: Path, tmp_path: Path) -> None:
    """A process of its own reads the files, because HDF5 itself decodes the damaged bytes."""
    environment = {**os.environ, "PYTHONPATH": str(fdma_module.FOLDER)}
    arguments = [intact, tmp_path / "damaged.h5", "1", "40"]
    done = subprocess.run([sys.executable, "-c", CHILD, *map(str, arguments)], env=environment,
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.stdout == "done\n", done.stderr


def test_reading_in_a_process_of_its_own(intact: Path, tmp_path: Path) -> None:
    for kind in FORMATS:
        here, there = (fdma.load(intact, kind, isolate=isolate) for isolate in (False, True))
        assert here == there
        assert (here.content_hash, here.spec) == (there.content_hash, there.spec)
    (tmp_path / "text.h5").write_text("causal")
    broken = changed(intact, tmp_path, lambda f: f["masks/bcsr/groups/0"].pop("col_indices"))
    cases = [(intact, None), (intact, "none"), (tmp_path / "absent.h5", None), (tmp_path, None),
             (tmp_path / "text.h5", None), (broken, "bcsr")]  # fmt: skip
    for path, name in cases:
        told = []
        for isolate in (False, True):
            with pytest.raises((OSError, KeyError, ValueError)) as caught:
                fdma.load(path, name, isolate=isolate)
            told.append(str(caught.value))
        assert told[0] == told[1]
    with pytest.raises(TypeError, match="name: expected a str"):
        fdma.load(intact, b"bcsr")


@pytest.mark.parametrize(
    "program, words",
    [
        ("import os; os.abort()", "died of SIGABRT"),
        ("import sys; sys.exit(3)", "ended with status 3"),
        ("import os; os.write(1, bytes([255] * 8)); input()", "sent no mask"),
        ("import os; os.write(1, (3).to_bytes(8, 'little') + b'[1]')", "sent no mask"),
        ("import os; os.write(1, (2).to_bytes(8, 'little') + b'{}')", "version: missing"),
    ],
)
def test_a_child_that_goes_astray(
    program: str, words: str, intact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fdma.files import isolated_load

    monkeypatch.setattr(isolated_load, "_PROGRAM", program)
    with pytest.raises(OSError, match=words):
        fdma.load(intact, "bcsr", isolate=True)


def test_chunks_whose_keys_lead_nowhere(tmp_path: Path) -> None:
    """HDF5 takes these chunks for never written ones; they must not be read as zeros."""
    path = tmp_path / "large.h5"
    cells = (np.arange(4000)[:, None] * 7 + np.arange(4000) ** 2) % 5 < 2
    fdma.save(path, {"m": fdma.BlockMask.from_dense(cells).to_format("dense")})
    right = path.read_bytes()
    tree = right.index(b"TREE\1")
    children = int.from_bytes(right[tree + 6 : tree + 8], "little")
    assert children > 1
    for at, value in [(tree + 6, children - 1), (tree + 24 + 8, 2**40), (tree + 24 + 8, 1)]:
        path.write_bytes(right[:at] + value.to_bytes(8, "little")[: 2 if at == tree + 6 else 8])
        damaged = path.read_bytes()
        path.write_bytes(damaged + right[len(damaged) :])
        with pytest.raises(OSError, match=re.escape(str(path))):
            fdma.load(path)
