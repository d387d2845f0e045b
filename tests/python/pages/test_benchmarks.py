"""Results of benchmarks, their pages, and how a benchmark of rows goes on where it stopped."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
BENCHMARKS = REPOSITORY / "benchmarks"
RESULTS = sorted((BENCHMARKS / "results").glob("*.json"))
NAMES = ("dense/8K/full", "dense/8K/causal", "flex/8K/causal")


@pytest.fixture(autouse=True)
def finds_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_each_result_has_one_row_a_line(path: Path, tmp_path: Path) -> None:
    from report_store import write_result

    write_result(tmp_path / path.name, json.loads(path.read_text(encoding="utf-8")))
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_pages_show_the_results(tmp_path: Path) -> None:
    import make_report

    docs = REPOSITORY / "docs"
    shutil.copytree(docs, tmp_path / "docs")
    make_report.tables(BENCHMARKS / "results", tmp_path / "docs")
    for page in (docs / "performance.md", *(docs / "notes").glob("*.md")):
        copy = tmp_path / "docs" / page.relative_to(docs)
        assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def options(path: Path, *words: str) -> argparse.Namespace:
    from rows import row_parser

    return row_parser("A line.", ["dense", "flex"], "*").parse_args(["fdma", str(path), *words])


def left(path: Path, *words: str) -> list[str]:
    from rows import Results

    return Results(path).left(NAMES, options(path, *words))


def measure(path: Path, names: list[str], end: float = 1e18, wrong: str = "") -> list[str]:
    """What was measured, in its order."""
    from rows import Results, WrongResultError, measure_rows

    measured = []

    def run(name: str) -> dict[str, int]:
        if name == wrong:
            raise WrongResultError("out: error 1")
        measured.append(name)
        return {"fdma_ms": len(name)}

    measure_rows(names, Results(path), run, str, lambda name: 1.0, end)
    return measured


def test_rows_are_chosen_by_part_and_pattern(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    assert left(path) == [*NAMES]
    assert left(path, "--parts", "flex") == ["flex/8K/causal"]
    assert left(path, "--rows", "causal") == ["dense/8K/causal", "flex/8K/causal"]
    assert left(path, "--rows", "flex/*,dense/*/full") == ["flex/8K/causal", "dense/8K/full"]


def test_list_prints_rows_and_leaves_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert left(tmp_path / "rows.json", "--list", "--parts", "dense") == []
    printed = capsys.readouterr().out
    assert printed == "2 rows, 0 of them measured already\ndense/8K/full\ndense/8K/causal\n"


def test_rows_that_are_there_are_measured_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    assert measure(path, [*NAMES[:2]]) == [*NAMES[:2]]
    assert left(path) == [NAMES[2]]
    assert left(path, "--again") == [*NAMES]
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document == {"rows": {NAMES[0]: {"fdma_ms": 13}, NAMES[1]: {"fdma_ms": 15}}}


def test_a_row_with_an_error_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    rows = {NAMES[0]: {"error": "no package"}, NAMES[1]: {"fdma_ms": 1}}
    path.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    assert left(path) == [NAMES[0], NAMES[2]]


def test_a_wrong_row_is_not_kept_and_others_are(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    with pytest.raises(SystemExit, match="1 rows are wrong"):
        measure(path, [*NAMES], wrong=NAMES[1])
    assert left(path) == [NAMES[1]]


def test_out_of_time_leaves_rows_to_the_next_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        measure(tmp_path / "rows.json", [*NAMES], end=0.0)
    assert ended.value.code == 3
    assert capsys.readouterr().out == "out of time: 3 rows are left for the next call\n"


def test_usage_of_a_process(tmp_path: Path) -> None:
    from process_usage import usage_of

    program = "import sys; print(len(bytearray(64 << 20))); sys.exit(4)"
    status, usage = usage_of([sys.executable, "-c", program], (0, 4), tmp_path / "printed")
    assert status == 4
    assert (tmp_path / "printed").read_text(encoding="utf-8") == f"{64 << 20}\n"
    assert 64 << 20 <= usage["peak_resident_bytes"] < 128 << 20
    with pytest.raises(SystemExit, match="status 4"):
        usage_of([sys.executable, "-c", program])
