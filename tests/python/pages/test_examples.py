"""Runs the programs in examples/ at small sizes on the CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from fdma_module import FOLDER

EXAMPLES = Path(__file__).parents[3] / "examples"
# Each program returns a largest difference, a loss or an accuracy.
LIMITS: dict[str, tuple[float, float]] = {
    "swap_attention": (0.0, 1e-4),
    "trimmed_cache": (0.0, 1e-4),
    "packed_documents": (0.0, 1.5),
    "learned_recall": (0.9, 1.0),
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert FOLDER.exists()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    program: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    result = program.main(["--small"])
    low, high = LIMITS[path.stem]
    assert low <= result <= high
    assert capsys.readouterr().out.count("\n") >= 2


def test_every_example_is_on_the_page() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {f"{name}.py" for name in LIMITS}
    assert all(f"({name})" in page for name in names)
