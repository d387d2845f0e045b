"""Tables about compiling masks: lowering.json, set_algebra.json and dense.json."""

from __future__ import annotations

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


def lowering_table(runs: list[Run], wanted: str) -> str:
    shows_spec = wanted in ("predicate", "name")
    rows = [
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
        for (name, tokens), run in lowered(runs, wanted).items()
    ]
    header = ["mask", *(["specification"] if shows_spec else []), "tokens", "CPU time", "elapsed"]
    return table([*header, "first time", "peak memory", "result", "goal"], rows)


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


def names_summary_table(runs: list[Run]) -> str:
    rows = [
        [f"`{run['spec']}`", time_text(run["cpu_us"]), bytes_text(run["result_bytes"])]
        for run in lowered(runs, "name").values()
    ]
    return table(["specification", "CPU time", "result"], rows)


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


def algebra_summary_table(runs: list[Run]) -> str:
    rows = [
        [
            run["spec"],
            tokens_text(run["name"].split("/")[2]),
            time_text(run["cpu_us"]),
            bytes_text(run["peak_bytes"]),
        ]
        for run in runs
    ]
    return table(["operation", "tokens", "CPU time", "peak memory"], rows)


def summary(runs: list[Run]) -> str:
    verdicts = [verdict(run) for run in runs]
    met = sum(text.endswith(": met") for text in verdicts)
    goals = sum(text != "-" for text in verdicts)
    missed = [run["name"] for run in runs if verdict(run).endswith("**missed**")]
    return f"{met} of {goals} goals met." + (f" Missed: {', '.join(missed)}." if missed else "")


def tables(lowering: Run) -> dict[str, str]:
    runs = lowering["runs"]
    content = {name: lowering_table(runs, name) for name in ("zoo", "packed", "predicate", "name")}
    return content | {
        "summary": summary(runs),
        "machine": machine_text(lowering),
        "parse": parse_table(runs),
        "lowering-summary-table": lowering_summary_table(runs),
        "names-summary-table": names_summary_table(runs),
    }


def algebra_tables(algebra: Run) -> dict[str, str]:
    return {
        "algebra-machine": machine_text(algebra),
        "algebra": algebra_table(algebra["runs"]),
        "algebra-summary-table": algebra_summary_table(algebra["runs"]),
    }


def dense_tables(dense: Run) -> dict[str, str]:
    return {"dense": dense_table(dense["runs"])}
