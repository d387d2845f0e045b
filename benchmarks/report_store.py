"""From the raw output of a benchmark to benchmarks/results/*.json.

Each document states machine, compiler, commit and date (provenance.py).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from provenance import cpu_model, head_commit, machine_of_today, origin, os_name, today
from report_text import Run

COUNTERS = (
    "first_us",
    "peak_bytes",
    "result_bytes",
    "distinct_share",
    "target_us",
    "target_bytes",
    "bytes_per_second",
)
SELECT_COUNTERS = (
    "bytes_per_second",
    "peak_bytes",
    "result_bytes",
    "intervals",
    "keys",
    "target_us",
)
MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def holds_rows(name: str, value: Any) -> bool:
    """Whether a value is a table of rows or contains one. A table is a list of records, or an
    object with the name "rows" that has the records by their names."""
    if isinstance(value, list):
        return any(isinstance(each, dict) for each in value)
    if isinstance(value, dict):
        is_table = name == "rows" and all(isinstance(each, dict) for each in value.values())
        return is_table or any(holds_rows(key, each) for key, each in value.items())
    return False


def json_text(value: Any, name: str = "", depth: int = 0) -> str:
    """The JSON text of a document, or of a value inside it; it has no newline at its end."""
    if not value or (depth > 0 and not holds_rows(name, value)):
        return json.dumps(value)
    if isinstance(value, list):
        brackets = "[]"
        lines = [json_text(each, "", depth + 1) for each in value]
    else:
        brackets = "{}"
        lines = [
            f"{json.dumps(key)}: {json_text(each, key, depth + 1)}" for key, each in value.items()
        ]
    indent = "\n" + " " * depth
    return brackets[0] + ",".join(f"{indent} {line}" for line in lines) + indent + brackets[1]


def write_result(path: Path, result: Any) -> None:
    """Writes one row a line, so that a row that is measured again is one line of a diff.

    The file is replaced as a whole: a program that is stopped leaves the old one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json_text(result) + "\n", encoding="utf-8")
    new.replace(path)


def microseconds(benchmark: Run, clock: str) -> float:
    return float(benchmark[clock] * MICROSECONDS[benchmark["time_unit"]])


def fastest_runs(raw: Run, counters: tuple[str, ...]) -> dict[str, Run]:
    """What Google Benchmark measured, by name, with those counters that there are.

    The least disturbed of the repetitions counts.
    """
    best: dict[str, Run] = {}
    for benchmark in raw["benchmarks"]:
        if benchmark.get("run_type") == "aggregate":
            continue
        if benchmark.get("error_occurred"):
            sys.exit(f"{benchmark['name']}: {benchmark.get('error_message')}")
        name = benchmark["run_name"].removesuffix("/real_time").removesuffix("/process_time")
        cpu_us = microseconds(benchmark, "cpu_time")
        if name in best and best[name]["cpu_us"] <= cpu_us:
            continue
        best[name] = {
            "name": name,
            "cpu_us": cpu_us,
            "elapsed_us": microseconds(benchmark, "real_time"),
            "iterations": benchmark["iterations"],
        }
        if "label" in benchmark:
            best[name]["spec"] = benchmark["label"]
        best[name] |= {key: benchmark[key] for key in counters if key in benchmark}
    return best


def store(raw_path: Path, result_path: Path) -> None:
    """Output of Google Benchmark, masks and dense files."""
    raw = read_json(raw_path)
    context = raw["context"]
    sources = ("formats", "masks", "benchmarks/*.cpp", "tests/mask_suite", "cmake")
    machine = {
        "cpu": cpu_model(),
        "cores": context["num_cpus"],
        "caches": [f"L{c['level']} {c['type']} {c['size'] // 1024} KiB" for c in context["caches"]],
        "cpu_scaling": context["cpu_scaling_enabled"],
        "load_avg": context["load_avg"],
        "os": os_name(),
    }
    result = {"machine": machine, "compiler": context["compiler"]}
    result |= origin((*sources, "CMakeLists.txt"))
    result |= {"date": context["date"][:10], "threads": 1}
    write_result(result_path, result | {"runs": list(fastest_runs(raw, COUNTERS).values())})


def store_select(raw_path: Path, dense_path: Path, result_path: Path) -> None:
    """Output of bench_select and dense_topk.py."""
    raw = read_json(raw_path)
    sources = ("kernels/src/selection", "masks", "formats", "benchmarks/*select*", "cmake")
    fields = ("name", "cpu_us", *SELECT_COUNTERS)
    runs = [
        {field: run[field] for field in fields if field in run}
        for run in fastest_runs(raw, SELECT_COUNTERS).values()
    ]
    result = {"machine": machine_of_today(), "compiler": raw["context"]["compiler"]}
    result |= origin((*sources, "CMakeLists.txt"))
    write_result(result_path, result | {"runs": runs, "dense": read_json(dense_path)})


def store_compression(raw: Run, result_path: Path) -> None:
    """The document of compression.py."""
    sources = ("formats", "benchmarks/*compression*", "tests/mask_suite", "cmake", "CMakeLists.txt")
    write_result(result_path, {"machine": machine_of_today()} | origin(sources) | raw)


def store_estimate(raw_path: Path, result_path: Path) -> None:
    """The document of bench_estimate."""
    result = {"machine": machine_of_today(), "commit": head_commit(), "date": today()}
    write_result(result_path, result | read_json(raw_path))


def store_estimate_gpu(raw_path: Path, result_path: Path) -> None:
    """The document of bench_estimate_gpu."""
    result = {"commit": head_commit(), "date": today()}
    write_result(result_path, result | read_json(raw_path))
