"""Runs a few hundred mutated files of every family; docs/fuzzing.md describes twenty thousand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fdma_module
import pytest
from maskc_tool import needs_tool

pytestmark = needs_tool
SCRIPT = Path(__file__).resolve().parents[2] / "fuzz" / "mutated_files.py"


@pytest.mark.parametrize("seed", [7])
def test_no_mutated_file_is_accepted_as_another_mask(seed: int, tmp_path: Path) -> None:
    words = ["--files", "270", "--seed", str(seed), "--jobs", "2", "--keep", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env=os.environ | {"FDMA_BUILD_DIR": str(fdma_module.FOLDER.parent)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 findings" in done.stdout
