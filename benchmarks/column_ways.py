"""Part `ways` of bench_topk_gpu.py: masks of scattered keys by every way to read them.

Each mask is planned with columns = scan, gather, reorder and automatic, the same for all heads;
predicted and measured times side by side show where the ways cross over, and what automatic plans
lose against the best. Calls follow one another without a pause, some of them long, so what is
predicted is the time of a card that the power limit has slowed down. Masks, by the name in place
of an order of scores: random_eviction of the mask suite; topk, the width best of independent
scores; token_lists, for each 128 queries the same random tokens, an eighth of those before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from attention_calls import planned, profile_of
from device_time import Timing
from mask_suite import suite_mask
from report_text import Run
from rows import WrongResultError
from topk_gpu_report import WAYS
from topk_problem import TopkProblem
from topk_rows import Row

PROFILE = "h200"
ROWS_AT_ONCE = 128
SEED = 20261122
LARGEST_DIFFERENCE = 0.05


def compiled_mask(fdma: Any, name: str, tokens: int, width: int) -> Any:
    random = np.random.default_rng(SEED)
    if name == "topk":
        scores = random.standard_normal(tokens, dtype=np.float32)
        return fdma.compile(f"causal & topk(@scores, {width})", tokens, tables={"scores": scores})
    if name == "token_lists":
        seen = random.random((tokens // ROWS_AT_ONCE, tokens), dtype=np.float32) < 1 / 8
        return fdma.compile(
            f"causal & @seen[q // {ROWS_AT_ONCE}, k]", tokens, tables={"seen": seen}
        )
    mask = suite_mask(name, tokens)
    return fdma.compile(mask.spec, tokens, tables=mask.tables)


def measure_ways(fdma: Any, problem: TopkProblem, row: Row, quick: bool) -> Run:
    """Milliseconds of each way, as predicted and as measured, and what its plan takes."""
    compiled = compiled_mask(fdma, row.order, row.tokens, row.width)
    profile = profile_of(fdma, PROFILE)
    calls: dict[str, Callable[[], object]] = {}
    run: Run = {}
    expected = None
    for way in WAYS:
        plan = planned(fdma, compiled, row, columns=way)
        uploaded = fdma.prepare(plan)
        calls[way] = problem.attention_call(fdma, uploaded)
        calls[way]()
        if expected is None:
            expected = problem.out.clone()
        apart = float((problem.out - expected).abs().max())
        if not apart < LARGEST_DIFFERENCE:
            raise WrongResultError(f"{way} differs from scan by {apart:.3g}")
        run[f"{way}_predicted_ms"] = fdma.estimate_plan(plan, profile)["sustained_time_us"] / 1e3
        run[f"{way}_plan_bytes"] = plan.nbytes
        run[f"{way}_workspace_bytes"] = uploaded.workspace_nbytes
        run[f"{way}_tiles"] = plan.counts
    timing = Timing(problem.torch, calls, quick)
    return run | timing.medians_ms()
