"""Rows of decode for bench_attention_gpu.py: one or a few queries of each sequence against a long
cache of keys and values, FDMA beside scaled_dot_product_attention of PyTorch on the same tensors.

What binds is memory: keys and values are read once. A row says how many bytes of them a second that
is, and what share of a copy on the same device, measured in turn (a copy reads and writes its
bytes: both count). PyTorch has no causal decode of several queries: there it computes all keys,
which are some queries' worth more of tens of thousands.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Run = dict[str, Any]

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


class DecodeProblem:
    """Tensors of one shape."""

    def __init__(self, torch: Any, shape: DecodeShape, seed: int) -> None:
        self.torch = torch
        self.shape = shape
        torch.manual_seed(seed)

        def random(length: int, heads: int) -> Any:
            size = (shape.batch, length, heads, shape.head_dim)
            return torch.randn(size, device="cuda", dtype=torch.bfloat16)

        self.q = random(shape.q_len, shape.heads)
        self.k, self.v = (random(shape.tokens, shape.heads_kv) for _ in range(2))
        self.out = torch.full_like(self.q, torch.nan)
        size = (shape.batch, shape.heads, shape.q_len)
        self.lse = torch.full(size, torch.nan, device="cuda", dtype=torch.float32)
        self.source, self.copied = (
            torch.zeros(COPY_BYTES, device="cuda", dtype=torch.uint8) for _ in range(2)
        )

    def copy(self) -> None:
        self.copied.copy_(self.source)

    def sdpa(self, backend: Any) -> Any:
        attention = self.torch.nn.attention
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        with attention.sdpa_kernel(backend):
            return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def error(self, out: Any, lse: Any | None, is_causal: bool) -> Run:
        """Of the first and the last head against float64, beside what an explicit product in
        bfloat16 has; ValueError where it is too large."""
        torch, shape = self.torch, self.shape
        group = shape.heads // shape.heads_kv
        rows = torch.arange(shape.q_len, device="cuda")[:, None]
        keys = torch.arange(shape.tokens, device="cuda")[None, :]
        cells = keys <= rows + (shape.tokens - shape.q_len if is_causal else shape.tokens)
        worst: Run = {"max_error": 0.0, "lse_max_error": 0.0}
        for b, h in ((0, 0), (shape.batch - 1, shape.heads - 1), (0, group - 1)):
            q, k, v = self.q[b, :, h], self.k[b, :, h // group], self.v[b, :, h // group]
            scale = shape.head_dim**-0.5
            logits = (q.double() @ k.double().T * scale).masked_fill(~cells, -torch.inf)
            exact = logits.softmax(-1) @ v.double()
            plain = ((q @ k.T).float() * scale).masked_fill(~cells, -torch.inf)
            plain = plain.softmax(-1).to(v.dtype) @ v
            allowed = 2 * float((plain.double() - exact).abs().max())
            allowed += 1e-5 * float(exact.abs().max())
            error = float((out[b, :, h].double() - exact).abs().max())
            worst["max_error"] = max(worst["max_error"], error)
            worst["allowed_error"] = min(worst.get("allowed_error", allowed), allowed)
            if not error <= allowed:
                raise ValueError(f"out: error {error:.3g}, expected {allowed:.3g} at most")
            if lse is not None:
                error = float((lse[b, h].double() - logits.logsumexp(-1)).abs().max())
                worst["lse_max_error"] = max(worst["lse_max_error"], error)
                if not error <= 1e-4:
                    raise ValueError(f"lse: error {error:.3g}")
        return worst


def peers_of(problem: DecodeProblem) -> dict[str, Callable[[], object]]:
    """The backends of PyTorch that take the shape, with right results."""
    torch = problem.torch
    backends = torch.nn.attention.SDPBackend
    peers: dict[str, Callable[[], object]] = {}
    for name, backend in (
        ("sdpa_flash", backends.FLASH_ATTENTION),
        ("sdpa_cudnn", backends.CUDNN_ATTENTION),
        ("sdpa_efficient", backends.EFFICIENT_ATTENTION),
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # why the other backends were not used
                out = problem.sdpa(backend)
        except RuntimeError:  # "No available kernel"
            continue
        problem.error(out.transpose(1, 2), None, is_causal=False)
        peers[name] = lambda backend=backend: problem.sdpa(backend)  # type: ignore[misc]
    return peers


def measure_decode(
    fdma: Any, problem: DecodeProblem, time_calls: Callable[[dict[str, Callable[[], object]]], Any]
) -> Run:
    shape, torch = problem.shape, problem.torch
    costs: dict[str, list[float]] = {"compile_ms": [], "plan_ms": [], "upload_ms": []}
    for _ in range(3):  # the first time finds cold code
        begin = time.perf_counter()
        mask = fdma.compile("causal", shape.q_len, shape.tokens, num_threads=1)
        costs["compile_ms"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        plan = fdma.make_plan(
            mask,
            batch=shape.batch,
            heads_q=shape.heads,
            heads_kv=shape.heads_kv,
            head_dim=shape.head_dim,
            dtype="bfloat16",
            backend="sm90",
        )
        costs["plan_ms"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        uploaded = fdma.upload(plan)
        torch.cuda.synchronize()
        costs["upload_ms"].append(time.perf_counter() - begin)
    stream = torch.cuda.current_stream().cuda_stream

    def call() -> None:
        fdma.attention(
            *(problem.q, problem.k, problem.v, uploaded),
            out=problem.out,
            lse=problem.lse,
            stream=stream,
        )

    call()
    check = problem.error(problem.out, problem.lse, is_causal=True)
    peers = peers_of(problem)
    timing = time_calls({"fdma": call, "copy": problem.copy} | peers)
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
    return run | {name: statistics.median(x) * 1e3 for name, x in costs.items()}
