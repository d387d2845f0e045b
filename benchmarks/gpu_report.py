"""Tables about attention on the GPU, forward: attention_gpu.json (bench_attention_gpu.py).

Beside what was measured stands what others reach (recorded_baselines.py).
"""

from __future__ import annotations

from mask_suite import EVERY_TILE_PARTIAL
from recorded_baselines import FLASH_ATTENTION_FEW_HEADS, FLASHMASK_FEW_HEADS, FORWARD, LENGTHS
from report_text import (
    NOT_MEASURED,
    Run,
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


def flex_of(result: Run, run: Run, part: str = "flex") -> Run | None:
    shape = ("mask", "tokens", "batch", "heads", "head_dim")
    others: list[Run] = list(result["rows"].values())
    for other in others:
        if other["part"] == part and all(other[name] == run[name] for name in shape):
            return other
    return None


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


def speed_cells(run: Run) -> list[str]:
    """Columns ms, predicted and TFLOP/s."""
    return [milliseconds(run["fdma_ms"]), predicted_text(run), number(run["fdma_tflops"])]


def plan_cells(run: Run) -> list[str]:
    """Columns plan ms and plan."""
    return [plan_text(run), plan_bytes_text(run["plan_bytes"])]


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


def many_heads_table(result: Run, verdicts: Verdicts) -> str:
    rows = []
    for run in rows_of(result, "dense", 128, 32):
        recorded = FORWARD.floor(run["mask"], run["tokens"])
        wanted = FORWARD.goal(run["mask"], run["tokens"])
        normal = run["to_cudnn_full"]
        floor = goal = flex_ratio = "-"
        if recorded:
            ratio = normal / recorded
            has_floor = run["tokens"] >= 32768
            floor = (
                verdicts.judge("floor, 1.0 of FlashMask V3 at 32K and 128K", run, ratio)
                if has_floor
                else f"{ratio:.2f}"
            )
        if wanted:
            kind = "goal, 1.1 of the best peer, or FlashAttention's full, causal and window"
            goal = verdicts.judge(kind, run, normal / wanted)
        flex = flex_of(result, run)
        if flex is not None:
            kind = "floor, 1.2 of FlexAttention"
            flex_ratio = verdicts.judge(kind, run, flex["flex_ratio"], FLEX_FLOOR)
        rows.append(
            [
                run["mask"],
                tokens_text(run["tokens"]),
                *speed_cells(run),
                number(run.get("cudnn_tflops")),
                f"{normal:.3f}",
                number(recorded, 3),
                floor,
                number(wanted, 3),
                goal,
                number(flex["flex_tflops"] if flex else None),
                flex_ratio,
                *plan_cells(run),
            ]
        )
    header = ["mask", "tokens", "ms", "predicted", "TFLOP/s", "cuDNN TFLOP/s", "/ cuDNN full"]
    header += ["FlashMask V3", "FDMA / FlashMask", "goal", "FDMA / goal", "Flex TFLOP/s"]
    return table([*header, "FDMA / Flex", "plan ms", "plan"], rows)


def few_heads_table(result: Run) -> str:
    rows = []
    for run in rows_of(result, "dense", 128, 8):
        at = LENGTHS.index(run["tokens"])
        flashmask = FLASHMASK_FEW_HEADS.get(run["mask"], (None, None))[at]
        attention = FLASH_ATTENTION_FEW_HEADS.get(run["mask"], (None, None))[at]
        best = max(flashmask or 0, attention or 0)
        rows.append(
            [
                run["mask"],
                tokens_text(run["tokens"]),
                *speed_cells(run),
                f"{run['to_cudnn_full']:.3f}",
                number(flashmask),
                number(attention),
                number(run["fdma_tflops"] / best if best else None, 2),
                *plan_cells(run),
            ]
        )
    header = ["mask", "tokens", "ms", "predicted", "TFLOP/s", "/ cuDNN full", "FlashMask V3"]
    return table([*header, "FlashAttention", "FDMA / best", "plan ms", "plan"], rows)


def head_sizes_table(result: Run) -> str:
    rows = []
    for run in (run for size in HEAD_SIZES for run in rows_of(result, "dense", size, 32)):
        flex = flex_of(result, run)
        rows.append(
            [
                str(run["head_dim"]),
                run["mask"],
                tokens_text(run["tokens"]),
                *speed_cells(run),
                number(run.get("cudnn_tflops")),
                f"{run['to_cudnn_full']:.3f}",
                number(flex["flex_tflops"] if flex else None),
                number(flex["flex_ratio"] if flex else None, 2),
                *plan_cells(run),
            ]
        )
    header = ["head_dim", "mask", "tokens", "ms", "predicted", "TFLOP/s", "cuDNN TFLOP/s"]
    header += ["/ cuDNN full"]
    return table([*header, "Flex TFLOP/s", "FDMA / Flex", "plan ms", "plan"], rows)


def cusparse_table(result: Run) -> str:
    names = ("cusparse", "cusparse_float16", "cusparse_float32")
    rows = []
    for run in rows_of(result, "cusparse", 128, 32):
        fastest = min(names, key=lambda name: float(run[f"{name}_ms"]))
        rows.append(
            [
                run["mask"],
                tokens_text(run["tokens"]),
                f"{run['allowed_pairs'] / 1e6:.1f}",
                milliseconds(run["fdma_ms"]),
                *(milliseconds(run[f"{name}_ms"]) for name in names),
                f"{run[f'{fastest}_ratio']:.0f}",
                plan_bytes_text(run["plan_bytes"]),
                plan_bytes_text(run[f"{fastest}_bytes"]),
            ]
        )
    header = [
        "mask",
        "tokens",
        "million cells",
        "FDMA ms",
        "cuSPARSE bf16 ms",
        "fp16 ms",
        "fp32 ms",
    ]
    return table([*header, "times faster", "plan", "cuSPARSE memory"], rows)


def parametric_table(result: Run) -> str:
    runs = [run for heads in (32, 8) for run in rows_of(result, "parametric", 128, heads)]
    rows = []
    for run in runs:
        share = f"{run['parametric_ratio']:.3f}"
        rows.append(
            [
                run["mask"],
                f"{run['batch']} x {tokens_text(run['tokens'])}",
                str(run["heads"]),
                milliseconds(run["fdma_ms"]),
                milliseconds(run["parametric_ms"]),
                share if run["parametric_ratio"] <= PARAMETRIC_GOAL else f"**{share}**",
                plan_text(run),
                milliseconds(run["parametric_plan_ms"] + run["parametric_upload_ms"]),
                plan_bytes_text(run["plan_bytes"]),
                plan_bytes_text(run["parametric_plan_bytes"]),
            ]
        )
    header = ["mask", "tokens", "heads", "segments ms", "closed-form ms", "closed form / segments"]
    header += ["segments: compile and plan ms", "closed form: plan ms", "plan", "closed-form plan"]
    return table(header, rows)


def decode_table(result: Run) -> str:
    runs = [run for run in result["rows"].values() if run["part"] == "decode"]
    rows = []
    for run in sorted(runs, key=lambda run: (run["q_len"], run["batch"])):
        share = f"{run['copy_share']:.2f}"
        peers = {name: run.get(f"sdpa_{name}_ms") for name in ("flash", "cudnn", "efficient")}
        best = min((ms for ms in peers.values() if ms), default=None)
        rows.append(
            [
                f"{run['q_len']} x {tokens_text(run['tokens'])}",
                str(run["batch"]),
                f"{run['heads']} / {run['heads_kv']}",
                milliseconds(run["fdma_ms"]),
                number(run["kv_gb_per_s"]),
                share if run["copy_share"] >= COPY_GOAL else f"**{share}**",
                *(number(ms, 3) for ms in peers.values()),
                number(best / run["fdma_ms"] if best else None, 2),
                str(run["items"]),
                *plan_cells(run),
            ]
        )
    header = ["queries x keys", "batch", "heads", "ms", "GB/s", "/ copy", "SDPA flash ms"]
    header += ["cuDNN ms", "efficient ms", "best / FDMA", "work tiles", "plan ms", "plan"]
    return table(header, rows)


def machine(result: Run) -> str:
    facts = result["machine"]
    state = facts.get("state", {})
    commits = sorted({run["commit"] for run in result["rows"].values()})
    changed = " with uncommitted changes" if result["uncommitted_changes"] else ""
    clocks = sorted(
        {int(run["sm_clock_mhz"]) for run in result["rows"].values() if run.get("sm_clock_mhz")}
    )
    text = f"{facts['gpu']}, driver {state.get('driver_version', 'unknown')}, "
    if clocks:
        text += f"SM clock {clocks[0]} to {clocks[-1]} of {state['clocks.max.sm']} MHz, "
    text += f"power limit {state['power.limit']} W, " if "power.limit" in state else ""
    text += f"PyTorch {result['torch_version']}, CUDA {result['cuda_version']}, "
    text += f"cuDNN {result['cudnn_version']}; {result['dtype']}; commit {', '.join(commits)}"
    return f"{text}{changed}, {result['date']}."


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


def prediction_text(result: Run) -> str:
    """How far predictions are from what was measured, over the rows without FlexAttention."""
    errors = [
        abs(run["predicted_ms"] / run["fdma_ms"] - 1)
        for run in result["rows"].values()
        if run["part"] == "dense" and "predicted_ms" in run
    ]
    if not errors:
        return ""
    return (
        f"- predicted times (the shipped profile) miss the measured ones of {len(errors)} rows by "
        f"{100 * quantile(errors, 0.5):.1f} % (median), {100 * quantile(errors, 0.95):.1f} % (95th "
        f"percentile)."
    )


def by_mask(runs: list[Run]) -> dict[str, dict[int, Run]]:
    """Rows of each mask by length."""
    found: dict[str, dict[int, Run]] = {}
    for run in runs:
        found.setdefault(run["mask"], {})[run["tokens"]] = run
    return found


def summary_table(result: Run) -> str:
    """One row a mask, 32 heads, head_dim 128."""
    rows = []
    for mask, runs in by_mask(rows_of(result, "dense", 128, 32)).items():
        flash = {
            tokens: run["to_cudnn_full"] / floor
            for tokens, run in runs.items()
            if (floor := FORWARD.floor(mask, tokens))
        }
        flex = {
            tokens: float(found["flex_ratio"])
            for tokens, run in runs.items()
            if (found := flex_of(result, run))
        }
        rows.append(
            [
                mask,
                *(number(runs[n]["fdma_tflops"]) for n in LENGTHS),
                *(number(flash.get(n), 2) for n in LENGTHS),
                *(number(flex.get(n), 2) for n in LENGTHS[:2]),
            ]
        )
    lengths = [tokens_text(n) for n in LENGTHS]
    header = ["mask", *(f"TFLOP/s, {n}" for n in lengths)]
    header += [f"/ FlashMask V3, {n}" for n in lengths]
    return table([*header, *(f"/ Flex, {n}" for n in lengths[:2])], rows)


def tables(result: Run) -> dict[str, str]:
    verdicts = Verdicts()
    many_heads = many_heads_table(result, verdicts)
    texts = (verdicts.text(), partial_tile_text(result), prediction_text(result))
    summary = "\n".join(text for text in texts if text)
    return {
        "attention-gpu-summary": summary or NOT_MEASURED,
        "attention-gpu-machine": machine(result),
        "attention-gpu": many_heads,
        "attention-gpu-few-heads": few_heads_table(result),
        "attention-gpu-head-sizes": head_sizes_table(result),
        "attention-gpu-cusparse": cusparse_table(result),
        "attention-gpu-parametric": parametric_table(result),
        "attention-gpu-decode": decode_table(result),
        "attention-gpu-summary-table": summary_table(result),
    }
