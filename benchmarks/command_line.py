"""The command line that benchmarks from Python share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def names(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def first_line(doc: str | None) -> str:
    return (doc or "").partition("\n")[0]


def benchmark_parser(
    doc: str | None, result: str = "JSON file to write"
) -> argparse.ArgumentParser:
    """A parser with the arguments `module` and `result`."""
    parser = argparse.ArgumentParser(description=first_line(doc))
    parser.add_argument("module", type=Path, help="folder of the built package fdma")
    parser.add_argument("result", type=Path, help=result)
    return parser


def use_package(folder: Path) -> Any:
    """The native module of the package in a folder; `import fdma` finds the package afterwards."""
    sys.path.insert(0, str(folder.resolve()))
    from fdma import _fdma

    return _fdma
