"""What GPU rows are checked against: attention in float64 at sampled queries."""

from __future__ import annotations

from typing import Any

from report_text import Run
from rows import WrongResultError

LSE_TOLERANCE = 1e-4  # the logits of a tile have float32 sums of exact products


def sampled_queries(torch: Any, tokens: int, num_random: int, seed: int) -> list[int]:
    """First, last, the edges of tiles in the middle, and random ones."""
    edges = [0, 1, 127, 128, tokens // 2 - 1, tokens // 2, tokens - 128, tokens - 1]
    torch.manual_seed(seed)
    return sorted({*edges, *torch.randint(0, tokens, (num_random,)).tolist()})


def largest_error(out: Any, exact: Any, plain: Any, what: str = "out") -> tuple[float, float]:
    """That of `out`, and what is allowed: twice what `plain` has, the explicit product in bfloat16.

    Raises where it is larger.
    """
    allowed = 2 * float((plain.double() - exact).abs().max()) + 1e-5 * float(exact.abs().max())
    error = float((out.double() - exact).abs().max())
    if not error <= allowed:
        raise WrongResultError(f"{what}: error {error:.3g}, expected {allowed:.3g} at most")
    return error, allowed


def check_head(
    torch: Any, worst: Run, tensors: tuple[Any, Any, Any], cells: Any, out: Any, lse: Any | None
) -> None:
    """Compares out and lse of some queries of one head, and adds the largest errors to `worst`.

    `tensors`: q, k and v [length, head_dim]; `cells`: booleans [queries, keys].
    """
    q, k, v = tensors
    scale = q.shape[-1] ** -0.5
    logits = (q.double() @ k.double().T * scale).masked_fill(~cells, -torch.inf)
    exact_lse = logits.logsumexp(-1)
    seen = exact_lse.isfinite()
    exact = torch.where(seen[:, None], logits.softmax(-1), 0.0) @ v.double()
    plain = ((q @ k.T).float() * scale).masked_fill(~cells, -torch.inf)
    plain = torch.where(seen[:, None], plain.softmax(-1), 0.0).to(v.dtype) @ v
    error, allowed = largest_error(out, exact, plain)
    worst["max_error"] = max(worst.get("max_error", 0.0), error)
    worst.setdefault("lse_max_error", 0.0)
    worst["allowed_error"] = min(worst.get("allowed_error", allowed), allowed)
    if lse is None:
        return
    error = float((lse[seen].double() - exact_lse[seen]).abs().max())
    worst["lse_max_error"] = max(worst["lse_max_error"], error)
    if not (error <= LSE_TOLERANCE and bool((lse[~seen] == -torch.inf).all())):
        raise WrongResultError(f"lse: error {error:.3g}")
