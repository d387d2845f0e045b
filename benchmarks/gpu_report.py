"""Tables about attention on the GPU, forward: attention_gpu.json (bench_attention_gpu.py).

Beside what was measured stands what others reach (recorded_baselines.py).
"""

from __future__ import annotations

from collections.abc import Callable

import columns
from mask_suite import EVERY_TILE_PARTIAL
from recorded_baselines import (
    FLASH_ATTENTION_FEW_HEADS,
    FLASHMASK_FEW_HEADS,
    FORWARD,
    LENGTHS,
    Peers,
)
from report_text import (
    NOT_MEASURED,
    Run,
    commit_text,
    commits_of,
    goal_text,
    milliseconds,
    number,
    quantile,
    table,
    tokens_text,
)

FLEX_FLOOR = 1.2
PARTIAL_TILE_GOAL = 1.1
COPY_GOAL = 0.8
PARAMETRIC_GOAL = 1.03
HEAD_SIZES = (64, 96, 256)  # beside 128


def rows_of(result: Run, part: str, head_dim: int, heads: int) -> list[Run]:
    rows = [
        run
        for run in result["rows"].values()
        if (run["part"], run["head_dim"], run["heads"]) == (part, head_dim, heads)
        and run["mask"] != EVERY_TILE_PARTIAL
    ]
    order = list(FORWARD.flashmask)
    return sorted(rows, key=lambda run: (run["tokens"], order.index(run["mask"])))


def beside_flex(result: Run, runs: list[Run], part: str) -> list[Run]:
    """The rows with FlexAttention's rate and ratio, where `part` has measured them."""
    shape = ("mask", "tokens", "batch", "heads", "head_dim")
    found = {
        tuple(run[name] for name in shape): {
            name: run[name] for name in ("flex_tflops", "flex_ratio")
        }
        for run in result["rows"].values()
        if run["part"] == part
    }
    return [run | found.get(tuple(run[name] for name in shape), {}) for run in runs]


def predicted_text(run: Run) -> str:
    """The predicted time, and by how much it misses the measured one."""
    if "predicted_ms" not in run:
        return "-"
    error = run["predicted_ms"] / run["fdma_ms"] - 1
    return f"{milliseconds(run['predicted_ms'])} ({100 * error:+.1f} %)"


def plan_text(run: Run) -> str:
    return milliseconds(run["compile_ms"] + run["plan_ms"] + run["upload_ms"])


def plan_bytes_text(count: float) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def plan_bytes(header: str, key: str) -> columns.Column:
    return header, lambda run: plan_bytes_text(run[key])


def ms(header: str, key: str) -> columns.Column:
    return header, lambda run: milliseconds(run[key])


def optional(header: str, key: str, digits: int = 0) -> columns.Column:
    return header, lambda run: number(run.get(key), digits)


HEADS = columns.value("heads", "heads")
HEAD_DIM = columns.value("head_dim", "head_dim")
SPEED: tuple[columns.Column, ...] = (
    ms("ms", "fdma_ms"),
    ("predicted", predicted_text),
    optional("TFLOP/s", "fdma_tflops"),
)
CUDNN = optional("cuDNN TFLOP/s", "cudnn_tflops")
TO_CUDNN = columns.value("/ cuDNN full", "to_cudnn_full", ".3f")
PLAN_MS: columns.Column = ("plan ms", plan_text)
PLAN = (PLAN_MS, plan_bytes("plan", "plan_bytes"))


class Verdicts:
    """Goals and floors, met and missed."""

    def __init__(self) -> None:
        self.met: dict[str, int] = {}
        self.missed: dict[str, list[str]] = {}

    def judge(self, kind: str, run: Run, ratio: float, wanted: float = 1.0) -> str:
        self.met.setdefault(kind, 0)
        self.missed.setdefault(kind, [])
        if ratio >= wanted:
            self.met[kind] += 1
            return f"{ratio:.2f}"
        self.missed[kind].append(f"{run['mask']} {tokens_text(run['tokens'])} ({ratio:.2f})")
        return f"**{ratio:.2f}**"

    def text(self) -> str:
        lines = []
        for kind, met in self.met.items():
            missed = self.missed[kind]
            line = f"- {kind}: met in {met} of {met + len(missed)} rows"
            lines.append(line + (f"; missed: {', '.join(missed)}." if missed else "."))
        return "\n".join(lines)


