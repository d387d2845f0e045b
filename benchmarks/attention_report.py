"""Tables about attention on the CPU: attention_cpu.json (bench_attention.py)."""

from __future__ import annotations

import columns
from report_text import Run, commit_text, time_text

SUMMARY_TOKENS = 4096


DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
DTYPE: columns.Column = ("dtype", lambda run: DTYPES[run["dtype"]])
SESSION_COLUMNS = (
    columns.MASK,
    columns.TOKENS,
    DTYPE,
    columns.value("head_dim", "head_dim"),
    columns.duration("FDMA", "fdma_us"),
    columns.value("GFLOP/s", "fdma_gflops", ".0f"),
    columns.duration("PyTorch", "torch_us"),
    columns.value("GFLOP/s", "torch_gflops", ".0f"),
    columns.value("PyTorch / FDMA", "ratio", ".2f"),
    ("live tiles", lambda run: f"{100 * run['live_tiles']:.1f} %"),
    (
        "time / live tiles",
        lambda run: f"{run['time_per_live_tile']:.2f}" if run["mask"] != "full" else "-",
    ),
)


def machine(result: Run) -> str:
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
        f"heads; {commit_text(result)}. {sessions}. Load average "
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
        f"Instruction set: {session['isa']}.\n\n" + columns.table(SESSION_COLUMNS, session["runs"])
        for session in result["sessions"]
    )


def summary_table(result: Run) -> str:
    """Times of FDMA at SUMMARY_TOKENS, with PyTorch's over them; one column a session and size."""
    runs = [
        run | {"isa": session["isa"]}
        for session in result["sessions"]
        for run in sorted(session["runs"], key=lambda run: int(run["head_dim"]))
        if run["tokens"] == SUMMARY_TOKENS
    ]
    return columns.pivot(
        runs,
        (columns.MASK, DTYPE),
        lambda run: f"{run['isa']}, head_dim {run['head_dim']}",
        lambda run: f"{time_text(run['fdma_us'])} ({run['ratio']:.2f})",
    )


def tables(result: Run) -> dict[str, str]:
    return {
        "attention-summary": summary(result),
        "attention-machine": machine(result),
        "attention": sessions_tables(result),
        "attention-summary-table": summary_table(result),
    }
