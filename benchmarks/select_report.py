"""Tables about scores of keys and selection by them: select.json (bench_select, dense_topk.py) and
select_gpu.json (bench_select_gpu.py)."""

from __future__ import annotations

from report_text import Run, bytes_text, goal_text, machine_text, table, time_text, tokens_text

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


def host_selection_table(result: Run) -> str:
    runs = runs_of(result, "select")
    rows = []
    for tokens, w in dict.fromkeys((key[1], key[2]) for key in runs):
        each = [runs[order, tokens, w] for order in HOST_ORDERS]
        rows.append([tokens_text(tokens), w, f"{int(w) / int(tokens):.3g}"])
        rows[-1] += [time_text(run["cpu_us"]) for run in each]
        rows[-1] += [f"{each[0]['intervals']:,.0f}", bytes_text(each[0]["peak_bytes"])]
        rows[-1].append(bytes_text(each[0]["result_bytes"]))
    header = ["tokens", "w", "w / tokens", *HOST_ORDERS, "intervals", "peak memory", "result"]
    return table(header, rows)


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


def host_append_table(result: Run) -> str:
    runs = runs_of(result, "append")
    rows = []
    for tokens, w, chunk in dict.fromkeys((key[1], key[2], key[3]) for key in runs):
        each = [runs[order, tokens, w, chunk] for order in HOST_ORDERS]
        rows.append([tokens_text(tokens), w, chunk])
        rows[-1] += [f"{1e3 * run['cpu_us'] / run['keys']:.1f} ns" for run in each]
        rows[-1].append(bytes_text(each[0]["result_bytes"]))
    return table(["tokens", "w", "keys at a time", *HOST_ORDERS, "memory"], rows)


def host_compile_table(result: Run) -> str:
    runs = runs_of(result, "compile")
    rows = []
    for tokens, w, heads in dict.fromkeys((key[1], key[2], key[3]) for key in runs):
        each = [runs[order, tokens, w, heads] for order in HOST_ORDERS]
        rows.append([tokens_text(tokens), w, heads, *(time_text(run["cpu_us"]) for run in each)])
        rows[-1] += [bytes_text(each[0]["peak_bytes"]), bytes_text(each[0]["result_bytes"])]
        goals = [run for run in each if "target_us" in run]
        met = all(run["cpu_us"] < run["target_us"] for run in goals)
        rows[-1].append(f"< 10 ms: {goal_text(met)}" if goals else "-")
    header = ["tokens", "w", "KV heads", *HOST_ORDERS, "peak memory", "result", "goal"]
    return table(header, rows)


def gradient_texts(run: Run) -> list[str]:
    share = run["backward_bytes"] / run["backward_us"] * 1e6 / run["copy_bytes_per_second"]
    times = (time_text(run[name]) for name in ("backward_us", "sparse_backward_us"))
    return [*times, f"{100 * share:.0f} %"]


def gpu_scores_table(result: Run) -> str:
    has_gradients = all("backward_us" in run for run in result["scores"])
    rows = [
        [
            run["dtype"],
            run["dt_proj"],
            str(run["heads"]),
            tokens_text(run["tokens"]),
            time_text(run["fdma_us"]),
            f"{run['bytes_per_second'] / 1e9:.0f}",
            f"{run['copy_bytes_per_second'] / 1e9:.0f}",
            f"{100 * run['bytes_per_second'] / run['copy_bytes_per_second']:.0f} %",
            *(gradient_texts(run) if has_gradients else ()),
        ]
        for run in result["scores"]
    ]
    header = ["values", "dt_proj", "KV heads", "tokens", "time", "GB/s", "copy GB/s"]
    header.append("of the copy")
    gradients = ["gradients", "sparse, in place", "gradients, of the copy"]
    return table([*header, *(gradients if has_gradients else ())], rows)


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


def gpu_incremental_table(result: Run) -> str:
    rows = [
        [
            str(run["heads"]),
            tokens_text(run["tokens"]),
            f"{run['w']:,}",
            f"{run['chunk']:,}",
            time_text(run["append_us"]),
            time_text(run["append_rising_us"]),
        ]
        for run in result["incremental"]
    ]
    header = ["KV heads", "tokens", "w", "appended", "random", "rising"]
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
        f"{result['head_dim']}; commit {result['commit']}, {result['date']}."
    )


def host_tables(result: Run) -> dict[str, str]:
    return {
        "select-machine": host_machine(result),
        "select-scores": host_scores_table(result),
        "select": host_selection_table(result),
        "select-dense": host_dense_table(result),
        "select-append": host_append_table(result),
        "select-compile": host_compile_table(result),
    }


def gpu_tables(result: Run) -> dict[str, str]:
    return {
        "select-gpu-summary": gpu_summary(result),
        "select-gpu-machine": gpu_fixture(result),
        "select-gpu-scores": gpu_scores_table(result),
        "select-gpu": gpu_selection_table(result),
        "select-gpu-incremental": gpu_incremental_table(result),
    }
