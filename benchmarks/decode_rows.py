"""Rows of decode for bench_attention_gpu.py: one or a few queries of each sequence against a long
cache of keys and values, FDMA beside scaled_dot_product_attention of PyTorch on the same tensors.

What binds is memory: keys and values are read once. A row says how many bytes of them a second that
is, and what share of a copy on the same device, measured in turn (a copy reads and writes its
bytes: both count). PyTorch has no causal decode of several queries: there it computes all keys,
which are some queries' worth more of tens of thousands.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from attention_calls import Problem, prepare
from device_time import Timing
from exact_attention import check_head
from report_text import Run

COPY_BYTES = 1 << 30  # read, and written: far more than the caches hold


@dataclass(frozen=True)
class DecodeShape:
    batch: int
    q_len: int
    tokens: int  # keys
    heads: int
    heads_kv: int
    head_dim: int

    def __str__(self) -> str:
        heads = f"h{self.heads}kv{self.heads_kv}"
        return f"{self.tokens // 1024}K/q{self.q_len}b{self.batch}{heads}d{self.head_dim}"

    def kv_bytes(self) -> int:
        return 2 * 2 * self.batch * self.tokens * self.heads_kv * self.head_dim


def decode_shapes() -> Iterator[DecodeShape]:
    for q_len in (1, 16):
        for batch in (1, 8):
            yield DecodeShape(batch, q_len, 131072, 32, 4, 128)


class DecodeProblem(Problem):
    """Tensors, and a buffer that is copied."""

    def __init__(self, torch: Any, shape: DecodeShape, seed: int) -> None:
        super().__init__(torch, shape, seed)
        self.source, self.copied = (
            torch.zeros(COPY_BYTES, device="cuda", dtype=torch.uint8) for _ in range(2)
        )

    def copy(self) -> None:
        self.copied.copy_(self.source)

    def error(self, out: Any, lse: Any | None, is_causal: bool) -> Run:
        """Of the first and the last head against float64."""
        torch, shape = self.torch, self.shape
        group = shape.heads // shape.heads_kv
        rows = torch.arange(shape.q_len, device="cuda")[:, None]
        keys = torch.arange(shape.tokens, device="cuda")[None, :]
        cells = keys <= rows + (shape.tokens - shape.q_len if is_causal else shape.tokens)
        worst: Run = {}
        for b, h in ((0, 0), (shape.batch - 1, shape.heads - 1), (0, group - 1)):
            tensors = self.q[b, :, h], self.k[b, :, h // group], self.v[b, :, h // group]
            lse_of_head = None if lse is None else lse[b, h]
            check_head(torch, worst, tensors, cells, out[b, :, h], lse_of_head)
        return worst


def peers_of(problem: DecodeProblem) -> dict[str, Callable[[], object]]:
    """The backends of PyTorch that take the shape, with right results."""
    peers: dict[str, Callable[[], object]] = {}
    for name, backend in (
        ("sdpa_flash", "FLASH_ATTENTION"),
        ("sdpa_cudnn", "CUDNN_ATTENTION"),
        ("sdpa_efficient", "EFFICIENT_ATTENTION"),
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # why the other backends were not used
                out = problem.sdpa(backend)
        except RuntimeError:  # "No available kernel"
            continue
        problem.error(out.transpose(1, 2), None, is_causal=False)
        peers[name] = partial(problem.sdpa, backend)
    return peers


def measure_decode(fdma: Any, problem: DecodeProblem, quick: bool) -> Run:
    shape, torch = problem.shape, problem.torch
    mask, plan, uploaded, costs = prepare(
        fdma,
        torch,
        lambda: fdma.compile("causal", shape.q_len, shape.tokens, num_threads=1),
        shape,
    )
    call = problem.attention_call(fdma, uploaded)
    call()
    check = problem.error(problem.out, problem.lse, is_causal=True)
    peers = peers_of(problem)
    timing = Timing(torch, {"fdma": call, "copy": problem.copy} | peers, quick)
    seconds, copy_seconds = timing.median("fdma"), timing.median("copy")
    pairs = mask.counts["allowed_pairs"]
    rate = shape.kv_bytes() / seconds
    copy_rate = 2 * COPY_BYTES / copy_seconds
    run: Run = {
        "part": "decode",
        "mask": "causal",
        "batch": shape.batch,
        "q_len": shape.q_len,
        "tokens": shape.tokens,
        "heads": shape.heads,
        "heads_kv": shape.heads_kv,
        "head_dim": shape.head_dim,
        "allowed_pairs": pairs,
        "rounds": len(timing.seconds["fdma"]),
        "fdma_ms": seconds * 1e3,
        "fdma_min_ms": min(timing.seconds["fdma"]) * 1e3,
        "fdma_tflops": 4.0 * shape.head_dim * pairs * shape.batch * shape.heads / seconds / 1e12,
        "kv_bytes": shape.kv_bytes(),
        "kv_gb_per_s": rate / 1e9,
        "copy_gb_per_s": copy_rate / 1e9,
        "copy_share": rate / copy_rate,
        "heads_per_tile": plan.heads_per_tile,
        "items": plan.num_work_tiles,
        "split_rows": plan.num_split_rows,
        "mask_bytes": mask.nbytes,
        "plan_bytes": uploaded.nbytes,
        "check": check,
    }
    for peer in peers:
        run |= {
            f"{peer}_ms": timing.median(peer) * 1e3,
            # Above 1: FDMA is faster.
            f"{peer}_ratio": timing.ratio("fdma", peer),
        }
    return run | costs
