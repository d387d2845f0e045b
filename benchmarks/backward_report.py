"""Tables about gradients on the GPU: attention_gpu.json (bench_attention_gpu.py).

Goals are compared as ratios to cuDNN's gradients of full attention (recorded_baselines.py).
"""

from __future__ import annotations

import columns
from gpu_report import (
    CUDNN,
    HEAD_DIM,
    HEADS,
    PLAN_MS,
    SPEED,
    TO_CUDNN,
    Verdicts,
    beside_flex,
    flex_column,
    floor_column,
    goal_column,
    ms,
    prediction_text,
    rows_of,
    summary_table,
)
from recorded_baselines import BACKWARD
from report_text import NOT_MEASURED, Run

FLOOR = 0.95
DETERMINISTIC_GOAL = 0.85


def gradients_of(result: Run) -> list[Run]:
    """Rows of 32 heads and head_dim 128, with their rates over cuDNN's gradients of full attention.

    cuDNN's are those of the same row, since the state of the card changes within a minute, or of
    row `full` where they were not measured.
    """
    runs = rows_of(result, "backward", 128, 32)
    full = {run["tokens"]: run["cudnn_tflops"] for run in runs if run["mask"] == "full"}
    runs = [
        run
        | {"to_cudnn_full": run["fdma_tflops"] / run.get("cudnn_full_tflops", full[run["tokens"]])}
        for run in runs
    ]
    return beside_flex(result, runs, "backward_flex")


def share(run: Run) -> float:
    """The speed of a deterministic call, of that of an ordinary one."""
    return float(run["fdma_ms"] / run["deterministic_ms"])


def gradients_table(runs: list[Run], verdicts: Verdicts) -> str:
    floor = f"floor, {FLOOR} of FlashMask V3 at 32K and 128K"
    goal = f"goal, {DETERMINISTIC_GOAL} of the speed where gradients are deterministic"
    shown: tuple[columns.Column, ...] = (
        *(columns.MASK, columns.TOKENS, *SPEED, CUDNN, TO_CUDNN),
        floor_column(verdicts, BACKWARD, floor, FLOOR),
        goal_column(verdicts, BACKWARD, "goal, the best peer"),
        flex_column(verdicts),
        ms("deterministic ms", "deterministic_ms"),
        (
            "deterministic",
            lambda run: verdicts.judge(goal, run, share(run), DETERMINISTIC_GOAL),
        ),
        PLAN_MS,
    )
    return columns.table(shown, runs)


# Other head sizes, and few heads.
SHAPES_COLUMNS: tuple[columns.Column, ...] = (
    *(columns.MASK, columns.TOKENS, HEADS, HEAD_DIM, *SPEED, CUDNN),
    ("deterministic", lambda run: f"{share(run):.2f}"),
)


def tables(result: Run) -> dict[str, str]:
    verdicts = Verdicts()
    runs = gradients_of(result)
    gradients = gradients_table(runs, verdicts)
    ways = (
        ("of calls ", "predicted_ms", "fdma_ms"),
        ("of deterministic calls ", "deterministic_predicted_ms", "deterministic_ms"),
    )
    texts = [verdicts.text(), *(prediction_text(result, "backward", *way) for way in ways)]
    shapes = ((64, 32), (256, 32), (128, 8))
    others = [run for shape in shapes for run in rows_of(result, "backward", *shape)]
    return {
        "attention-gpu-backward-summary": "\n".join(filter(None, texts)) or NOT_MEASURED,
        "attention-gpu-backward": gradients,
        "attention-gpu-backward-shapes": columns.table(SHAPES_COLUMNS, others),
        "attention-gpu-backward-summary-table": summary_table(runs, BACKWARD, share),
    }
