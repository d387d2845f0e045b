"""Tests that fdma-maskc leaves no partial output when it is ended, and that it shows progress."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from maskc_inputs import huge, small
from maskc_tool import MASKC, maskc, needs_tool
from stopping import STOPPING, default_signals, wait_until_listening

pytestmark = needs_tool


@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize("delay", [0.05, 0.3, 0.6])
def test_interrupted_conversion_leaves_nothing(
    tmp_path: Path, number: signal.Signals, delay: float
) -> None:
    huge(tmp_path)
    (tmp_path / "out.h5").write_bytes(b"what was there before")
    words = [MASKC, "convert", "huge.h5:/mask", "--format", "dense", "--force", "-o", "out.h5"]
    with subprocess.Popen(
        words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=default_signals
    ) as tool:
        wait_until_listening(tool)
        time.sleep(delay)
        tool.send_signal(number)
        _, message = tool.communicate(timeout=30)
    assert tool.returncode == 130
    assert message == "fdma-maskc convert: interrupted\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["huge.h5", "out.h5"]
    assert (tmp_path / "out.h5").read_bytes() == b"what was there before"


def test_interrupts_while_writing_leave_all_or_nothing(tmp_path: Path) -> None:
    spec = "(q * 31 + k * 17 + q * k) % 13 < 6"
    words = [MASKC, "compile", "--spec", spec, "--q-len", "6000", "-o", "out.h5", "-q"]
    start = time.monotonic()
    subprocess.run(words, cwd=tmp_path, check=True)
    whole = time.monotonic() - start
    (tmp_path / "out.h5").unlink()
    statuses = set()
    for step in range(24):
        with subprocess.Popen(
            words, cwd=tmp_path, stderr=subprocess.DEVNULL, text=True, preexec_fn=default_signals
        ) as tool:
            wait_until_listening(tool)
            time.sleep(whole * step / 20)
            tool.send_signal(signal.SIGINT)
        left = [path.name for path in tmp_path.iterdir()]
        statuses.add(tool.returncode)
        if left:
            assert left == ["out.h5"]
            maskc(tmp_path, "check", "out.h5")
            (tmp_path / "out.h5").unlink()
    assert statuses <= {0, 130}


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    words = f"trap '' INT; exec {MASKC} compile --spec causal --q-len 64 -o out.h5"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0


def test_out_of_memory_is_a_message(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    done = subprocess.run(
        [MASKC, "compile", "--spec", "causal", "--q-len", "120000", "--format", "dense",
         "-o", "out.h5", "--threads", "1"],
        cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert "memory" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_progress_appears_on_a_terminal_only(tmp_path: Path) -> None:
    huge(tmp_path)
    ours, theirs = pty.openpty()
    words = [MASKC, "convert", "huge.h5:/mask", "-o", "out.h5"]
    with subprocess.Popen(
        words, cwd=tmp_path, stderr=theirs, stdout=subprocess.DEVNULL, preexec_fn=default_signals
    ) as tool:
        os.close(theirs)
        time.sleep(1.5)
        tool.send_signal(signal.SIGINT)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    text = shown.decode()
    assert "reading huge.h5:/mask [" in text
    assert "/s" in text
    assert "left" in text


@pytest.mark.parametrize("verb", ["compile", "explain", "check"])
def test_compiling_shows_its_tile_rows_and_ends_at_an_interrupt(tmp_path: Path, verb: str) -> None:
    (tmp_path / "out.h5").write_bytes(b"what was there before")
    spec = ["(q * k // 64 + k) % 13 < 6", "--q-len"]
    words = [MASKC, verb, *spec, "200000"]
    if verb == "compile":
        words += ["--name", "new", "-o", "new.h5"]
    if verb == "check":
        maskc(tmp_path, "compile", *spec, "6000", "-o", "m.h5")
        words = [MASKC, "check", "m.h5", "--exact"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        words, cwd=tmp_path, stderr=theirs, stdout=subprocess.DEVNULL, preexec_fn=default_signals
    ) as tool:
        os.close(theirs)
        shown = b""
        while b" rows/s" not in shown:
            try:
                shown += os.read(ours, 4096)
            except OSError:
                break
        tool.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):
            while os.read(ours, 4096):
                pass
    os.close(ours)
    what = "evaluating every cell of its specification [" if verb == "check" else "compiling ["
    assert what in shown.decode()
    assert tool.returncode == 130
    assert (tmp_path / "out.h5").read_bytes() == b"what was there before"
    assert not (tmp_path / "new.h5").exists()


def test_output_through_a_link_replaces_its_target(tmp_path: Path) -> None:
    small(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "real.h5").write_bytes(b"old")
    (tmp_path / "link.h5").symlink_to("folder/real.h5")
    maskc(tmp_path, "convert", "small.h5:/mask", "--force", "-o", "link.h5")
    assert (tmp_path / "link.h5").is_symlink()
    maskc(tmp_path, "check", "folder/real.h5", "--against", "small.h5:/mask")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["real.h5"]
