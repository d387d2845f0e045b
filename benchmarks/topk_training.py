"""Part `train` of bench_topk_gpu.py: the gradients of Dynamic Mask Attention.

The forward call (scores from v, selection, lists, attention) and the backward call (kv worklists by
live range, gradients of attention, gradients of scores) are timed apart and together; beside them
cuDNN's causal attention, forward and backward, on the same tensors. At sampled queries and keys
dq, dk, dv and the gradients of scores are compared with float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from device_time import Timing, device_ms
from report_text import Run
from rows import WrongResultError
from topk_problem import LONG_TOKENS, TopkProblem, prepared
from topk_rows import Row

NUM_KEYS = 6
TOLERANCE = 0.02  # of the largest: 16-bit gradients, sums of up to 131,072 queries


class Gradients:
    """One problem with memory for everything that both calls write."""

    def __init__(self, fdma: Any, problem: TopkProblem, row: Row) -> None:
        torch = problem.torch
        self.problem, self.row = problem, row
        self.scores = problem.scores(row.order)
        self.held = prepared(fdma, row, gradients=True)
        self.dout = torch.randn_like(problem.q)
        self.dq, self.dk, self.dv = map(torch.empty_like, problem.tensors)
        self.dscores = torch.empty_like(self.scores)
        self.ddt_proj = torch.empty_like(problem.dt_proj)
        self.da_coef = torch.empty_like(problem.a_coef)
        self.residual = torch.empty_like(problem.out)
        self.kept = None
        if self.held.reading != "all":
            size = (*self.scores.shape, 2)
            self.kept = torch.empty(size, dtype=torch.int32, device="cuda")
        num_bytes = self.held.backward_workspace_nbytes
        self.workspace = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")

    def forward(self) -> None:
        """Scores are made of v, as in training; what is selected is the row's order of them."""
        p = self.problem
        made = (p.dt_proj, p.a_coef)
        self.held.run(*p.tensors, *made, stages=("scores", "scores"), **p.results)
        stages = ("selection", "attention")
        written = p.results | {"kept_out": self.kept, "out_low": self.residual}
        self.held.run(*p.tensors, scores=self.scores, stages=stages, **written)

    def backward(self, is_made: bool = True) -> None:
        p = self.problem
        made = (p.dt_proj, p.a_coef) if is_made else (None, None)
        self.held.backward(
            *(p.q, p.k, p.v, *made, self.scores, self.kept, p.out, p.lse, self.dout, None),
            *(self.dq, self.dk, self.dv, self.dscores),
            ddt_proj=self.ddt_proj if is_made else None,
            da_coef=self.da_coef if is_made else None,
            workspace=self.workspace,
            out_low=self.residual,
        )

    def both(self) -> None:
        self.forward()
        self.backward()

    def check(self) -> Run:
        """Of sampled queries and keys of the first and the last KV head, one head of its group."""
        p, row, torch = self.problem, self.row, self.problem.torch
        if self.kept is None:
            return {}
        group = row.heads // row.heads_kv
        scale = row.head_dim**-0.5
        worst: Run = {}

        def compare(name: str, got: Any, exact: Any) -> None:
            largest = float(exact.abs().max())
            error = float((got.double() - exact).abs().max()) / max(largest, 1e-30)
            worst[f"{name}_error"] = max(worst.get(f"{name}_error", 0.0), error)
            if not error <= TOLERANCE:
                raise WrongResultError(f"{name}: error {error:.3g} of the largest")

        for b, h_kv in ((0, 0), (row.batch - 1, row.heads_kv - 1)):
            heads = range(h_kv * group, (h_kv + 1) * group)
            begins, ends = self.kept[b, h_kv].unbind(1)
            bias = self.scores[b, h_kv].double()
            rows = []
            for query in p.sampled_queries():
                seen = ((begins <= query) & (query < ends)).nonzero()[:, 0]
                k, v = (x[b, seen, h_kv].double() for x in (p.k, p.v))
                q, dout = (x[b, query, heads[0]].double() for x in (p.q, self.dout))
                weights = (k @ q * scale + bias[seen]).softmax(0)
                d_weights = v @ dout
                rows.append(scale * (weights * (d_weights - weights @ d_weights)) @ k)
            compare("dq", self.dq[b, p.sampled_queries(), heads[0]], torch.stack(rows))
            listed = (begins < ends).nonzero()[:, 0]
            keys = listed[torch.linspace(0, len(listed) - 1, NUM_KEYS).long().cuda()]
            exact: dict[str, list[Any]] = {"dk": [], "dv": [], "dscores": []}
            for key in keys.tolist():
                queries = slice(int(begins[key]), int(ends[key]))
                k, v = (x[b, key, h_kv].double() for x in (p.k, p.v))
                sums = [torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(bias[0])]
                for h in heads:
                    q, dout, out = (x[b, queries, h].double() for x in (p.q, self.dout, p.out))
                    weights = (q @ k * scale + bias[key] - p.lse[b, h, queries].double()).exp()
                    slope = weights * (dout @ v - (dout * out).sum(1))
                    sums[0] += scale * slope @ q
                    sums[1] += weights @ dout
                    sums[2] += slope.sum()
                for name, value in zip(exact, sums, strict=True):
                    exact[name].append(value)
            for name, got in (("dk", self.dk[b, keys, h_kv]), ("dv", self.dv[b, keys, h_kv])):
                compare(name, got, torch.stack(exact[name]))
            compare("dscores", self.dscores[b, h_kv, keys], torch.stack(exact["dscores"]))
            unseen = (begins >= ends).nonzero()[:, 0]
            if self.dk[b, unseen, h_kv].any() or self.dv[b, unseen, h_kv].any():
                raise WrongResultError("a key that nobody keeps has a gradient")
        return worst


