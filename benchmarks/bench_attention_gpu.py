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

Longer than most files: what is timed, what checks it and what is kept belong to one row.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attention_rows import PARTS, Row, Shape, all_rows, chosen, expected_seconds
from backward_rows import BackwardCalls
from decode_rows import DecodeProblem, DecodeShape, measure_decode
from flex_programs import flex_program, mask_mod_of
from make_report import git
from mask_suite import EVERY_TILE_PARTIAL, SuiteMask, suite_mask
from report_store import write_result

Run = dict[str, Any]

SEED = 20261121
# A round of everything that is compared, times so many rounds as fit into this time.
SECONDS_A_ROW = 0.35
ROUNDS = (3, 15)
# Short kernels run several times between two events.
SECONDS_A_SAMPLE = 3e-4
MAX_LAUNCHES = 8
# Where a call takes longer, each has its samples one after the other, behind a time in which the
# same call brings the card to the power and clock of a long run.
LONG_SECONDS = 0.05
WARM_SECONDS = 1.0
SAMPLED_SECONDS = 0.5
# Keeps the GPU busy while the host queues a sample: about 1 ms at 1.9 GHz for each launch.
SLEEP_CYCLES = 2_000_000
SAMPLED_ROWS = 24
PREDICTED_PARTS = ("dense", "backward", "flex", "backward_flex", "cusparse", "parametric")


def arguments() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("module", type=Path, help="folder of the built package fdma")
    parser.add_argument("result", type=Path, help="JSON file to write, and to continue")
    parser.add_argument("--parts", type=names, default=PARTS)
    parser.add_argument(
        "--rows", default="*", help="patterns of rows: 'backward/8K/*,dense/32K/*causal'"
    )
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument(
        "--profile", default="h200", help="predict by this device, or file of calibrate"
    )
    parser.add_argument("--predict", action="store_true", help="only predict, rows that are there")
    parser.add_argument("--list", action="store_true", help="say what would run")
    parser.add_argument("--max-seconds", type=float, default=1e9, help="stop before this time")
    return parser.parse_args()


def gpu_state() -> Run:
    """What nvidia-smi says; empty without it."""
    fields = (
        *("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem"),
        *("power.draw", "power.limit", "temperature.gpu"),
    )
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = done.stdout.splitlines()[0].split(", ")
    return dict(zip(fields, values, strict=False))


def commit_and_changes() -> tuple[str, bool]:
    """Also where the sources are a copy without history: FDMA_COMMIT names it then."""
    sources = ("formats", "masks", "kernels", "python_bindings", "benchmarks/*.py", "cmake")
    try:
        return git("rev-parse", "--short=12", "HEAD"), bool(
            git("status", "--porcelain", "--", *sources)
        )
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("FDMA_COMMIT", "unknown"), False


class WrongResultError(Exception):
    """What was computed is not what the mask and the tensors say."""


