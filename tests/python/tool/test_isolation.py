"""Tests that fdma-maskc reads foreign files in a child process and survives its end."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from maskc_inputs import huge, small
from maskc_tool import MASKC, maskc, needs_tool

pytestmark = needs_tool

SERVE_ARGUMENT = "--fdma-isolated-reader"


def readers_of(pid: int) -> list[int]:
    """Returns the processes that read for process `pid`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:3] == [SERVE_ARGUMENT.encode(), str(pid).encode()]:
            found.append(int(folder.name))
    return found


def wait_for_reader(pid: int) -> int:
    for _ in range(1000):
        if found := readers_of(pid):
            return found[0]
        time.sleep(0.005)
    raise AssertionError("the tool never started a process to read in")


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGSEGV, 3, "crashed the HDF5 library (SIGSEGV, Segmentation fault)"),
        (signal.SIGABRT, 3, "crashed the HDF5 library (SIGABRT, Aborted)"),
        (signal.SIGXCPU, 3, "made no progress"),
        (signal.SIGKILL, 4, "was killed, as the system does when memory runs out"),
    ],
)
def test_end_of_the_reader_is_an_error(
    tmp_path: Path, number: signal.Signals, code: int, words: str
) -> None:
    huge(tmp_path)
    command = [MASKC, "convert", "huge.h5:/mask", "-o", "out.h5"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as tool:
        reader = wait_for_reader(tool.pid)
        # The reader is stopped first, so that it cannot finish earlier.
        subprocess.run(["kill", "-STOP", str(reader)], check=True)
        subprocess.run(["kill", f"-{number.value}", str(reader)], check=True)
        subprocess.run(["kill", "-CONT", str(reader)], check=False, stderr=subprocess.DEVNULL)
        _, message = tool.communicate(timeout=60)
    assert tool.returncode == code, message
    assert message.startswith("fdma-maskc convert: error: 'huge.h5:/mask': ")
    assert words in message
    assert message.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["huge.h5"]


def test_reader_ends_with_the_tool(tmp_path: Path) -> None:
    huge(tmp_path)
    command = [MASKC, "convert", "huge.h5:/mask", "-o", "out.h5"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as tool:
        wait_for_reader(tool.pid)
        tool.kill()
    for _ in range(500):
        if not readers_of(tool.pid):
            return
        time.sleep(0.01)
    raise AssertionError("the reading process outlives the tool")


def failure(folder: Path, *words: str) -> tuple[int, str]:
    """Returns the status and the message of one call in `folder`."""
    done = subprocess.run(
        [MASKC, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("option", [[], ["--isolate"], ["--no-isolate"]])
def test_isolation_does_not_change_what_is_read(tmp_path: Path, option: list[str]) -> None:
    small(tmp_path)
    plain = maskc(tmp_path, "inspect", "small.h5:/mask", "--json")
    assert maskc(tmp_path, "inspect", "small.h5:/mask", "--json", *option) == plain
    maskc(tmp_path, "convert", "small.h5:/mask", "-o", "out.h5", *option)
    maskc(tmp_path, "check", "out.h5", "--against", "small.h5:/mask", *option)
    status, message = failure(tmp_path, "inspect", "small.h5:/absent", *option)
    assert status == 3
    assert "no object '/absent'" in message


def test_options_exclude_each_other(tmp_path: Path) -> None:
    small(tmp_path)
    status, message = failure(tmp_path, "inspect", "small.h5:/mask", "--isolate", "--no-isolate")
    assert status == 2
    assert "--isolate and --no-isolate: expected at most one" in message


def test_filters_that_nobody_has_need_a_plugin(tmp_path: Path) -> None:
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "mask", data=np.ones((32, 32), np.uint8), chunks=(32, 32), compression="gzip"
        )
    # The number of the filter in the pipeline message changes from 1, deflate, to an unknown one.
    content = path.read_bytes()
    at = content.index(b"deflate\0")
    path.write_bytes(content[: at - 8] + (32767).to_bytes(2, "little") + content[at - 6 :])
    for options in ([], ["--allow-plugins"]):
        status, message = failure(tmp_path, "inspect", "odd.h5:/mask", *options)
        assert status == 4
        assert "filter 32767" in message
        assert "--allow-plugins" in message


def test_names_in_messages_do_not_steer_the_terminal(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["a/\x1b[2Jmask"] = np.full((4, 4), 7, np.uint8)
    status, message = failure(tmp_path, "inspect", "odd.h5:/a/\x1b[2Jmask")
    assert status == 1
    assert "\\x1b[2Jmask" in message
    assert "\x1b" not in message
