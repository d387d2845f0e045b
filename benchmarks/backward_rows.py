"""Rows of gradients for bench_attention_gpu.py: FDMA's backward pass, plain and deterministic,
beside cuDNN's (full and causal attention) or FlexAttention's on the same tensors in the same run.

TFLOP/s count 10 * head_dim for each allowed pair, 2.5 times forward's. Times are of the backward
pass alone: autograd's graph of the peers is kept. Gradients are compared with float64 on sampled
rows of dq, and on sampled keys of dk and dv, which every query is summed for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flex_programs import gradients_of
from mask_suite import Predicate
from report_text import Run
from rows import WrongResultError


class BackwardCalls:
    """FDMA's gradients of one mask and problem, whose forward call has just run."""

    def __init__(self, fdma: Any, torch: Any, problem: Any, plan: Any) -> None:
        self.torch = torch
        self.problem = problem
        torch.manual_seed(7)
        self.dout = torch.randn_like(problem.out)
        self.gradients = [torch.full_like(x, torch.nan) for x in (problem.q, problem.k, problem.v)]
        self.plan = fdma.prepare(plan, waits=True)
        self.plan_in_order = fdma.prepare(plan, deterministic=True, waits=True)
        stream = torch.cuda.current_stream().cuda_stream

        def call(deterministic: bool) -> Callable[[], object]:
            return lambda: fdma.attention_backward_call(
                self.plan_in_order if deterministic else self.plan,
                *(problem.q, problem.k, problem.v, None, problem.out, problem.lse, self.dout, None),
                *(*self.gradients, None),
                deterministic=deterministic,
                stream=stream,
            )

        self.plain = call(False)
        self.deterministic = call(True)

    def of_peer(self, forward: Callable[..., Any]) -> Callable[[], object]:
        """The backward pass of what `forward` computes from q, k and v with heads first."""
        dout = self.dout.transpose(1, 2)
        return gradients_of(self.torch, forward, self.problem.heads_first, dout)

    def errors(self, predicate: Predicate) -> Run:
        """Of the last head, largest errors over the largest magnitude; raises where one is above
        2 %, which no rounding to bfloat16 explains."""
        torch, problem = self.torch, self.problem
        b, h = problem.shape.batch - 1, problem.shape.heads - 1
        scale = problem.shape.head_dim**-0.5
        q, k, v, out, dout = (
            x[b, :, h].double() for x in (problem.q, problem.k, problem.v, problem.out, self.dout)
        )
        lse = problem.lse[b, h].double()
        delta = (out * dout).sum(-1)
        rows, positions = problem.sampled_rows().long(), problem.positions

        def scores(some_q: Any, some_k: Any, queries: Any, keys: Any) -> tuple[Any, Any]:
            cells = predicate(queries[:, None].int(), keys[None, :].int())
            p = (some_q @ some_k.T * scale - lse[queries][:, None]).exp()
            p = torch.where(cells, p, 0.0)
            return p, p * (dout[queries] @ v[keys].T - delta[queries][:, None])

        everything = positions.long()
        _, ds = scores(q[rows], k, rows, everything)
        p_keys, ds_keys = scores(q, k[rows], everything, rows)
        exact = (scale * ds @ k, scale * ds_keys.T @ q, p_keys.T @ dout)
        run: Run = {"rows": len(rows)}
        for name, gradient, wanted in zip(("dq", "dk", "dv"), self.gradients, exact, strict=True):
            error = (gradient[b, rows, h].double() - wanted).abs().max() / wanted.abs().max()
            run[f"{name}_error"] = float(error)
            if not run[f"{name}_error"] < 0.02:
                raise WrongResultError(
                    f"{name}: error {run[f'{name}_error']:.3g} of the largest value"
                )
        return run
