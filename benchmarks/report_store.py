"""From the raw output of a benchmark to benchmarks/results/*.json.

Each document states machine, compiler, commit and date; what identifies a person's computer (host
name, paths) is left out.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def head_commit() -> str:
    return git("rev-parse", "--short=12", "HEAD")


def has_changes(sources: tuple[str, ...]) -> bool:
    return bool(git("status", "--porcelain", "--", *sources))


def today() -> str:
    return datetime.now(tz=UTC).date().isoformat()


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def os_name() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())


def machine_of_today() -> Run:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_avg": os.getloadavg(),
        "os": os_name(),
    }


def read_json(path: Path) -> Run:
    document: Run = json.loads(path.read_text(encoding="utf-8"))
    return document


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


def write_result(path: Path, result: Run) -> None:
    """Writes one row a line, so that a row that is measured again is one line of a diff.

    The file is replaced as a whole: a program that is stopped leaves the old one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json_text(result) + "\n", encoding="utf-8")
    new.replace(path)


def store(raw_path: Path, result_path: Path) -> None:
    """Output of Google Benchmark, masks and dense files."""
    raw = read_json(raw_path)
    context = raw["context"]
    sources = ("formats", "masks", "benchmarks/*.cpp", "tests/mask_suite", "cmake")
    runs: list[Run] = []
    for benchmark in raw["benchmarks"]:
        if benchmark.get("run_type") == "aggregate":
            continue
        if benchmark.get("error_occurred"):
            sys.exit(f"{benchmark['name']}: {benchmark.get('error_message')}")
        run: Run = {
            "name": benchmark["name"].removesuffix("/real_time").removesuffix("/process_time"),
            "cpu_us": benchmark["cpu_time"] * MICROSECONDS[benchmark["time_unit"]],
            "elapsed_us": benchmark["real_time"] * MICROSECONDS[benchmark["time_unit"]],
            "iterations": benchmark["iterations"],
        }
        if "label" in benchmark:
            run["spec"] = benchmark["label"]
        run |= {key: benchmark[key] for key in COUNTERS if key in benchmark}
        if runs and runs[-1]["name"] == run["name"]:  # repetitions: the least disturbed counts
            runs[-1] = min(runs[-1], run, key=lambda repetition: float(repetition["cpu_us"]))
        else:
            runs.append(run)
    result = {
        "machine": {
            "cpu": cpu_model(),
            "cores": context["num_cpus"],
            "caches": [
                f"L{c['level']} {c['type']} {c['size'] // 1024} KiB" for c in context["caches"]
            ],
            "cpu_scaling": context["cpu_scaling_enabled"],
            "load_avg": context["load_avg"],
            "os": os_name(),
        },
        "compiler": context["compiler"],
        "commit": head_commit(),
        "uncommitted_changes": has_changes((*sources, "CMakeLists.txt")),
        "date": context["date"][:10],
        "threads": 1,
        "runs": runs,
    }
    write_result(result_path, result)


def store_select(raw_path: Path, dense_path: Path, result_path: Path) -> None:
    """Output of bench_select and dense_topk.py; the fastest of the repetitions counts."""
    raw = read_json(raw_path)
    sources = ("kernels/src/selection", "masks", "formats", "benchmarks/*select*", "cmake")
    best: dict[str, Run] = {}
    for benchmark in raw["benchmarks"]:
        if benchmark["run_type"] != "iteration":
            continue
        name = benchmark["run_name"].removesuffix("/process_time")
        cpu_us = benchmark["cpu_time"] * MICROSECONDS[benchmark["time_unit"]]
        if name in best and best[name]["cpu_us"] <= cpu_us:
            continue
        run: Run = {"name": name, "cpu_us": cpu_us}
        best[name] = run | {key: benchmark[key] for key in SELECT_COUNTERS if key in benchmark}
    result = {
        "machine": machine_of_today(),
        "compiler": raw["context"]["compiler"],
        "commit": head_commit(),
        "uncommitted_changes": has_changes((*sources, "CMakeLists.txt")),
        "date": today(),
        "runs": list(best.values()),
        "dense": read_json(dense_path),
    }
    write_result(result_path, result)


def store_compression(raw_path: Path, result_path: Path) -> None:
    """The document of compression.py."""
    sources = ("formats", "benchmarks/*compression*", "tests/mask_suite", "cmake", "CMakeLists.txt")
    result = {
        "machine": machine_of_today(),
        "commit": head_commit(),
        "uncommitted_changes": has_changes(sources),
        "date": today(),
    }
    write_result(result_path, result | read_json(raw_path))


def store_estimate(raw_path: Path, result_path: Path) -> None:
    """The document of bench_estimate."""
    result = {"machine": machine_of_today(), "commit": head_commit(), "date": today()}
    write_result(result_path, result | read_json(raw_path))


def store_estimate_gpu(raw_path: Path, result_path: Path) -> None:
    """The document of bench_estimate_gpu.

    FDMA_COMMIT names the commit where the sources are a copy without history.
    """
    commit = os.environ.get("FDMA_COMMIT") or head_commit()
    write_result(result_path, {"commit": commit, "date": today()} | read_json(raw_path))
