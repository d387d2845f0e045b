"""Tables about gradients on the GPU: attention_gpu.json (bench_attention_gpu.py).

Goals are compared as ratios to cuDNN's gradients of full attention (recorded_baselines.py).
"""

from __future__ import annotations

from gpu_report import (
    FLEX_FLOOR,
    Verdicts,
    by_mask,
    flex_of,
    plan_text,
    rows_of,
    speed_cells,
)
from recorded_baselines import BACKWARD, LENGTHS
from report_text import NOT_MEASURED, Run, milliseconds, number, quantile, table, tokens_text

FLOOR = 0.95
DETERMINISTIC_GOAL = 0.85


def to_cudnn_full(runs: list[Run]) -> list[float]:
    """Rates over cuDNN's gradients of full attention.

    cuDNN's are those of the same row, since the state of the card changes within a minute, or of
    row `full` where they were not measured.
    """
    full = {run["tokens"]: run["cudnn_tflops"] for run in runs if run["mask"] == "full"}
    return [
        float(run["fdma_tflops"] / run.get("cudnn_full_tflops", full[run["tokens"]]))
        for run in runs
    ]


def gradients_table(result: Run, verdicts: Verdicts) -> str:
    runs = rows_of(result, "backward", 128, 32)
    normals = to_cudnn_full(runs)
    rows = []
    for run, normal in zip(runs, normals, strict=True):
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
                tokens_text(run["tokens"]),
                *speed_cells(run),
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
    header = ["mask", "tokens", "ms", "predicted", "TFLOP/s", "cuDNN TFLOP/s", "/ cuDNN full"]
    header += ["FDMA / FlashMask", "FDMA / goal", "FDMA / Flex", "deterministic ms"]
    return table([*header, "deterministic", "plan ms"], rows)


def other_shapes_table(result: Run) -> str:
    """Other head sizes, and few heads."""
    rows = []
    for head_dim, heads in ((64, 32), (256, 32), (128, 8)):
        for run in rows_of(result, "backward", head_dim, heads):
            share = run["fdma_ms"] / run["deterministic_ms"]
            rows.append(
                [
                    run["mask"],
                    tokens_text(run["tokens"]),
                    str(heads),
                    str(head_dim),
                    *speed_cells(run),
                    number(run.get("cudnn_tflops")),
                    f"{share:.2f}",
                ]
            )
    header = ["mask", "tokens", "heads", "head_dim", "ms", "predicted", "TFLOP/s"]
    header += ["cuDNN TFLOP/s", "deterministic"]
    return table(header, rows)


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


def summary_table(result: Run) -> str:
    """One row a mask, 32 heads, head_dim 128."""
    runs = rows_of(result, "backward", 128, 32)
    flash: dict[tuple[str, int], float] = {}
    flex: dict[tuple[str, int], float] = {}
    for run, normal in zip(runs, to_cudnn_full(runs), strict=True):
        place = (run["mask"], run["tokens"])
        if floor := BACKWARD.floor(*place):
            flash[place] = normal / floor
        if found := flex_of(result, run, "backward_flex"):
            flex[place] = found["flex_ratio"]
    rows = [
        [
            mask,
            *(number(of_mask[n]["fdma_tflops"]) for n in LENGTHS),
            *(number(flash.get((mask, n)), 2) for n in LENGTHS),
            *(number(flex.get((mask, n)), 2) for n in LENGTHS[:2]),
            *(number(of_mask[n]["fdma_ms"] / of_mask[n]["deterministic_ms"], 2) for n in LENGTHS),
        ]
        for mask, of_mask in by_mask(runs).items()
    ]
    lengths = [tokens_text(n) for n in LENGTHS]
    header = ["mask", *(f"TFLOP/s, {n}" for n in lengths)]
    header += [f"/ FlashMask V3, {n}" for n in lengths]
    header += [f"/ Flex, {n}" for n in lengths[:2]]
    return table([*header, *(f"deterministic, {n}" for n in lengths)], rows)


def tables(result: Run) -> dict[str, str]:
    verdicts = Verdicts()
    gradients = gradients_table(result, verdicts)
    summary = "\n".join(text for text in (verdicts.text(), prediction_text(result)) if text)
    return {
        "attention-gpu-backward-summary": summary or NOT_MEASURED,
        "attention-gpu-backward": gradients,
        "attention-gpu-backward-shapes": other_shapes_table(result),
        "attention-gpu-backward-summary-table": summary_table(result),
    }
