"""Part `alone` of bench_topk_gpu.py: attention as the exploration measured its speed-ups.

The stage of attention, with scores as bias and without, and cuDNN's full and causal attention on
the same tensors, 32K tokens in all up to 16K: each by itself after a pause, calls one by one, the
cache cleared before each of them; medians. So a card that is not at its power limit, and nothing
read from cache that another call has left there. The other parts measure calls in a queue, kernels
in turn, on a card that is hot.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from device_time import queue_between_events
from report_text import Run
from topk_problem import CUDNN_MASKS, TopkProblem, prepared
from topk_rows import Row

PAUSE_SECONDS = 0.3
WARM_MS, SAMPLED_MS = 20.0, 100.0
LEAST_SAMPLES = 3
CACHE_BYTES = 256 << 20  # written before each call


def time_alone(torch: Any, call: Callable[[], object]) -> float:
    """Milliseconds of a call, the median of some 100 ms of them."""
    cleared = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")

    def sample(count: int) -> list[float]:
        events = []
        for _ in range(count):
            cleared.zero_()  # takes longer than the host needs for the call
            events.append(queue_between_events(torch, call))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events]

    time.sleep(PAUSE_SECONDS)
    once = min(sample(2))
    sample(int(WARM_MS / once))
    return statistics.median(sample(max(LEAST_SAMPLES, int(SAMPLED_MS / once))))


def measure_alone(fdma: Any, problem: TopkProblem, row: Row, quick: bool) -> Run:
    """`quick` changes nothing."""
    torch = problem.torch
    scores = problem.scores(row.order)
    run: Run = {}
    calls: dict[str, Callable[[], object]] = {}
    for name, bias in (("attention", "exp"), ("plain", "none")):
        held = prepared(fdma, row, bias=bias)
        call = partial(held.run, *problem.tensors, scores=scores, **problem.results)
        kept = torch.from_dlpack(call(return_kept=True)[3])
        checked = problem.check(scores, kept, bias != "none")
        run |= {f"{name}_{field}": value for field, value in checked.items()}
        run["reading"] = held.reading
        calls[name] = partial(call, stages=("attention", "attention"))
    for name, is_causal in CUDNN_MASKS.items():
        calls[f"cudnn_{name}"] = partial(problem.cudnn, is_causal)
    run |= {f"{name}_ms": time_alone(torch, call) for name, call in calls.items()}
    for name in ("attention", "plain"):
        for mask in CUDNN_MASKS:
            run[f"{name}_{mask}_speedup"] = run[f"cudnn_{mask}_ms"] / run[f"{name}_ms"]
    return run
