"""Tables of docs/performance.md from python_cpu.json and python_gpu.json (bench_python.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Run = dict[str, Any]
Table = Callable[[list[str], list[list[str]]], str]


def time_text(us: float | None) -> str:
    if us is None:
        return "-"
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{us / factor:.3g} {unit}"
    return f"{us:.3g} us"


def machine(result: Run) -> str:
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


def calls(result: Run, table: Table) -> str:
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


def tables(name: str, result: Run, table: Table) -> dict[str, str]:
    return {f"{name}-machine": machine(result), name: calls(result, table)}
