"""What a user of PyTorch sees: host time of a call, steps over changing documents, throughput.

    python3 bench_training_gpu.py <folder of fdma> <result.json> [--parts overhead,attention,..]

Parts:
    overhead   host time of one call on tiny tensors (bench_python_overhead.py), beside SDPA's
    attention  steps over packed documents that change every step (packed_steps.py), forward and
    layer      backward, mask included; attention alone, and with the projections around it
    length     tokens a second and memory of forward and backward against the length, documents as
               above, beside cuDNN's causal attention
    sparsity   the same at 32K against the share of cells that a causal window keeps

A step of the parts attention and layer is wall time with a wait at its end; what length and
sparsity measure is queued back to back, between two events. Medians. The result of every contender
is compared with FDMA's at the same documents (sdpa_causal's is another one, and is not). Rows are
written one by one, and are not measured again while they are there (--again).
"""

from __future__ import annotations

import argparse
import datetime
import gc
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attention_rows import chosen
from bench_attention_gpu import Results, WrongResultError, commit_and_changes, gpu_state
from packed_steps import NAMES, Contender, Documents, Layer, allowed_pairs

Run = dict[str, Any]

SEED = 20261122
PARTS = ("overhead", "attention", "layer", "length", "sparsity")
HEADS, HEAD_DIM = 32, 128
STEP_TOKENS = (8192, 32768)
LENGTHS = tuple(1 << i for i in range(11, 18))
WINDOW_TOKENS = 32768
WINDOWS = tuple(WINDOW_TOKENS >> i for i in range(8))
LARGEST_DIFFERENCE = 0.05  # of results of the size of v, in bfloat16
WARM_STEPS = 3
LONG_STEP_MS = 50


def all_rows() -> Iterator[str]:
    yield "overhead/cuda"
    for part in ("attention", "layer"):
        for tokens in STEP_TOKENS:
            for name in NAMES:
                yield f"{part}/{tokens}/{name}"
    for tokens in LENGTHS:
        for name in ("fdma", "sdpa_causal"):
            yield f"length/{tokens}/{name}"
    yield f"sparsity/{WINDOW_TOKENS}/sdpa_causal"
    for window in WINDOWS:
        yield f"sparsity/{window}/fdma"


