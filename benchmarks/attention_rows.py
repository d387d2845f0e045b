"""The rows of bench_attention_gpu.py: which masks at which shapes, beside whom, in which order.

A call that runs out of time leaves the last ones to the next call, so that what is wanted most
comes first: the shapes that goals are about, full and causal attention, whose peers are the
fastest, and masks that real batches have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from decode_rows import DecodeShape, decode_shapes
from mask_suite import EVERY_TILE_PARTIAL, NAMES

TOTAL_TOKENS = 131072
MAX_FLEX_TOKENS = 32768
PARTS = ["dense", "backward", "parametric", "flex", "backward_flex", "cusparse", "decode"]
HEAD_SIZES = (64, 96, 256)  # beside 128
PARAMETRIC_MASKS = ("causal", "sliding_window", "causal_document", "document", "prefix_lm_causal")
CUSPARSE_MASKS = ("causal", "sliding_window", "causal_document", "random_eviction")


@dataclass(frozen=True)
class Shape:
    batch: int
    tokens: int
    heads: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.tokens // 1024}K/b{self.batch}h{self.heads}d{self.head_dim}"

    @property
    def q_len(self) -> int:
        return self.tokens

    @property
    def heads_kv(self) -> int:
        return self.heads

    def flops(self, pairs: int) -> float:
        """Of a forward pass that `pairs` cells of one head and batch element allow."""
        return 4.0 * self.head_dim * pairs * self.batch * self.heads


@dataclass(frozen=True)
class Row:
    part: str
    shape: Shape | DecodeShape
    mask: str

    def __str__(self) -> str:
        return f"{self.part}/{self.shape}/{self.mask}"


def all_rows() -> Iterator[Row]:
    """In the order of their importance, one shape after the other."""
    few = ("causal", "sliding_window", "causal_document", "document", "random_eviction")
    many_heads = [Shape(TOTAL_TOKENS // n, n, 32, 128) for n in (32768, 131072, 8192)]
    one_sequence = [Shape(1, n, 8, 128) for n in (8192, 32768)]
    head_sizes = [Shape(TOTAL_TOKENS // 8192, 8192, 32, head_dim) for head_dim in HEAD_SIZES]
    for shape in [*many_heads, *one_sequence]:
        for name in NAMES:
            yield Row("dense", shape, name)
    for shape in head_sizes:
        for name in ("full", *few):
            yield Row("dense", shape, name)
    yield Row("dense", many_heads[0], EVERY_TILE_PARTIAL)
    # 8K before 128K, whose rows take seconds each.
    for shape in sorted(many_heads, key=lambda shape: (shape.tokens != 32768, shape.tokens)):
        for name in NAMES:
            yield Row("backward", shape, name)
    for shape in (head_sizes[0], head_sizes[2]):
        for name in ("full", *few):
            yield Row("backward", shape, name)
    for shape in one_sequence:
        for name in ("full", *few):
            yield Row("backward", shape, name)
    by_importance = (*few, *(name for name in NAMES if name not in few))
    by_length = sorted(many_heads, key=lambda shape: -shape.tokens)
    for shape in by_length:
        if shape.tokens <= MAX_FLEX_TOKENS:
            for name in by_importance:
                yield Row("flex", shape, name)
    # Each compiles a program of its own: the masks with goals at both lengths before all others.
    flex_gradients = ("causal_document", "causal", "sliding_window", "full")
    rest = tuple(name for name in by_importance if name not in flex_gradients)
    for names in (flex_gradients, rest):
        for shape in by_length:
            if shape.tokens <= MAX_FLEX_TOKENS:
                for name in names:
                    yield Row("backward_flex", shape, name)
    for name in few[:3]:
        yield Row("flex", head_sizes[0], name)
    for shape in (many_heads[0], many_heads[2], *one_sequence):
        for name in PARAMETRIC_MASKS:
            yield Row("parametric", shape, name)
    for name in CUSPARSE_MASKS:
        yield Row("cusparse", Shape(1, 8192, 32, 128), name)
    for decode in decode_shapes():
        yield Row("decode", decode, "causal")


def expected_seconds(row: Row) -> float:
    """About what a row takes, so that none is begun that cannot end in time."""
    if row.part == "backward" and isinstance(row.shape, Shape):
        is_dense = row.mask in ("full", "causal", "prefix_lm_causal", "qk_sparse")
        return 3.0 + row.shape.tokens / 32768 * (3.5 if is_dense else 2.0)
    # FlexAttention's with its program in the cache (flex_programs.py).
    seconds = {"flex": 4.0, "backward_flex": 5.0, "cusparse": 15.0}
    return seconds.get(row.part, 4.0 + row.shape.tokens / 32768)
