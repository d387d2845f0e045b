"""From Google Benchmark output to benchmarks/results/*.json and the tables of docs/performance.md.

    python3 make_report.py store <raw.json> <result.json>
    python3 make_report.py store-estimate <raw.json> <result.json>
    python3 make_report.py store-estimate-gpu <raw.json> <result.json>
    python3 make_report.py tables <folder of results> <performance.md>

`store` keeps the measurements and states machine, compiler, commit and date; what identifies a
person's computer (host name, paths) is left out. `tables` replaces what stands between the lines
`<!-- table NAME -->` and `<!-- end -->` in the page.
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

import backward_report
import dense_files_report
import estimate_report
import gpu_report
import python_report
import select_gpu_report
import topk_gpu_report
import training_report

Run = dict[str, Any]

COUNTERS = (
    "first_us",
    "peak_bytes",
    "result_bytes",
    "distinct_share",
    "target_us",
    "target_bytes",
    "bytes_per_second",
)
MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def store(raw_path: Path, result_path: Path) -> None:
    raw = json.loads(raw_path.read_text(encoding="utf-8"))
    context = raw["context"]
    sources = (
        "formats",
        "masks",
        "benchmarks/*.cpp",
        "tests/mask_suite",
        "cmake",
        "CMakeLists.txt",
    )
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
            "os": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        },
        "compiler": context["compiler"],
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--", *sources)),
        "date": context["date"][:10],
        "threads": 1,
        "runs": runs,
    }
    result_path.parent.mkdir(parents=True, exist_ok=True)
    result_path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def time_text(us: float) -> str:
    for factor, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "us")):
        if us >= factor:
            return f"{us / factor:.3g} {unit}"
    return f"{us * 1e3:.3g} ns"


def bytes_text(count: float) -> str:
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= factor:
            value = count / factor
            return f"{value:.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
    return f"{count:.0f} B"


def verdict(run: Run) -> str:
    """Whether the goal was met, by time and, where the goal has one, by memory; "-" without one."""
    if "target_us" not in run:
        return "-"
    met = run["cpu_us"] < run["target_us"]
    goal = f"< {time_text(run['target_us'])}"
    if "target_bytes" in run:
        met = met and run["peak_bytes"] < run["target_bytes"]
        goal += f", < {bytes_text(run['target_bytes'])}"
    return f"{goal}: {'met' if met else '**missed**'}"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def tokens_text(tokens: str) -> str:
    count = int(tokens)
    return f"{count // 2**20}M" if count >= 2**20 else f"{count // 1024}K"


def lowering_table(runs: list[Run], wanted: str) -> str:
    shows_spec = wanted in ("predicate", "name")
    rows = []
    for run in runs:
        operation, _, rest = run["name"].partition("/")
        if operation != "lower" or rest.split("/")[0] != wanted:
            continue
        _, name, tokens = rest.split("/")
        rows.append(
            [
                name,
                *([f"`{run['spec']}`"] if shows_spec else []),
                tokens_text(tokens),
                time_text(run["cpu_us"]),
                time_text(run["elapsed_us"]),
                time_text(run["first_us"]),
                bytes_text(run["peak_bytes"]),
                bytes_text(run["result_bytes"]),
                verdict(run),
            ]
        )
    header = ["mask", *(["specification"] if shows_spec else []), "tokens", "CPU time", "elapsed"]
    return table([*header, "first time", "peak memory", "result", "goal"], rows)


def parse_table(runs: list[Run]) -> str:
    rows = [
        [f"`{run['spec']}`", time_text(run["cpu_us"])]
        for run in runs
        if run["name"].startswith("parse/")
    ]
    return table(["specification", "time"], rows)


def dense_table(runs: list[Run]) -> str:
    rows = []
    for run in runs:
        count = run["bytes_per_second"] * run["elapsed_us"] / 1e6
        rows.append(
            [
                run["name"],
                time_text(run["cpu_us"]),
                time_text(run["elapsed_us"]),
                f"{count / run['cpu_us'] / 1e3:.2f} GB/s",
                bytes_text(run["peak_bytes"]) if "peak_bytes" in run else "-",
                bytes_text(run["result_bytes"]) if "result_bytes" in run else "-",
            ]
        )
    return table(["operation", "CPU time", "elapsed", "rate", "peak memory", "result"], rows)


def algebra_table(runs: list[Run]) -> str:
    rows = [
        [
            run["spec"],
            tokens_text(run["name"].split("/")[2]),
            time_text(run["cpu_us"]),
            time_text(run["elapsed_us"]),
            bytes_text(run["peak_bytes"]),
            bytes_text(run["result_bytes"]),
            verdict(run),
        ]
        for run in runs
    ]
    header = ["operation", "tokens", "CPU time", "elapsed", "peak memory", "result", "goal"]
    return table(header, rows)


def dtype_text(dtype: str) -> str:
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]


def attention_table(session: Run) -> str:
    rows = [
        [
            run["mask"],
            tokens_text(str(run["tokens"])),
            dtype_text(run["dtype"]),
            str(run["head_dim"]),
            time_text(run["fdma_us"]),
            f"{run['fdma_gflops']:.0f}",
            time_text(run["torch_us"]),
            f"{run['torch_gflops']:.0f}",
            f"{run['ratio']:.2f}",
            f"{100 * run['live_tiles']:.1f} %",
            f"{run['time_per_live_tile']:.2f}" if run["mask"] != "full" else "-",
        ]
        for run in session["runs"]
    ]
    header = ["mask", "tokens", "dtype", "head_dim", "FDMA", "GFLOP/s", "PyTorch", "GFLOP/s"]
    return table([*header, "PyTorch / FDMA", "live tiles", "time / live tiles"], rows)


def attention_machine(result: Run) -> str:
    changed = " with uncommitted changes" if result["uncommitted_changes"] else ""
    machine = result["machine"]
    sessions = "; ".join(
        f"{session['isa']}: FDMA runs with {session['fdma_target']}, PyTorch with "
        f"{session['torch_capability']}, sgemm reaches {session['sgemm_gflops']:.0f} GFLOP/s"
        for session in result["sessions"]
    )
    return (
        f"{machine['cpu']}, {result['threads']} threads of {machine['cores']} cores "
        f"({', '.join(machine['flags'])}), {machine['os']}; PyTorch "
        f"{result['sessions'][0]['torch_version']}; batch {result['batch']}, {result['heads']} "
        f"heads; commit {result['commit']}{changed}, {result['date']}. {sessions}. Load average "
        f"{machine['load_avg'][0]:.1f} before, {machine['load_avg'][3]:.1f} after."
    )


def attention_summary(result: Run) -> str:
    """The goals of full attention and of masked attention, counted for each session."""
    lines = []
    for session in result["sessions"]:
        full = [
            run
            for run in session["runs"]
            if run["mask"] == "full" and run["tokens"] >= 4096 and run["dtype"] != "float16"
        ]
        masked = [run for run in session["runs"] if run["mask"] != "full"]
        line = f"- {session['isa']}:"
        if full:
            ratios = [run["ratio"] for run in full]
            line += f" full attention at 4K and 8K takes PyTorch {min(ratios):.2f} to "
            line += f"{max(ratios):.2f} times as long as FDMA"
            if not session["has_bf16_instructions"]:
                met = sum(ratio >= 0.9 for ratio in ratios)
                line += f" (goal: 0.9 or more; met in {met} of {len(full)} cases)"
            line += ";"
        near = sum(run["time_per_live_tile"] <= 1.15 for run in masked)
        line += f" masked attention is within 15 % of its share of live tiles in {near} of "
        line += f"{len(masked)} cases (goal: all)."
        lines.append(line)
    return "\n".join(lines)


def attention_tables(result: Run) -> str:
    return "\n\n".join(
        f"Instruction set: {session['isa']}.\n\n{attention_table(session)}"
        for session in result["sessions"]
    )


def machine_text(result: dict[str, Any]) -> str:
    machine = result["machine"]
    changed = " with uncommitted changes" if result["uncommitted_changes"] else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['os']}; {result['compiler']}; "
        f"one thread; commit {result['commit']}{changed}, {result['date']}."
    )


def summary(runs: list[Run]) -> str:
    verdicts = [verdict(run) for run in runs]
    met = sum(text.endswith(": met") for text in verdicts)
    goals = sum(text != "-" for text in verdicts)
    missed = [run["name"] for run in runs if verdict(run).endswith("**missed**")]
    return f"{met} of {goals} goals met." + (f" Missed: {', '.join(missed)}." if missed else "")


def tables(results: Path, page: Path) -> None:
    lowering = json.loads((results / "lowering.json").read_text(encoding="utf-8"))
    dense = json.loads((results / "dense.json").read_text(encoding="utf-8"))
    content = {
        "summary": summary(lowering["runs"]),
        "machine": machine_text(lowering),
        "parse": parse_table(lowering["runs"]),
        "dense": dense_table(dense["runs"]),
    }
    algebra_path = results / "set_algebra.json"
    if algebra_path.exists():
        algebra = json.loads(algebra_path.read_text(encoding="utf-8"))
        content["algebra-machine"] = machine_text(algebra)
        content["algebra"] = algebra_table(algebra["runs"])
    attention_path = results / "attention_cpu.json"
    if attention_path.exists():
        attention = json.loads(attention_path.read_text(encoding="utf-8"))
        content["attention-summary"] = attention_summary(attention)
        content["attention-machine"] = attention_machine(attention)
        content["attention"] = attention_tables(attention)
    gpu_path = results / "attention_gpu.json"
    if gpu_path.exists():
        gpu = json.loads(gpu_path.read_text(encoding="utf-8"))
        content |= gpu_report.tables(gpu, table)
        content |= backward_report.tables(gpu, table)
    select_gpu_path = results / "select_gpu.json"
    if select_gpu_path.exists():
        select_gpu = json.loads(select_gpu_path.read_text(encoding="utf-8"))
        content |= select_gpu_report.tables(select_gpu, table)
    topk_gpu_path = results / "topk_gpu.json"
    if topk_gpu_path.exists():
        topk_gpu = json.loads(topk_gpu_path.read_text(encoding="utf-8"))
        content |= topk_gpu_report.tables(topk_gpu, table)
    training_path = results / "training_gpu.json"
    if training_path.exists():
        training = json.loads(training_path.read_text(encoding="utf-8"))
        content |= training_report.tables(training, table)
        training_report.draw_if_possible(training, page.parent / "images")
    files_path = results / "dense_files.json"
    if files_path.exists():
        files = json.loads(files_path.read_text(encoding="utf-8"))
        content |= dense_files_report.tables(files, table)
    estimate_path = results / "estimate.json"
    if estimate_path.exists():
        estimate = json.loads(estimate_path.read_text(encoding="utf-8"))
        content |= estimate_report.tables(estimate, table)
    for suffix in ("", "-backward"):
        estimate_gpu_path = results / f"estimate_gpu{suffix.replace('-', '_')}.json"
        if estimate_gpu_path.exists():
            estimate_gpu = json.loads(estimate_gpu_path.read_text(encoding="utf-8"))
            content |= estimate_report.gpu_tables(estimate_gpu, table, suffix)
    for name in ("python_cpu", "python_gpu"):
        path = results / f"{name}.json"
        if path.exists():
            python = json.loads(path.read_text(encoding="utf-8"))
            content |= python_report.tables(name.replace("_", "-"), python, table)
    for name in ("zoo", "packed", "predicate", "name"):
        content[name] = lowering_table(lowering["runs"], name)
    replace_tables(page, content)


def replace_tables(page: Path, content: dict[str, str]) -> None:
    """Puts each text between the lines `<!-- table NAME -->` and `<!-- end -->` of the page."""
    text = page.read_text(encoding="utf-8")
    for name, generated in content.items():
        begin = f"<!-- table {name} -->\n"
        before, found, after = text.partition(begin)
        _, end, rest = after.partition("<!-- end -->")
        if not found or not end:
            sys.exit(f"{page}: no lines '{begin.strip()}' and '<!-- end -->'")
        text = f"{before}{begin}{generated}\n{end}{rest}"
    page.write_text(text, encoding="utf-8")


def machine_of_today() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_avg": os.getloadavg(),
        "os": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
    }


def store_compression(raw_path: Path, result_path: Path) -> None:
    """Adds machine, commit and date to the document of compression.py."""
    sources = ("formats", "benchmarks/*compression*", "tests/mask_suite", "cmake", "CMakeLists.txt")
    result = {
        "machine": machine_of_today(),
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--", *sources)),
        "date": datetime.now(tz=UTC).date().isoformat(),
    } | json.loads(raw_path.read_text(encoding="utf-8"))
    result_path.parent.mkdir(parents=True, exist_ok=True)
    result_path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def store_estimate(raw_path: Path, result_path: Path) -> None:
    estimate_report.store(
        raw_path, result_path, cpu_model(), git("rev-parse", "--short=12", "HEAD")
    )


def store_estimate_gpu(raw_path: Path, result_path: Path) -> None:
    """FDMA_COMMIT names the commit where the sources are a copy without history."""
    commit = os.environ.get("FDMA_COMMIT") or git("rev-parse", "--short=12", "HEAD")
    estimate_report.store_gpu(raw_path, result_path, commit)


def main() -> None:
    verb, first, second = sys.argv[1:]
    verbs = {
        "store": store,
        "store-estimate": store_estimate,
        "store-estimate-gpu": store_estimate_gpu,
        "tables": tables,
    }
    verbs[verb](Path(first), Path(second))


if __name__ == "__main__":
    main()
