"""Tests the files that fdma-maskc writes: their earlier contents, links, modes and signals."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from json_schema import violations
from mask_formats import FORMATS
from maskc_inputs import small, two_masks
from maskc_tool import MASKC, SCHEMA, maskc, maskc_json, needs_tool
from stopping import STOPPING, default_signals, wait_until_listening

pytestmark = needs_tool

CAUSAL = ("--spec", "causal", "--q-len", "64")


def names(folder: Path, file: str) -> list[str]:
    listed = maskc_json(folder, "ls", file)["files"][0]
    return [mask["name"] for mask in listed["masks"]]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The tests below write several masks to one file.


def test_masks_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    """h5py reads every attribute and dataset of a mask before and after the file changes."""
    two_masks(tmp_path)

    def contents(name: str) -> dict[str, object]:
        found: dict[str, object] = {}
        with h5py.File(tmp_path / "two.h5") as file:
            mask = file["masks"][name]
            found.update((f"@{key}", value.tolist()) for key, value in mask.attrs.items())
            mask.visititems(
                lambda path, item: (
                    found.update({path: (item.dtype.str, item.shape, item[()].tobytes())})
                    if isinstance(item, h5py.Dataset)
                    else None
                )
            )
        assert len(found) > 10
        return found

    before = contents("a")
    maskc(tmp_path, "compile", *CAUSAL, "--name", "c", "-o", "two.h5")
    maskc(tmp_path, "compile", *CAUSAL, "--name", "b", "-o", "two.h5", "--force")
    maskc(tmp_path, "rm", "two.h5:c")
    assert contents("a") == before
    assert names(tmp_path, "two.h5") == ["a", "b"]


def test_other_contents_of_a_mask_file_stay(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", *CAUSAL, "--name", "a", "-o", "m.h5")
    weights = np.arange(5000, dtype=np.float32)
    with h5py.File(tmp_path / "m.h5", "r+") as file:
        file.create_dataset("layer/w", data=weights, compression="gzip")
        file.attrs["author"] = "somebody"
        file["masks"].attrs["note"] = 7
    maskc(tmp_path, "compile", *CAUSAL, "--name", "b", "-o", "m.h5")
    maskc(tmp_path, "rm", "m.h5:a")
    assert names(tmp_path, "m.h5") == ["b"]
    assert "/layer/w" in maskc(tmp_path, "ls", "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        assert (file["layer/w"][()] == weights).all()
        assert (file.attrs["author"], file["masks"].attrs["note"]) == ("somebody", 7)


def test_documents_conform_to_the_schema(tmp_path: Path) -> None:
    two_masks(tmp_path)
    assert maskc_json(tmp_path, "compile", *CAUSAL, "-o", "one.h5")["output_masks"] == ["mask"]
    packed = maskc_json(tmp_path, "pack", "one.h5", "x=two.h5:b", "-o", "all.h5")
    assert packed["output_masks"] == ["mask", "x"]
    turned = maskc_json(tmp_path, "combine", "not", "one.h5", "--name", "no", "-o", "all.h5")
    assert turned["output_masks"] == ["mask", "no", "x"]
    turned = maskc_json(tmp_path, "convert", "one.h5", "--name", "again", "-o", "all.h5")
    assert turned["output_masks"] == ["again", "mask", "no", "x"]
    removed = maskc_json(tmp_path, "rm", "all.h5:no", "two.h5:a", "all.h5:x")
    assert [file["masks"] for file in removed["files"]] == [["again", "mask"], ["b"]]
    assert names(tmp_path, "all.h5") == ["again", "mask"]
    (program,) = maskc_json(tmp_path, "explain", "(q * k) % 7 < 3", "--q-len", "64")["programs"]
    assert [decline["engine"] for decline in program["declined"]]
    assert program["phases"]
    (mask,) = maskc_json(tmp_path, "check", "one.h5", "--sample", "50")["masks"]
    assert mask["sample"]["num_cells"] == 50


def test_documents_of_several_inputs_conform_to_the_schema(tmp_path: Path) -> None:
    two_masks(tmp_path)
    small(tmp_path)
    for verb in ("inspect", "check"):
        files = maskc_json(tmp_path, verb, "two.h5", "absent.h5", "two.h5:a", status=3)["files"]
        assert [len(file.get("masks", [])) for file in files] == [2, 0, 1]
        assert files[1]["error"]["exit_status"] == 3
    words = ("two.h5:a", "two.h5:b", "-o", "p-*.png")
    files = maskc_json(tmp_path, "render", *words)["files"]
    assert [file["output"] for file in files] == ["p-two-a.png", "p-two-b.png"]


@pytest.mark.parametrize(
    ("words", "status", "argument", "places"),
    [
        (("compile", "causl & windw(3)", "--q-len", "64", "-o", "x.h5"), 2, "--spec", 2),
        (("compile", "causal", "--q-len", "x", "-o", "x.h5"), 2, "--q-len", 0),
        (("inspect", "absent.h5"), 3, None, 0),
        (("convert", "small.h5:/flipped", "--to", "cu_seqlens", "-o", "x.h5"), 4, None, 0),
        (("check", "two.h5:a", "--against", "two.h5:b"), 1, None, 0),
        (("frobnicate",), 2, None, 0),
    ],
)
def test_failures_are_one_line_of_json(
    tmp_path: Path, words: tuple[str, ...], status: int, argument: str | None, places: int
) -> None:
    two_masks(tmp_path)
    small(tmp_path)
    done = subprocess.run(
        [MASKC, *words, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    document = json.loads(done.stderr)
    assert violations(document, SCHEMA["$defs"]["error"], SCHEMA) == []
    error = document["error"]
    assert (error["exit_status"], error["argument"]) == (status, argument)
    assert len(error["positions"]) == places
    plain = subprocess.run(
        [MASKC, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert plain.stderr.rstrip("\n").endswith(error["message"].rstrip("\n"))


def test_schema_names_every_format() -> None:
    assert tuple(SCHEMA["$defs"]["format"]["enum"]) == FORMATS


def test_ls_tells_a_mask_that_cannot_be_read_from_the_others(tmp_path: Path) -> None:
    two_masks(tmp_path)
    with h5py.File(tmp_path / "two.h5", "r+") as file:
        del file["masks/a"].attrs["q_len"]
    done = subprocess.run(
        [MASKC, "ls", "two.h5"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "  a  cannot be read\n" in done.stdout
    assert re.search(r"^  b  64 x 64 +1 x 1  segment ", done.stdout, re.MULTILINE)
    assert "'two.h5': /masks/a: " in done.stderr
    listed = maskc_json(tmp_path, "ls", "two.h5", status=3)["files"][0]
    assert [mask["name"] for mask in listed["unreadable"]] == ["a"]
    maskc(tmp_path, "rm", "two.h5:a")
    assert names(tmp_path, "two.h5") == ["b"]


def test_eight_writers_at_one_file_lose_no_mask(tmp_path: Path) -> None:
    words = [MASKC, "compile", *CAUSAL, "-q", "-o", "m.h5", "--name"]
    writers = [subprocess.Popen([*words, f"n{i}"], cwd=tmp_path) for i in range(8)]
    assert [writer.wait(timeout=60) for writer in writers] == [0] * 8
    assert names(tmp_path, "m.h5") == [f"n{i}" for i in range(8)]
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


# The tests below are of modes, owners and links.


@pytest.mark.parametrize(
    "words",
    [
        ("compile", *CAUSAL, "--name", "b", "-o", "m.h5"),
        ("compile", *CAUSAL, "--name", "a", "--force", "-o", "m.h5"),
        ("convert", "small.h5:/mask", "-o", "m.h5"),
        ("combine", "not", "a.h5", "--name", "b", "-o", "m.h5"),
        ("pack", "b=a.h5", "-o", "m.h5"),
        ("rm", "m.h5:a"),
        ("convert", "a.h5", "--to", "bsr", "--force", "-o", "m.h5"),
        ("run", "a.h5", "--random", "--heads", "1", "--head-dim", "8", "--force", "-o", "m.h5"),
        ("render", "a.h5", "-o", "m.svg"),
    ],
    ids=" ".join,
)
def test_a_replaced_file_keeps_its_mode(tmp_path: Path, words: tuple[str, ...]) -> None:
    small(tmp_path)
    maskc(tmp_path, "compile", *CAUSAL, "--name", "a", "-o", "a.h5")
    maskc(tmp_path, "compile", *CAUSAL, "--name", "a", "-o", "m.h5")
    (tmp_path / "m.svg").write_text("<svg/>")
    target = tmp_path / (words[-1] if words[0] != "rm" else "m.h5")
    inode = target.stat().st_ino
    target.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(target, 12345, 23456)
    maskc(tmp_path, *words)
    assert target.stat().st_ino != inode
    assert mode_of(target) == 0o600
    if os.geteuid() == 0:
        assert (target.stat().st_uid, target.stat().st_gid) == (12345, 23456)


def test_a_new_file_has_what_the_umask_leaves(tmp_path: Path) -> None:
    for mask in (0o022, 0o077):
        name = f"m{mask:o}.h5"
        subprocess.run(
            [MASKC, "compile", *CAUSAL, "-q", "-o", name], cwd=tmp_path, umask=mask, check=True
        )
        assert mode_of(tmp_path / name) == 0o666 & ~mask


def test_a_link_to_a_file_that_is_not_there_yet_stays_one(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", *CAUSAL, "-o", "a.h5")
    (tmp_path / "real").mkdir()
    for suffix, words in (("h5", ("compile", *CAUSAL)), ("svg", ("render", "a.h5"))):
        (tmp_path / f"first.{suffix}").symlink_to(f"real/new.{suffix}")
        link = tmp_path / f"link.{suffix}"
        link.symlink_to(tmp_path / f"first.{suffix}")
        maskc(tmp_path, *words, "-o", link.name)
        assert link.is_symlink() and (tmp_path / f"first.{suffix}").is_symlink()
        assert (tmp_path / "real" / f"new.{suffix}").is_file()
    assert names(tmp_path, "real/new.h5") == ["mask"]


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    for name, target in (("a.h5", "b.h5"), ("b.h5", "a.h5"), ("c.h5", "absent/new.h5")):
        (tmp_path / name).symlink_to(target)
    for name, reason in (
        ("a.h5", "'a.h5': Too many levels of symbolic links"),
        ("c.h5", "'c.h5' -> 'absent/new.h5': No such file or directory"),
    ):
        done = subprocess.run(
            [MASKC, "compile", *CAUSAL, "-o", name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3
        assert done.stderr == f"fdma-maskc compile: error: cannot write {reason}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "b.h5", "c.h5"]


# The tests below are of signals.


@contextmanager
def printing(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Starts the tool with its output in place and a full pipe for its summary.

    Yields the other end of the pipe, too.
    """
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(theirs, False)
    try:
        while True:
            os.write(theirs, b"x" * 1024)
    except BlockingIOError:
        os.set_blocking(theirs, True)
    words = [MASKC, "compile", *CAUSAL, "--name", "b", "-o", "m.h5"]
    with subprocess.Popen(
        words, cwd=folder, stdout=theirs, stderr=subprocess.PIPE, preexec_fn=default_signals
    ) as tool:
        os.close(theirs)
        for _ in range(3000):
            if names(folder, "m.h5") == ["a", "b"]:
                break
            time.sleep(0.01)
        yield tool, ours
    os.close(ours)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_after_the_file_is_in_place_is_no_interrupt(
    tmp_path: Path, number: signal.Signals
) -> None:
    maskc(tmp_path, "compile", *CAUSAL, "--name", "a", "-o", "m.h5")
    with printing(tmp_path) as (tool, pipe):
        tool.send_signal(number)
        time.sleep(0.2)
        assert tool.poll() is None
        shown = b""
        while piece := os.read(pipe, 4096):
            shown += piece
        assert tool.wait(timeout=30) == 0
        assert tool.stderr is not None and tool.stderr.read() == b""
    assert b"added to m.h5, which has 2 masks" in shown
    assert names(tmp_path, "m.h5") == ["a", "b"]


