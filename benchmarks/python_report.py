"""Tables about masks compiled from Python: python_{cpu,gpu}.json (bench_python.py)."""

from __future__ import annotations

from collections.abc import Iterator

from report_text import Run, commit_text, host_text, table, time_text, tokens_text


def compile_machine(result: Run) -> str:
    device = "the CPU" if result["device"] == "cpu" else result["device"]
    times = result["import_ms"]
    return (
        f"On {device}; host {host_text(result)}; Python {result['python']}, PyTorch "
        f"{result['torch']}, NumPy {result['numpy']}; {commit_text(result)}; load average "
        f"{result['machine']['load_avg'][0]:.1f} before. "
        f"`import fdma` takes {times['fdma']:.0f} ms where NumPy is imported already (that takes "
        f"{times['numpy']:.0f} ms; PyTorch {times['torch'] / 1e3:.1f} s)."
    )


def ratio_text(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def calls(runs: list[Run]) -> Iterator[tuple[Run, str, str]]:
    """Each call that was timed: its run, the prefix of its times, and when it was."""
    for run in runs:
        yield run, "", run.get("when", "again")
        if "new_fdma_us" in run:
            yield run, "new_", "new documents"


def our_times(run: Run, key: str) -> list[float]:
    """fdma.compile, alone and with to_flex."""
    return [run[f"{key}fdma_us"], run[f"{key}fdma_flex_us"]]


def peer_times(run: Run, key: str) -> list[float | None]:
    """create_block_mask, eager and compiled."""
    return [run[f"{key}eager_us"], run[f"{key}compiled_us"]]


def best_of(times: list[float | None]) -> float | None:
    return min((us for us in times if us is not None), default=None)


def ratio_texts(run: Run, key: str) -> list[str]:
    """The better time of the peer over each of ours."""
    best = best_of(peer_times(run, key))
    return [ratio_text(best / us) if best and us else "-" for us in our_times(run, key)]


def compile_table(result: Run) -> str:
    cold = result["cold"] | {"when": "first call of a process"}
    rows = []
    for run, key, when in calls([cold, *result["runs"]]):
        alone, with_flex = our_times(run, key)
        times = [alone, run.get(f"{key}fdma_function_us"), with_flex, *peer_times(run, key)]
        rows.append([run["mask"], tokens_text(run["tokens"]), when, *map(time_text, times)])
        rows[-1] += ratio_texts(run, key)
    header = ["mask", "tokens", "call", "fdma.compile", "of a mask_mod", "and to_flex"]
    header += ["create_block_mask", "by torch.compile", "its better / compile", "/ to_flex"]
    return table(header, rows)


def summary_table(result: Run) -> str:
    """Calls after the first one, beside the better way of the peer."""
    rows = []
    for run, key, when in calls(result["runs"]):
        times = [*our_times(run, key), best_of(peer_times(run, key))]
        rows.append([run["mask"], tokens_text(run["tokens"]), when, *map(time_text, times)])
        rows[-1] += ratio_texts(run, key)
    header = ["mask", "tokens", "call", "fdma.compile", "and to_flex", "create_block_mask"]
    return table([*header, "/ compile", "/ to_flex"], rows)


def cpu_tables(result: Run) -> dict[str, str]:
    return {"python-cpu-machine": compile_machine(result), "python-cpu": compile_table(result)}


def gpu_tables(result: Run) -> dict[str, str]:
    return {
        "python-gpu-machine": compile_machine(result),
        "python-gpu": compile_table(result),
        "python-summary-table": summary_table(result),
    }
