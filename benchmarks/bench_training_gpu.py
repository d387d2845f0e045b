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

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from command_line import use_package
from device_time import device_ms
from packed_steps import NAMES, Contender, Documents, Layer, allowed_pairs
from provenance import PACKAGE_SOURCES, gpu_state, origin
from report_text import Run
from rows import Results, WrongResultError, measure_rows, row_parser

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
SLEEP_CYCLES = 4_000_000


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
        from fdma import _fdma
        from fdma.attention.plans import plans

        kept = [entry.plan for entry in plans._entries.values()]
        return int(sum(plan.nbytes for plan in kept)) + _fdma.workspaces_nbytes()

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
        return device_ms(self.torch, step, num_steps, SLEEP_CYCLES)

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

    def measure_if_possible(self, row: str) -> Run:
        """An error in place of times where a package is not there, or memory does not do."""
        try:
            return self.measure(row)
        except (ImportError, self.torch.OutOfMemoryError) as error:
            return {"error": str(error).partition("\n")[0][:300] or repr(error)}
        finally:
            gc.collect()
            self.torch.cuda.empty_cache()


def text_of(run: Run) -> str:
    words = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in run.items())
    return " ".join(words)


def main() -> None:
    begin = time.monotonic()
    options = row_parser(__doc__, PARTS, "layer/8192/*,overhead").parse_args()
    results = Results(options.result)
    rows = results.left(all_rows(), options)
    if not rows:
        return
    use_package(options.module)
    import fdma
    import torch

    if not torch.cuda.is_available():
        print("no GPU")
        sys.exit(77)
    state = origin(PACKAGE_SOURCES)
    results.describe(
        {
            "machine": gpu_state(),
            "torch": torch.__version__,
            "date": state["date"],
            "heads": HEADS,
            "head_dim": HEAD_DIM,
            "dtype": "bfloat16",
            "seed": SEED,
        }
    )
    bench = Bench(torch, fdma, "cuda", HEADS, HEAD_DIM)
    if options.quick:
        bench.num_steps, bench.seconds_a_row = 3, 0.3
    commit = {"commit": state["commit"] + "+" * state["uncommitted_changes"]}

    def measure(row: str) -> Run:
        return bench.measure_if_possible(row) | commit

    measure_rows(rows, results, measure, text_of, lambda row: 0.0, begin + options.max_seconds)


if __name__ == "__main__":
    main()
