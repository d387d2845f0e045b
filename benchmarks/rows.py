"""Rows of a benchmark, measured one by one and kept in a file that the next call continues.

A row is anything whose text is its name, `part/..`. It is not measured again while it stands in the
file, unless `--again` asks for it. So a call that ends early (--max-seconds) is continued by the
next one: exit code 3 says that rows are left.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from command_line import benchmark_parser, names
from provenance import PACKAGE_SOURCES, gpu_state, origin
from report_store import read_json, write_result
from report_text import Run

MAX_WRONG = 11
Named = TypeVar("Named")


class WrongResultError(Exception):
    """What was computed is not what the mask and the tensors say."""


def row_parser(doc: str | None, parts: Iterable[str], example: str) -> argparse.ArgumentParser:
    """`example`: patterns of rows, for the help text."""
    parser = benchmark_parser(doc, "JSON file to write, and to continue")
    parser.add_argument("--parts", type=names, default=list(parts))
    parser.add_argument("--rows", default="*", help=f"patterns of rows: '{example}'")
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--list", action="store_true", help="say what would run")
    parser.add_argument("--max-seconds", type=float, default=1e9, help="stop before this time")
    return parser


def chosen(rows: Iterable[Named], parts: Iterable[str], patterns: str) -> list[Named]:
    """Of rows, once each, those of some parts that match one of some patterns with commas between,
    in their order. A pattern without * may stand anywhere in the name of a row."""
    by_name = {str(row): row for row in rows if str(row).partition("/")[0] in parts}
    found: dict[str, Named] = {}
    for text in patterns.split(","):
        pattern = text if "*" in text else f"*{text}*"
        for name, row in by_name.items():
            if fnmatch.fnmatchcase(name, pattern):
                found.setdefault(name, row)
    return list(found.values())


class Results:
    """The file of rows, written as a whole after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: Run = read_json(path) if path.exists() else {"rows": {}}
        self.rows: dict[str, Run] = self.content["rows"]

    def describe(self, machine: Run) -> None:
        self.content = machine | {"rows": self.rows}

    def add(self, row: object, run: Run) -> None:
        self.rows[str(row)] = run
        self.write()

    def write(self) -> None:
        write_result(self.path, self.content)

    def left(self, rows: Iterable[Named], options: argparse.Namespace) -> list[Named]:
        """The chosen rows that are to be measured; --list prints them and leaves none."""
        wanted = chosen(rows, options.parts, options.rows)
        done = {name for name, run in self.rows.items() if "error" not in run}
        left = [row for row in wanted if options.again or str(row) not in done]
        print(f"{len(wanted)} rows, {len(wanted) - len(left)} of them measured already", flush=True)
        if options.list:
            print("\n".join(map(str, left)))
            return []
        return left


def gpu_origin(torch: Any, seed: int, **facts: Any) -> Run:
    """What a document of rows says of its GPU; `facts`: more about the machine."""
    return {
        "machine": {"gpu": torch.cuda.get_device_name(), "state": gpu_state(), **facts},
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "cudnn_version": torch.backends.cudnn.version(),
        **origin(PACKAGE_SOURCES),
        "seed": seed,
        "dtype": "bfloat16",
    }


def measure_rows(
    rows: list[Named],
    results: Results,
    measure: Callable[[Named], Run],
    text_of: Callable[[Run], str],
    expected_seconds: Callable[[Named], float],
    end: float,
) -> None:
    """Measures rows until `end` of the monotonic clock, and ends the program where rows are left or
    wrong. A row whose measurement raises is wrong, and is not kept."""
    num_wrong = num_left = 0
    for done, row in enumerate(rows):
        row_begin = time.monotonic()
        if row_begin + expected_seconds(row) > end:
            num_left = len(rows) - done
            break
        try:
            run = measure(row)
        except Exception as error:  # the other rows are worth having
            if not isinstance(error, WrongResultError):
                traceback.print_exc()
            print(f"{row}: WRONG: {error}", flush=True)
            num_wrong += 1
            if num_wrong > MAX_WRONG:
                break
            continue
        results.add(row, run)
        print(f"{row}: {text_of(run)} ({time.monotonic() - row_begin:.1f} s)", flush=True)
    if num_wrong:
        sys.exit(f"{num_wrong} rows are wrong")
    if num_left:
        print(f"out of time: {num_left} rows are left for the next call", flush=True)
        sys.exit(3)