def test_a_second_signal_says_that_the_file_is_in_place(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", *CAUSAL, "--name", "a", "-o", "m.h5")
    with printing(tmp_path) as (tool, _):
        tool.send_signal(signal.SIGINT)
        time.sleep(0.2)
        tool.send_signal(signal.SIGTERM)
        assert tool.wait(timeout=30) == 3
        assert tool.stderr is not None
        assert tool.stderr.read().endswith(b"interrupted; the output file is in place\n")
    assert names(tmp_path, "m.h5") == ["a", "b"]


def test_the_status_after_a_signal_says_which_file_is_in_place(tmp_path: Path) -> None:
    """A signal comes at many moments.

    Status 130 means that the old content is in place, 0 that the new mask is, at any moment.
    """
    maskc(tmp_path, "compile", *CAUSAL, "--name", "a", "-o", "m.h5")
    before = (tmp_path / "m.h5").read_bytes()
    words = [MASKC, "compile", *CAUSAL, "--name", "b", "-q", "-o", "m.h5"]
    start = time.monotonic()
    subprocess.run(words, cwd=tmp_path, check=True)
    whole = time.monotonic() - start
    after = (tmp_path / "m.h5").read_bytes()
    seen = set()
    for step in range(60):
        (tmp_path / "m.h5").write_bytes(before)
        with subprocess.Popen(
            words, cwd=tmp_path, stderr=subprocess.DEVNULL, text=True, preexec_fn=default_signals
        ) as tool:
            wait_until_listening(tool)
            time.sleep(whole * step / 50)
            tool.send_signal(STOPPING[step % 3])
        seen.add(tool.returncode)
        assert (tmp_path / "m.h5").read_bytes() == {130: before, 0: after}[tool.returncode]
        assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]
    assert 0 in seen
