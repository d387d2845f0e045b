"""Tables about scores of keys and selection by them: select.json (bench_select, dense_topk.py) and
select_gpu.json (bench_select_gpu.py)."""

from __future__ import annotations

from collections.abc import Callable

import columns
from report_text import (
    Run,
    bytes_text,
    commit_text,
    goal_text,
    machine_text,
    table,
    time_text,
    tokens_text,
)

HOST_ORDERS = ("random", "rising", "clustered")
GPU_ORDERS = (*HOST_ORDERS, "drifting")
# 5 % of the time of attention forward (7.2 to 8.5 ms) at 128K tokens, 32 heads, w = 2,048.
GOAL_US = 360.0
COPY_SHARE = 0.8


def runs_of(result: Run, operation: str) -> dict[tuple[str, ...], Run]:
    """Runs named <operation>/<key>/<key>.. by their keys."""
    split = {tuple(run["name"].split("/")): run for run in result["runs"]}
    return {name[1:]: run for name, run in split.items() if name[0] == operation}


def host_scores_table(result: Run) -> str:
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


def by_order(result: Run, operation: str, *fields: str) -> list[Run]:
    """One row for all orders of scores: the run of the first one, its time in each of them, and the
    rest of its keys under `fields`."""
    found: dict[tuple[str, ...], Run] = {}
    for (order, *key), run in runs_of(result, operation).items():
        row = found.setdefault(tuple(key), run | dict(zip(fields, key, strict=True)))
        row[order] = run["cpu_us"]
    return list(found.values())


def compile_goal(run: Run) -> str:
    if "target_us" not in run:
        return "-"
    return f"< 10 ms: {goal_text(all(run[order] < run['target_us'] for order in HOST_ORDERS))}"


def time_of_key(order: str) -> columns.Column:
    return order, lambda run: f"{1e3 * run[order] / run['keys']:.1f} ns"


WIDTH = columns.value("w", "w")
HOST_TIMES = tuple(columns.duration(order, order) for order in HOST_ORDERS)
MEMORY = (columns.size("peak memory", "peak_bytes"), columns.size("result", "result_bytes"))
SELECTION_COLUMNS: tuple[columns.Column, ...] = (
    *(columns.TOKENS, WIDTH),
    ("w / tokens", lambda run: f"{int(run['w']) / int(run['tokens']):.3g}"),
    *HOST_TIMES,
    columns.value("intervals", "intervals", ",.0f"),
    *MEMORY,
)
APPEND_COLUMNS = (
    *(columns.TOKENS, WIDTH, columns.value("keys at a time", "chunk")),
    *map(time_of_key, HOST_ORDERS),
    columns.size("memory", "result_bytes"),
)
COMPILE_COLUMNS: tuple[columns.Column, ...] = (
    *(columns.TOKENS, WIDTH, columns.value("KV heads", "heads")),
    *HOST_TIMES,
    *MEMORY,
    ("goal", compile_goal),
)


def host_dense_table(result: Run) -> str:
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


def share_column(header: str, rate_of: Callable[[Run], float]) -> columns.Column:
    """A rate, of that of a copy."""
    return header, lambda run: f"{100 * rate_of(run) / run['copy_bytes_per_second']:.0f} %"


def gb_per_s(header: str, key: str) -> columns.Column:
    return header, lambda run: f"{run[key] / 1e9:.0f}"


KV_HEADS = columns.value("KV heads", "heads")
SCORES_COLUMNS = (
    columns.value("values", "dtype"),
    columns.value("dt_proj", "dt_proj"),
    KV_HEADS,
    columns.TOKENS,
    columns.duration("time", "fdma_us"),
    gb_per_s("GB/s", "bytes_per_second"),
    gb_per_s("copy GB/s", "copy_bytes_per_second"),
    share_column("of the copy", lambda run: float(run["bytes_per_second"])),
    columns.duration("gradients", "backward_us"),
    columns.duration("sparse, in place", "sparse_backward_us"),
    share_column(
        "gradients, of the copy", lambda run: run["backward_bytes"] / run["backward_us"] * 1e6
    ),
)
INCREMENTAL_COLUMNS = (
    KV_HEADS,
    columns.TOKENS,
    columns.value("w", "w", ","),
    columns.value("appended", "chunk", ","),
    columns.duration("random", "append_us"),
    columns.duration("rising", "append_rising_us"),
)


