"""Attention on a GPU by FDMA beside cuDNN, FlexAttention of PyTorch and cuSPARSE, in one process.

    python3 bench_attention_gpu.py <folder of fdma> <result.json> [--parts dense,flex,cusparse] ..

A row is one mask at one shape. Its part says what is measured:

    dense          FDMA beside cuDNN: causal beside cuDNN's causal, other masks beside its full
                   attention
    flex           FDMA beside FlexAttention on the same mask, whose predicate is compared with it
    cusparse       FDMA beside the sparse library alone: its products on the cells of the mask (CSR)
                   and a softmax between them
    parametric     a plan of segments beside a closed-form plan of the same mask
    backward, backward_flex   gradients (backward_rows.py)
    decode         few queries against many keys, beside scaled_dot_product_attention and a copy
                   (decode_rows.py)

All kernels take the same random bfloat16 tensors [batch, tokens, heads, head_dim], in turn, round
after round. Times are medians of CUDA events; the first rounds do not count. The GPU is kept busy
while the host prepares a call, so that host time is not measured.

The result of every row is checked in the same run. The predicate keeps as many cells as the
compiled mask says, which is what the FLOP count uses. At sampled rows, tile edges among them, out
and lse are compared with attention in float64 by the predicate.

Rows are written to the result file one by one. A row that is there is not measured again (unless
`--again`), so a call that ends early (--max-seconds) is continued by the next one. FLOPs are those
of allowed pairs: 4 * head_dim for each query head. Beside a measured time stands what fdma.estimate
predicts for the plan (--profile). --predict renews the predictions of stored rows, without a GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import time
from collections.abc import Callable
from typing import Any

from attention_calls import planned, profile_of
from attention_problem import SEED, MaskProblem, Measured, predicted
from attention_rows import PARTS, Row, Shape, all_rows, expected_seconds
from backward_rows import BackwardCalls
from command_line import use_package
from cusparse_rows import cusparse_calls
from decode_rows import DecodeProblem, DecodeShape, measure_decode
from device_time import Timing
from flex_programs import flex_program, mask_mod_of
from mask_suite import EVERY_TILE_PARTIAL, Predicate, suite_mask
from provenance import gpu_state, os_name
from report_text import Run
from rows import Results, gpu_origin, measure_rows, row_parser

PREDICTED_PARTS = ("dense", "backward", "flex", "backward_flex", "cusparse", "parametric")
PEERS = (
    *("cudnn", "flex", "cusparse", "cusparse_float16", "cusparse_float32"),
    *("sdpa_flash", "sdpa_cudnn", "sdpa_efficient"),
)


def arguments() -> argparse.Namespace:
    parser = row_parser(__doc__, PARTS, "backward/8K/*,dense/32K/*causal")
    parser.add_argument(
        "--profile", default="h200", help="predict by this device, or file of calibrate"
    )
    parser.add_argument("--predict", action="store_true", help="only predict, rows that are there")
    return parser.parse_args()


def tflops(shape: Shape, pairs: int, seconds: float) -> float:
    return shape.flops(pairs) / seconds / 1e12


def measure_row(fdma: Any, problem: MaskProblem, row: Row, options: argparse.Namespace) -> Run:
    torch, shape = problem.torch, problem.shape
    mask = suite_mask(row.mask, shape.tokens)
    predicate = mask.on(lambda table: torch.from_numpy(table).cuda())
    profile = profile_of(fdma, options.profile)
    measured = Measured(fdma, problem, mask, profile)
    kept = problem.count(predicate)
    if kept != measured.pairs:
        raise SystemExit(f"{row}: the mask allows {measured.pairs} pairs, but its predicate {kept}")
    errors = measured.checked_call(problem, predicate)
    calls: dict[str, Callable[[], object]] = {"fdma": measured.call}
    facts: Run = {}
    work = 1.0  # in forward passes
    if row.part.startswith("backward"):
        work = 2.5
        begin = time.perf_counter()
        plan = planned(fdma, measured.compiled, shape, direction="backward")
        plan_ms = (time.perf_counter() - begin) * 1e3
        backward = BackwardCalls(fdma, torch, problem, plan)
        backward.deterministic()
        backward.errors(predicate)
        backward.plain()
        errors |= backward.errors(predicate)
        calls = {"fdma": backward.plain, "deterministic": backward.deterministic}
        measured.facts |= {
            "tiles": plan.counts,
            "plan_bytes": backward.plan.nbytes,
            "plan_ms": plan_ms,
        } | predicted(fdma, plan, profile, is_backward=True)
        if row.part == "backward_flex":
            flex, facts = flex_call(torch, problem, row.mask, predicate)
            calls["flex"] = backward.of_peer(flex)
        elif row.mask in ("full", "causal"):
            causal = row.mask == "causal"
            calls["cudnn"] = backward.of_peer(lambda *inputs: problem.cudnn(causal, *inputs))
        if row.part == "backward" and row.mask != "full":
            calls["cudnn_full"] = backward.of_peer(lambda *inputs: problem.cudnn(False, *inputs))
    elif row.part == "flex":
        flex, facts = flex_call(torch, problem, row.mask, predicate)
        begin = time.perf_counter()
        flex_out = flex(*problem.heads_first).transpose(1, 2)
        torch.cuda.synchronize()
        facts["flex_first_s"] = time.perf_counter() - begin
        facts["flex_check"] = problem.errors(predicate, flex_out, None)
        del flex_out
        calls["flex"] = lambda: flex(*problem.heads_first)
    elif row.part == "cusparse":
        peers, facts = cusparse_calls(fdma, torch, problem, mask, predicate)
        calls |= peers
    elif row.part == "parametric":
        parametric = Measured(fdma, problem, mask, profile, "parametric")
        facts["parametric_check"] = parametric.checked_call(problem, predicate)
        facts |= {f"parametric_{name}": fact for name, fact in parametric.facts.items()}
        calls["parametric"] = parametric.call
    elif row.mask in ("full", "causal"):
        is_causal = row.mask == "causal"
        calls["cudnn"] = lambda: problem.cudnn(is_causal)
    elif row.mask == EVERY_TILE_PARTIAL:  # what a mask costs: beside the same tiles without one
        full = Measured(fdma, problem, suite_mask("full", shape.tokens), profile)
        calls["full"] = full.call
    timing = Timing(torch, calls, options.quick)
    pairs = measured.pairs

    def rate(name: str) -> float:
        return work * tflops(shape, pairs, timing.median(name))

    run: Run = {
        "part": row.part,
        "mask": row.mask,
        "spec": mask.spec,
        "batch": shape.batch,
        "tokens": shape.tokens,
        "heads": shape.heads,
        "head_dim": shape.head_dim,
        "allowed_pairs": pairs,
        "rounds": len(timing.seconds["fdma"]),
        "fdma_ms": timing.median("fdma") * 1e3,
        "fdma_min_ms": min(timing.seconds["fdma"]) * 1e3,
        "fdma_tflops": rate("fdma"),
        "check": errors,
    }
    if row.part in ("dense", "backward"):
        if row.part == "backward":
            full_ms = 1e3 * timing.median("cudnn" if row.mask == "full" else "cudnn_full")
        else:
            if row.mask == "full":
                problem.cudnn_full_ms = 1e3 * timing.median("cudnn")
            full_ms = problem.full_ms(options.quick)
        full_tflops = work * tflops(shape, shape.tokens**2, full_ms / 1e3)
        run |= {
            "cudnn_full_ms": full_ms,
            "cudnn_full_tflops": full_tflops,
            # Above 1: FDMA does more useful work a second than cuDNN's full attention.
            "to_cudnn_full": run["fdma_tflops"] / full_tflops,
        }
    if "full" in calls:
        run["full_ms"] = timing.median("full") * 1e3
    for peer in calls.keys() - {"fdma", "full", "cudnn_full"}:
        run |= {
            f"{peer}_ms": timing.median(peer) * 1e3,
            f"{peer}_tflops": rate(peer),
            # Above 1: FDMA is faster.
            f"{peer}_ratio": timing.ratio("fdma", peer),
        }
    return run | measured.facts | facts


def flex_call(
    torch: Any, problem: MaskProblem, name: str, predicate: Predicate
) -> tuple[Callable[..., Any], Run]:
    """FlexAttention on the mask, of q, k and v with heads first, and what making the mask took."""
    from torch.nn.attention.flex_attention import create_block_mask

    tokens = problem.shape.tokens
    block_mask = None
    begin = time.perf_counter()
    if name != "full":
        block_mask = create_block_mask(
            mask_mod_of(predicate), None, None, tokens, tokens, device="cuda"
        )
        torch.cuda.synchronize()
    facts = {"flex_mask_ms": (time.perf_counter() - begin) * 1e3}
    torch.cuda.empty_cache()  # what making the mask took
    return flex_program(torch, block_mask), facts


def text_of(run: Run) -> str:
    text = f"FDMA {run['fdma_ms']:.3f} ms, {run['fdma_tflops']:.0f} TFLOP/s"
    for peer in PEERS:
        if f"{peer}_ms" in run:
            text += f"; {peer} {run[f'{peer}_ms']:.3f} ms, {run[f'{peer}_ratio']:.3f}x"
    if "deterministic_ms" in run:
        share = run["fdma_ms"] / run["deterministic_ms"]
        text += f"; deterministic {run['deterministic_ms']:.3f} ms, {share:.2f} of the speed"
    if "to_cudnn_full" in run:
        text += f"; {run['to_cudnn_full']:.3f} of cuDNN full"
    if "copy_share" in run:
        text += f"; {run['kv_gb_per_s']:.0f} GB/s, {run['copy_share']:.3f} of a copy"
    plan_ms = run["compile_ms"] + run["plan_ms"] + run["upload_ms"]
    return f"{text}; plan {plan_ms:.2f} ms, {run['plan_bytes']} B"


class Bench:
    """Measures rows; those of one shape share their tensors."""

    def __init__(self, fdma: Any, torch: Any, options: argparse.Namespace, commit: str) -> None:
        self.fdma, self.torch, self.options, self.commit = fdma, torch, options, commit
        self.problem: MaskProblem | DecodeProblem | None = None
        self.clocks: Run = {}

    def problem_of(self, shape: Shape | DecodeShape) -> MaskProblem | DecodeProblem:
        if self.problem is None or self.problem.shape != shape:
            self.problem = None
            self.torch.cuda.empty_cache()
            self.clocks = {}
            if isinstance(shape, DecodeShape):
                self.problem = DecodeProblem(self.torch, shape, SEED)
            else:
                self.problem = MaskProblem(self.torch, shape, SEED)
        return self.problem

    def measure(self, row: Row) -> Run:
        problem = self.problem_of(row.shape)
        # A kernel that hangs shall not cost what is left of the time.
        faulthandler.dump_traceback_later(8 * expected_seconds(row), exit=True)
        try:
            if isinstance(problem, DecodeProblem):
                run = measure_decode(self.fdma, problem, self.options.quick)
            else:
                run = measure_row(self.fdma, problem, row, self.options)
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.clocks = self.clocks or gpu_state()  # still warm from the first row of the shape
        return run | {"commit": self.commit, "sm_clock_mhz": self.clocks.get("clocks.sm")}


def measure(rows: list[Row], results: Results, options: argparse.Namespace, end: float) -> None:
    fdma = use_package(options.module)
    import torch

    if "sm90" not in fdma.available_backends():
        raise SystemExit(f"no GPU to measure; backends here: {fdma.available_backends()}")
    torch.set_grad_enabled(False)
    properties = torch.cuda.get_device_properties(0)
    facts = {
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "os": os_name(),
    }
    results.describe(gpu_origin(torch, SEED, **facts))
    bench = Bench(fdma, torch, options, results.content["commit"])
    measure_rows(rows, results, bench.measure, text_of, expected_seconds, end)


def predict(results: Results, options: argparse.Namespace) -> None:
    """Adds predictions to the rows that are there."""
    fdma = use_package(options.module)
    profile = profile_of(fdma, options.profile)
    for run in results.rows.values():
        if run["part"] not in PREDICTED_PARTS:
            continue
        shape = Shape(run["batch"], run["tokens"], run["heads"], run["head_dim"])
        mask = suite_mask(run["mask"], shape.tokens)
        compiled = fdma.compile(mask.spec, shape.tokens, tables=mask.tables)
        is_backward = run["part"].startswith("backward")
        direction = "backward" if is_backward else "forward"
        plan = planned(fdma, compiled, shape, direction=direction)
        run |= predicted(fdma, plan, profile, is_backward)
    results.write()


def main() -> None:
    begin = time.monotonic()
    options = arguments()
    results = Results(options.result)
    if options.predict:
        predict(results, options)
        return
    rows = results.left(all_rows(), options)
    if rows:
        measure(rows, results, options, begin + options.max_seconds)


if __name__ == "__main__":
    main()
