"""What rows of bench_attention_gpu.py run on: tensors of a shape, and FDMA's call of a mask."""

from __future__ import annotations

from typing import Any

from attention_calls import Problem, prepare
from attention_rows import Shape
from device_time import Timing
from exact_attention import check_head, sampled_queries
from mask_suite import Predicate, SuiteMask
from report_text import Run

SEED = 20261121
RANDOM_ROWS = 16


class MaskProblem(Problem):
    """Tensors, and where a mask is compared with its predicate."""

    def __init__(self, torch: Any, shape: Shape, seed: int) -> None:
        super().__init__(torch, shape, seed)
        self.positions = torch.arange(shape.tokens, device="cuda", dtype=torch.int32)
        self.cudnn_full_ms: float | None = None

    def full_ms(self, quick: bool) -> float:
        """cuDNN's full attention, measured once a shape."""
        if self.cudnn_full_ms is None:
            timing = Timing(self.torch, {"cudnn": lambda: self.cudnn(False)}, quick)
            self.cudnn_full_ms = 1e3 * timing.median("cudnn")
        return self.cudnn_full_ms

    def count(self, predicate: Predicate) -> int:
        """The cells that it keeps, every one looked at."""
        kept = 0
        step = max(1, (1 << 27) // self.shape.tokens)
        for begin in range(0, self.shape.tokens, step):
            rows = self.positions[begin : begin + step, None]
            kept += int(predicate(rows, self.positions[None, :]).sum())
        return kept

    def sampled_rows(self) -> Any:
        rows = sampled_queries(self.torch, self.shape.tokens, RANDOM_ROWS, SEED + 1)
        return self.torch.tensor(rows, device="cuda", dtype=self.torch.int32)

    def errors(self, predicate: Predicate, out: Any, lse: Any | None) -> Run:
        """Of sampled rows of the first and the last head."""
        rows = self.sampled_rows()
        cells = predicate(rows[:, None], self.positions[None, :])
        worst: Run = {"rows": 2 * len(rows)}
        for b, h in ((0, 0), (self.shape.batch - 1, self.shape.heads - 1)):
            tensors = self.q[b, rows, h], self.k[b, :, h], self.v[b, :, h]
            lse_of_rows = None if lse is None else lse[b, h, rows]
            check_head(self.torch, worst, tensors, cells, out[b, rows, h], lse_of_rows)
        return worst


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
        self, fdma: Any, problem: MaskProblem, mask: SuiteMask, profile: Any, form: str = "segments"
    ) -> None:
        tokens = problem.shape.tokens
        self.compiled, plan, uploaded, costs = prepare(
            fdma,
            problem.torch,
            lambda: fdma.compile(mask.spec, tokens, tables=mask.tables, num_threads=1),
            problem.shape,
            form=form,
        )
        self.pairs = self.compiled.counts["allowed_pairs"]
        self.facts: Run = {
            **costs,
            "mask_bytes": self.compiled.nbytes,
            "plan_bytes": uploaded.nbytes,
            "tiles": plan.counts,
        } | predicted(fdma, plan, profile)
        self.call = problem.attention_call(fdma, uploaded)

    def checked_call(self, problem: MaskProblem, predicate: Predicate) -> Run:
        """Runs it on memory that holds no results, and compares."""
        problem.out.fill_(problem.torch.nan)
        problem.lse.fill_(problem.torch.nan)
        self.call()
        return problem.errors(predicate, problem.out, problem.lse)
