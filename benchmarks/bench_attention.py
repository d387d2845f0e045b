"""Attention on the CPU by FDMA beside PyTorch's scaled_dot_product_attention, in one process.

    python3 bench_attention.py <folder of fdma> <result.json> [--isa native,avx2] [--lengths ..] ..

Both compute the same tensors (heads first in memory, float32, bfloat16, float16) with the same
number of threads. Within a group of one length, dtype and head_dim, every mask is run by both in
turn, round after round, so that a machine that slows down slows all of them; times are medians over
rounds, after a first round that is not timed and in which the results are compared. FDMA runs
a plan made beforehand; what compiling and planning take is reported apart. PyTorch has is_causal
for causal; for other masks it gets a boolean [q_len, kv_len]. Gradients of q, k and v likewise:
PyTorch's by autograd, of a result that is kept (`backward_runs` of a session, `--directions`).

`--isa avx2` forbids both libraries everything above AVX2 (in a process of its own, by environment
variables), so that a machine with AVX-512 can show what one without it would.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command_line import benchmark_parser, names, numbers, use_package
from mask_suite import DOCUMENTS
from provenance import PACKAGE_SOURCES, cpu_facts, cpu_model, origin, os_name
from report_store import read_json, write_result
from report_text import Run

SEED = 20261121
DTYPES = ("float32", "bfloat16", "float16")
# Largest difference between the two results; inputs are normal numbers.
TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}
# Both libraries keep spinning threads for a moment; the other one should not have to run beside
# them.
PAUSE_S = 0.004
ISA_ENVIRONMENT = {
    "native": {},
    "avx2": {
        "FDMA_CPU_TARGET": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
CPU_FLAGS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_bf16", "amx_fp16"),
)


def arguments() -> argparse.Namespace:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--isa", type=names, default=["native", "avx2"])
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096, 8192])
    parser.add_argument("--dtypes", type=names, default=list(DTYPES))
    parser.add_argument("--head-dims", type=numbers, default=[64, 128])
    parser.add_argument("--directions", type=names, default=["forward", "backward"])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of a group, at least")
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="time for more rounds of a group"
    )
    parser.add_argument("--child", choices=list(ISA_ENVIRONMENT), help=argparse.SUPPRESS)
    return parser.parse_args()


def document_lengths(tokens: int) -> list[int]:
    """The first sample of 8K tokens, scaled to `tokens`."""
    sample = read_json(DOCUMENTS)["8192"][0]["documents"]
    lengths = [length * tokens // 8192 for _, length in sample]
    lengths[-1] += tokens - sum(lengths)
    return lengths


def time_of(call: Callable[[], object]) -> float:
    time.sleep(PAUSE_S)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class Case:
    """One mask of a group: how either library runs it, and what it measured."""

    flops_per_pair = 4  # times head_dim

    def __init__(self, name: str, spec: str, tables: Any, options: argparse.Namespace) -> None:
        self.name = name
        self.spec = spec
        self.tables = tables
        self.options = options
        self.run_fdma: Callable[[], Any]
        self.run_torch: Callable[[], Any]
        self.fdma_s: list[float] = []
        self.torch_s: list[float] = []

    def prepare(self, fdma: Any, torch: Any, tensors: list[Any], dtype: str) -> None:
        q = tensors[0]
        batch, heads, tokens, head_dim = q.shape
        sdpa = torch.nn.functional.scaled_dot_product_attention
        begin = time.perf_counter()
        self.mask = fdma.compile(self.spec, tokens, tables=self.tables)
        compiled = time.perf_counter()
        plan = self.make_plan(fdma, batch, heads, head_dim, dtype)
        self.compile_us = (compiled - begin) * 1e6
        self.plan_us = (time.perf_counter() - compiled) * 1e6
        counts = fdma.compile(self.spec, tokens, tables=self.tables, block=plan.tile).counts
        live = counts["full"] + counts["partial"]
        self.live_share = live / (live + counts["empty"])
        self.pairs = counts["allowed_pairs"]
        choice: Run = {}
        if self.name == "causal":
            choice["is_causal"] = True
        elif self.name != "full":
            choice["attn_mask"] = torch.from_dlpack(fdma.to_dense(self.mask))
        self.set_calls(fdma, torch, tensors, plan, lambda *of: sdpa(*of, **choice))
        self.difference = self.compare(torch)
        if not self.difference <= TOLERANCE[dtype]:
            sys.exit(f"{self.name} {tokens} {dtype} {head_dim}: results differ: {self.difference}")

    def make_plan(self, fdma: Any, batch: int, heads: int, head_dim: int, dtype: str) -> Any:
        return fdma.make_plan(self.mask, batch=batch, heads_q=heads, head_dim=head_dim, dtype=dtype)

    def set_calls(
        self, fdma: Any, torch: Any, tensors: list[Any], plan: Any, sdpa: Callable[..., Any]
    ) -> None:
        lengths_first = [x.transpose(1, 2) for x in tensors]
        threads = self.options.threads
        self.run_fdma = lambda: fdma.attention(
            *lengths_first, plan, num_threads=threads, return_lse=False
        )
        self.run_torch = lambda: sdpa(*tensors)

    def compare(self, torch: Any) -> float:
        result = torch.from_dlpack(self.run_fdma()).transpose(1, 2)
        return float((result.float() - self.run_torch().float()).abs().max())

    def report(self, tokens: int, dtype: str, head_dim: int, full: Case) -> Run:
        pairs = self.pairs * self.options.batch * self.options.heads
        flops = self.flops_per_pair * head_dim * pairs
        fdma_s, torch_s = statistics.median(self.fdma_s), statistics.median(self.torch_s)
        to_full = statistics.median(a / b for a, b in zip(self.fdma_s, full.fdma_s, strict=True))
        return {
            "mask": self.name,
            "spec": self.spec,
            "tokens": tokens,
            "dtype": dtype,
            "head_dim": head_dim,
            "rounds": len(self.fdma_s),
            "fdma_us": fdma_s * 1e6,
            "torch_us": torch_s * 1e6,
            "fdma_gflops": flops / fdma_s / 1e9,
            "torch_gflops": flops / torch_s / 1e9,
            # Above 1: FDMA is faster.
            "ratio": statistics.median(
                b / a for a, b in zip(self.fdma_s, self.torch_s, strict=True)
            ),
            "live_tiles": self.live_share,
            # 1: the time of full attention times the share of tiles that are not empty.
            "time_per_live_tile": to_full / self.live_share,
            "compile_us": self.compile_us,
            "plan_us": self.plan_us,
            "max_abs_difference": self.difference,
        }


class BackwardCase(Case):
    """The gradients of q, k and v, of a random gradient of the result."""

    flops_per_pair = 10

    def make_plan(self, fdma: Any, batch: int, heads: int, head_dim: int, dtype: str) -> Any:
        self.forward_plan = super().make_plan(fdma, batch, heads, head_dim, dtype)
        return fdma.make_plan(
            self.mask,
            batch=batch,
            heads_q=heads,
            head_dim=head_dim,
            dtype=dtype,
            direction="backward",
        )

    def set_calls(
        self, fdma: Any, torch: Any, tensors: list[Any], plan: Any, sdpa: Callable[..., Any]
    ) -> None:
        inputs = [x.transpose(1, 2) for x in tensors]
        out, lse = (torch.from_dlpack(x) for x in fdma.attention(*inputs, self.forward_plan))
        dout = torch.randn(tensors[0].shape).to(tensors[0].dtype)
        self.gradients = [torch.empty_like(x).transpose(1, 2) for x in tensors]
        call = (None, out, lse, dout.transpose(1, 2), None, *self.gradients, None)
        self.run_fdma = lambda: fdma.attention_backward_call(plan, *inputs, *call)
        leaves = [x.detach().requires_grad_() for x in tensors]
        with torch.enable_grad():
            result = sdpa(*leaves)
        self.run_torch = lambda: torch.autograd.grad(result, leaves, dout, retain_graph=True)

    def compare(self, torch: Any) -> float:
        """Of the largest magnitude of each gradient."""
        if self.run_fdma() != 0:
            sys.exit("attention_backward_call: a tensor is not contiguous along head_dim")
        return max(
            float((a.transpose(1, 2).float() - b.float()).abs().max() / b.float().abs().max())
            for a, b in zip(self.gradients, self.run_torch(), strict=True)
        )


def measure_group(
    fdma: Any,
    torch: Any,
    tokens: int,
    dtype: str,
    head_dim: int,
    options: argparse.Namespace,
    case_type: type[Case],
) -> list[Run]:
    torch.manual_seed(SEED)
    shape = (options.batch, options.heads, tokens, head_dim)
    tensors = [torch.randn(shape).to(getattr(torch, dtype)) for _ in range(3)]
    lengths = torch.tensor(document_lengths(tokens))
    cases = [
        case_type("full", "true", None, options),
        case_type("causal", "causal", None, options),
        case_type("window", f"causal & window({tokens // 16})", None, options),
        case_type("documents", "documents(lengths=@n)", {"n": lengths}, options),
    ]
    for case in cases:
        case.prepare(fdma, torch, tensors, dtype)
    begin = time.perf_counter()
    rounds = 0
    while rounds < options.rounds or time.perf_counter() - begin < options.seconds:
        for case in cases:
            pair = [(case.run_fdma, case.fdma_s), (case.run_torch, case.torch_s)]
            for call, times in pair if rounds % 2 == 0 else reversed(pair):
                times.append(time_of(call))
        rounds += 1
    return [case.report(tokens, dtype, head_dim, cases[0]) for case in cases]


def sgemm_gflops(torch: Any) -> float:
    """What a plain float32 matrix product of 2048 x 2048 reaches: the yardstick for both."""
    a, b = (torch.randn(2048, 2048) for _ in range(2))
    torch.mm(a, b)
    best = min(time_of(lambda: torch.mm(a, b)) for _ in range(5))
    return float(2 * 2048**3 / best / 1e9)


def measure(options: argparse.Namespace) -> Run:
    """All groups, in this process."""
    fdma = use_package(options.module)
    import torch

    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    target = fdma.cpu_target()
    capability = torch.backends.cpu.get_cpu_capability()
    if options.child == "avx2" and (target, capability) != ("AVX2", "AVX2"):
        sys.exit(f"avx2: FDMA runs with {target}, PyTorch with {capability}")
    result: Run = {
        "isa": options.child,
        "environment": ISA_ENVIRONMENT[options.child],
        "fdma_target": target,
        "torch_capability": capability,
        "torch_version": torch.__version__,
        "has_bf16_instructions": options.child == "native"
        and any(flag in cpu_flags() for flag in ("avx512_bf16", "amx_bf16")),
        "sgemm_gflops": sgemm_gflops(torch),
        "runs": [],
        "backward_runs": [],
    }
    # attention_backward_call takes all threads that there are.
    if "backward" in options.directions and options.threads != len(os.sched_getaffinity(0)):
        sys.exit("--threads: backward runs on all cores; choose them with taskset")
    groups = itertools.product(
        options.directions, options.lengths, options.dtypes, options.head_dims
    )
    for direction, tokens, dtype, head_dim in groups:
        is_forward = direction == "forward"
        case_type = Case if is_forward else BackwardCase
        runs = measure_group(fdma, torch, tokens, dtype, head_dim, options, case_type)
        result["runs" if is_forward else "backward_runs"] += runs
        for run in runs:
            print(
                f"{options.child} {direction} {tokens} {dtype} d{head_dim} {run['mask']}: "
                f"FDMA {run['fdma_us'] / 1e3:.2f} ms, {run['fdma_gflops']:.0f} GFLOP/s; "
                f"PyTorch {run['torch_us'] / 1e3:.2f} ms; {run['ratio']:.2f}x; "
                f"time / live tiles {run['time_per_live_tile']:.2f}",
                flush=True,
            )
    return result


def cpu_flags() -> list[str]:
    words = cpu_facts("flags").split()
    return [flag for flag in CPU_FLAGS if flag in words]


def main() -> None:
    options = arguments()
    if options.child:
        write_result(options.result, measure(options))
        return
    begin = time.monotonic()
    load_before = os.getloadavg()
    sessions = []
    with tempfile.TemporaryDirectory() as folder:
        for isa in options.isa:
            part = Path(folder) / f"{isa}.json"
            words = [sys.executable, __file__, *sys.argv[1:], "--child", isa]
            words[words.index(str(options.result))] = str(part)
            subprocess.run(words, env=os.environ | ISA_ENVIRONMENT[isa], check=True)
            sessions.append(read_json(part))
    machine = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "flags": cpu_flags(),
        "load_avg": [*load_before, *os.getloadavg()],
        "os": os_name(),
    }
    result = {
        "machine": machine,
        **origin(PACKAGE_SOURCES),
        "seconds": round(time.monotonic() - begin),
        "seed": SEED,
        "threads": options.threads,
        "batch": options.batch,
        "heads": options.heads,
        "documents": {str(tokens): document_lengths(tokens) for tokens in options.lengths},
        "sessions": sessions,
    }
    write_result(options.result, result)


if __name__ == "__main__":
    main()
