"""What rows of bench_topk_gpu.py run on: tensors of a shape with cuDNN on them, and FDMA's call."""

from __future__ import annotations

from functools import partial
from typing import Any

from attention_calls import Problem, sizes_of
from device_time import device_ms
from exact_attention import largest_error, sampled_queries
from report_text import Run
from rows import WrongResultError
from topk_rows import Row

SEED = 20261122
RANDOM_QUERIES = 12
MAX_CUDNN_TOKENS = 131072
LONG_TOKENS = 65536  # from here on cuDNN takes its time, and is no part of the rounds
CUDNN_MASKS = {"full": False, "causal": True}
A_COEF = -0.5

# By size, of shapes that this call has timed already: full, causal, and a training step.
CUDNN_MS: dict[str, dict[str, float]] = {}


class TopkProblem(Problem):
    """Tensors, the parameters that scores are made by, and cuDNN's times."""

    def __init__(self, torch: Any, row: Row) -> None:
        super().__init__(torch, row, SEED)
        self.dt_proj = self.random(row.heads_kv, row.head_dim) / row.head_dim**0.5
        self.a_coef = torch.full((row.heads_kv,), A_COEF, device="cuda")
        self.cudnn_ms = CUDNN_MS.setdefault(row.size, {})

    def scores(self, order: str) -> Any:
        torch, row = self.torch, self.shape
        size = (row.batch, row.heads_kv, row.tokens)
        torch.manual_seed(SEED + 1)
        normal = torch.randn(size, device="cuda")
        keys = torch.arange(row.tokens, device="cuda", dtype=torch.float32)
        if order == "drifting":
            return normal + keys / 2048
        if order == "rising":
            # Distinct, and small enough to be added to logits.
            return (keys / row.tokens).expand(size).contiguous()
        if order == "clustered":
            levels = torch.randn((*size[:2], row.tokens // 512 + 1), device="cuda")
            return normal * 0.1 + levels.repeat_interleave(512, dim=-1)[..., : row.tokens]
        return normal

    def measure_cudnn(self) -> Run:
        """Milliseconds of full and causal attention, too long for rounds: the least of two after
        one that warms up. Nothing of the longest shapes."""
        if self.shape.tokens > MAX_CUDNN_TOKENS:
            return {}
        for name, is_causal in CUDNN_MASKS.items():
            if name not in self.cudnn_ms:
                samples = [device_ms(self.torch, partial(self.cudnn, is_causal)) for _ in range(3)]
                self.cudnn_ms[name] = min(samples[1:])
        return {f"cudnn_{name}_ms": self.cudnn_ms[name] for name in CUDNN_MASKS}

    def sampled_queries(self) -> list[int]:
        return sampled_queries(self.torch, self.shape.tokens, RANDOM_QUERIES, SEED + 2)

    def check(self, scores: Any, kept: Any, has_bias: bool = True) -> Run:
        """Of sampled queries of the first and the last head; what is wrong is an error."""
        torch, row = self.torch, self.shape
        worst: Run = {"max_error": 0.0, "lse_max_error": 0.0}
        queries = self.sampled_queries()
        for b, h in ((0, 0), (row.batch - 1, row.heads - 1)):
            h_kv = h // (row.heads // row.heads_kv)
            chosen_by, intervals = scores[b, h_kv], kept[b, h_kv]
            bias = chosen_by if has_bias else torch.zeros_like(chosen_by)
            k, v = self.k[b, :, h_kv], self.v[b, :, h_kv]
            scale = row.head_dim**-0.5
            expected = []
            for query in queries:
                order = torch.sort(chosen_by[: query + 1], descending=True, stable=True).indices
                best = order[: row.width].sort().values
                got = ((intervals[:, 0] <= query) & (query < intervals[:, 1])).nonzero()[:, 0]
                if not torch.equal(best, got):
                    raise WrongResultError(f"query {query} of head {h} keeps other keys")
                q = self.q[b, query, h]
                logits = (k[best].double() @ q.double()) * scale + bias[best].double()
                exact = logits.softmax(0) @ v[best].double()
                plain = (k[best].float() @ q.float()) * scale + bias[best]
                rounded = (plain.softmax(0).to(v.dtype).float() @ v[best].float()).to(v.dtype)
                expected.append(torch.stack([exact, rounded.double()]))
                lse_error = abs(float(self.lse[b, h, query].double() - logits.logsumexp(0)))
                worst["lse_max_error"] = max(worst["lse_max_error"], lse_error)
                if not lse_error <= 1e-4 * max(1.0, float(logits.abs().max())):
                    raise WrongResultError(f"lse[{b}, {h}, {query}]: error {lse_error:.3g}")
            exact, rounded = torch.stack(expected, dim=1)
            error, _ = largest_error(self.out[b, queries, h], exact, rounded, f"out of head {h}")
            worst["max_error"] = max(worst["max_error"], error)
        return worst | {"rows_checked": 2 * len(queries)}


def prepared(fdma: Any, row: Row, **options: Any) -> Any:
    return fdma.DynamicMaskAttention(
        row.width, q_len=row.tokens, **sizes_of(row), backend="sm90", **options
    )