def floor_column(verdicts: Verdicts, peers: Peers, kind: str, floor: float) -> columns.Column:
    def cell(run: Run) -> str:
        recorded = peers.floor(run["mask"], run["tokens"])
        if not recorded:
            return "-"
        ratio = run["to_cudnn_full"] / recorded
        is_judged = run["tokens"] >= 32768
        return verdicts.judge(kind, run, ratio, floor) if is_judged else f"{ratio:.2f}"

    return "FDMA / FlashMask", cell


def goal_column(verdicts: Verdicts, peers: Peers, kind: str) -> columns.Column:
    def cell(run: Run) -> str:
        wanted = peers.goal(run["mask"], run["tokens"])
        return verdicts.judge(kind, run, run["to_cudnn_full"] / wanted) if wanted else "-"

    return "FDMA / goal", cell


def flex_column(verdicts: Verdicts) -> columns.Column:
    def cell(run: Run) -> str:
        if "flex_ratio" not in run:
            return "-"
        return verdicts.judge(
            f"floor, {FLEX_FLOOR} of FlexAttention", run, run["flex_ratio"], FLEX_FLOOR
        )

    return "FDMA / Flex", cell


def many_heads_table(result: Run, verdicts: Verdicts) -> str:
    runs = beside_flex(result, rows_of(result, "dense", 128, 32), "flex")
    goal = "goal, 1.1 of the best peer, or FlashAttention's full, causal and window"
    shown: tuple[columns.Column, ...] = (
        *(columns.MASK, columns.TOKENS, *SPEED, CUDNN, TO_CUDNN),
        ("FlashMask V3", lambda run: number(FORWARD.floor(run["mask"], run["tokens"]), 3)),
        floor_column(verdicts, FORWARD, "floor, 1.0 of FlashMask V3 at 32K and 128K", 1.0),
        ("goal", lambda run: number(FORWARD.goal(run["mask"], run["tokens"]), 3)),
        goal_column(verdicts, FORWARD, goal),
        optional("Flex TFLOP/s", "flex_tflops"),
        flex_column(verdicts),
        *PLAN,
    )
    return columns.table(shown, runs)


def few_heads_table(result: Run) -> str:
    rows = []
    for run in rows_of(result, "dense", 128, 8):
        at = LENGTHS.index(run["tokens"])
        flashmask = FLASHMASK_FEW_HEADS.get(run["mask"], (None, None))[at]
        attention = FLASH_ATTENTION_FEW_HEADS.get(run["mask"], (None, None))[at]
        best = max(flashmask or 0, attention or 0)
        ratio = run["fdma_tflops"] / best if best else None
        rows.append(run | {"flashmask": flashmask, "attention": attention, "to_best": ratio})
    shown = (
        *(columns.MASK, columns.TOKENS, *SPEED, TO_CUDNN),
        optional("FlashMask V3", "flashmask"),
        optional("FlashAttention", "attention"),
        optional("FDMA / best", "to_best", 2),
        *PLAN,
    )
    return columns.table(shown, rows)


def head_sizes_table(result: Run) -> str:
    runs = [run for head_dim in HEAD_SIZES for run in rows_of(result, "dense", head_dim, 32)]
    shown = (
        *(HEAD_DIM, columns.MASK, columns.TOKENS, *SPEED, CUDNN, TO_CUDNN),
        optional("Flex TFLOP/s", "flex_tflops"),
        optional("FDMA / Flex", "flex_ratio", 2),
        *PLAN,
    )
    return columns.table(shown, beside_flex(result, runs, "flex"))


