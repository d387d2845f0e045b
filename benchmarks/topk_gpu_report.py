"""Tables about Dynamic Mask Attention on the GPU: topk_gpu.json (bench_topk_gpu.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import columns
from report_text import Run, commits_of, goal_text, time_text, tokens_text

# At 128K tokens, w = 2,048, 32 heads, head_dim 128.
GOAL_MS, FLOOR_MS = 7.2, 8.5
BACKWARD_GOAL_MS, BACKWARD_FLOOR_MS = 22.0, 33.0
# Both passes: a step of dense causal attention by FlashAttention-3, as recorded, over this.
DENSE_STEP_MS = 793.0
STEP_GOAL, STEP_FLOOR = 27.0, 19.0
PLAN_SHARE = 0.05
BEFORE_SHARE = 0.1
# Times faster than full attention, claimed for the method and measured by the prototype.
CLAIMED = {1024: "3.3-4.0", 4096: "5.0-6.7", 16384: "6.7-10", 65536: "8-13.3"}
PROTOTYPE = {1024: 2.8, 4096: 7.2, 16384: 16.4, 65536: 34.9}
NOISE = 0.01  # of ratios
# To read masks of scattered keys, as bench_topk_gpu.py measures them (column_ways.py).
WAYS = ("scan", "gather", "reorder", "automatic")
RATIO_OF = {1024: 0.2, 4096: 0.1, 16384: 0.05, 65536: 0.025}


def rows_of(result: Run, part: str) -> list[Run]:
    rows = [row for row in result["rows"].values() if row["part"] == part]
    fields = ("tokens", "width", "order")
    return sorted(
        rows, key=lambda row: (-row["head_dim"], -row["heads_kv"], *(row[f] for f in fields))
    )


def optional(header: str, key: str, text: Callable[[Any], str]) -> columns.Column:
    return header, lambda row: text(row[key]) if key in row else "-"


def stage(header: str, name: str) -> columns.Column:
    return optional(header, f"{name}_ms", lambda ms: time_text(1e3 * ms))


def speedup(header: str, key: str) -> columns.Column:
    return optional(header, key, lambda ratio: f"{ratio:.2f}x")


WIDTH = columns.value("w", "width", ",")
HEADS: columns.Column = ("heads / KV", lambda row: f"{row['heads']} / {row['heads_kv']}")
HEAD_DIM = columns.value("head_dim", "head_dim")
ORDER = columns.value("order", "order")
READING = columns.value("reading", "reading")
SELECTION = (
    stage("scores", "scores"),
    stage("selection", "selection"),
    stage("index lists", "lists"),
    stage("attention", "attention"),
)
SPEEDUPS = (
    speedup("cuDNN full", "cudnn_full_speedup"),
    speedup("cuDNN causal", "cudnn_causal_speedup"),
)
STAGES_COLUMNS = (
    *(columns.TOKENS, WIDTH, HEADS, HEAD_DIM, ORDER, READING),
    *SELECTION,
    stage("no bias", "plain"),
    stage("together", "together"),
    columns.value("TFLOP/s", "attention_tflops", ".0f"),
    *SPEEDUPS,
)
MEMORY_COLUMNS = (
    *(columns.TOKENS, WIDTH, HEADS, HEAD_DIM, READING),
    columns.size("q, k, v, out", "tensor_bytes"),
    columns.size("scores", "scores_bytes"),
    columns.size("intervals", "kept_bytes"),
    columns.size("workspace", "workspace_bytes"),
    columns.size("prepared", "prepared_bytes"),
)
TRAINING_COLUMNS = (
    *(columns.TOKENS, WIDTH, HEADS, ORDER),
    stage("forward", "forward"),
    stage("backward", "backward"),
    stage("both", "both"),
    columns.value("backward TFLOP/s", "backward_tflops", ".0f"),
    columns.size("workspace", "backward_workspace_bytes"),
    speedup("cuDNN causal", "training_speedup"),
)
SUMMARY_COLUMNS = (
    *(columns.TOKENS, WIDTH, HEADS),
    *SELECTION,
    stage("forward", "together"),
    *SPEEDUPS,
    stage("both passes", "both"),
    speedup("cuDNN causal, both", "training_speedup"),
)


def flex_text(row: Run) -> str:
    return (
        f"attention {row['attention_ms']:.3g} ms, FlexAttention {row['flex_ms']:.4g} ms: "
        f"{row['flex_speedup']:.1f}x; both passes {row['both_ms']:.3g} ms, "
        f"FlexAttention {row['flex_both_ms']:.4g} ms: {row['flex_training_speedup']:.1f}x"
    )


FLEX_COLUMNS: tuple[columns.Column, ...] = (
    ("mask", lambda row: f"topk, w = {row['width']:,}, beside FlexAttention"),
    columns.TOKENS,
    ("times", flex_text),
)


def way_column(way: str) -> columns.Column:
    return (
        f"{way}: predicted / measured ms",
        lambda row: f"{row[f'{way}_predicted_ms']:.3g} / {row[f'{way}_ms']:.3g}",
    )


def loss_text(row: Run) -> str:
    return f"{row['automatic_ms'] / min(row[f'{way}_ms'] for way in WAYS):.2f}"


WAYS_COLUMNS: tuple[columns.Column, ...] = (
    (
        "mask",
        lambda row: f"topk, w = {row['width']:,}" if row["order"] == "topk" else row["order"],
    ),
    columns.TOKENS,
    *map(way_column, WAYS),
    ("automatic / best", loss_text),
    columns.size("gather: plan", "gather_plan_bytes"),
    columns.size("reorder: plan", "reorder_plan_bytes"),
)


def summary_rows(result: Run) -> Iterator[Run]:
    """Random scores, head_dim 128: each length with the share of keys that the method asks for."""
    trained = {
        (row["tokens"], row["width"], row["heads_kv"]): row
        for row in rows_of(result, "train")
        if row["order"] == "random"
    }
    for row in rows_of(result, "topk"):
        both = trained.get((row["tokens"], row["width"], row["heads_kv"]))
        if row["order"] == "random" and row["head_dim"] == 128 and both:
            yield both | row


def judged(ms: float, goal_ms: float, floor_ms: float) -> str:
    """A time and the better of goal and floor that it meets."""
    if ms <= goal_ms:
        return f"{ms:.2f} (goal met)"
    return f"{ms:.2f} (floor {goal_text(ms <= floor_ms)})"


def long_rows(result: Run, part: str, heads_kv: int) -> dict[str, Run]:
    """Those that the goals are about, by order of scores."""
    return {
        row["order"]: row
        for row in rows_of(result, part)
        if (row["tokens"], row["width"], row["head_dim"]) == (131072, 2048, 128)
        and row["heads_kv"] == heads_kv
    }


def summary_of(result: Run, heads_kv: int) -> list[str]:
    what = f"128K tokens, 32 heads, {heads_kv} KV heads, w = 2,048"
    lines = []
    rows = long_rows(result, "topk", heads_kv)
    if rows:
        times = ", ".join(
            f"{order} {judged(row['attention_ms'], GOAL_MS, FLOOR_MS)}"
            for order, row in rows.items()
        )
        plan = max(row["plan_share"] for row in rows.values())
        before = max(row["before_share"] for row in rows.values())
        lines.append(
            f"- {what}: attention {times} ms; goal {GOAL_MS}, floor {FLOOR_MS}. Selection and "
            f"lists at most {100 * plan:.1f} % of it (goal 5 %: {goal_text(plan <= PLAN_SHARE)}), "
            f"with scores {100 * before:.1f} % (goal 10 %: {goal_text(before <= BEFORE_SHARE)})."
        )
    rows = long_rows(result, "train", heads_kv)
    if rows:
        backward = ", ".join(
            f"{order} {judged(row['backward_ms'], BACKWARD_GOAL_MS, BACKWARD_FLOOR_MS)}"
            for order, row in rows.items()
        )
        goal_ms, floor_ms = DENSE_STEP_MS / STEP_GOAL, DENSE_STEP_MS / STEP_FLOOR
        both = ", ".join(
            f"{order} {judged(row['both_ms'], goal_ms, floor_ms)}" for order, row in rows.items()
        )
        lines.append(
            f"- {what}, gradients of everything: {backward} ms; goal {BACKWARD_GOAL_MS:.0f}, floor "
            f"{BACKWARD_FLOOR_MS:.0f}. Both passes: {both} ms; goal {goal_ms:.1f}, floor "
            f"{floor_ms:.1f} ({STEP_GOAL:.0f} and {STEP_FLOOR:.0f} times faster than "
            f"FlashAttention-3's {DENSE_STEP_MS:.0f} ms of dense causal attention)."
        )
    return lines


def summary(result: Run) -> str:
    lines = [line for heads_kv in (32, 8) for line in summary_of(result, heads_kv)]
    for row in rows_of(result, "topk"):
        tokens = row["tokens"]
        is_claim = tokens in CLAIMED and row["width"] == round(RATIO_OF[tokens] * tokens)
        if not is_claim or (row["heads_kv"], row["head_dim"]) != (32, 128):
            continue
        if row["order"] != "random" or "plain_speedup" not in row:
            continue
        prototype = PROTOTYPE[tokens]
        lines.append(
            f"- {tokens_text(tokens)} tokens, w/S = {RATIO_OF[tokens]}, beside cuDNN's full "
            f"attention: attention alone {row['attention_speedup']:.1f} times, "
            f"{row['plain_speedup']:.1f} without scores as bias (the prototype, measured "
            f"otherwise, see below: {prototype}); everything "
            f"counted {row['cudnn_full_speedup']:.1f} times (claimed for the method: "
            f"{CLAIMED[tokens]})."
        )
    return "\n".join(lines + alone_summary(result))


def beside_prototype(speedup: float, prototype: float) -> str:
    if abs(speedup / prototype - 1) < NOISE:
        return "as fast"
    return "beaten" if speedup > prototype else "not beaten"


def alone_summary(result: Run) -> list[str]:
    """Measured as the prototype did (topk_alone.py)."""
    lines = []
    for row in rows_of(result, "alone"):
        tokens, speedup = row["tokens"], row["plain_full_speedup"]
        prototype = PROTOTYPE[tokens]
        lines.append(
            f"- {tokens_text(tokens)} tokens, w/S = {RATIO_OF[tokens]}, each kernel by itself, "
            f"calls one by one, as the prototype measured: without scores as bias "
            f"{row['plain_ms']:.3f} ms, cuDNN's full attention {row['cudnn_full_ms']:.3f} ms: "
            f"{speedup:.1f} times (the prototype, on another day: {prototype}, "
            f"{beside_prototype(speedup, prototype)}), causal {row['plain_causal_speedup']:.1f} "
            f"times; with scores as bias {row['attention_ms']:.3f} ms, "
            f"{row['attention_full_speedup']:.1f} times."
        )
    return lines


def machine(result: Run) -> str:
    return (
        f"{result['machine']['gpu']}, CUDA {result['cuda_version']}, PyTorch "
        f"{result['torch_version']}, cuDNN {result['cudnn_version']}; bfloat16; commits "
        f"{commits_of(result)}, {result['date']}."
    )


def tables(result: Run) -> dict[str, str]:
    topk = rows_of(result, "topk")
    stored = [
        row
        for row in topk
        if row["order"] == "random" and (row["width"] == 2048 or row["tokens"] == 65536)
    ]
    return {
        "topk-gpu-summary": summary(result),
        "topk-gpu-machine": machine(result),
        "topk-gpu": columns.table(STAGES_COLUMNS, topk),
        "topk-gpu-memory": columns.table(MEMORY_COLUMNS, stored),
        "topk-gpu-training": columns.table(TRAINING_COLUMNS, rows_of(result, "train")),
        "topk-gpu-other": columns.table(FLEX_COLUMNS, rows_of(result, "flex")),
        "topk-gpu-ways": columns.table(WAYS_COLUMNS, rows_of(result, "ways")),
        "topk-gpu-summary-table": columns.table(SUMMARY_COLUMNS, summary_rows(result)),
    }
