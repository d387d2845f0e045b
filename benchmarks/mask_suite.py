"""The masks that attention is measured on, for Python (tests/mask_suite/mask_suite.hpp).

Every mask comes twice: as a specification with tables, which FDMA compiles, and as a predicate on
tensors of positions (a FlexAttention mask_mod), which is what results are checked against.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    tables: dict[str, Table]
    """What the specification is bound to."""
    columns: dict[str, Table]
    """Tables by position, which the predicate reads."""
    predicate: Callable[..., Any]
    """Of q, k and the columns by name."""

    def on(self, to_device: Callable[[Table], Any]) -> Predicate:
        """The predicate, its tables moved to where positions will be."""
        columns = {name: to_device(table) for name, table in self.columns.items()}
        return lambda q, k: self.predicate(q, k, **columns)


def suite_mask(name: str, tokens: int) -> SuiteMask:
    """One of NAMES or EVERY_TILE_PARTIAL; `tokens`: a length of document_lengths.json."""
    sample = json.loads(DOCUMENTS.read_text(encoding="utf-8"))[str(tokens)][0]
    prefixes = [prefix for prefix, _ in sample["documents"]]
    lengths = [length for _, length in sample["documents"]]
    begins = [0, *itertools.accumulate(lengths)]
    last, window, half = len(lengths) - 1, tokens // 16, tokens // 2

    def by_token(values: Iterable[int]) -> Sequence[int]:
        """The value of the document that each token lies in."""
        return np.repeat(list(values), lengths).tolist()

    # What specifications name as @name, and predicates as arguments.
    tables: dict[str, Callable[[], Sequence[int]]] = {
        "len": lambda: lengths,
        "p": lambda: prefixes,
        "id": lambda: by_token(range(len(lengths))),
        "doc": lambda: by_token(range(len(lengths))),
        "part": lambda: parts_of(lengths),
        "in_prefix": lambda: [
            int(i < prefix) for prefix, length in sample["documents"] for i in range(length)
        ],
        "visible_from": lambda: by_token(
            begins[d + 1] if flag else 0 for d, flag in enumerate(sample["flags"])
        ),
        "end": lambda: eviction_ends(tokens),
    }
    masks: dict[str, tuple[str, Callable[..., Any]]] = {
        "full": ("true", lambda q, k: (q >= 0) & (k >= 0)),
        EVERY_TILE_PARTIAL: ("(q + k) % 3 != 0", lambda q, k: (q + k) % 3 != 0),
        "causal": ("causal", lambda q, k: q >= k),
        "sliding_window": (
            f"causal & window({window})",
            lambda q, k: (q >= k) & (q - k < window),
        ),
        "causal_document": (
            "causal & documents(lengths=@len)",
            lambda q, k, doc: (q >= k) & (doc[q] == doc[k]),
        ),
        "document": ("documents(lengths=@len)", lambda q, k, doc: doc[q] == doc[k]),
        "share_question": (
            "causal & share_question(ids=@id, parts=@part)",
            lambda q, k, doc, part: (
                (q >= k) & (doc[q] == doc[k]) & ((part[k] == 0) | (part[k] == part[q]))
            ),
        ),
        "global_sliding_window": (
            f"global(16) | window({window}, {window})",
            lambda q, k: (k < 16) | (q < 16) | ((q - k <= window) & (k - q <= window)),
        ),
        "causal_blockwise": (
            "causal_blockwise(ids=@id)",
            lambda q, k, doc: (q >= k) & ((doc[q] == doc[k]) | (doc[q] == last)),
        ),
        "prefix_lm_causal": (f"causal | prefix({half})", lambda q, k: (q >= k) | (k < half)),
        "prefix_lm_document": (
            "prefix_documents(ids=@id, prefix=@p)",
            lambda q, k, doc, in_prefix: (doc[q] == doc[k]) & ((q >= k) | (in_prefix[k] != 0)),
        ),
        "qk_sparse": (
            "causal & @visible_from[k] <= q",
            lambda q, k, visible_from: (q >= k) & (q >= visible_from[k]),
        ),
        "random_eviction": (
            "causal & q < @end[k]",
            lambda q, k, end: (q >= k) & (q < end[k]),
        ),
    }
    if name not in masks:
        raise ValueError(f"{name}: expected one of {', '.join(NAMES)}")
    spec, predicate = masks[name]

    def made(names: Iterable[str]) -> dict[str, Table]:
        return {name: np.asarray(tables[name](), np.int32) for name in names}

    arguments = list(inspect.signature(predicate).parameters)[2:]
    return SuiteMask(name, spec, made(re.findall(r"@(\w+)", spec)), made(arguments), predicate)