def gpu_selection_table(result: Run) -> str:
    cases: dict[tuple[int, int, int], dict[str, Run]] = {}
    for run in result["selection"]:
        cases.setdefault((run["heads"], run["tokens"], run["w"]), {})[run["order"]] = run
    rows = []
    for (heads, tokens, width), runs in cases.items():
        random = runs["random"]
        rows.append(
            [
                str(heads),
                tokens_text(tokens),
                f"{width:,}",
                *(
                    time_text(runs[order]["fdma_us"]) if order in runs else "-"
                    for order in GPU_ORDERS
                ),
                f"{random['intervals'] / heads:,.0f}",
                bytes_text(random["workspace_bytes"]),
                time_text(random["dense_us"]) if "dense_us" in random else "-",
            ]
        )
    header = ["KV heads", "tokens", "w", *GPU_ORDERS, "intervals a head", "workspace", "dense topk"]
    return table(header, rows)


def gpu_summary(result: Run) -> str:
    lines = []
    for dt_proj in ("per head", "wide"):
        shares = [
            run["bytes_per_second"] / run["copy_bytes_per_second"]
            for run in result["scores"]
            if run["dt_proj"] == dt_proj and run["bytes"] >= 2**27
        ]
        if not shares:
            continue
        met = sum(share >= COPY_SHARE for share in shares)
        lines.append(
            f"- Scores from 128 MiB of values on, dt_proj {dt_proj}: "
            f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of the rate of a copy (goal: "
            f"80 %; met in {met} of {len(shares)} cases)."
        )
    goal = [
        run
        for run in result["selection"]
        if run["tokens"] == 131072 and run["heads"] == 32 and run["w"] == 2048
    ]
    if goal:
        worst = max(run["fdma_us"] for run in goal)
        lines.append(
            f"- Selection at 128K tokens, 32 heads, w = 2,048: {time_text(worst)} for the slowest "
            f"of {len({run['order'] for run in goal})} orders of scores (goal, with the plan: 5 % "
            f"of attention forward, {time_text(GOAL_US)}; selection alone: "
            f"{goal_text(worst <= GOAL_US)})."
        )
    return "\n".join(lines)


def host_machine(result: Run) -> str:
    limit = runs_of(result, "read")["256",]["bytes_per_second"]
    load = result["machine"]["load_avg"][0]
    return (
        f"{machine_text(result)} Load average {load:.1f}; a plain sum over 256 MiB reads "
        f"{limit / 1e9:.1f} GB/s. Dense: {result['dense']['tool']}."
    )


def gpu_fixture(result: Run) -> str:
    return (
        f"{result['gpu']}, CUDA {result['cuda']}, PyTorch {result['torch']}; head_dim "
        f"{result['head_dim']}; {commit_text(result)}."
    )


def host_tables(result: Run) -> dict[str, str]:
    selected = by_order(result, "select", "tokens", "w")
    appended = by_order(result, "append", "tokens", "w", "chunk")
    compiled = by_order(result, "compile", "tokens", "w", "heads")
    return {
        "select-machine": host_machine(result),
        "select-scores": host_scores_table(result),
        "select": columns.table(SELECTION_COLUMNS, selected),
        "select-dense": host_dense_table(result),
        "select-append": columns.table(APPEND_COLUMNS, appended),
        "select-compile": columns.table(COMPILE_COLUMNS, compiled),
    }


def gpu_tables(result: Run) -> dict[str, str]:
    return {
        "select-gpu-summary": gpu_summary(result),
        "select-gpu-machine": gpu_fixture(result),
        "select-gpu-scores": columns.table(SCORES_COLUMNS, result["scores"]),
        "select-gpu": gpu_selection_table(result),
        "select-gpu-incremental": columns.table(INCREMENTAL_COLUMNS, result["incremental"]),
    }
