"""Calls of attention on a GPU that rows measure: FDMA's by a plan, and PyTorch's by a backend.

A `shape` has batch, q_len, tokens (of keys), heads, heads_kv and head_dim.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from report_text import Run


def sizes_of(shape: Any) -> Run:
    """What plans and prepared calls are told of a shape."""
    return {
        "batch": shape.batch,
        "heads_q": shape.heads,
        "heads_kv": shape.heads_kv,
        "head_dim": shape.head_dim,
        "dtype": "bfloat16",
    }


def planned(fdma: Any, compiled: Any, shape: Any, **options: Any) -> Any:
    return fdma.make_plan(compiled, **sizes_of(shape), backend="sm90", **options)


def prepare(
    fdma: Any, torch: Any, compiled: Callable[[], Any], shape: Any, **options: Any
) -> tuple[Any, Any, Any, Run]:
    """A mask, its plan, the uploaded plan, and what each of them took in milliseconds."""
    costs: dict[str, list[float]] = {"compile_ms": [], "plan_ms": [], "upload_ms": []}
    for _ in range(3):  # the first time finds cold code
        begin = time.perf_counter()
        mask = compiled()
        costs["compile_ms"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        plan = planned(fdma, mask, shape, **options)
        costs["plan_ms"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        uploaded = fdma.prepare(plan)
        torch.cuda.synchronize()
        costs["upload_ms"].append(time.perf_counter() - begin)
    return mask, plan, uploaded, {name: 1e3 * statistics.median(x) for name, x in costs.items()}


def profile_of(fdma: Any, name: str) -> Any:
    profiles = fdma.DeviceProfile
    return profiles.shipped(name) if name in profiles.shipped_names() else profiles.read(name)


def heads_first(*tensors: Any) -> list[Any]:
    return [x.transpose(1, 2) for x in tensors]


class Problem:
    """Random tensors of a shape, and what FDMA writes."""

    def __init__(self, torch: Any, shape: Any, seed: int) -> None:
        self.torch = torch
        self.shape = shape
        torch.manual_seed(seed)
        self.q = self.random(shape.batch, shape.q_len, shape.heads, shape.head_dim)
        self.k, self.v = (
            self.random(shape.batch, shape.tokens, shape.heads_kv, shape.head_dim) for _ in "kv"
        )
        self.tensors = (self.q, self.k, self.v)
        self.heads_first = heads_first(*self.tensors)
        self.out = torch.full_like(self.q, torch.nan)
        self.lse = torch.full((shape.batch, shape.heads, shape.q_len), torch.nan, device="cuda")
        self.results = {"out": self.out, "lse": self.lse}

    def random(self, *size: int) -> Any:
        return self.torch.randn(size, device="cuda", dtype=self.torch.bfloat16)

    def sdpa(self, backend: str, *inputs: Any, **options: Any) -> Any:
        """scaled_dot_product_attention by a backend of PyTorch, of q, k and v with heads first, the
        problem's own unless given."""
        attention = self.torch.nn.attention
        is_grouped = self.shape.heads != self.shape.heads_kv
        with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
            return self.torch.nn.functional.scaled_dot_product_attention(
                *(inputs or self.heads_first), enable_gqa=is_grouped, **options
            )

    def cudnn(self, is_causal: bool, *inputs: Any) -> Any:
        return self.sdpa("CUDNN_ATTENTION", *inputs, is_causal=is_causal)

    def attention_call(self, fdma: Any, uploaded: Any) -> Callable[[], object]:
        stream = self.torch.cuda.current_stream().cuda_stream
        return lambda: fdma.attention(*self.tensors, uploaded, **self.results, stream=stream)
