"""Part `flex` of bench_topk_gpu.py: FlexAttention on the mask and bias of learned top-k.

A key is kept by the queries of one interval, which is what the mask asks for; the scores are added
to the logits. FlexAttention is given its lists of blocks, exact ones, made of the intervals at no
cost to it. Its gradients are those of q, k and v; FDMA's beside them are those of the scores, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from device_time import Timing
from flex_programs import FLEX_BLOCK, block_mask_of, flex_program, gradients_of
from report_text import Run
from rows import WrongResultError
from topk_problem import TopkProblem
from topk_rows import Row
from topk_training import Gradients

LARGEST_DIFFERENCE = 0.1
LARGEST_GRADIENT_DIFFERENCE = 0.05  # of the largest


def covered_blocks(torch: Any, begins: Any, ends: Any, wanted: int) -> Any:
    """[.., query blocks, key blocks]: where `wanted` keys of a block cover query blocks in
    [begins, ends), given as blocks for each key."""
    *heads, tokens = begins.shape
    blocks = tokens // FLEX_BLOCK
    counts = torch.zeros((*heads, blocks, blocks + 1), dtype=torch.int32, device=begins.device)
    is_some = (begins < ends).to(torch.int32).unflatten(-1, (blocks, FLEX_BLOCK))
    for at, sign in ((begins, 1), (ends, -1)):
        where = at.unflatten(-1, (blocks, FLEX_BLOCK)).clamp(0, blocks).long()
        counts.scatter_add_(-1, where, sign * is_some)
    covered = counts.cumsum(-1)[..., :blocks] >= wanted
    return covered.transpose(-1, -2).contiguous()


def topk_program(torch: Any, scores: Any, kept: Any, heads: int) -> Callable[..., Any]:
    """Of q, k and v with heads first. scores [batch, heads_kv, tokens], kept the same with begin
    and end."""
    group = heads // scores.shape[1]
    is_kept = kept[..., :1] < kept[..., 1:]
    begins, ends = (x.contiguous() for x in (kept * is_kept).unbind(-1))

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= begins[b, h // group, k]) & (q < ends[b, h // group, k])

    def score_mod(score: Any, b: Any, h: Any, _q: Any, k: Any) -> Any:
        return score + scores[b, h // group, k]

    some = covered_blocks(torch, begins // FLEX_BLOCK, (ends - 1) // FLEX_BLOCK + 1, 1)
    first_whole = (begins + FLEX_BLOCK - 1) // FLEX_BLOCK
    full = covered_blocks(torch, first_whole, ends // FLEX_BLOCK, FLEX_BLOCK)
    some, full = (x.repeat_interleave(group, dim=1) for x in (some & ~full, full))
    mask = block_mask_of(torch, some, full, mask_mod)
    return flex_program(torch, mask, score_mod=score_mod, enable_gqa=group > 1)


def measure_flex(fdma: Any, problem: TopkProblem, row: Row, quick: bool) -> Run:
    """Attention alone, and both passes, by FDMA and by FlexAttention."""
    torch = problem.torch
    ours = Gradients(fdma, problem, row)
    ours.forward()
    ours.backward(is_made=False)
    program = topk_program(torch, ours.scores, ours.kept, row.heads)
    tensors = problem.heads_first
    dout = ours.dout.transpose(1, 2)
    out = program(*tensors).transpose(1, 2)
    error = float((out[0].float() - problem.out[0].float()).abs().max())
    if not error < LARGEST_DIFFERENCE:
        raise WrongResultError(f"FlexAttention's out differs by {error:.3g}")
    gradients = gradients_of(torch, program, tensors, dout)
    worst = 0.0
    for got, exact in zip(gradients(), (ours.dq, ours.dk, ours.dv), strict=True):
        got, exact = got.transpose(1, 2)[0].float(), exact[0].float()
        worst = max(worst, float((got - exact).abs().max() / exact.abs().max()))
    if not worst < LARGEST_GRADIENT_DIFFERENCE:
        raise WrongResultError(f"FlexAttention's gradients differ by {worst:.3g}")

    def attention() -> None:
        ours.held.run(
            *problem.tensors,
            scores=ours.scores,
            stages=("attention", "attention"),
            **problem.results,
        )

    calls: dict[str, Callable[[], object]] = {
        "attention": attention,
        "both": ours.both,
        "flex": lambda: program(*tensors),
        "flex_backward": gradients,
    }
    timing = Timing(torch, calls, quick)
    run: Run = {**timing.medians_ms()}
    run["flex_both_ms"] = run["flex_ms"] + run["flex_backward_ms"]
    return run | {
        "flex_speedup": run["flex_ms"] / run["attention_ms"],
        "flex_training_speedup": run["flex_both_ms"] / run["both_ms"],
        "out_difference": error,
        "gradient_difference": worst,
    }