class Results:
    """The file of rows, written as a whole after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: Run = {"rows": {}}
        if path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
        self.rows: dict[str, Run] = self.content["rows"]

    def describe(self, machine: Run) -> None:
        self.content = machine | {"rows": self.rows}

    def add(self, row: Row, run: Run) -> None:
        self.rows[str(row)] = run
        self.write()

    def write(self) -> None:
        write_result(self.path, self.content)


class Timing:
    """What is compared in a row: calls in turn, and the seconds that each took."""

    def __init__(self, torch: Any, calls: dict[str, Callable[[], object]], quick: bool) -> None:
        self.torch = torch
        self.calls = calls
        self.seconds: dict[str, list[float]] = {}
        launches = {}
        for name, call in calls.items():
            call()
            self.seconds[name] = [self.sample(call, 1) for _ in range(2)]
            once = min(self.seconds[name])
            launches[name] = max(1, min(MAX_LAUNCHES, round(SECONDS_A_SAMPLE / once)))
        is_long = max(min(seconds) for seconds in self.seconds.values()) > LONG_SECONDS
        self.seconds = {name: [] for name in calls}
        if is_long:
            for name, call in calls.items():
                self.sample_for(call, WARM_SECONDS, 1)
                self.seconds[name] = self.sample_for(call, SAMPLED_SECONDS, 2)
            return
        begin = time.perf_counter()
        names = list(calls)
        limit = 3 if quick else ROUNDS[1]
        while len(self.seconds[names[0]]) < limit:
            for name in names if len(self.seconds[names[0]]) % 2 == 0 else reversed(names):
                self.seconds[name].append(self.sample(calls[name], launches[name]))
            rounds = len(self.seconds[names[0]])
            if rounds >= ROUNDS[0] and time.perf_counter() - begin > SECONDS_A_ROW:
                break

    def sample_for(self, call: Callable[[], object], seconds: float, least: int) -> list[float]:
        """Samples of single calls until they add up to `seconds`, and so many at least."""
        samples: list[float] = []
        while len(samples) < least or sum(samples) < seconds:
            samples.append(self.sample(call, 1))
        return samples

    def sample(self, call: Callable[[], object], launches: int) -> float:
        """Seconds of one call, a mean of `launches` in a row."""
        cuda = self.torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda._sleep(SLEEP_CYCLES * launches)
        begin.record()
        for _ in range(launches):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / launches

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, other: str) -> float:
        """How many times as long `other` takes, round by round where there are rounds."""
        if len(self.seconds[name]) != len(self.seconds[other]):
            return self.median(other) / self.median(name)
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return statistics.median(b / a for a, b in pairs)


class Problem:
    """The tensors of one shape, and cuDNN on them."""

    def __init__(self, torch: Any, shape: Shape) -> None:
        self.torch = torch
        self.shape = shape
        torch.manual_seed(SEED)
        size = (shape.batch, shape.tokens, shape.heads, shape.head_dim)
        self.q, self.k, self.v = (
            torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(3)
        )
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty(
            (shape.batch, shape.heads, shape.tokens), device="cuda", dtype=torch.float32
        )
        self.heads_first = [x.transpose(1, 2) for x in (self.q, self.k, self.v)]
        self.positions = torch.arange(shape.tokens, device="cuda", dtype=torch.int32)
        self.cudnn_full_ms: float | None = None

    def cudnn(self, is_causal: bool, *inputs: Any) -> Any:
        """Of q, k and v with heads first, the problem's own unless given."""
        attention = self.torch.nn.attention
        with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
            return self.torch.nn.functional.scaled_dot_product_attention(
                *(inputs or self.heads_first), is_causal=is_causal
            )

    def count(self, predicate: Callable[[Any, Any], Any]) -> int:
        """The cells that it keeps, every one looked at."""
        kept = 0
        step = max(1, (1 << 27) // self.shape.tokens)
        for begin in range(0, self.shape.tokens, step):
            rows = self.positions[begin : begin + step, None]
            kept += int(predicate(rows, self.positions[None, :]).sum())
        return kept

    def sampled_rows(self) -> Any:
        """First, last, the edges of tiles in the middle, and random ones."""
        tokens = self.shape.tokens
        edges = [0, 1, 127, 128, tokens // 2 - 1, tokens // 2, tokens - 128, tokens - 1]
        self.torch.manual_seed(SEED + 1)
        rest = self.torch.randint(0, tokens, (SAMPLED_ROWS - len(edges),)).tolist()
        return self.torch.tensor(sorted({*edges, *rest}), device="cuda", dtype=self.torch.int32)

    def errors(self, predicate: Callable[[Any, Any], Any], out: Any, lse: Any | None) -> Run:
        """Of sampled rows of the first and the last head, and what an explicit matmul, softmax,
        matmul in bfloat16 has. Too large ones are a WrongResultError."""
        torch = self.torch
        rows = self.sampled_rows()
        cells = predicate(rows[:, None], self.positions[None, :])
        worst: Run = {"rows": 2 * len(rows), "max_error": 0.0, "lse_max_error": 0.0}
        for b, h in ((0, 0), (self.shape.batch - 1, self.shape.heads - 1)):
            q, k, v = self.q[b, rows, h], self.k[b, :, h], self.v[b, :, h]
            scale = self.shape.head_dim**-0.5
            logits = (q.double() @ k.double().T * scale).masked_fill(~cells, -torch.inf)
            exact_lse = logits.logsumexp(-1)
            has_keys = exact_lse.isfinite()[:, None]
            exact = torch.where(has_keys, logits.softmax(-1), 0.0) @ v.double()
            plain = ((q @ k.T).float() * scale).masked_fill(~cells, -torch.inf)
            plain = torch.where(has_keys, plain.softmax(-1), 0.0).to(v.dtype) @ v
            allowed = 2 * float((plain.double() - exact).abs().max())
            allowed += 1e-5 * float(exact.abs().max())
            error = float((out[b, rows, h].double() - exact).abs().max())
            worst["max_error"] = max(worst["max_error"], error)
            worst["allowed_error"] = min(worst.get("allowed_error", allowed), allowed)
            if not error <= allowed:
                raise WrongResultError(f"out: error {error:.3g}, expected {allowed:.3g} at most")
            if lse is not None:
                seen = exact_lse.isfinite()
                got = lse[b, h, rows]
                # The logits of a tile have float32 sums of exact products.
                error = float((got[seen].double() - exact_lse[seen]).abs().max())
                worst["lse_max_error"] = max(worst["lse_max_error"], error)
                if not (error <= 1e-4 and bool((got[~seen] == -torch.inf).all())):
                    raise WrongResultError(f"lse: error {error:.3g}")
        return worst


def planned(
    fdma: Any,
    compiled: Any,
    shape: Shape,
    form: str = "segments",
    direction: str = "forward",
) -> Any:
    return fdma.make_plan(
        compiled,
        batch=shape.batch,
        heads_q=shape.heads,
        head_dim=shape.head_dim,
        dtype="bfloat16",
        backend="sm90",
        form=form,
        direction=direction,
    )


def profile_of(fdma: Any, name: str) -> Any:
    profiles = fdma.DeviceProfile
    return profiles.shipped(name) if name in profiles.shipped_names() else profiles.read(name)


def predicted(fdma: Any, plan: Any, profile: Any, is_backward: bool = False) -> Run:
    """What is predicted for one call of the plan; backward for a deterministic one, too."""
    run: Run = {"predicted_ms": fdma.estimate_plan(plan, profile)["time_us"] / 1e3}
    if is_backward:
        found = fdma.estimate_plan(plan, profile, deterministic=True)
        run["deterministic_predicted_ms"] = found["time_us"] / 1e3
    return run | {"predicted_by": profile.name}


class Measured:
    """FDMA on one mask and problem: the uploaded plan, what it cost, and a call."""

    def __init__(
        self,
        fdma: Any,
        torch: Any,
        problem: Problem,
        mask: SuiteMask,
        profile: Any,
        form: str = "segments",
    ) -> None:
        shape = problem.shape
        costs: dict[str, list[float]] = {"compile_ms": [], "plan_ms": [], "upload_ms": []}
        for _ in range(3):  # the first time finds cold code
            begin = time.perf_counter()
            compiled = fdma.compile(mask.spec, shape.tokens, tables=mask.tables, num_threads=1)
            costs["compile_ms"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            plan = planned(fdma, compiled, shape, form)
            costs["plan_ms"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            self.plan = fdma.upload(plan)
            torch.cuda.synchronize()
            costs["upload_ms"].append(time.perf_counter() - begin)
        self.compiled = compiled
        self.pairs = compiled.counts["allowed_pairs"]
        self.facts: Run = {name: statistics.median(x) * 1e3 for name, x in costs.items()}
        self.facts |= {
            "mask_bytes": compiled.nbytes,
            "plan_bytes": self.plan.nbytes,
            "tiles": plan.counts,
        } | predicted(fdma, plan, profile)
        stream = torch.cuda.current_stream().cuda_stream
        self.call: Callable[[], object] = lambda: fdma.attention(
            problem.q,
            problem.k,
            problem.v,
            self.plan,
            out=problem.out,
            lse=problem.lse,
            stream=stream,
        )


def tflops(shape: Shape, pairs: int, seconds: float) -> float:
    return shape.flops(pairs) / seconds / 1e12


def measure_row(
    fdma: Any, torch: Any, problem: Problem, row: Row, options: argparse.Namespace
) -> Run:
    shape = problem.shape
    mask = suite_mask(row.mask, shape.tokens)
    predicate = mask.on(lambda table: torch.from_numpy(table).cuda())
    profile = profile_of(fdma, options.profile)
    measured = Measured(fdma, torch, problem, mask, profile)
    kept = problem.count(predicate)
    if kept != measured.pairs:
        raise SystemExit(f"{row}: the mask allows {measured.pairs} pairs, but its predicate {kept}")
    problem.out.fill_(torch.nan)
    problem.lse.fill_(torch.nan)
    measured.call()
    errors = problem.errors(predicate, problem.out, problem.lse)
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
        parametric = Measured(fdma, torch, problem, mask, profile, "parametric")
        problem.out.fill_(torch.nan)
        problem.lse.fill_(torch.nan)
        parametric.call()
        facts["parametric_check"] = problem.errors(predicate, problem.out, problem.lse)
        facts |= {f"parametric_{name}": fact for name, fact in parametric.facts.items()}
        calls["parametric"] = parametric.call
    elif row.mask in ("full", "causal"):
        is_causal = row.mask == "causal"
        calls["cudnn"] = lambda: problem.cudnn(is_causal)
    elif row.mask == EVERY_TILE_PARTIAL:  # what a mask costs: beside the same tiles without one
        full = Measured(fdma, torch, problem, suite_mask("full", shape.tokens), profile)
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
    if row.part == "dense":
        if row.mask == "full":
            problem.cudnn_full_ms = timing.median("cudnn") * 1e3
        if problem.cudnn_full_ms is None:
            cudnn_full = Timing(torch, {"cudnn": lambda: problem.cudnn(False)}, options.quick)
            problem.cudnn_full_ms = cudnn_full.median("cudnn") * 1e3
        full_tflops = tflops(shape, shape.tokens**2, problem.cudnn_full_ms / 1e3)
        run |= {
            "cudnn_full_ms": problem.cudnn_full_ms,
            "cudnn_full_tflops": full_tflops,
            # Above 1: FDMA does more useful work a second than cuDNN's full attention.
            "to_cudnn_full": run["fdma_tflops"] / full_tflops,
        }
    if row.part == "backward":
        seconds = timing.median("cudnn" if row.mask == "full" else "cudnn_full")
        full_tflops = work * tflops(shape, shape.tokens**2, seconds)
        run |= {
            "cudnn_full_ms": seconds * 1e3,
            "cudnn_full_tflops": full_tflops,
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
    torch: Any, problem: Problem, name: str, predicate: Callable[[Any, Any], Any]
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


def cusparse_calls(
    fdma: Any, torch: Any, problem: Problem, mask: SuiteMask, predicate: Callable[[Any, Any], Any]
) -> tuple[dict[str, Callable[[], object]], Run]:
    """Attention by cuSPARSE on bfloat16, on float16, which it has a product at given cells for, and
    with everything in float32, each by the fastest of its algorithms: calls, and what preparing
    took. Every result is checked."""
    shape = problem.shape
    compiled = fdma.compile(mask.spec, shape.tokens, tables=mask.tables, num_threads=1)
    stream = torch.cuda.current_stream().cuda_stream
    facts: Run = {"cusparse_version": fdma.cusparse_version()}
    calls: dict[str, Callable[[], object]] = {}
    choices = (
        ("cusparse", torch.bfloat16, "tensor"),
        ("cusparse_float16", torch.float16, "tensor"),
        ("cusparse_float32", torch.bfloat16, "float32"),
    )
    for name, dtype, precision in choices:
        tensors = [x.to(dtype) for x in (problem.q, problem.k, problem.v)]
        out, lse = torch.empty_like(tensors[0]), torch.empty_like(problem.lse)
        best = float("inf")
        for spmm in ("alg1", "alg2", "alg3"):
            begin = time.perf_counter()
            prepared = fdma.CusparseAttention(
                compiled,
                batch=shape.batch,
                heads_q=shape.heads,
                head_dim=shape.head_dim,
                dtype=str(dtype).removeprefix("torch."),
                precision=precision,
                spmm=spmm,
            )
            prepare_ms = (time.perf_counter() - begin) * 1e3

            def call(
                run: Any = prepared.run, given: list[Any] = tensors, out: Any = out, lse: Any = lse
            ) -> None:
                run(*given, out=out, lse=lse, stream=stream)

            call()
            check = problem.errors(predicate, out, lse)
            begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin_event.record()
            call()
            end_event.record()
            end_event.synchronize()
            once_ms = float(begin_event.elapsed_time(end_event))
            facts[f"{name}_{spmm}_once_ms"] = once_ms
            if once_ms < best:
                best = once_ms
                calls[name] = call
                facts |= {
                    f"{name}_spmm": spmm,
                    f"{name}_prepare_ms": prepare_ms,
                    f"{name}_bytes": prepared.nbytes,
                    f"{name}_check": check,
                }
    return calls, facts


def measure(
    rows: list[Row], results: Results, options: argparse.Namespace, begin: float
) -> tuple[int, int]:
    """The numbers of rows that are left and of those that are wrong, which are not kept."""
    sys.path.insert(0, str(options.module.resolve()))
    import torch
    from fdma import _fdma as fdma

    if "sm90" not in fdma.available_backends():
        raise SystemExit(f"no GPU to measure; backends here: {fdma.available_backends()}")
    torch.set_grad_enabled(False)
    properties = torch.cuda.get_device_properties(0)
    commit, is_changed = commit_and_changes()
    results.describe(
        {
            "machine": {
                "gpu": torch.cuda.get_device_name(),
                "multiprocessors": properties.multi_processor_count,
                "memory_bytes": properties.total_memory,
                "state": gpu_state(),
                "os": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
            },
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
    problem: Problem | DecodeProblem | None = None
    clocks: Run = {}
    num_wrong = 0
    for done, row in enumerate(rows):
        if time.monotonic() - begin + expected_seconds(row) > options.max_seconds:
            return len(rows) - done, num_wrong
        if problem is None or problem.shape != row.shape:
            del problem
            torch.cuda.empty_cache()
            if isinstance(row.shape, DecodeShape):
                problem = DecodeProblem(torch, row.shape, SEED)
            else:
                problem = Problem(torch, row.shape)
            clocks = {}
        row_begin = time.monotonic()
        # A kernel that hangs shall not cost what is left of the time.
        faulthandler.dump_traceback_later(8 * expected_seconds(row), exit=True)
        try:
            if isinstance(problem, DecodeProblem):
                run = measure_decode(
                    fdma, problem, lambda calls: Timing(torch, calls, options.quick)
                )
            else:
                run = measure_row(fdma, torch, problem, row, options)
        except Exception as error:  # the other rows are worth having
            faulthandler.cancel_dump_traceback_later()
            if not isinstance(error, WrongResultError):
                traceback.print_exc()
            print(f"{row}: WRONG: {error}", flush=True)
            num_wrong += 1
            if num_wrong > 11:
                break
            continue
        faulthandler.cancel_dump_traceback_later()
        clocks = clocks or gpu_state()  # still warm from the first row of the shape
        run |= {"commit": commit, "sm_clock_mhz": clocks.get("clocks.sm")}
        results.add(row, run)
        text = f"{row}: FDMA {run['fdma_ms']:.3f} ms, {run['fdma_tflops']:.0f} TFLOP/s"
        peers = ("cudnn", "flex", "cusparse", "cusparse_float16", "cusparse_float32")
        for peer in (*peers, "sdpa_flash", "sdpa_cudnn", "sdpa_efficient"):
            if f"{peer}_ms" in run:
                text += f"; {peer} {run[f'{peer}_ms']:.3f} ms, {run[f'{peer}_ratio']:.3f}x"
        if "deterministic_ms" in run:
            share = run["fdma_ms"] / run["deterministic_ms"]
            text += f"; deterministic {run['deterministic_ms']:.3f} ms, {share:.2f} of the speed"
        if "to_cudnn_full" in run:
            text += f"; {run['to_cudnn_full']:.3f} of cuDNN full"
        if "copy_share" in run:
            text += f"; {run['kv_gb_per_s']:.0f} GB/s, {run['copy_share']:.3f} of a copy"
        text += f" (plan {run['compile_ms'] + run['plan_ms'] + run['upload_ms']:.2f} ms"
        print(f"{text}, {run['plan_bytes']} B; {time.monotonic() - row_begin:.1f} s)", flush=True)
    return 0, num_wrong


def predict(results: Results, options: argparse.Namespace) -> None:
    """Adds predictions to the rows that are there."""
    sys.path.insert(0, str(options.module.resolve()))
    from fdma import _fdma as fdma

    profile = profile_of(fdma, options.profile)
    for run in results.rows.values():
        if run["part"] not in PREDICTED_PARTS:
            continue
        shape = Shape(run["batch"], run["tokens"], run["heads"], run["head_dim"])
        mask = suite_mask(run["mask"], shape.tokens)
        compiled = fdma.compile(mask.spec, shape.tokens, tables=mask.tables)
        if run["part"].startswith("backward"):
            plan = planned(fdma, compiled, shape, direction="backward")
            run |= predicted(fdma, plan, profile, is_backward=True)
        else:
            run |= predicted(fdma, planned(fdma, compiled, shape), profile)
    results.write()


def main() -> None:
    begin = time.monotonic()
    options = arguments()
    results = Results(options.result)
    if options.predict:
        predict(results, options)
        return
    wanted = chosen((row for row in all_rows() if row.part in options.parts), options.rows)
    rows = [row for row in wanted if options.again or str(row) not in results.rows]
    print(f"{len(wanted)} rows, {len(wanted) - len(rows)} of them measured already", flush=True)
    if options.list:
        print("\n".join(map(str, rows)))
        return
    left, num_wrong = measure(rows, results, options, begin) if rows else (0, 0)
    if num_wrong:
        sys.exit(f"{num_wrong} rows are wrong")
    if left:
        print(f"out of time: {left} rows are left for the next call", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
