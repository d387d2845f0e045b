"""Tests results that do not fit in memory.

The error comes before any work and gives both sizes; the memory is not filled.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from maskc_tool import MASKC, maskc, needs_tool, read_png

pytestmark = needs_tool

LONGEST = 2**31 - 1
# A child's peak of memory begins with that of its parent, so a small process starts it.
STARTER = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(json.dumps(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024))
"""


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("causal")
    maskc(folder, "compile", "-s", "causal", "--q-len", str(LONGEST), "-o", "longest.h5", "-q")
    maskc(folder, "compile", "-s", "causal", "--q-len", "1048576", "-o", "million.h5", "-q")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "longest.h5", "--format", "columns", "-o", "out.h5"),
        ("convert", "longest.h5", "--format", "dense", "-o", "out.h5"),
        ("convert", "longest.h5", "--format", "bcsr", "-o", "out.h5"),
        ("convert", "longest.h5", "--format", "bitset", "-o", "out.h5"),
        ("convert", "longest.h5", "--to", "flash_mask", "-o", "out.h5"),
        ("compile", "-s", "causal", "--q-len", str(LONGEST), "--format", "columns", "-o", "out.h5"),
        ("estimate", "longest.h5"),
        ("estimate", "longest.h5", "--direction", "backward", "--device", "cpu"),
        ("run", "million.h5", "--random", "--heads", "64", "--head-dim", "256"),
    ],
    ids=lambda words: " ".join(words[:5]),
)
def test_what_does_not_fit_is_said_before_it_is_taken(words: tuple[str, ...], causal: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    begin = time.monotonic()
    done = subprocess.run(
        [MASKC, *words, "-q"],
        cwd=causal,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 4, done.stderr
    assert re.search(
        r"not enough memory: needs [0-9.]+ [GTP]iB, available [0-9.]+ [MG]iB$", done.stderr.strip()
    )
    assert not (causal / "out.h5").exists()
    assert time.monotonic() - begin < 60


def test_a_picture_takes_less_than_its_pixels(causal: Path, tmp_path: Path) -> None:
    words = [MASKC, "render", str(causal / "million.h5"), "--size", "8192", "-o", "x.png", "-q"]
    done = subprocess.run(
        [sys.executable, "-c", STARTER, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) < 100 << 20  # the pixels have 192 MiB
    maskc(tmp_path, "render", str(causal / "million.h5"), "--size", "64", "-o", "y.png", "-q")
    assert read_png(tmp_path / "y.png").shape == (64, 64, 3)


def test_the_library_raises_memory_errors() -> None:
    build = os.environ.get("FDMA_BUILD_DIR")
    if not build:
        pytest.skip("FDMA_BUILD_DIR names no build with the Python package")
    code = f"""
import resource, fdma
mask = fdma.compile("causal", {LONGEST})
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for words in ("to_format", "columns"), ("to_format", "dense"), ("to_columns",):
    try:
        getattr(mask, words[0])(*words[1:])
    except MemoryError as error:
        assert "not enough memory: needs" in str(error), error
    else:
        raise SystemExit("no error")
"""
    path = str(Path(build) / "python_bindings")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