def cudnn_ms(problem: TopkProblem) -> float | None:
    """A step of causal attention: the least of some after one that warms up; None: it has none."""
    if "training" not in problem.cudnn_ms:
        torch = problem.torch
        leaves = [x.detach().requires_grad_() for x in problem.heads_first]
        dout = torch.randn_like(leaves[0])

        def step() -> None:
            torch.autograd.grad(problem.cudnn(True, *leaves), leaves, dout)

        num_samples = 2 if problem.shape.tokens >= LONG_TOKENS else 4
        with torch.enable_grad():
            try:
                samples = [device_ms(torch, step) for _ in range(num_samples)]
            except RuntimeError:
                return None
        problem.cudnn_ms["training"] = min(samples[1:])
    return problem.cudnn_ms["training"]


def measure_training(fdma: Any, problem: TopkProblem, row: Row, quick: bool) -> Run:
    torch = problem.torch
    gradients = Gradients(fdma, problem, row)
    gradients.forward()
    gradients.backward(is_made=False)
    torch.cuda.synchronize()
    checked = gradients.check()
    gradients.both()
    calls: dict[str, Callable[[], object]] = {
        "forward": gradients.forward,
        "backward": gradients.backward,
        "backward_without_scores": partial(gradients.backward, False),
        "both": gradients.both,
    }
    timing = Timing(torch, calls, quick)
    run: Run = {
        "reading": gradients.held.reading,
        "pairs": row.pairs,
        "prepared_bytes": gradients.held.nbytes,
        "workspace_bytes": gradients.held.workspace_nbytes,
        "backward_workspace_bytes": gradients.held.backward_workspace_nbytes,
        **timing.medians_ms(),
        **checked,
    }
    backward_ms = run["backward_without_scores_ms"]
    run["backward_tflops"] = 10 * row.head_dim * row.pairs / backward_ms / 1e9
    del gradients
    dense_ms = cudnn_ms(problem)
    if dense_ms is not None:
        run["cudnn_causal_training_ms"] = dense_ms
        run["training_speedup"] = dense_ms / run["both_ms"]
    return run
