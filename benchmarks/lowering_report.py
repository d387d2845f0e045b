"""Tables about compiling masks: lowering.json, set_algebra.json and dense.json."""

from __future__ import annotations

import columns
from report_text import Run, bytes_text, goal_text, machine_text, table, time_text, tokens_text

LONGEST = str(2**20)


def verdict(run: Run) -> str:
    """Whether the goal was met, by time and, where the goal has one, by memory; "-" without one."""
    if "target_us" not in run:
        return "-"
    met = run["cpu_us"] < run["target_us"]
    goal = f"< {time_text(run['target_us'])}"
    if "target_bytes" in run:
        met = met and run["peak_bytes"] < run["target_bytes"]
        goal += f", < {bytes_text(run['target_bytes'])}"
    return f"{goal}: {goal_text(met)}"


def lowered(runs: list[Run], wanted: str) -> dict[tuple[str, str], Run]:
    """Runs named lower/<wanted>/<mask>/<tokens> by mask and tokens."""
    split = {tuple(run["name"].split("/")): run for run in runs}
    return {(name[2], name[3]): run for name, run in split.items() if name[:2] == ("lower", wanted)}


SPEC: columns.Column = ("specification", lambda run: f"`{run['spec']}`")
CPU_TIME = columns.duration("CPU time", "cpu_us")
ELAPSED = columns.duration("elapsed", "elapsed_us")
PEAK = columns.size("peak memory", "peak_bytes")
RESULT = columns.size("result", "result_bytes")
GOAL: columns.Column = ("goal", verdict)


def lowering_table(runs: list[Run], wanted: str) -> str:
    found = lowered(runs, wanted)
    named = [run | {"mask": mask, "tokens": tokens} for (mask, tokens), run in found.items()]
    specs = [SPEC] if wanted in ("predicate", "name") else []
    first = columns.duration("first time", "first_us")
    shown = (columns.MASK, *specs, columns.TOKENS, CPU_TIME, ELAPSED, first, PEAK, RESULT, GOAL)
    return columns.table(shown, named)


def lowering_summary_table(runs: list[Run]) -> str:
    """One row a mask of the suite, and a column of CPU time for each length."""
    found = lowered(runs, "zoo") | lowered(runs, "packed")
    lengths = list(dict.fromkeys(tokens for _, tokens in found))
    rows = []
    for mask in dict.fromkeys(name for name, _ in found):
        of_mask = {tokens: found[mask, tokens] for tokens in lengths if (mask, tokens) in found}
        longest = of_mask[LONGEST]
        rows.append(
            [
                mask,
                *(time_text(of_mask[n]["cpu_us"]) if n in of_mask else "-" for n in lengths),
                bytes_text(longest["peak_bytes"]),
                bytes_text(longest["result_bytes"]),
            ]
        )
    header = ["mask", *(f"{tokens_text(tokens)} tokens" for tokens in lengths)]
    return table([*header, "peak memory, 1M", "result, 1M"], rows)


def rate_text(run: Run) -> str:
    count = run["bytes_per_second"] * run["elapsed_us"] / 1e6
    return f"{count / run['cpu_us'] / 1e3:.2f} GB/s"


DENSE_COLUMNS = (
    columns.value("operation", "name"),
    CPU_TIME,
    ELAPSED,
    ("rate", rate_text),
    PEAK,
    RESULT,
)
OPERATION: tuple[columns.Column, ...] = (
    columns.value("operation", "spec"),
    ("tokens", lambda run: tokens_text(run["name"].split("/")[2])),
    CPU_TIME,
)


def summary(runs: list[Run]) -> str:
    verdicts = [verdict(run) for run in runs]
    met = sum(text.endswith(": met") for text in verdicts)
    goals = sum(text != "-" for text in verdicts)
    missed = [run["name"] for run in runs if verdict(run).endswith("**missed**")]
    return f"{met} of {goals} goals met." + (f" Missed: {', '.join(missed)}." if missed else "")


def tables(lowering: Run) -> dict[str, str]:
    runs = lowering["runs"]
    parsed = [run for run in runs if run["name"].startswith("parse/")]
    content = {name: lowering_table(runs, name) for name in ("zoo", "packed", "predicate", "name")}
    return content | {
        "summary": summary(runs),
        "machine": machine_text(lowering),
        "parse": columns.table([SPEC, columns.duration("time", "cpu_us")], parsed),
        "lowering-summary-table": lowering_summary_table(runs),
        "names-summary-table": columns.table(
            [SPEC, CPU_TIME, RESULT], lowered(runs, "name").values()
        ),
    }


def algebra_tables(algebra: Run) -> dict[str, str]:
    runs = algebra["runs"]
    return {
        "algebra-machine": machine_text(algebra),
        "algebra": columns.table([*OPERATION, ELAPSED, PEAK, RESULT, GOAL], runs),
        "algebra-summary-table": columns.table([*OPERATION, PEAK], runs),
    }


def dense_tables(dense: Run) -> dict[str, str]:
    return {"dense": columns.table(DENSE_COLUMNS, dense["runs"])}
