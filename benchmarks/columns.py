"""Tables of runs by their columns, each of which says its header and the cell of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import report_text
from report_text import Run, bytes_text, time_text, tokens_text

Column = tuple[str, Callable[[Run], str]]
"""Its header, and its cell in the row of a run."""


def table(columns: Iterable[Column], runs: Iterable[Run]) -> str:
    columns = list(columns)
    rows = [[cell(run) for _, cell in columns] for run in runs]
    return report_text.table([header for header, _ in columns], rows)


def pivot(
    runs: Iterable[Run],
    places: Iterable[Column],
    column: Callable[[Run], str],
    cell: Callable[[Run], str],
) -> str:
    """One row a place, which stands in the first columns, and one column for each text of `column`;
    both in the order in which they come."""
    places = list(places)
    found: dict[tuple[str, ...], dict[str, str]] = {}
    names: dict[str, None] = {}
    for run in runs:
        names[column(run)] = None
        found.setdefault(tuple(text(run) for _, text in places), {})[column(run)] = cell(run)
    rows = [[*place, *(cells.get(name, "-") for name in names)] for place, cells in found.items()]
    return report_text.table([*(name for name, _ in places), *names], rows)


def value(header: str, key: str, spec: str = "") -> Column:
    """`spec`: of Python's format."""
    return header, lambda run: format(run[key], spec)


def duration(header: str, key: str) -> Column:
    """Of a value in microseconds."""
    return header, lambda run: time_text(run[key])


def size(header: str, key: str) -> Column:
    return header, lambda run: bytes_text(run[key]) if key in run else "-"


MASK = value("mask", "mask")
TOKENS: Column = ("tokens", lambda run: tokens_text(run["tokens"]))
