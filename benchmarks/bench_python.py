"""fdma.compile beside FlexAttention's create_block_mask, and the time of `import fdma`.

    python3 bench_python.py <folder of fdma> <result.json> [--device cuda|cpu] [--lengths 8192,..]
                            [--max-seconds 100]

Wall-clock times, medians, from the call to a mask that is ready (on a GPU: after it is done). Next
to fdma.compile of an expression stand the same of the FlexAttention function (traced at every
call), and with FlexAttention's BlockMask on the device made of it (`to_flex`), which is what
create_block_mask returns. create_block_mask runs as it is (eager: every cell in memory) and by
torch.compile.

  warm     the same mask again
  new      packed documents, a new table at every call, as a training step has them
  cold     the first call of a process, imports not counted

What does not fit into --max-seconds, or into memory, is null in the result. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from command_line import benchmark_parser, numbers
from provenance import head_commit, machine_of_today, today
from report_store import write_result
from report_text import Run

SEED = 20261121
BLOCK = 128
NAMES = ("causal", "causal window", "causal documents")
DOCUMENT_TOKENS = 1024  # mean
BUDGET_S = 0.3  # of one median


def document_ids(tokens: int, seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32 [tokens]: ids of packed documents of some 1,024 tokens, the last one cut off."""
    random = np.random.default_rng(seed)
    ends = np.cumsum(random.integers(16, 2 * DOCUMENT_TOKENS, 2 * tokens // DOCUMENT_TOKENS + 64))
    return np.searchsorted(ends, np.arange(tokens), side="right").astype(np.int32)


class Masks:
    """The masks measured, as FDMA's expressions and as FlexAttention's functions."""

    def __init__(self, device: str) -> None:
        import fdma
        import torch
        from torch.nn.attention.flex_attention import create_block_mask

        self.torch, self.fdma, self.device = torch, fdma, device
        self.eager = create_block_mask
        self.compiled = torch.compile(create_block_mask)

    def expression(self, name: str, tokens: int, seed: int = SEED) -> Any:
        fdma = self.fdma
        if name == "causal":
            return fdma.causal()
        if name == "causal window":
            return fdma.causal() & fdma.window(1024)
        return fdma.causal() & fdma.documents(ids=document_ids(tokens, seed))

    def function(self, name: str, tokens: int, seed: int = SEED) -> Callable[..., Any]:
        if name == "causal":
            return lambda b, h, q, k: q >= k
        if name == "causal window":
            return lambda b, h, q, k: (q >= k) & (q - k < 1024)
        ids = self.torch.from_numpy(document_ids(tokens, seed)).to(self.device)
        return lambda b, h, q, k: (q >= k) & (ids[q] == ids[k])

    def create(self, function: Callable[..., Any], tokens: int, is_compiled: bool) -> Any:
        create = self.compiled if is_compiled else self.eager
        mask = create(function, None, None, tokens, tokens, self.device, BLOCK)
        self.wait()
        return mask

    def compile(self, mask: Any, tokens: int, to_flex: bool = False) -> Any:
        compiled = self.fdma.compile(mask, tokens, block=BLOCK)
        if not to_flex:
            return compiled
        result = compiled.to_flex(self.device, block=BLOCK)
        self.wait()
        return result

    def wait(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def median_us(call: Callable[[int], object]) -> float:
    """call(i) for i = 1, 2, ..: at least 3 times where a call takes less than 3 s."""
    samples: list[float] = []
    begin = time.perf_counter()
    while len(samples) < 100:
        start = time.perf_counter()
        call(len(samples) + 1)
        samples.append((time.perf_counter() - start) * 1e6)
        spent = time.perf_counter() - begin
        if (len(samples) >= 3 and spent > BUDGET_S) or spent > 3:
            break
    return statistics.median(samples)


def measured(call: Callable[[int], object]) -> float | None:
    """Median in microseconds after one call more, or None where memory does not do."""
    try:
        call(0)
        return median_us(call)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            return None
        raise


def measure(masks: Masks, name: str, tokens: int) -> Run:
    """One row without torch.compile; of documents also what is new at every call."""
    expression = masks.expression(name, tokens)
    function = masks.function(name, tokens)
    run: Run = {
        "mask": name,
        "tokens": tokens,
        "fdma_us": measured(lambda _: masks.compile(expression, tokens)),
        "fdma_function_us": measured(lambda _: masks.compile(function, tokens)),
        "fdma_flex_us": measured(lambda _: masks.compile(expression, tokens, to_flex=True)),
        "eager_us": None,
        "compiled_us": None,
    }
    has_room = has_room_for_cells(masks, tokens)
    if has_room:
        run["eager_us"] = measured(lambda _: masks.create(function, tokens, False))
    if name == "causal documents":
        # Making the table, and copying it to the device, counts.
        def ours(step: int, to_flex: bool = False) -> None:
            masks.compile(masks.expression(name, tokens, SEED + step), tokens, to_flex)

        run["new_fdma_us"] = measured(ours)
        run["new_fdma_flex_us"] = measured(lambda step: ours(step, to_flex=True))
        run["new_eager_us"] = measured(partial(new_documents, masks, tokens)) if has_room else None
        run["new_compiled_us"] = None
    return run


def new_documents(masks: Masks, tokens: int, step: int, is_compiled: bool = False) -> None:
    function = masks.function("causal documents", tokens, SEED + step)
    masks.create(function, tokens, is_compiled)


def measure_compiled(masks: Masks, run: Run) -> None:
    """The same by torch.compile; the warm-up call, which takes seconds, compiles."""
    tokens = run["tokens"]
    function = masks.function(run["mask"], tokens)
    run["compiled_us"] = measured(lambda _: masks.create(function, tokens, True))
    if "new_compiled_us" in run:
        run["new_compiled_us"] = measured(partial(new_documents, masks, tokens, is_compiled=True))


def has_room_for_cells(masks: Masks, tokens: int) -> bool:
    """A host that runs out of memory ends the process; a GPU says so."""
    if masks.device == "cuda":
        return True
    cell_bytes = 12  # the cell and what the function makes on its way, int64 for instance
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return tokens * tokens * cell_bytes < free


def first_call(device: str, tokens: int, kind: str) -> float:
    """In a process of its own: microseconds of the first call. --cold runs this."""
    masks = Masks(device)
    name = "causal documents"
    if device == "cuda":
        masks.torch.zeros(1, device="cuda")
    if kind.startswith("fdma"):
        mask = masks.expression(name, tokens)
        start = time.perf_counter()
        masks.compile(mask, tokens, to_flex=kind == "fdma_flex")
    else:
        function = masks.function(name, tokens)
        start = time.perf_counter()
        masks.create(function, tokens, kind == "compiled")
    return (time.perf_counter() - start) * 1e6


def printed_number(*words: str, **environment: str) -> float:
    """What another process of Python prints."""
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def measure_cold(folder: Path, device: str, tokens: int) -> Run:
    """Nothing cached: TorchInductor starts with an empty folder."""
    run: Run = {"mask": "causal documents", "tokens": tokens}
    words = [__file__, str(folder), "-", "--device", device, "--lengths", str(tokens), "--cold"]
    for kind in ("fdma", "fdma_flex", "eager", "compiled"):
        with tempfile.TemporaryDirectory() as cache:
            run[f"{kind}_us"] = printed_number(
                *words, kind, TORCHINDUCTOR_CACHE_DIR=cache, TRITON_CACHE_DIR=cache
            )
    return run


def import_times(folder: Path) -> Run:
    """Milliseconds of `import fdma` where NumPy is there; of NumPy and PyTorch beside it."""
    result: Run = {}
    for name in ("numpy", "fdma", "torch"):
        before = "import numpy" if name == "fdma" else "pass"
        code = f"import time; {before}; t = time.perf_counter(); import {name}; "
        code += "print((time.perf_counter() - t) * 1e3)"
        num_samples = 1 if name == "torch" else 8
        samples = [printed_number("-c", code, PYTHONPATH=str(folder)) for _ in range(num_samples)]
        # The first one may compile and read from disk.
        result[name] = statistics.median(samples[1:] or samples)
    return result


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--lengths", type=numbers, help="tokens, comma-separated")
    parser.add_argument("--max-seconds", type=float, default=100)
    parser.add_argument("--cold", help=argparse.SUPPRESS)
    options = parser.parse_args()
    begin = time.perf_counter()
    folder = options.module.resolve()
    sys.path.insert(0, str(folder))

    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    lengths = options.lengths or ([8192, 32768, 131072] if device == "cuda" else [8192])
    if options.cold:
        print(first_call(device, lengths[0], options.cold))
        return

    def left() -> float:
        return float(options.max_seconds - (time.perf_counter() - begin))

    runs: list[Run] = []
    result: Run = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "machine": machine_of_today(),
        "threads": os.cpu_count(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "date": today(),
        "import_ms": import_times(folder),
        "cold": measure_cold(folder, device, lengths[0]),
        "runs": runs,
        "commit": head_commit(),
    }
    masks = Masks(device)
    for tokens in lengths:
        runs += [measure(masks, name, tokens) for name in NAMES if left() > 10]
    # What compiles comes last, documents first: it is most of the time.
    for run in sorted(runs, key=lambda run: (run["mask"] != "causal documents", run["tokens"])):
        if left() > 20:
            measure_compiled(masks, run)
        write_result(options.result, result)
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
