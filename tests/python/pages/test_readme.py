"""The tour of README.md: its commands, run in order, print what the page shows.

A block of the page that starts with `$ fdma-maskc` is one command and its output. What differs from
machine to machine is not compared: times, rates, instruction sets, rounding errors (but an error
above its bound fails the command). FDMA_REBASE_README=1 rewrites the page with what came.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "README.md"
MASKC = os.environ.get("FDMA_MASKC", "")
REBASE = os.environ.get("FDMA_REBASE_README") == "1"
BLOCK = re.compile(r"```console\n\$ (fdma-maskc (?:.*\\\n)*.*\n)((?:(?!```).*\n)*)```\n")


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
def test_tour(tmp_path: Path) -> None:
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

    page = PAGE.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(page))
    assert len(blocks) == 9
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
            page = page.replace(block.group(0), f"```console\n$ {command}{done.stdout}```\n")
        else:
            assert without_varying(done.stdout) == without_varying(shown), command
    if REBASE:
        PAGE.write_text(page, encoding="utf-8")
