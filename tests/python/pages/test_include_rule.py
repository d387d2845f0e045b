"""Tests that the include rule (tests/include_rule) finds each kind of violation in a sample."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[3] / "tests" / "include_rule" / "check_includes.py"


def found_in(tree: Path) -> str:
    """What the check prints of a tree in which something is wrong."""
    done = subprocess.run(
        [sys.executable, CHECK, tree], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    return done.stdout


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
    assert message in found_in(tmp_path)


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("masks/a.py", "from ..interop.methods import x", "room masks does not know room interop"),
        ("masks/a.py", "def f():\n    from ..files import mask_files", "does not know room files"),
        ("masks/a.py", "import fdma.trace.trace", "room masks does not know room trace"),
        ("attention/a.py", "from ..interop import hf_operators", "does not know room interop"),
        ("estimate.py", "from .attention.plan import plan", "does not know room attention"),
        ("new_room/a.py", "", "lies in no room"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, source: str, line: str, message: str) -> None:
    path = tmp_path / "python_bindings" / "fdma" / source
    path.parent.mkdir(parents=True)
    for_types = "if TYPE_CHECKING:\n    from ..hf import x\n"
    path.write_text(f"from .. import _fdma\n{for_types}{line}\n")
    (message_line,) = [x for x in found_in(tmp_path).splitlines() if source in x]
    assert message in message_line


def test_a_circle_of_rooms_is_found() -> None:
    sys.path.insert(0, str(CHECK.parent))
    try:
        from rooms import PYTHON_ROOMS, ROOMS, has_cycle
    finally:
        sys.path.remove(str(CHECK.parent))
    for rooms in (PYTHON_ROOMS, *ROOMS.values()):
        assert not has_cycle(rooms)
    assert has_cycle({**PYTHON_ROOMS, "masks": ("files",)})
