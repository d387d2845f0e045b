"""The rows of bench_topk_gpu.py, which the programs of FlexAttention are compiled for as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

RATIOS = (0.2, 0.1, 0.05, 0.025)
CLAIMED_RATIOS = tuple(zip((1024, 4096, 16384, 65536), RATIOS, strict=True))
WIDTH = 2048
TOTAL_TOKENS = 65536
TOTAL_TOKENS_ALONE = 32768
ORDERS = ("random", "drifting", "rising", "clustered")
WAY_MASKS = ("random_eviction", "topk", "token_lists")


@dataclass(frozen=True)
class Row:
    part: str
    tokens: int
    heads: int
    heads_kv: int
    head_dim: int
    width: int
    order: str

    @property
    def batch(self) -> int:
        total = TOTAL_TOKENS_ALONE if self.part == "alone" else TOTAL_TOKENS
        return max(1, total // self.tokens)

    @property
    def q_len(self) -> int:
        return self.tokens

    @property
    def size(self) -> str:
        return f"{self.tokens // 1024}K/b{self.batch}h{self.heads}kv{self.heads_kv}d{self.head_dim}"

    def __str__(self) -> str:
        return f"{self.part}/{self.size}/w{self.width}/{self.order}"

    @property
    def pairs(self) -> float:
        """Of queries and kept keys, over all heads."""
        kept = min(self.width, self.tokens)
        seen = kept * (kept + 1) // 2 + (self.tokens - kept) * kept
        return float(seen * self.batch * self.heads)


def widths(tokens: int) -> list[int]:
    """Shares of the keys, and WIDTH where there are as many."""
    return sorted({*(round(ratio * tokens) for ratio in RATIOS), min(WIDTH, tokens)})


def all_rows() -> Iterator[Row]:
    """In the order of their importance, those of one shape together where that does not matter."""
    for heads_kv in (32, 8):
        for order in ORDERS:
            yield Row("topk", 131072, 32, heads_kv, 128, WIDTH, order)
    for tokens, ratio in CLAIMED_RATIOS:
        yield Row("topk", tokens, 32, 32, 128, round(ratio * tokens), "random")
    for tokens, ratio in CLAIMED_RATIOS:
        yield Row("alone", tokens, 32, 32, 128, round(ratio * tokens), "random")
    for heads_kv in (32, 8):
        for order in ORDERS:
            yield Row("train", 131072, 32, heads_kv, 128, WIDTH, order)
    for tokens, ratio in CLAIMED_RATIOS:
        yield Row("train", tokens, 32, 32, 128, round(ratio * tokens), "random")
    yield Row("flex", 131072, 32, 32, 128, WIDTH, "random")
    for tokens, ratio in CLAIMED_RATIOS[::-1]:
        yield Row("flex", tokens, 32, 32, 128, round(ratio * tokens), "random")
    for tokens in (32768, 131072, 8192):
        for mask in WAY_MASKS:
            if (mask, tokens) != ("token_lists", 131072):  # a table of 128 MiB
                yield Row("ways", tokens, 32, 32, 128, tokens // 64, mask)
    yield Row("topk", 1048576, 32, 8, 128, WIDTH, "random")
    for heads_kv in (32, 8):
        for order in ORDERS:
            yield Row("topk", 131072, 32, heads_kv, 64, WIDTH, order)
    for tokens, ratio in CLAIMED_RATIOS:
        yield Row("topk", tokens, 32, 32, 64, round(ratio * tokens), "random")
    for head_dim, heads_kv in ((128, 32), (64, 32), (128, 8), (64, 8)):
        for tokens in (1024, 4096, 16384, 65536, 131072):
            for width in widths(tokens):
                yield Row("topk", tokens, 32, heads_kv, head_dim, width, "random")
    for tokens in (4096, 16384):
        for order in ORDERS[1:]:
            yield Row("topk", tokens, 32, 32, 128, round(0.1 * tokens), order)
    yield Row("topk", 1048576, 32, 8, 64, WIDTH, "random")


def expected_seconds(row: Row) -> float:
    return {"flex": 8.0, "ways": 6.0, "train": 2.0, "alone": 3.0}.get(
        row.part, 1.0
    ) + row.tokens / 131072