def cusparse_table(result: Run) -> str:
    names = ("cusparse", "cusparse_float16", "cusparse_float32")
    rows = []
    for run in rows_of(result, "cusparse", 128, 32):
        best = min(names, key=lambda name: float(run[f"{name}_ms"]))
        rows.append(run | {"ratio": run[f"{best}_ratio"], "bytes": run[f"{best}_bytes"]})
    shown: tuple[columns.Column, ...] = (
        *(columns.MASK, columns.TOKENS),
        ("million cells", lambda run: f"{run['allowed_pairs'] / 1e6:.1f}"),
        ms("FDMA ms", "fdma_ms"),
        ms("cuSPARSE bf16 ms", "cusparse_ms"),
        ms("fp16 ms", "cusparse_float16_ms"),
        ms("fp32 ms", "cusparse_float32_ms"),
        columns.value("times faster", "ratio", ".0f"),
        plan_bytes("plan", "plan_bytes"),
        plan_bytes("cuSPARSE memory", "bytes"),
    )
    return columns.table(shown, rows)


def judged(text: str, is_met: bool) -> str:
    return text if is_met else f"**{text}**"


PARAMETRIC_COLUMNS: tuple[columns.Column, ...] = (
    columns.MASK,
    ("tokens", lambda run: f"{run['batch']} x {tokens_text(run['tokens'])}"),
    HEADS,
    ms("segments ms", "fdma_ms"),
    ms("closed-form ms", "parametric_ms"),
    (
        "closed form / segments",
        lambda run: judged(
            f"{run['parametric_ratio']:.3f}", run["parametric_ratio"] <= PARAMETRIC_GOAL
        ),
    ),
    ("segments: compile and plan ms", plan_text),
    (
        "closed form: plan ms",
        lambda run: milliseconds(run["parametric_plan_ms"] + run["parametric_upload_ms"]),
    ),
    plan_bytes("plan", "plan_bytes"),
    plan_bytes("closed-form plan", "parametric_plan_bytes"),
)


def best_sdpa_text(run: Run) -> str:
    times = (run.get(f"sdpa_{name}_ms") for name in ("flash", "cudnn", "efficient"))
    best = min((found for found in times if found), default=None)
    return number(best / run["fdma_ms"] if best else None, 2)


DECODE_COLUMNS: tuple[columns.Column, ...] = (
    ("queries x keys", lambda run: f"{run['q_len']} x {tokens_text(run['tokens'])}"),
    columns.value("batch", "batch"),
    ("heads", lambda run: f"{run['heads']} / {run['heads_kv']}"),
    ms("ms", "fdma_ms"),
    optional("GB/s", "kv_gb_per_s"),
    ("/ copy", lambda run: judged(f"{run['copy_share']:.2f}", run["copy_share"] >= COPY_GOAL)),
    optional("SDPA flash ms", "sdpa_flash_ms", 3),
    optional("cuDNN ms", "sdpa_cudnn_ms", 3),
    optional("efficient ms", "sdpa_efficient_ms", 3),
    ("best / FDMA", best_sdpa_text),
    columns.value("work tiles", "items"),
    *PLAN,
)


def machine(result: Run) -> str:
    facts = result["machine"]
    state = facts.get("state", {})
    clocks = sorted(
        {int(run["sm_clock_mhz"]) for run in result["rows"].values() if run.get("sm_clock_mhz")}
    )
    text = f"{facts['gpu']}, driver {state.get('driver_version', 'unknown')}, "
    if clocks:
        text += f"SM clock {clocks[0]} to {clocks[-1]} of {state['clocks.max.sm']} MHz, "
    text += f"power limit {state['power.limit']} W, " if "power.limit" in state else ""
    text += f"PyTorch {result['torch_version']}, CUDA {result['cuda_version']}, "
    text += f"cuDNN {result['cudnn_version']}; {result['dtype']}; "
    return f"{text}{commit_text(result | {'commit': commits_of(result)})}."


