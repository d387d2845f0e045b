"""From the output of bench_select and dense_topk.py to results/select.json and its tables.

    python3 select_report.py store <bench_select.json> <dense_topk.json> <result.json>
    python3 select_report.py tables <result.json> <performance.md>

Of repetitions the fastest counts: what makes the others slower is the machine, not the code.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from make_report import (
    MICROSECONDS,
    bytes_text,
    git,
    machine_of_today,
    machine_text,
    replace_tables,
    table,
    time_text,
    tokens_text,
)

Run = dict[str, Any]

COUNTERS = ("bytes_per_second", "peak_bytes", "result_bytes", "intervals", "keys", "target_us")
SOURCES = (
    "kernels/src/selection",
    "masks",
    "formats",
    "benchmarks/*select*",
    "cmake",
    "CMakeLists.txt",
)
ORDERS = ("random", "rising", "clustered")


def store(raw_path: Path, dense_path: Path, result_path: Path) -> None:
    raw = json.loads(raw_path.read_text(encoding="utf-8"))
    best: dict[str, Run] = {}
    for benchmark in raw["benchmarks"]:
        if benchmark["run_type"] != "iteration":
            continue
        name = benchmark["run_name"].removesuffix("/process_time")
        cpu_us = benchmark["cpu_time"] * MICROSECONDS[benchmark["time_unit"]]
        if name in best and best[name]["cpu_us"] <= cpu_us:
            continue
        run: Run = {"name": name, "cpu_us": cpu_us}
        best[name] = run | {key: benchmark[key] for key in COUNTERS if key in benchmark}
    result = {
        "machine": machine_of_today(),
        "compiler": raw["context"]["compiler"],
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--", *SOURCES)),
        "date": datetime.now(tz=UTC).date().isoformat(),
        "runs": list(best.values()),
        "dense": json.loads(dense_path.read_text(encoding="utf-8")),
    }
    result_path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def runs_of(result: Run, operation: str) -> dict[tuple[str, ...], Run]:
    """Runs named <operation>/<key>/<key>.. by their keys."""
    split = {tuple(run["name"].split("/")): run for run in result["runs"]}
    return {name[1:]: run for name, run in split.items() if name[0] == operation}


def scores_table(result: Run) -> str:
    limit = max(
        run["bytes_per_second"] for key, run in runs_of(result, "read").items() if key != ("1",)
    )
    rows = []
    for (dtype, heads, tokens), run in runs_of(result, "scores").items():
        rate = run["bytes_per_second"]
        name = "bfloat16, wide dt_proj" if dtype == "wide" else dtype
        rows.append(
            [name, heads, tokens_text(tokens), time_text(run["cpu_us"]), f"{rate / 1e9:.1f} GB/s"]
        )
        rows[-1].append(f"{100 * rate / limit:.0f} %")
    header = ["values", "KV heads", "tokens", "CPU time", "rate", "of reading memory"]
    return table(header, rows)


def select_table(result: Run) -> str:
    runs = runs_of(result, "select")
    rows = []
    for tokens, w in dict.fromkeys((key[1], key[2]) for key in runs):
        each = [runs[order, tokens, w] for order in ORDERS]
        rows.append([tokens_text(tokens), w, f"{int(w) / int(tokens):.3g}"])
        rows[-1] += [time_text(run["cpu_us"]) for run in each]
        rows[-1] += [f"{each[0]['intervals']:,.0f}", bytes_text(each[0]["peak_bytes"])]
        rows[-1].append(bytes_text(each[0]["result_bytes"]))
    header = ["tokens", "w", "w / tokens", *ORDERS, "intervals", "peak memory", "result"]
    return table(header, rows)


def dense_table(result: Run) -> str:
    runs = runs_of(result, "select")
    rows = []
    for dense in result["dense"]["runs"]:
        tokens, w = str(dense["tokens"]), str(dense["w"])
        ours = runs.get(("random", tokens, w))
        rows.append(
            [tokens_text(tokens), w, time_text(dense["cpu_us"]), bytes_text(dense["bytes"])]
        )
        rows[-1] += (
            [time_text(ours["cpu_us"]), f"{dense['cpu_us'] / ours['cpu_us']:,.0f}"]
            if ours
            else ["-", "-"]
        )
        rows[-1].append(bytes_text(ours["result_bytes"]) if ours else "-")
    header = ["tokens", "w", "dense", "dense scores", "FDMA", "dense / FDMA", "result"]
    return table(header, rows)


def append_table(result: Run) -> str:
    runs = runs_of(result, "append")
    rows = []
    for tokens, w, chunk in dict.fromkeys((key[1], key[2], key[3]) for key in runs):
        each = [runs[order, tokens, w, chunk] for order in ORDERS]
        rows.append([tokens_text(tokens), w, chunk])
        rows[-1] += [f"{1e3 * run['cpu_us'] / run['keys']:.1f} ns" for run in each]
        rows[-1].append(bytes_text(each[0]["result_bytes"]))
    return table(["tokens", "w", "keys at a time", *ORDERS, "memory"], rows)


def compile_table(result: Run) -> str:
    runs = runs_of(result, "compile")
    rows = []
    for tokens, w, heads in dict.fromkeys((key[1], key[2], key[3]) for key in runs):
        each = [runs[order, tokens, w, heads] for order in ORDERS]
        rows.append([tokens_text(tokens), w, heads, *(time_text(run["cpu_us"]) for run in each)])
        rows[-1] += [bytes_text(each[0]["peak_bytes"]), bytes_text(each[0]["result_bytes"])]
        goals = [run for run in each if "target_us" in run]
        met = all(run["cpu_us"] < run["target_us"] for run in goals)
        rows[-1].append(f"< 10 ms: {'met' if met else '**missed**'}" if goals else "-")
    header = ["tokens", "w", "KV heads", *ORDERS, "peak memory", "result", "goal"]
    return table(header, rows)


def tables(result_path: Path, page: Path) -> None:
    result = json.loads(result_path.read_text(encoding="utf-8"))
    limit = runs_of(result, "read")["256",]["bytes_per_second"]
    load = result["machine"]["load_avg"][0]
    replace_tables(
        page,
        {
            "select-machine": f"{machine_text(result)} Load average {load:.1f}; a plain sum over "
            f"256 MiB reads {limit / 1e9:.1f} GB/s. Dense: {result['dense']['tool']}.",
            "select-scores": scores_table(result),
            "select": select_table(result),
            "select-dense": dense_table(result),
            "select-append": append_table(result),
            "select-compile": compile_table(result),
        },
    )


def main() -> None:
    verb, *words = sys.argv[1:]
    paths = [Path(word) for word in words]
    if verb == "store":
        store(paths[0], paths[1], paths[2])
    else:
        tables(paths[0], paths[1])


if __name__ == "__main__":
    main()
