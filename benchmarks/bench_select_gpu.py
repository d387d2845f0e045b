"""ZOH scores and top-k selection on a GPU, beside a device copy and PyTorch's topk, in one process.

    python3 bench_select_gpu.py <folder of fdma> <result.json> [--lengths ..] [--heads ..]

Times are medians of CUDA events over launches that are queued while the GPU is kept busy, so that
the host is not timed. Scores: the rate counts the bytes of `values` that are read and of the scores
that are written; beside it a copy of as many bytes as `values` has, which counts what it reads and
what it writes. Their gradients (zoh_scores_backward, all three) read values and dscores and write
dvalues; sparse: one dscore in twelve is not 0, and dvalues are added to in place. Selection:
causal, one batch element, from float32 scores to the query intervals of every key, both in device
memory; what is prepared once per mask is not timed. Dense: torch.topk on [tokens, tokens] scores of
one head, masked beforehand, times the number of heads; up to the length at which such a matrix
fits. Incremental: tokens appended after a prefill.

Seeds are fixed; memory is that of the calls beside scores and result.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from command_line import benchmark_parser, numbers, use_package
from device_time import device_ms
from provenance import head_commit, today
from report_store import write_result
from report_text import Run
from topk_rows import WIDTH, widths

SEED = 20261121
LENGTHS = (1024, 4096, 16384, 65536, 131072, 1048576)
ORDERS = ("random", "rising", "clustered", "drifting")
HEAD_DIM = 128
MAX_VALUES_BYTES = 2**31
MAX_DENSE_TOKENS = 32768
SLEEP_CYCLES = 1_500_000
SAMPLES = 9
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def median_us(call: Callable[[], object], launches: int = 1) -> float:
    for _ in range(2):
        call()
    samples = [device_ms(torch, call, launches, SLEEP_CYCLES) for _ in range(SAMPLES)]
    return 1e3 * statistics.median(samples)


def draw_scores(order: str, heads: int, tokens: int) -> torch.Tensor:
    """float32 [1, heads, tokens]: normal, in ascending order, normal around a level that changes
    every 512 tokens, or uniform in [0, 2) above a level that rises by 1 in 1,000 tokens."""
    generator = torch.Generator("cuda").manual_seed(SEED)
    scores = torch.randn((1, heads, tokens), device="cuda", generator=generator)
    if order == "rising":
        return scores.sort(dim=-1).values.contiguous()
    if order == "drifting":
        level = torch.arange(tokens, device="cuda") / 1000
        return torch.rand((1, heads, tokens), device="cuda", generator=generator) * 2 + level
    if order == "clustered":
        levels = torch.randn((1, heads, tokens // 512 + 1), device="cuda", generator=generator)
        return scores * 0.1 + levels.repeat_interleave(512, dim=-1)[..., :tokens]
    return scores


def bench_scores(fdma: Any, dtype: str, heads: int, tokens: int, wide: bool) -> Run | None:
    generator = torch.Generator("cuda").manual_seed(SEED)
    element = DTYPES[dtype].itemsize
    values_bytes = tokens * heads * HEAD_DIM * element
    if values_bytes > MAX_VALUES_BYTES:
        return None

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator).to(DTYPES[dtype])

    values = normal(1, tokens, heads, HEAD_DIM)
    dt_proj = normal(heads, heads * HEAD_DIM if wide else HEAD_DIM) / HEAD_DIM**0.5
    a_coef = torch.full((heads,), -0.5, device="cuda")
    out = torch.empty((1, heads, tokens), device="cuda")
    copied = torch.empty_like(values)
    # Small inputs would stay in the cache from one launch to the next: others in between.
    pool = max(1, min(64, 2**29 // values_bytes)) if values_bytes < 2**28 else 1
    inputs = [values] + [values.clone() for _ in range(pool - 1)]
    state = [0]

    def next_values() -> torch.Tensor:
        state[0] = (state[0] + 1) % pool
        return inputs[state[0]]

    launches = max(1, min(pool, 16))
    dscores = normal(1, heads, tokens).float()
    few_dscores = dscores * (torch.rand(dscores.shape, device="cuda", generator=generator) < 1 / 12)
    gradients = [torch.empty_like(x) for x in (values, dt_proj, a_coef)]
    size = fdma.zoh_backward_workspace_nbytes(1, tokens, heads, HEAD_DIM, wide)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")

    def backward(given: torch.Tensor, other: torch.Tensor | None) -> None:
        fdma.zoh_scores_backward(
            next_values(), dt_proj, a_coef, given,
            dvalues=gradients[0], ddt_proj=gradients[1], da_coef=gradients[2],
            other_dvalues=other, workspace=workspace,
        )  # fmt: skip

    fdma_us = median_us(lambda: fdma.zoh_scores(next_values(), dt_proj, a_coef, out=out), launches)
    backward_us = median_us(lambda: backward(dscores, None), launches)
    sparse_us = median_us(lambda: backward(few_dscores, gradients[0]), launches)
    copy_us = median_us(lambda: copied.copy_(next_values()), launches)
    moved = values_bytes + out.numel() * 4
    return {
        "dtype": dtype,
        "heads": heads,
        "tokens": tokens,
        "dt_proj": "wide" if wide else "per head",
        "fdma_us": fdma_us,
        "bytes": moved,
        "bytes_per_second": moved / fdma_us * 1e6,
        "backward_us": backward_us,
        "backward_bytes": 2 * values_bytes + out.numel() * 4,
        "sparse_backward_us": sparse_us,
        "backward_workspace_bytes": size,
        "copy_us": copy_us,
        "copy_bytes_per_second": 2 * values_bytes / copy_us * 1e6,
    }


def bench_selection(fdma: Any, heads: int, tokens: int, dense_us: dict[int, float]) -> list[Run]:
    among = fdma.compile("causal", q_len=tokens)
    runs = []
    for width in widths(tokens):
        topk = fdma.DeviceTopk(among, width, heads_kv=heads)
        kept = torch.empty((1, heads, tokens, 2), dtype=torch.int32, device="cuda")
        for order in ORDERS:
            scores = draw_scores(order, heads, tokens)

            fdma_us = median_us(partial(topk.select, scores, out=kept), 8)
            intervals = int((kept[..., 0] < kept[..., 1]).sum())
            runs.append(
                {
                    "heads": heads,
                    "tokens": tokens,
                    "w": width,
                    "order": order,
                    "fdma_us": fdma_us,
                    "intervals": intervals,
                    "kept_bytes": kept.numel() * 4,
                    "workspace_bytes": topk.workspace_nbytes,
                    "prepared_bytes": topk.nbytes,
                }
            )
            if order == "random" and width in dense_us:
                runs[-1]["dense_us"] = dense_us[width] * heads
    return runs


def bench_dense(tokens: int) -> dict[int, float]:
    """torch.topk of one head by width, for the widths of that length."""
    if tokens > MAX_DENSE_TOKENS:
        return {}
    scores = draw_scores("random", 1, tokens)[0, 0]
    dense = scores.repeat(tokens, 1)
    dense.masked_fill_(
        torch.ones((tokens, tokens), dtype=torch.bool, device="cuda").triu_(1), float("-inf")
    )
    return {width: median_us(partial(torch.topk, dense, width, dim=-1)) for width in widths(tokens)}


def bench_incremental(fdma: Any, heads: int, tokens: int, width: int) -> list[Run]:
    runs = []
    scores = draw_scores("random", heads, tokens)
    for chunk in (1, 64, 512, 4096):
        launches = 8
        room = chunk * launches * (SAMPLES + 2)
        topk = fdma.DeviceIncrementalTopk(width, tokens + room, heads_kv=heads)
        topk.append(scores)
        new = draw_scores("random", heads, chunk)
        rising = new + 100 * torch.arange(1, chunk + 1, device="cuda")
        append_us = median_us(partial(topk.append, new), launches // 2)
        entering_us = median_us(partial(topk.append, rising), launches // 2 - 1)
        runs.append(
            {
                "heads": heads,
                "tokens": tokens,
                "w": width,
                "chunk": chunk,
                "append_us": append_us,
                "append_rising_us": entering_us,
                "bytes": topk.nbytes,
            }
        )
    return runs


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--lengths", type=numbers, default=list(LENGTHS))
    parser.add_argument("--heads", type=numbers, default=[32, 8])
    options = parser.parse_args()
    fdma = use_package(options.module)
    result: Run = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": today(),
        "head_dim": HEAD_DIM,
        "scores": [],
        "selection": [],
        "incremental": [],
        "commit": head_commit(),
    }
    shapes = [(heads, tokens) for heads in options.heads for tokens in options.lengths]
    for heads, tokens in shapes:
        for dtype in DTYPES:
            for wide in (False, True):
                run = bench_scores(fdma, dtype, heads, tokens, wide)
                if run:
                    result["scores"].append(run)
        write_result(options.result, result)
    dense = {tokens: bench_dense(tokens) for tokens in options.lengths}
    for heads, tokens in shapes:
        result["selection"] += bench_selection(fdma, heads, tokens, dense[tokens])
        write_result(options.result, result)
    for heads in options.heads:
        tokens = min(131072, max(options.lengths))
        result["incremental"] += bench_incremental(fdma, heads, tokens, min(WIDTH, tokens))
    write_result(options.result, result)


if __name__ == "__main__":
    main()