def partial_tile_text(result: Run) -> str:
    """What a tile with a mask costs against one without, both measured in turn in one row."""
    for run in result["rows"].values():
        if run["mask"] == EVERY_TILE_PARTIAL and "full_ms" in run:
            cost = run["fdma_ms"] / run["full_ms"]
            return (
                f"- goal, a partial tile costs at most {PARTIAL_TILE_GOAL:.2f} of a full one: "
                f"{goal_text(cost <= PARTIAL_TILE_GOAL)}, {cost:.3f} (every tile by a bitmap, "
                f"{tokens_text(run['tokens'])})."
            )
    return ""


def prediction_text(
    result: Run, part: str, what: str, predicted: str = "predicted_ms", measured: str = "fdma_ms"
) -> str:
    """How far predictions are from what was measured, over the rows of a part."""
    errors = [
        abs(run[predicted] / run[measured] - 1)
        for run in result["rows"].values()
        if run["part"] == part and predicted in run
    ]
    if not errors:
        return ""
    return (
        f"- predicted times {what}(the shipped profile) miss the measured ones of {len(errors)} "
        f"rows by {100 * quantile(errors, 0.5):.1f} % (median), "
        f"{100 * quantile(errors, 0.95):.1f} % (95th percentile)."
    )


def summary_table(
    runs: list[Run], peers: Peers, others: Callable[[Run], float] | None = None
) -> str:
    """One row a mask: rates, and ratios to FlashMask V3 and FlexAttention; at last what `others`
    finds of each length, called deterministic."""
    by_mask: dict[str, dict[int, Run]] = {}
    for run in runs:
        floor = peers.floor(run["mask"], run["tokens"])
        ratio = {"flash_ratio": run["to_cudnn_full"] / floor} if floor else {}
        by_mask.setdefault(run["mask"], {})[run["tokens"]] = run | ratio
    rows = [
        [
            mask,
            *(number(of_mask[n]["fdma_tflops"]) for n in LENGTHS),
            *(number(of_mask[n].get("flash_ratio"), 2) for n in LENGTHS),
            *(number(of_mask[n].get("flex_ratio"), 2) for n in LENGTHS[:2]),
            *(number(others(of_mask[n]), 2) for n in LENGTHS if others),
        ]
        for mask, of_mask in by_mask.items()
    ]
    lengths = [tokens_text(n) for n in LENGTHS]
    header = ["mask", *(f"TFLOP/s, {n}" for n in lengths)]
    header += [f"/ FlashMask V3, {n}" for n in lengths]
    header += [f"/ Flex, {n}" for n in lengths[:2]]
    return table([*header, *(f"deterministic, {n}" for n in lengths if others)], rows)


def tables(result: Run) -> dict[str, str]:
    verdicts = Verdicts()
    many_heads = many_heads_table(result, verdicts)
    texts = (verdicts.text(), partial_tile_text(result), prediction_text(result, "dense", ""))
    runs = beside_flex(result, rows_of(result, "dense", 128, 32), "flex")
    parametric = [run for heads in (32, 8) for run in rows_of(result, "parametric", 128, heads)]
    decode = [run for run in result["rows"].values() if run["part"] == "decode"]
    decode.sort(key=lambda run: (run["q_len"], run["batch"]))
    return {
        "attention-gpu-summary": "\n".join(filter(None, texts)) or NOT_MEASURED,
        "attention-gpu-machine": machine(result),
        "attention-gpu": many_heads,
        "attention-gpu-few-heads": few_heads_table(result),
        "attention-gpu-head-sizes": head_sizes_table(result),
        "attention-gpu-cusparse": cusparse_table(result),
        "attention-gpu-parametric": columns.table(PARAMETRIC_COLUMNS, parametric),
        "attention-gpu-decode": columns.table(DECODE_COLUMNS, decode),
        "attention-gpu-summary-table": summary_table(runs, FORWARD),
    }
