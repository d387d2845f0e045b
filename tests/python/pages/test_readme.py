"""Runs README.md and the tour of docs/maskc.md; commands and programs print what the pages show.

A block that starts with `$ fdma-maskc` is one command and its output; the commands of a page run in
order. A ```python block runs on the CPU; the ```text block behind it is its output. Values that
differ between machines are not compared: times, rates, instruction sets, rounding errors (but an
error above its bound fails the command). FDMA_REBASE_README=1 rewrites the pages with the new
output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
TOURS = {README: 5, ROOT / "docs" / "maskc.md": 9}  # pages, and the number of commands of each
MASKC = os.environ.get("FDMA_MASKC", "")
REBASE = os.environ.get("FDMA_REBASE_README") == "1"
BLOCK = re.compile(r"```console\n\$ (fdma-maskc (?:.*\\\n)*.*\n)((?:(?!```).*\n)*)```\n")
PROGRAM = re.compile(r"```python\n((?:(?!```).*\n)*)```\n\n```text\n((?:(?!```).*\n)*)```\n")
BUILD = Path(os.environ.get("FDMA_BUILD_DIR", "")).resolve() / "python_bindings"

VARYING = (
    (r"\d+(\.\d+)? (us|ms|s)\b", "<time>"),
    (r"on cpu \(\w+\), [\d.]+ GFLOP/s", "on cpu (<target>), <rate>"),
    (r"\d\.\d+e[-+]\d+", "<error>"),
)


def without_varying(text: str) -> str:
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    return text


@pytest.mark.skipif(not MASKC, reason="FDMA_MASKC does not name the built tool")
@pytest.mark.parametrize("page", TOURS, ids=lambda page: page.name)
def test_tour(page: Path, tmp_path: Path) -> None:
    lengths = ROOT / "tests" / "data" / "document_lengths.json"
    inputs: list[str | Path] = [
        sys.executable,
        ROOT / "tools" / "demo_inputs.py",
        lengths,
        "dense.h5",
        "docs.h5",
        "qkv.h5",
    ]
    subprocess.run(inputs, cwd=tmp_path, check=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "fdma-maskc").symlink_to(Path(MASKC).resolve())
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    environment.pop("COLUMNS", None)

    text = page.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == TOURS[page]
    for block in blocks:
        command, shown = block.groups()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        if REBASE:
            text = text.replace(block.group(0), f"```console\n$ {command}{done.stdout}```\n")
        else:
            assert without_varying(done.stdout) == without_varying(shown), command
    if REBASE:
        page.write_text(text, encoding="utf-8")


@pytest.mark.skipif(
    not list((BUILD / "fdma").glob("_fdma.*.so")),
    reason="FDMA_BUILD_DIR names no build with the Python package (FDMA_BUILD_PYTHON=ON)",
)
def test_program(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    programs = list(PROGRAM.finditer(text))
    assert len(programs) == text.count("```python") == 1
    for program in programs:
        source, shown = program.groups()
        done = subprocess.run(
            [sys.executable, "-c", source],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.fspath(BUILD)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        if REBASE:
            text = text.replace(
                program.group(0), f"```python\n{source}```\n\n```text\n{done.stdout}```\n"
            )
        else:
            assert done.stdout == shown
    if REBASE:
        README.write_text(text, encoding="utf-8")
