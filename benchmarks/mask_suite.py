"""The masks that attention is measured on, for Python (tests/mask_suite/mask_suite.hpp).

Every mask comes twice: as a specification with tables, which FDMA compiles, and as a predicate on
tensors of positions (a FlexAttention mask_mod), which is what results are checked against.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Table = np.ndarray[Any, np.dtype[np.int32]]
Predicate = Callable[[Any, Any], Any]
"""Of query and key positions, broadcast against each other; the tables lie where they do."""

DOCUMENTS = Path(__file__).resolve().parents[1] / "tests" / "data" / "document_lengths.json"
NAMES = (
    *("full", "causal", "sliding_window", "causal_document", "document", "share_question"),
    *("global_sliding_window", "causal_blockwise", "prefix_lm_causal", "prefix_lm_document"),
    *("qk_sparse", "random_eviction"),
)

EVERY_TILE_PARTIAL = "every_tile_partial"
"""Not of the mask suite: two cells of three, every tile by a bitmap, for what a mask costs."""


class SplitMix64:
    """The random numbers of tests/mask_suite/suite_mask.hpp."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def below(self, bound: int) -> int:
        bits = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & bits
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & bits
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & bits
        return (z ^ (z >> 31)) % bound


def parts_of(lengths: Sequence[int]) -> list[int]:
    """Document d is a question (part 0) and 2 + d % 5 answers, the rest with the last."""
    parts: list[int] = []
    for d, length in enumerate(lengths):
        answers = 2 + d % 5
        part_len = max(length // (answers + 1), 1)
        parts += [min(i // part_len, answers) for i in range(length)]
    return parts


def eviction_ends(tokens: int) -> list[int]:
    """First query that no longer sees each key: from tokens / 2 on, each evicts a random one."""
    random = SplitMix64(tokens)
    ends = [tokens] * tokens
    alive: list[int] = []
    for q in range(tokens):
        if q >= tokens // 2 and alive:
            victim = random.below(len(alive))
            ends[alive[victim]] = q
            alive[victim] = alive[-1]
            alive.pop()
        alive.append(q)
    return ends


@dataclass
class SuiteMask:
    name: str
    spec: str
    tables: dict[str, Table] = field(default_factory=dict)
    """What the specification is bound to."""
    columns: dict[str, Table] = field(default_factory=dict)
    """Tables by position, which the predicate reads."""
    predicate: Callable[..., Any] = lambda q, k: q >= k
    """Of q, k and the columns by name."""

    def on(self, to_device: Callable[[Table], Any]) -> Predicate:
        """The predicate, its tables moved to where positions will be."""
        columns = {name: to_device(table) for name, table in self.columns.items()}
        return lambda q, k: self.predicate(q, k, **columns)


def suite_mask(name: str, tokens: int) -> SuiteMask:
    """One of NAMES or EVERY_TILE_PARTIAL; `tokens`: a length of document_lengths.json."""

    def array(values: Sequence[int]) -> Table:
        return np.asarray(values, np.int32)

    sample = json.loads(DOCUMENTS.read_text(encoding="utf-8"))[str(tokens)][0]
    prefixes = [prefix for prefix, _ in sample["documents"]]
    lengths = [length for _, length in sample["documents"]]
    begins = [0, *itertools.accumulate(lengths)]
    ids = array(np.repeat(np.arange(len(lengths)), lengths).tolist())
    window = tokens // 16
    if name == "full":
        return SuiteMask(name, "true", predicate=lambda q, k: (q >= 0) & (k >= 0))
    if name == EVERY_TILE_PARTIAL:
        return SuiteMask(name, "(q + k) % 3 != 0", predicate=lambda q, k: (q + k) % 3 != 0)
    if name == "causal":
        return SuiteMask(name, "causal")
    if name == "sliding_window":
        return SuiteMask(
            name,
            f"causal & window({window})",
            predicate=lambda q, k: (q >= k) & (q - k < window),
        )
    if name == "causal_document":
        return SuiteMask(
            name,
            "causal & documents(lengths=@len)",
            {"len": array(lengths)},
            {"doc": ids},
            lambda q, k, doc: (q >= k) & (doc[q] == doc[k]),
        )
    if name == "document":
        return SuiteMask(
            name,
            "documents(lengths=@len)",
            {"len": array(lengths)},
            {"doc": ids},
            lambda q, k, doc: doc[q] == doc[k],
        )
    if name == "share_question":
        parts = array(parts_of(lengths))
        return SuiteMask(
            name,
            "causal & share_question(ids=@id, parts=@part)",
            {"id": ids, "part": parts},
            {"doc": ids, "part": parts},
            lambda q, k, doc, part: (
                (q >= k) & (doc[q] == doc[k]) & ((part[k] == 0) | (part[k] == part[q]))
            ),
        )
    if name == "global_sliding_window":
        return SuiteMask(
            name,
            f"global(16) | window({window}, {window})",
            predicate=lambda q, k: (k < 16) | (q < 16) | ((q - k <= window) & (k - q <= window)),
        )
    if name == "causal_blockwise":
        last = len(lengths) - 1
        return SuiteMask(
            name,
            "causal_blockwise(ids=@id)",
            {"id": ids},
            {"doc": ids},
            lambda q, k, doc: (q >= k) & ((doc[q] == doc[k]) | (doc[q] == last)),
        )
    if name == "prefix_lm_causal":
        half = tokens // 2
        return SuiteMask(
            name, f"causal | prefix({half})", predicate=lambda q, k: (q >= k) | (k < half)
        )
    if name == "prefix_lm_document":
        in_prefix = [
            1 if i < prefix else 0
            for prefix, length in zip(prefixes, lengths, strict=True)
            for i in range(length)
        ]
        return SuiteMask(
            name,
            "prefix_documents(ids=@id, prefix=@p)",
            {"id": ids, "p": array(prefixes)},
            {"doc": ids, "in_prefix": array(in_prefix)},
            lambda q, k, doc, in_prefix: (doc[q] == doc[k]) & ((q >= k) | (in_prefix[k] != 0)),
        )
    if name == "qk_sparse":
        visible_from = array(
            [
                begins[d + 1] if flag else 0
                for d, flag in enumerate(sample["flags"])
                for _ in range(lengths[d])
            ]
        )
        return SuiteMask(
            name,
            "causal & @visible_from[k] <= q",
            {"visible_from": visible_from},
            {"visible_from": visible_from},
            lambda q, k, visible_from: (q >= k) & (q >= visible_from[k]),
        )
    if name == "random_eviction":
        ends = array(eviction_ends(tokens))
        return SuiteMask(
            name,
            "causal & q < @end[k]",
            {"end": ends},
            {"end": ends},
            lambda q, k, end: (q >= k) & (q < end[k]),
        )
    raise ValueError(f"{name}: expected one of {', '.join(NAMES)}")
