"""The tables of gradients in docs/performance.md from benchmarks/results/attention_gpu.json.

As in gpu_report.py: what others reach was recorded once on the same model of GPU, and goals are
compared as ratios to cuDNN's full attention, here its gradients, of the same run.
"""

from __future__ import annotations

from gpu_report import (
    BUILT_IN,
    LENGTHS,
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

# TFLOP/s on allowed pairs, backward, 32 heads, head_dim 128, by mask: 8K, 32K, 128K.
FLASHMASK: dict[str, tuple[float | None, float | None, float | None]] = {
    "full": (594, 609, 611),
    "causal": (555, 602, 614),
    "sliding_window": (307, 499, 586),
    "causal_document": (446, 484, 570),
    "document": (515, 531, 583),
    "share_question": (333, 382, 518),
    "global_sliding_window": (352, 509, 582),
    "causal_blockwise": (529, 552, 598),
    "prefix_lm_document": (451, 490, 579),
    "prefix_lm_causal": (566, 604, None),
    "qk_sparse": (542, 597, 608),
    "random_eviction": (393, 420, 428),
}
# The better of FlashAttention-3 and -4, where they were recorded.
FLASH_ATTENTION: dict[str, tuple[float | None, float | None, float | None]] = {
    "full": (602, 598, 614),
    "causal": (577, 625, 619),
    "sliding_window": (339, 493, 567),
    "causal_document": (371, 400, None),
    "document": (451, 456, None),
    "random_eviction": (149, 161, None),
}
CUDNN_FULL = (541, 551, 545)
FLOOR = 0.95
DETERMINISTIC_GOAL = 0.85


def goal_of(mask: str, at: int) -> float | None:
    """Recorded TFLOP/s that the goal asks for."""
    attention = FLASH_ATTENTION.get(mask, (None,) * 3)[at]
    if mask in BUILT_IN:
        return attention
    return max((x for x in (FLASHMASK[mask][at], attention) if x), default=None)


def gradients_table(result: Run, table: Table, verdicts: Verdicts) -> str:
    runs = rows_of(result, "backward", 128, 32)
    cudnn_full = {run["tokens"]: run["cudnn_tflops"] for run in runs if run["mask"] == "full"}
    rows = []
    for run in runs:
        at = LENGTHS.index(run["tokens"])
        normal = run["fdma_tflops"] / cudnn_full[run["tokens"]]
        recorded, wanted = FLASHMASK[run["mask"]][at], goal_of(run["mask"], at)
        floor = goal = "-"
        if recorded:
            ratio = normal / (recorded / CUDNN_FULL[at])
            kind = f"floor, {FLOOR} of FlashMask V3 at 32K and 128K"
            is_judged = run["tokens"] >= 32768
            floor = verdicts.judge(kind, run, ratio, FLOOR) if is_judged else f"{ratio:.2f}"
        if wanted:
            kind = "goal, the best peer"
            goal = verdicts.judge(kind, run, normal / (wanted / CUDNN_FULL[at]))
        share = run["fdma_ms"] / run["deterministic_ms"]
        kind = f"goal, {DETERMINISTIC_GOAL} of the speed where gradients are deterministic"
        flex = flex_of(result, run, "backward_flex")
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
                number(flex["flex_ratio"] if flex else None, 2),
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


def tables(result: Run, table: Table) -> dict[str, str]:
    verdicts = Verdicts()
    gradients = gradients_table(result, table, verdicts)
    return {
        "attention-gpu-backward-summary": verdicts.text() or "Nothing measured yet.",
        "attention-gpu-backward": gradients,
        "attention-gpu-backward-shapes": other_shapes_table(result, table),
    }