class Bench:
    """The packages, and what rows of one shape share."""

    def __init__(self, torch: Any, fdma: Any, device: str, heads: int, head_dim: int) -> None:
        self.torch, self.fdma = torch, fdma
        self.device = device
        self.heads, self.head_dim = heads, head_dim
        self.num_steps, self.seconds_a_row = 12, 1.5
        self.contenders: dict[tuple[str, int], Contender] = {}

    def contender(self, name: str, tokens: int) -> Contender:
        key = name, tokens
        if key not in self.contenders:
            self.contenders[key] = Contender(name, self.torch, self.fdma, tokens, self.device)
        return self.contenders[key]

    def wait(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def layer(self, tokens: int, has_projections: bool = False) -> Layer:
        return Layer(self.torch, tokens, self.heads, self.head_dim, self.device, has_projections)

    def plan_bytes(self) -> int:
        """Of plans and workspaces that are kept, which PyTorch's allocator does not count."""
        from fdma.attention.plans import plans

        kept = [entry.plan for entry in plans._entries.values()]
        return sum(plan.nbytes + getattr(plan, "workspace_nbytes", 0) for plan in kept)

    def peak_bytes(self, step: Callable[[], object]) -> int:
        """Beyond what was there before the step."""
        if self.device != "cuda":
            return 0
        cuda = self.torch.cuda
        cuda.synchronize()
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        step()
        cuda.synchronize()
        return int(cuda.max_memory_allocated()) - int(before)

    # ---- parts

    def overhead(self) -> Run:
        from bench_python_overhead import measured

        return {"time_us": measured(self.device)}

    def steps(self, part: str, tokens: int, name: str) -> Run:
        """A row of the parts attention and layer."""
        contender = self.contender(name, tokens)
        layer = self.layer(tokens, part == "layer")
        begin = time.perf_counter()
        difference = self.difference(layer, contender, tokens, name)
        first_s = time.perf_counter() - begin
        documents = Documents(tokens, SEED)
        all_ms, mask_ms, pairs = [], [], []
        begin = time.perf_counter()
        for turn in range(WARM_STEPS + self.num_steps):
            lengths = documents.next()
            layer.clear()
            self.wait()
            at_begin = time.perf_counter()
            mask = contender.mask(lengths)
            at_mask = time.perf_counter()
            layer.step(contender.attend, mask)
            self.wait()
            at_end = time.perf_counter()
            if turn >= WARM_STEPS:
                all_ms.append((at_end - at_begin) * 1e3)
                mask_ms.append((at_mask - at_begin) * 1e3)
                pairs.append(allowed_pairs(lengths))
            if turn >= WARM_STEPS + 2 and at_end - begin > self.seconds_a_row:
                break
        layer.clear()
        lengths = documents.next()
        peak = self.peak_bytes(lambda: layer.step(contender.attend, contender.mask(lengths)))
        run: Run = {
            "step_ms": statistics.median(all_ms),
            "mask_host_ms": statistics.median(mask_ms),
            "first_s": first_s,
            "tokens_per_s": tokens / statistics.median(all_ms) * 1e3,
            "density": statistics.mean(pairs) / tokens**2,
            "peak_bytes": peak,
        }
        if difference is not None:
            run["max_difference"] = difference
        if name == "fdma":
            self.fdma.clear_plans()
            layer.step(contender.attend, contender.mask(lengths))
            run["plan_bytes"] = self.plan_bytes()
        return run

    def difference(self, layer: Layer, contender: Contender, tokens: int, name: str) -> Any:
        """Largest one of FDMA's result and gradients, relative to their largest number."""
        lengths = Documents(tokens, SEED + 1).next()
        found = []
        for each in (contender, self.contender("fdma", tokens)):
            layer.clear()
            out = layer.step(each.attend, each.mask(lengths)).detach()
            found.append((out, layer.x.grad))
        if name == "sdpa_causal":
            return None
        worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*found, strict=True))
        if not worst <= LARGEST_DIFFERENCE:
            raise WrongResultError(f"{name}: differs from fdma's result by {worst:.3g}")
        return worst

    def throughput(self, tokens: int, name: str, window: int | None) -> Run:
        """A row of the parts length and sparsity."""
        layer = self.layer(tokens)
        lengths = Documents(tokens, SEED).next()
        contender = self.contender(name, tokens)
        pairs = allowed_pairs(lengths)
        if window is None:
            mask = contender.mask(lengths)
        else:
            mask = self.fdma.compile(f"causal & window({window})", tokens)
            pairs = mask.counts.allowed_pairs
        if name == "sdpa_causal":
            pairs = tokens * (tokens + 1) // 2

        def step() -> None:
            layer.clear()
            layer.step(contender.attend, mask)

        self.fdma.clear_plans()
        begin = time.perf_counter()
        for _ in range(3):
            step()
            self.wait()
            if time.perf_counter() - begin > self.seconds_a_row / 3:
                break
        peak = self.peak_bytes(step)
        num_steps = 3 if self.device_ms(step, 1) < LONG_STEP_MS else 1
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < 15 and (
            len(times) < 2 or time.perf_counter() - begin < self.seconds_a_row / 3
        ):
            times.append(self.device_ms(step, num_steps))
        ms = statistics.median(times)
        return {
            "tokens": tokens,
            "step_ms": ms,
            "tokens_per_s": tokens / ms * 1e3,
            "density": pairs / tokens**2,
            "tflops": 14.0 * self.head_dim * self.heads * pairs / ms / 1e9,
            "peak_bytes": peak,
            "plan_bytes": self.plan_bytes() if name == "fdma" else 0,
        }

    def device_ms(self, step: Callable[[], None], num_steps: int) -> float:
        """Of a step, the GPU kept busy while the host prepares them."""
        if self.device != "cuda":
            begin = time.perf_counter()
            step()
            return (time.perf_counter() - begin) * 1e3
        cuda = self.torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda._sleep(4_000_000)
        begin.record()
        for _ in range(num_steps):
            step()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / num_steps

    def measure(self, row: str) -> Run:
        part, size, *rest = row.split("/")
        if part == "overhead":
            return self.overhead()
        name = rest[0]
        if part in ("attention", "layer"):
            return self.steps(part, int(size), name)
        if part == "length":
            return self.throughput(int(size), name, None)
        return self.throughput(WINDOW_TOKENS, name, int(size) if name == "fdma" else None)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("module", type=Path, help="folder of the built package fdma")
    parser.add_argument("result", type=Path, help="JSON file to write, and to continue")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS)
    parser.add_argument("--rows", default="*", help="patterns of rows: 'layer/8192/*,overhead'")
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--list", action="store_true", help="say what would run")
    parser.add_argument("--max-seconds", type=float, default=1e9, help="stop before this time")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    begin = time.perf_counter()
    results = Results(options.result)
    done = set() if options.again else {n for n, run in results.rows.items() if "error" not in run}
    of_parts = (row for row in all_rows() if row.partition("/")[0] in options.parts)
    rows = [row for row in chosen(of_parts, options.rows) if row not in done]
    if options.list:
        print(*rows, sep="\n")
        return
    sys.path.insert(0, str(options.module))
    import fdma
    import torch

    if not torch.cuda.is_available():
        print("no GPU")
        sys.exit(77)
    commit, is_changed = commit_and_changes()
    results.describe(
        {
            "machine": gpu_state(),
            "torch": torch.__version__,
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "heads": HEADS,
            "head_dim": HEAD_DIM,
            "dtype": "bfloat16",
            "seed": SEED,
        }
    )
    bench = Bench(torch, fdma, "cuda", HEADS, HEAD_DIM)
    if options.quick:
        bench.num_steps, bench.seconds_a_row = 3, 0.3
    is_wrong = False
    for row in rows:
        if time.perf_counter() - begin > options.max_seconds:
            print(f"out of time before {row}")
            sys.exit(3)
        try:
            run = bench.measure(row)
        except Exception as error:
            traceback.print_exc(limit=3)
            print(f"{row}: {error}", flush=True)
            is_wrong = is_wrong or not isinstance(error, (ImportError, torch.OutOfMemoryError))
            run = {"error": str(error).splitlines()[0][:300] if str(error) else repr(error)}
        gc.collect()
        torch.cuda.empty_cache()
        results.rows[row] = run | {"commit": commit + "+" * is_changed}
        results.write()
        words = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in run.items())
        print(f"{row:32}", *words, flush=True)
    sys.exit(1 if is_wrong else 0)


if __name__ == "__main__":
    main()
