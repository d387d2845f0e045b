"""Tables about attention on the CPU: attention_cpu.json (bench_attention.py)."""

from __future__ import annotations

from report_text import Run, table, time_text, tokens_text

SUMMARY_TOKENS = 4096


def dtype_text(dtype: str) -> str:
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]


def session_table(session: Run) -> str:
    rows = [
        [
            run["mask"],
            tokens_text(run["tokens"]),
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


def machine(result: Run) -> str:
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


def summary(result: Run) -> str:
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


def sessions_tables(result: Run) -> str:
    return "\n\n".join(
        f"Instruction set: {session['isa']}.\n\n{session_table(session)}"
        for session in result["sessions"]
    )


def summary_table(result: Run) -> str:
    """Times of FDMA at SUMMARY_TOKENS, with PyTorch's over them; one column a session and size."""
    columns: list[str] = []
    cells: dict[tuple[str, str], list[str]] = {}
    for session in result["sessions"]:
        runs = [run for run in session["runs"] if run["tokens"] == SUMMARY_TOKENS]
        for head_dim in sorted({run["head_dim"] for run in runs}):
            columns.append(f"{session['isa']}, head_dim {head_dim}")
            for run in runs:
                if run["head_dim"] == head_dim:
                    text = f"{time_text(run['fdma_us'])} ({run['ratio']:.2f})"
                    cells.setdefault((run["mask"], dtype_text(run["dtype"])), []).append(text)
    rows = [[mask, dtype, *found] for (mask, dtype), found in cells.items()]
    return table(["mask", "dtype", *columns], rows)


def tables(result: Run) -> dict[str, str]:
    return {
        "attention-summary": summary(result),
        "attention-machine": machine(result),
        "attention": sessions_tables(result),
        "attention-summary-table": summary_table(result),
    }
