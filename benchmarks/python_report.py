"""Tables about masks compiled from Python: python_{cpu,gpu}.json (bench_python.py)."""

from __future__ import annotations

from report_text import Run, table, time_text


def compile_machine(result: Run) -> str:
    host = result["machine"]
    device = "the CPU" if result["device"] == "cpu" else result["device"]
    times = result["import_ms"]
    return (
        f"On {device}; host {host['cpu']}, {host['cores']} cores, {host['os']}; Python "
        f"{result['python']}, PyTorch {result['torch']}, NumPy {result['numpy']}; commit "
        f"{result['commit']}, {result['date']}; load average {host['load_avg'][0]:.1f} before. "
        f"`import fdma` takes {times['fdma']:.0f} ms where NumPy is imported already (that takes "
        f"{times['numpy']:.0f} ms; PyTorch {times['torch'] / 1e3:.1f} s)."
    )


def ratio_text(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def compile_table(result: Run) -> str:
    rows = []
    for run in [result["cold"] | {"when": "first call of a process"}, *result["runs"]]:
        prefix = [run["mask"], f"{run['tokens'] // 1024}K"]
        parts = [("", run.get("when", "again"))]
        parts += [("new_", "new documents")] if "new_fdma_us" in run else []
        for key, when in parts:
            peers = [run[f"{key}eager_us"], run[f"{key}compiled_us"]]
            ours = [run[f"{key}fdma_us"], run[f"{key}fdma_flex_us"]]
            known = [us for us in peers if us is not None]
            rows.append(
                [
                    *prefix,
                    when,
                    time_text(ours[0]),
                    time_text(run.get(f"{key}fdma_function_us")),
                    time_text(ours[1]),
                    *map(time_text, peers),
                    *(ratio_text(min(known) / us) if known and us else "-" for us in ours),
                ]
            )
    header = ["mask", "tokens", "call", "fdma.compile", "of a mask_mod", "and to_flex"]
    header += ["create_block_mask", "by torch.compile", "its better / compile", "/ to_flex"]
    return table(header, rows)


def summary_table(result: Run) -> str:
    """Calls after the first one, without the ways that are between the two ends."""
    rows = []
    for run in result["runs"]:
        for key, when in (("", "again"), ("new_", "new documents")):
            if f"{key}fdma_us" not in run:
                continue
            peers = [run[f"{key}eager_us"], run[f"{key}compiled_us"]]
            known = [us for us in peers if us is not None]
            ours = [run[f"{key}fdma_us"], run[f"{key}fdma_flex_us"]]
            rows.append(
                [
                    run["mask"],
                    f"{run['tokens'] // 1024}K",
                    when,
                    *map(time_text, ours),
                    time_text(min(known, default=None)),
                    *(ratio_text(min(known) / us) if known and us else "-" for us in ours),
                ]
            )
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
