"""Dynamic Mask Attention on a GPU: scores, selection, lists and attention, apart and together.

    python3 bench_topk_gpu.py <folder of fdma> <result.json> [--rows PATTERN] [--max-seconds N] ..

A row is one shape, width w and order of scores. The whole call (fdma's DynamicMaskAttention: scores
from v, selection, kv index lists or none, attention with the scores as bias) and each of its stages
are timed in turn by CUDA events, the GPU kept busy while the host prepares; medians. `plain` is
attention over the same keys without a bias, as other kernels are measured. Rows of up to 64K tokens
have 64K tokens in all, so many batch elements. Beside them: cuDNN's scaled_dot_product_attention,
full and causal, on the same tensors, in turn with the rest, or, from 64K tokens on, once a shape
and call of this program; rows come in the order of their importance and take a second or two; and
in part `flex` FlexAttention on the same mask and bias (topk_flex.py). Part `alone`: attention and
cuDNN each by itself, the cache cleared before each call (topk_alone.py). Part `train`: both passes
(topk_training.py). Part `ways`: masks of scattered keys by each way to read them (column_ways.py).

Orders of scores: random (normal), drifting (newer keys better by 1 in 2,048), rising (newer keys
always better: a sliding window, in which every key enters and leaves) and clustered (a level for
each 512 tokens).

At sampled queries, tile edges among them, the kept keys are compared with the w best of a sort, and
out and lse with attention in float64. Rows are written one by one and are not measured again while
they are there (--again).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from column_ways import measure_ways
from command_line import use_package
from device_time import Timing
from report_text import Run
from rows import Results, WrongResultError, gpu_origin, measure_rows, row_parser
from topk_alone import measure_alone
from topk_flex import measure_flex
from topk_problem import CUDNN_MASKS, LONG_TOKENS, SEED, TopkProblem, prepared
from topk_rows import Row, all_rows, expected_seconds
from topk_training import measure_training

STAGES = ("scores", "selection", "lists", "attention")


def measure_topk(fdma: Any, problem: TopkProblem, row: Row, quick: bool) -> Run:
    torch = problem.torch
    begin = time.perf_counter()
    held = prepared(fdma, row)
    prepare_ms = 1e3 * (time.perf_counter() - begin)
    scores = problem.scores(row.order)
    tensors, results = problem.tensors, problem.results

    def made(first: str, last: str) -> None:
        held.run(*tensors, problem.dt_proj, problem.a_coef, stages=(first, last), **results)

    def given(first: str, last: str) -> None:
        held.run(*tensors, scores=scores, stages=(first, last), **results)

    def together() -> None:
        # The same launches as those of one call, with scores in the row's order.
        made("scores", "scores")
        given("selection", "attention")

    kept = torch.from_dlpack(held.run(*tensors, scores=scores, return_kept=True, **results)[3])
    torch.cuda.synchronize()
    checked = problem.check(scores, kept)
    if held.saw_nan():
        raise WrongResultError("a score was NaN")
    num_intervals = int((kept[..., 0] < kept[..., 1]).sum())
    together()
    # The same keys without scores added to logits, as published kernels are measured.
    plain = prepared(fdma, row, bias="none")

    def without_bias(first: str) -> None:
        plain.run(*tensors, scores=scores, stages=(first, "attention"), **results)

    without_bias("selection")
    checked |= {f"plain_{name}": x for name, x in problem.check(scores, kept, False).items()}
    calls: dict[str, Callable[[], object]] = {
        "together": together,
        "plain": partial(without_bias, "attention"),
    }
    del kept
    calls |= {
        stage: partial(made if stage == "scores" else given, stage, stage)
        for stage in STAGES
        if stage != "lists" or held.reading == "gather"
    }
    if held.reading == "all":
        del calls["selection"]
    if row.tokens < LONG_TOKENS:
        for name, is_causal in CUDNN_MASKS.items():
            calls[f"cudnn_{name}"] = partial(problem.cudnn, is_causal)
    timing = Timing(torch, calls, quick)
    attention_ms = 1e3 * timing.median("attention")
    run: Run = {
        "reading": held.reading,
        "heads_per_tile": held.heads_per_tile,
        "pairs": row.pairs,
        "intervals": num_intervals,
        "prepare_ms": prepare_ms,
        "prepared_bytes": held.nbytes,
        "workspace_bytes": held.workspace_nbytes,
        "scores_bytes": scores.numel() * 4,
        "kept_bytes": scores.numel() * 8,
        "tensor_bytes": sum(x.numel() * x.element_size() for x in (*tensors, problem.out)),
        "attention_tflops": 4 * row.head_dim * row.pairs / attention_ms / 1e9,
        **timing.medians_ms(),
        **checked,
    }
    before = sum(run.get(f"{stage}_ms", 0.0) for stage in STAGES[1:3])
    run["plan_share"] = before / attention_ms
    run["before_share"] = (before + run["scores_ms"]) / attention_ms
    if row.tokens >= LONG_TOKENS:
        run |= problem.measure_cudnn()
    if "cudnn_full_ms" in run:
        for name in CUDNN_MASKS:
            run[f"cudnn_{name}_speedup"] = run[f"cudnn_{name}_ms"] / run["together_ms"]
        for part in ("attention", "plain"):
            run[f"{part}_speedup"] = run["cudnn_full_ms"] / run[f"{part}_ms"]
    return run


MEASURES: dict[str, Callable[[Any, TopkProblem, Row, bool], Run]] = {
    "topk": measure_topk,
    "alone": measure_alone,
    "train": measure_training,
    "flex": measure_flex,
    "ways": measure_ways,
}
FIELDS = ("part", "tokens", "batch", "heads", "heads_kv", "head_dim", "width", "order")


def text_of(run: Run) -> str:
    times = {name.removesuffix("_ms"): x for name, x in run.items() if name.endswith("_ms")}
    text = " ".join(f"{name} {value:.3f}" for name, value in times.items())
    if "attention_tflops" in run:
        text += f"; {run['attention_tflops']:.0f} TFLOP/s, {run['reading']}"
        text += f" x {run['heads_per_tile']}, plan {100 * run['plan_share']:.1f} %"
    if "cudnn_full_speedup" in run:
        text += (
            f"; {run['cudnn_full_speedup']:.2f}x full, {run['cudnn_causal_speedup']:.2f}x causal"
        )
    return text


class Bench:
    """Measures rows; those of one shape share their tensors."""

    def __init__(self, fdma: Any, torch: Any, quick: bool, commit: str) -> None:
        self.fdma, self.torch, self.quick, self.commit = fdma, torch, quick, commit
        self.problem: TopkProblem | None = None

    def measure(self, row: Row) -> Run:
        if self.problem is None or self.problem.shape.size != row.size:
            self.problem = None
            self.torch.cuda.empty_cache()
            self.problem = TopkProblem(self.torch, row)
        self.problem.shape = row
        run = MEASURES[row.part](self.fdma, self.problem, row, self.quick)
        described = {name: getattr(row, name) for name in FIELDS}
        return described | run | {"commit": self.commit}


def main() -> None:
    begin = time.monotonic()
    options = row_parser(__doc__, MEASURES, "topk/128K/*,train/*").parse_args()
    results = Results(options.result)
    rows = results.left(all_rows(), options)
    if not rows:
        return
    fdma = use_package(options.module)
    import torch

    torch.set_grad_enabled(False)
    results.describe(gpu_origin(torch, SEED))
    bench = Bench(fdma, torch, options.quick, results.content["commit"])
    end = begin + options.max_seconds
    measure_rows(rows, results, bench.measure, text_of, expected_seconds, end)


if __name__ == "__main__":
    main()
