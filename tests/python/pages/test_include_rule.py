"""Tests that the include rule (tests/include_rule) finds each kind of violation in a sample."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[3] / "tests" / "include_rule" / "check_includes.py"


@pytest.mark.parametrize(
    ("source", "header", "message"),
    [
        ("kernels/src/plan/a.cpp", "cpu/call.hpp", "room plan does not know room cpu"),
        (
            "kernels/src/cuda/a.cu",
            "sm90/forward/params.hpp",
            "room cuda does not know room sm90/forward",
        ),
        (
            "kernels/src/sm90/forward/a.cuh",
            "sm90/backward/rows.cuh",
            "does not know room sm90/backward",
        ),
        (
            "kernels/src/selection/topk/a.cu",
            "fdma/kernels/attention.hpp",
            "does not know fdma/kernels/attention.hpp",
        ),
        ("kernels/src/new_room/a.cpp", "plan/groups.hpp", "lies in no room"),
        ("masks/src/ir/a.cpp", "bind/check.hpp", "room ir does not know room bind"),
        ("formats/io/hdf5/a.cpp", "io/dense/plane.hpp", "room hdf5 does not know room dense"),
        (
            "formats/include/fdma/base/a.hpp",
            "fdma/formats/hash.hpp",
            "does not know fdma/formats/hash.hpp",
        ),
        ("formats/src/view/a.cpp", "hdf5.h", "hdf5.h belongs to formats/io"),
        ("masks/include/fdma/masks/a.hpp", "fmt/format.h", "fmt/format.h in a public header"),
    ],
)
def test_a_wrong_include_is_found(tmp_path: Path, source: str, header: str, message: str) -> None:
    for name in (
        source,
        f"{'/'.join(source.split('/')[:2])}/{header}",
        "formats/io/dense/plane.hpp",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#pragma once\n")
    (tmp_path / source).write_text(f'#include "{header}"\n')
    done = subprocess.run(
        [sys.executable, CHECK, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert message in done.stdout
