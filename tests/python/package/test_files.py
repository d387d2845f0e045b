"""Tests mask files of the package: round trips, the tool's reader, and every failure."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fdma_module
import numpy as np
import pytest
from mask_examples import EXAMPLES, Example, in_every_format
from mask_formats import FORMATS
from maskc_tool import maskc, needs_tool

fdma = pytest.importorskip("fdma")
h5py = pytest.importorskip("h5py")

every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)


def is_same(a: Any, b: Any) -> bool:
    """True if cells, arrays, blocks, origin and spec are the same."""
    return bool(a == b) and (a.content_hash, a.spec) == (b.content_hash, b.spec)


@every_example
def test_there_and_back(example: Example, tmp_path: Path) -> None:
    path = tmp_path / "masks.h5"
    masks = {f"m{i}": mask for i, mask in enumerate(in_every_format(fdma, example))}
    fdma.save(path, masks)
    assert fdma.list_masks(path) == sorted(masks)
    for name, mask in masks.items():
        assert is_same(fdma.load(path, name), mask)


def test_all_of_a_mask_is_kept(tmp_path: Path) -> None:
    whole = fdma.compile("causal & pos - k < shl(8, h % 3)", 300, batch=2, heads=4)
    part = whole.crop(q=slice(10, None), kv=slice(20, 200), batch=1, heads=slice(1, 3))
    part.save(tmp_path / "part.h5", name="Überschrift 1")
    again = fdma.load(tmp_path / "part.h5")
    assert again.origin == part.origin == (10, 20, 1, 1)
    assert is_same(again, part)
    long = fdma.compile(" | ".join(f"k == {i}" for i in range(6000)), 40)
    assert len(long.spec) > 32000
    long.save(tmp_path / "long.h5")
    assert is_same(fdma.load(tmp_path / "long.h5"), long)


def test_a_file_says_what_a_mask_of_one_was_written_with(tmp_path: Path) -> None:
    path = tmp_path / "masks.h5"
    masks = {
        "head": fdma.compile("window(h + 1)", 64),
        "element": fdma.compile(fdma.padding([60]), 64),
        "heads": fdma.compile("window(h + 1)", 64, heads=2),
        "shared": fdma.compile("causal", 64),
    }
    fdma.save(path, masks)
    written = {"head": {"is_per_head": 1}, "element": {"is_per_batch": 1}}
    with h5py.File(path) as file:
        for name in masks:
            marks = {k: int(v) for k, v in file["masks"][name].attrs.items() if "is_per" in k}
            assert marks == written.get(name, {})
    assert all(is_same(fdma.load(path, name), mask) for name, mask in masks.items())
    with h5py.File(path, "r+") as file:  # Files of earlier versions look like this
        del file["masks/head"].attrs["is_per_head"]
    assert not fdma.load(path, "head")._core.is_per_head


@needs_tool
def test_the_tool_and_the_package_know_it_of_each_other(tmp_path: Path) -> None:
    fdma.compile("window(h + 1)", 64).save(tmp_path / "ours.h5")
    maskc(tmp_path, "convert", "ours.h5", "--format", "bcsr", "-o", "theirs.h5")
    assert fdma.load(tmp_path / "theirs.h5")._core.is_per_head
    words = [
        "compile",
        "--spec",
        "causal & padding(lengths=@n)",
        "--table",
        "n=60",
        "--q-len",
        "64",
    ]
    maskc(tmp_path, *words, "-o", "element.h5")
    assert fdma.load(tmp_path / "element.h5")._core.is_per_batch


def test_equal_masks_give_equal_bytes(tmp_path: Path) -> None:
    mask = fdma.compile("(q * 7 + k * k) % 11 < 4", 700)
    mask.save(tmp_path / "a.h5")
    mask.save(tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@needs_tool
@every_example
def test_the_tool_reads_what_the_package_writes(example: Example, tmp_path: Path) -> None:
    """`check` validates every mask of a file and computes both hashes again."""
    masks = {f"m{i}": mask for i, mask in enumerate(in_every_format(fdma, example))}
    fdma.save(tmp_path / "masks.h5", masks)
    said = maskc(tmp_path, "check", "masks.h5")
    assert all(f"/masks/{name}" in said for name in masks)
    name, mask = list(masks.items())[-3]
    found = json.loads(maskc(tmp_path, "inspect", f"masks.h5:{name}", "--json"))["masks"][0]
    assert found["content_hash"] == mask.content_hash
    assert found["mask_hash"] == mask.mask_hash
    assert (found["spec"], found["format"]) == (example.spec, mask.format)


@needs_tool
@pytest.mark.parametrize("kind", FORMATS)
def test_the_package_reads_what_the_tool_writes(kind: str, tmp_path: Path) -> None:
    spec, path = "causal & window(300)", tmp_path / "tool.h5"
    maskc(tmp_path, "compile", "--spec", spec, "--q-len", "1000", "--kv-len", "1200", "--format",
          kind, "--block", "64x128", "--batch", "2", "--heads", "3", "-o", str(path))  # fmt: skip
    mask = fdma.compile(spec, 1000, 1200, batch=2, heads=3, format=kind, block=(64, 128))
    assert is_same(fdma.load(path), mask)
    mask.save(tmp_path / "ours.h5", name="mask")
    maskc(tmp_path, "diff", str(path), str(tmp_path / "ours.h5"))
    maskc(tmp_path, "compile", "--spec", "h < k", "--q-len", "90,40", "--batch", "2",
          "--heads", "2", "-o", "ragged.h5")  # fmt: skip
    ragged = fdma.load(tmp_path / "ragged.h5")
    assert is_same(ragged, fdma.compile("h < k", [90, 40], batch=2, heads=2))


def test_files_hold_many_masks(tmp_path: Path) -> None:
    path = tmp_path / "masks.h5"
    one, two = fdma.compile("causal", 300), fdma.compile("window(9)", 200)
    one.save(path, name="one")
    two.save(str(path), name="two")
    assert fdma.list_masks(path) == ["one", "two"]
    with pytest.raises(ValueError, match="holds 2 masks, name one of: one, two"):
        fdma.load(path)
    with pytest.raises(KeyError, match="holds no mask 'three'; it holds: one, two"):
        fdma.load(path, "three")
    with pytest.raises(FileExistsError, match="holds a mask 'two' already"):
        one.save(path, name="two")
    assert fdma.load(path, "two") == two
    one.save(path, name="two", overwrite=True)
    assert fdma.load(path, "two") == fdma.load(path, "one") == one
    fdma.save(path, {})
    fdma.save(tmp_path / "none.h5", {})
    with pytest.raises(OSError, match="no group /masks"):
        fdma.load(tmp_path / "none.h5")


def test_what_else_a_file_holds_stays(tmp_path: Path) -> None:
    path = tmp_path / "users.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["scores"] = np.arange(10000)
        file["scores"].attrs["unit"] = "nat"
    path.chmod(0o640)
    (tmp_path / "link.h5").symlink_to(path)
    fdma.compile("causal", 300).save(tmp_path / "link.h5")
    assert (tmp_path / "link.h5").is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert fdma.load(path).q_len == 300
    with h5py.File(path) as file:
        assert file["scores"][-1] == 9999
        assert file["scores"].attrs["unit"] == "nat"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "x" * 256, "\udc80", 3])
def test_rejects_names(name: Any, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match="name: "):
        fdma.compile("causal", 9).save(tmp_path / "m.h5", name=name)
    assert list(tmp_path.iterdir()) == []


def test_rejects_what_is_no_mask(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected a BlockMask, got int"):
        fdma.save(tmp_path / "m.h5", {"a": 1})
    with pytest.raises(TypeError, match="expected a mapping"):
        fdma.save(tmp_path / "m.h5", [fdma.compile("causal", 9)])


def test_says_what_is_wrong_with_a_path(tmp_path: Path) -> None:
    mask = fdma.compile("causal", 9)
    (tmp_path / "text.h5").write_text("causal")
    (tmp_path / "empty.h5").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["masks"] = 3
    with pytest.raises(FileNotFoundError):
        fdma.load(tmp_path / "absent.h5")
    with pytest.raises(IsADirectoryError):
        fdma.load(tmp_path)
    for name, words in [("text", "not an HDF5 file"), ("empty", "not an HDF5 file"),
                        ("pipe", "not a regular file"), ("other", "not a group")]:  # fmt: skip
        for action in (fdma.load, fdma.list_masks, mask.save):
            with pytest.raises(OSError, match=words):
                action(tmp_path / f"{name}.h5")
    with pytest.raises(FileNotFoundError):
        mask.save(tmp_path / "absent" / "m.h5")
    with pytest.raises(IsADirectoryError):
        mask.save(tmp_path)
    assert (tmp_path / "text.h5").read_text() == "causal"
    assert len(list(tmp_path.iterdir())) == 4


def test_files_need_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    for module in ("files.reader", "files.writer"):
        monkeypatch.delitem(sys.modules, f"fdma.{module}", raising=False)
    for action in (fdma.load, fdma.list_masks, fdma.compile("causal", 9).save):
        with pytest.raises(ImportError, match="pip install h5py"):
            action(tmp_path / "m.h5")


# The tests below show that writing is atomic.


def test_a_failure_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fdma.files import writer as file_writer

    path = tmp_path / "m.h5"
    masks = {name: fdma.compile("k % 7 != q % 5", 900) for name in "abc"}
    masks["a"].save(path, name="a")
    before = path.read_bytes()
    written = file_writer._write_array
    calls = []

    def fails(group: Any, name: str, values: Any) -> None:
        calls.append(name)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")
        written(group, name, values)

    monkeypatch.setattr(file_writer, "_write_array", fails)
    for target in (path, tmp_path / "new.h5"):
        calls.clear()
        with pytest.raises(OSError, match="No space left"):
            fdma.save(target, masks, overwrite=True)
    with pytest.raises(FileExistsError):
        fdma.save(path, {"z": masks["a"], "a": masks["a"]})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: HDF5 fails to write and to close."""
    path = tmp_path / "m.h5"
    fdma.compile("causal", 300).save(path)
    before = path.read_bytes()
    program = f"""
import resource, signal, sys, fdma
import numpy as np
mask = fdma.BlockMask.from_dense(np.random.default_rng(0).random((2000, 2000)) < 0.5)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 100_000},) * 2)
for target in sys.argv[1:]:
    try:
        mask.save(target, name="random")
        sys.exit("no error")
    except OSError as error:
        print(error)
"""
    paths = [str(path), str(tmp_path / "new.h5")]
    environment = {**os.environ, "PYTHONPATH": str(fdma_module.FOLDER)}
    done = subprocess.run([sys.executable, "-c", program, *paths], env=environment, check=True,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.stdout.count("cannot write") == 2, done
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    mask = fdma.compile("causal", 64)
    before = os.umask(0o027)
    try:
        mask.save(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == 0o640
    for mode in (0o600, 0o604, 0o755):
        path.chmod(mode)
        mask.save(path, name=f"after {mode:o}")
        assert path.stat().st_mode & 0o7777 == mode
    if os.geteuid() == 0:
        os.chown(path, 12345, 23456)
        mask.save(path, name="theirs")
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)
    assert len(fdma.list_masks(path)) == (5 if os.geteuid() == 0 else 4)


def test_links_stay_links(tmp_path: Path) -> None:
    mask = fdma.compile("causal", 64)
    (tmp_path / "real").mkdir()
    for name, target in (("new", "real/new.h5"), ("lost", "absent/new.h5"), ("a", "b"), ("b", "a")):
        (tmp_path / name).symlink_to(target)
    mask.save(tmp_path / "new")
    mask.save(tmp_path / "new", name="second")
    assert (tmp_path / "new").is_symlink()
    assert fdma.list_masks(tmp_path / "real" / "new.h5") == ["mask", "second"]
    with pytest.raises(FileNotFoundError, match=r"lost' -> '.*absent/new.h5'"):
        mask.save(tmp_path / "lost")
    with pytest.raises(OSError, match=r"'.*/a'.*Too many levels"):
        mask.save(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "lost", "new", "real"]


def test_a_file_that_is_open_for_writing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    mask = fdma.compile("causal", 64)
    mask.save(path)
    with h5py.File(path, "r+"), pytest.raises(OSError, match="open for writing"):
        mask.save(path, name="b")
    with h5py.File(path, "r"):
        mask.save(path, name="b")
    assert fdma.list_masks(path) == ["b", "mask"]


@needs_tool
def test_writers_of_one_file_wait_for_each_other(tmp_path: Path) -> None:
    """Python processes, tool processes and threads write to a file that does not exist yet.

    No mask is lost.
    """
    program = """
import sys, fdma
mask = fdma.compile("causal", 64)
for i in range(5):
    mask.save("m.h5", name=f"{sys.argv[1]}-{i}")
"""
    environment = {**os.environ, "PYTHONPATH": str(fdma_module.FOLDER)}
    running = [
        subprocess.Popen([sys.executable, "-c", program, name], env=environment, cwd=tmp_path)
        for name in "ab"
    ]
    mask = fdma.compile("causal", 64)
    with ThreadPoolExecutor(3) as pool:
        saved = [pool.submit(mask.save, tmp_path / "m.h5", name=f"thread-{i}") for i in range(6)]
        for i in range(6):
            words = ["-s", "causal", "--q-len", "64", "--name", f"tool-{i}", "-o", "m.h5"]
            maskc(tmp_path, "compile", *words)
        for each in saved:
            each.result()
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    names = [f"{word}-{i}" for word, count in (("a", 5), ("b", 5), ("thread", 6), ("tool", 6))
             for i in range(count)]  # fmt: skip
    assert fdma.list_masks(tmp_path / "m.h5") == sorted(names)
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


def test_memory_is_taken_only_for_what_is_there(tmp_path: Path) -> None:
    """The file has a few KiB and claims 1 TiB."""
    path = tmp_path / "m.h5"
    mask = fdma.compile("causal", 300, format="dense")
    mask.save(path)
    with h5py.File(path, "r+") as file:
        stored = file["masks/mask"]
        n = 1 << 21
        stored.attrs["q_len"] = stored.attrs["kv_len"] = n
        del stored["groups/0/words"]
        words = stored["groups/0"].create_dataset(
            "words", (n, n // 64), "u8", chunks=(1024, 1024), compression="gzip", shuffle=True
        )
        words[:1, :1] = 1
    limit = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(OSError, match=r"groups/0/words: extents .* but the file holds only"):
        fdma.load(path)
    assert limit == resource.getrlimit(resource.RLIMIT_AS)
