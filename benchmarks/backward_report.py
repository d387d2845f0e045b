"""The tables of gradients in docs/performance.md from benchmarks/results/attention_gpu.json.

Goals are compared as ratios to cuDNN's gradients of full attention (recorded_peers.py).
"""

from __future__ import annotations

from estimate_report import quantile
from gpu_report import (
    FLEX_FLOOR,
    Run,
    Table,
    Verdicts,
    flex_of,
    milliseconds,
    number,
    plan_text,
    predicted_text,
    rows_of,
    tokens_text,
)
from recorded_peers import BACKWARD

FLOOR = 0.95
DETERMINISTIC_GOAL = 0.85


def gradients_table(result: Run, table: Table, verdicts: Verdicts) -> str:
    runs = rows_of(result, "backward", 128, 32)
    cudnn_full = {run["tokens"]: run["cudnn_tflops"] for run in runs if run["mask"] == "full"}
    rows = []
    for run in runs:
        # cuDNN's of the same row, for the card is not the same a minute later; that of another
        # row where it was not measured.
        full = run.get("cudnn_full_tflops", cudnn_full[run["tokens"]])
        normal = run["fdma_tflops"] / full
        recorded = BACKWARD.floor(run["mask"], run["tokens"])
        wanted = BACKWARD.goal(run["mask"], run["tokens"])
        floor = goal = "-"
        if recorded:
            ratio = normal / recorded
            kind = f"floor, {FLOOR} of FlashMask V3 at 32K and 128K"
            is_judged = run["tokens"] >= 32768
            floor = verdicts.judge(kind, run, ratio, FLOOR) if is_judged else f"{ratio:.2f}"
        if wanted:
            kind = "goal, the best peer"
            goal = verdicts.judge(kind, run, normal / wanted)
        flex, flex_ratio = flex_of(result, run, "backward_flex"), "-"
        if flex is not None:
            kind = f"floor, {FLEX_FLOOR} of FlexAttention"
            flex_ratio = verdicts.judge(kind, run, flex["flex_ratio"], FLEX_FLOOR)
        share = run["fdma_ms"] / run["deterministic_ms"]
        kind = f"goal, {DETERMINISTIC_GOAL} of the speed where gradients are deterministic"
        rows.append(
            [
                run["mask"],
                tokens_text(run),
                milliseconds(run["fdma_ms"]),
                predicted_text(run),
                number(run["fdma_tflops"]),
                number(run.get("cudnn_tflops")),
                f"{normal:.3f}",
                floor,
                goal,
                flex_ratio,
                milliseconds(run["deterministic_ms"]),
                verdicts.judge(kind, run, share, DETERMINISTIC_GOAL),
                plan_text(run),
            ]
        )
    if not rows:
        return "Nothing measured yet."
    header = ["mask", "tokens", "ms", "predicted", "TFLOP/s", "cuDNN TFLOP/s", "/ cuDNN full"]
    header += ["FDMA / FlashMask", "FDMA / goal", "FDMA / Flex", "deterministic ms"]
    return table([*header, "deterministic", "plan ms"], rows)


def other_shapes_table(result: Run, table: Table) -> str:
    """Other head sizes, and few heads."""
    rows = []
    for head_dim, heads in ((64, 32), (256, 32), (128, 8)):
        for run in rows_of(result, "backward", head_dim, heads):
            share = run["fdma_ms"] / run["deterministic_ms"]
            rows.append(
                [
                    run["mask"],
                    tokens_text(run),
                    str(heads),
                    str(head_dim),
                    milliseconds(run["fdma_ms"]),
                    predicted_text(run),
                    number(run["fdma_tflops"]),
                    number(run.get("cudnn_tflops")),
                    f"{share:.2f}",
                ]
            )
    header = ["mask", "tokens", "heads", "head_dim", "ms", "predicted", "TFLOP/s"]
    header += ["cuDNN TFLOP/s", "deterministic"]
    return table(header, rows) if rows else "Nothing measured yet."


def prediction_text(result: Run) -> str:
    """How far predictions are from what was measured, of ordinary and of deterministic calls."""
    lines = []
    for what, prefix, measured in (
        ("", "", "fdma_ms"),
        ("deterministic ", "deterministic_", "deterministic_ms"),
    ):
        errors = [
            abs(run[f"{prefix}predicted_ms"] / run[measured] - 1)
            for run in result["rows"].values()
            if run["part"] == "backward" and f"{prefix}predicted_ms" in run
        ]
        if errors:
            lines.append(
                f"- predicted times of {what}calls (the shipped profile) miss the measured ones of "
                f"{len(errors)} rows by {100 * quantile(errors, 0.5):.1f} % (median), "
                f"{100 * quantile(errors, 0.95):.1f} % (95th percentile)."
            )
    return "\n".join(lines)


def tables(result: Run, table: Table) -> dict[str, str]:
    verdicts = Verdicts()
    gradients = gradients_table(result, table, verdicts)
    summary = "\n".join(text for text in (verdicts.text(), prediction_text(result)) if text)
    return {
        "attention-gpu-backward-summary": summary or "Nothing measured yet.",
        "attention-gpu-backward": gradients,
        "attention-gpu-backward-shapes": other_shapes_table(result, table),
    }
