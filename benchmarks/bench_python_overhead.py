"""Time that the host spends on one call of fdma.attention, beside PyTorch's own SDPA.

    PYTHONPATH=build/dev/python_bindings python benchmarks/bench_python_overhead.py [--device cuda]

Tensors are so small that computing them takes next to nothing; on a GPU the calls are only queued,
so few at a time that its queue never fills. Each number is the median over rounds of the mean of
one round, in microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fdma
import torch
from report_store import write_result

ROUNDS = 120
CALLS = 40


def host_time_us(call: Callable[[], Any], device: str) -> float:
    rounds = []
    for turn in range(ROUNDS + 5):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        if turn >= 5:
            rounds.append((time.perf_counter() - begin) / CALLS * 1e6)
    return statistics.median(rounds)


def measured(device: str) -> dict[str, float]:
    torch.manual_seed(0)
    is_gpu = device == "cuda"
    dtype = torch.bfloat16 if is_gpu else torch.float32
    q, k, v = (torch.randn(1, 1, 1, 64, device=device, dtype=dtype) for _ in range(3))
    leaf = q.clone().requires_grad_()
    mask = fdma.compile("causal", 1)
    sdpa: Any = torch.nn.functional.scaled_dot_product_attention
    attention: Any = fdma.attention
    dout = torch.randn_like(q)

    def step(function: Any, *mask: Any) -> None:
        function(leaf, k, v, *mask).backward(dout)
        leaf.grad = None

    return {
        "mask": host_time_us(lambda: attention(q, k, v, mask), device),
        "text": host_time_us(lambda: attention(q, k, v, "causal"), device),
        "lengths first": host_time_us(lambda: attention(q, k, v, mask, layout="bshd"), device),
        "with gradients": host_time_us(lambda: attention(leaf, k, v, mask), device),
        "step": host_time_us(lambda: step(attention, mask), device),
        "sdpa": host_time_us(lambda: sdpa(q, k, v), device),
        "sdpa with gradients": host_time_us(lambda: sdpa(leaf, k, v), device),
        "sdpa step": host_time_us(lambda: step(sdpa), device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    times = measured(options.device)
    for name, time_us in times.items():
        print(f"{name:22}{time_us:8.1f} us")
    if options.json:
        write_result(options.json, {"device": options.device, "time_us": times})


if __name__ == "__main__":
    main()
