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

import argparse
import datetime
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attention_rows import chosen
from bench_attention_gpu import Results, Timing, WrongResultError, commit_and_changes, gpu_state
from column_ways import MASKS, measure_ways
from topk_alone import measure_alone
from topk_flex import measure_flex
from topk_training import measure_training

Run = dict[str, Any]

SEED = 20261122
RATIOS = (0.2, 0.1, 0.05, 0.025)
CLAIMED_RATIOS = tuple(zip((1024, 4096, 16384, 65536), RATIOS, strict=True))
WIDTH = 2048
TOTAL_TOKENS = 65536
TOTAL_TOKENS_ALONE = 32768
ORDERS = ("random", "drifting", "rising", "clustered")
STAGES = ("scores", "selection", "lists", "attention")
MAX_CUDNN_TOKENS = 131072
LONG_TOKENS = 65536  # from here on cuDNN takes its time, and is no part of the rounds
CUDNN_MASKS = {"full": False, "causal": True}
A_COEF = -0.5

# Of shapes that this call has timed already.
CUDNN_MS: dict[str, Run] = {}


@dataclass(frozen=True)
class Row:
    part: str
    tokens: int
    heads: int
    heads_kv: int
    head_dim: int
    width: int
    order: str

    @property
    def batch(self) -> int:
        total = TOTAL_TOKENS_ALONE if self.part == "alone" else TOTAL_TOKENS
        return max(1, total // self.tokens)

    @property
    def shape(self) -> str:
        return f"{self.tokens // 1024}K/b{self.batch}h{self.heads}kv{self.heads_kv}d{self.head_dim}"

    def __str__(self) -> str:
        return f"{self.part}/{self.shape}/w{self.width}/{self.order}"


def all_rows() -> Iterator[Row]:
    """In the order of their importance, those of one shape together where that does not matter."""
    for heads_kv in (32, 8):
        for order in ORDERS:
            yield Row("topk", 131072, 32, heads_kv, 128, WIDTH, order)
    for tokens, ratio in CLAIMED_RATIOS:
        yield Row("topk", tokens, 32, 32, 128, round(ratio * tokens), "random")
    for tokens, ratio in CLAIMED_RATIOS:
        yield Row("alone", tokens, 32, 32, 128, round(ratio * tokens), "random")
    for heads_kv in (32, 8):
        for order in ORDERS:
            yield Row("train", 131072, 32, heads_kv, 128, WIDTH, order)
    for tokens, ratio in CLAIMED_RATIOS:
        yield Row("train", tokens, 32, 32, 128, round(ratio * tokens), "random")
    yield Row("flex", 131072, 32, 32, 128, WIDTH, "random")
    for tokens, ratio in CLAIMED_RATIOS[::-1]:
        yield Row("flex", tokens, 32, 32, 128, round(ratio * tokens), "random")
    for tokens in (32768, 131072, 8192):
        for mask in MASKS:
            if (mask, tokens) != ("token_lists", 131072):  # a table of 128 MiB
                yield Row("ways", tokens, 32, 32, 128, tokens // 64, mask)
    yield Row("topk", 1048576, 32, 8, 128, WIDTH, "random")
    for heads_kv in (32, 8):
        for order in ORDERS:
            yield Row("topk", 131072, 32, heads_kv, 64, WIDTH, order)
    for tokens, ratio in CLAIMED_RATIOS:
        yield Row("topk", tokens, 32, 32, 64, round(ratio * tokens), "random")
    for head_dim, heads_kv in ((128, 32), (64, 32), (128, 8), (64, 8)):
        for tokens in (1024, 4096, 16384, 65536, 131072):
            for width in sorted({*(round(r * tokens) for r in RATIOS), min(WIDTH, tokens)}):
                yield Row("topk", tokens, 32, heads_kv, head_dim, width, "random")
    for tokens in (4096, 16384):
        for order in ORDERS[1:]:
            yield Row("topk", tokens, 32, 32, 128, round(0.1 * tokens), order)
    yield Row("topk", 1048576, 32, 8, 64, WIDTH, "random")


class Problem:
    """Tensors of one shape, and cuDNN on them."""

    def __init__(self, torch: Any, row: Row) -> None:
        self.torch = torch
        self.name = row.shape
        self.row = row
        torch.manual_seed(SEED)

        def normal(*size: int) -> Any:
            return torch.randn(size, device="cuda", dtype=torch.bfloat16)

        self.q = normal(row.batch, row.tokens, row.heads, row.head_dim)
        self.k, self.v = (normal(row.batch, row.tokens, row.heads_kv, row.head_dim) for _ in "kv")
        self.dt_proj = normal(row.heads_kv, row.head_dim) / row.head_dim**0.5
        self.a_coef = torch.full((row.heads_kv,), A_COEF, device="cuda")
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty((row.batch, row.heads, row.tokens), device="cuda")
        self.cudnn_ms = CUDNN_MS.setdefault(self.name, {})

    def scores(self, order: str) -> Any:
        torch, row = self.torch, self.row
        size = (row.batch, row.heads_kv, row.tokens)
        torch.manual_seed(SEED + 1)
        normal = torch.randn(size, device="cuda")
        keys = torch.arange(row.tokens, device="cuda", dtype=torch.float32)
        if order == "drifting":
            return normal + keys / 2048
        if order == "rising":
            # Distinct, and small enough to be added to logits.
            return (keys / row.tokens).expand(size).contiguous()
        if order == "clustered":
            levels = torch.randn((*size[:2], row.tokens // 512 + 1), device="cuda")
            return normal * 0.1 + levels.repeat_interleave(512, dim=-1)[..., : row.tokens]
        return normal

    def cudnn(self, is_causal: bool) -> Any:
        torch = self.torch
        attention = torch.nn.attention
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=is_causal, enable_gqa=self.row.heads != self.row.heads_kv
            )

    def measure_cudnn(self) -> Run:
        """Milliseconds of full and causal attention, too long for rounds: the least of two after
        one that warms up."""
        if self.row.tokens > MAX_CUDNN_TOKENS or self.cudnn_ms:
            return self.cudnn_ms
        cuda = self.torch.cuda
        for name, is_causal in CUDNN_MASKS.items():
            samples = []
            for _ in range(3):
                begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                self.cudnn(is_causal)
                end.record()
                end.synchronize()
                samples.append(begin.elapsed_time(end))
            self.cudnn_ms[f"cudnn_{name}_ms"] = min(samples[1:])
        return self.cudnn_ms

    def sampled_queries(self) -> list[int]:
        tokens = self.row.tokens
        edges = [0, 1, 127, 128, tokens // 2 - 1, tokens // 2, tokens - 128, tokens - 1]
        self.torch.manual_seed(SEED + 2)
        rest = self.torch.randint(0, tokens, (12,)).tolist()
        return sorted({*edges, *rest})

    def check(self, scores: Any, kept: Any, has_bias: bool = True) -> Run:
        """Of sampled queries of the first and the last head; what is wrong is an error."""
        torch, row = self.torch, self.row
        worst: Run = {"max_error": 0.0, "lse_max_error": 0.0}
        queries = self.sampled_queries()
        for b, h in ((0, 0), (row.batch - 1, row.heads - 1)):
            h_kv = h // (row.heads // row.heads_kv)
            chosen_by, intervals = scores[b, h_kv], kept[b, h_kv]
            bias = chosen_by if has_bias else torch.zeros_like(chosen_by)
            k, v = self.k[b, :, h_kv], self.v[b, :, h_kv]
            scale = row.head_dim**-0.5
            expected = []
            for query in queries:
                order = torch.sort(chosen_by[: query + 1], descending=True, stable=True).indices
                best = order[: row.width].sort().values
                got = ((intervals[:, 0] <= query) & (query < intervals[:, 1])).nonzero()[:, 0]
                if not torch.equal(best, got):
                    raise WrongResultError(f"query {query} of head {h} keeps other keys")
                q = self.q[b, query, h]
                logits = (k[best].double() @ q.double()) * scale + bias[best].double()
                exact = logits.softmax(0) @ v[best].double()
                plain = (k[best].float() @ q.float()) * scale + bias[best]
                rounded = (plain.softmax(0).to(v.dtype).float() @ v[best].float()).to(v.dtype)
                expected.append(torch.stack([exact, rounded.double()]))
                lse_error = abs(float(self.lse[b, h, query].double() - logits.logsumexp(0)))
                worst["lse_max_error"] = max(worst["lse_max_error"], lse_error)
                if not lse_error <= 1e-4 * max(1.0, float(logits.abs().max())):
                    raise WrongResultError(f"lse[{b}, {h}, {query}]: error {lse_error:.3g}")
            exact, rounded = torch.stack(expected, dim=1)
            allowed = 2 * float((rounded - exact).abs().max()) + 1e-5 * float(exact.abs().max())
            error = float((self.out[b, queries, h].double() - exact).abs().max())
            worst["max_error"] = max(worst["max_error"], error)
            if not error <= allowed:
                raise WrongResultError(f"out of head {h}: error {error:.3g}, {allowed:.3g} allowed")
        return worst | {"rows_checked": 2 * len(queries)}


def prepared(fdma: Any, row: Row, bias: str = "exp") -> Any:
    return fdma.DynamicMaskAttention(
        row.width,
        q_len=row.tokens,
        batch=row.batch,
        heads_q=row.heads,
        heads_kv=row.heads_kv,
        head_dim=row.head_dim,
        dtype="bfloat16",
        bias=bias,
        backend="sm90",
    )


def measure_topk(fdma: Any, problem: Problem, row: Row, quick: bool) -> Run:
    torch = problem.torch
    begin = time.perf_counter()
    held = prepared(fdma, row)
    prepare_ms = 1e3 * (time.perf_counter() - begin)
    scores = problem.scores(row.order)
    tensors = (problem.q, problem.k, problem.v)
    results = {"out": problem.out, "lse": problem.lse}

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
    seen = torch.arange(1, row.tokens + 1, dtype=torch.float64)
    pairs = float(seen.clamp(max=row.width).sum()) * row.batch * row.heads
    attention_ms = 1e3 * timing.median("attention")
    run: Run = {
        "reading": held.reading,
        "heads_per_tile": held.heads_per_tile,
        "pairs": pairs,
        "intervals": num_intervals,
        "prepare_ms": prepare_ms,
        "prepared_bytes": held.nbytes,
        "workspace_bytes": held.workspace_nbytes,
        "scores_bytes": scores.numel() * 4,
        "kept_bytes": scores.numel() * 8,
        "tensor_bytes": sum(x.numel() * x.element_size() for x in (*tensors, problem.out)),
        "attention_tflops": 4 * row.head_dim * pairs / attention_ms / 1e9,
        **{f"{name}_ms": 1e3 * timing.median(name) for name in calls},
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


MEASURES: dict[str, Callable[[Any, Problem, Row, bool], Run]] = {
    "topk": measure_topk,
    "alone": partial(measure_alone, prepared),
    "train": measure_training,
    "flex": measure_flex,
    "ways": measure_ways,
}


def expected_seconds(row: Row) -> float:
    return {"flex": 8.0, "ways": 6.0, "train": 2.0, "alone": 3.0}.get(
        row.part, 1.0
    ) + row.tokens / 131072


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("module", type=Path, help="folder of the built package fdma")
    parser.add_argument("result", type=Path, help="JSON file to write, and to continue")
    parser.add_argument("--rows", default="*", help="patterns of rows: 'topk/128K/*,train/*'")
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--list", action="store_true", help="only say which rows are left")
    parser.add_argument("--max-seconds", type=float, default=1e9)
    return parser.parse_args()


def text_of(row: Row, run: Run) -> str:
    text = f"{row}:"
    for name, value in run.items():
        if name.endswith("_ms"):
            text += f" {name.removesuffix('_ms')} {value:.3f}"
    if "attention_tflops" in run:
        text += f"; {run['attention_tflops']:.0f} TFLOP/s, {run['reading']}"
        text += f" x {run['heads_per_tile']}, plan {100 * run['plan_share']:.1f} %"
    if "cudnn_full_speedup" in run:
        text += (
            f"; {run['cudnn_full_speedup']:.2f}x full, {run['cudnn_causal_speedup']:.2f}x causal"
        )
    return text


def measure(rows: list[Row], results: Results, options: argparse.Namespace, begin: float) -> int:
    """How many rows are left, or -1 where some are wrong."""
    sys.path.insert(0, str(options.module.resolve()))
    import torch
    from fdma import _fdma as fdma

    torch.set_grad_enabled(False)
    commit, is_changed = commit_and_changes()
    results.describe(
        {
            "machine": {"gpu": torch.cuda.get_device_name(), "state": gpu_state()},
            "torch_version": torch.__version__,
            "cuda_version": torch.version.cuda,
            "cudnn_version": torch.backends.cudnn.version(),
            "commit": commit,
            "uncommitted_changes": is_changed,
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "seed": SEED,
            "dtype": "bfloat16",
        }
    )
    problem: Problem | None = None
    is_wrong = False
    for done, row in enumerate(rows):
        if time.monotonic() - begin + expected_seconds(row) > options.max_seconds:
            return -1 if is_wrong else len(rows) - done
        if problem is None or problem.name != row.shape:
            problem = None
            torch.cuda.empty_cache()
            problem = Problem(torch, row)
        problem.row = row
        row_begin = time.monotonic()
        try:
            run = MEASURES[row.part](fdma, problem, row, options.quick)
        except Exception as error:  # the other rows are worth having
            if not isinstance(error, WrongResultError):
                traceback.print_exc()
            print(f"{row}: WRONG: {error}", flush=True)
            is_wrong = True
            continue
        fields = ("part", "tokens", "batch", "heads", "heads_kv", "head_dim", "width", "order")
        described = {name: getattr(row, name) for name in fields}
        results.rows[str(row)] = described | run | {"commit": commit}
        results.write()
        print(f"{text_of(row, run)} ({time.monotonic() - row_begin:.1f} s)", flush=True)
    return -1 if is_wrong else 0


def main() -> None:
    begin = time.monotonic()
    options = arguments()
    results = Results(options.result)
    wanted = chosen(all_rows(), options.rows)
    rows = [row for row in wanted if options.again or str(row) not in results.rows]
    print(f"{len(wanted)} rows, {len(wanted) - len(rows)} of them measured already", flush=True)
    if options.list:
        print("\n".join(map(str, rows)))
        return
    left = measure(rows, results, options, begin) if rows else 0
    if left < 0:
        sys.exit("some rows are wrong")
    if left > 0:
        print(f"out of time: {left} rows are left for the next call", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
