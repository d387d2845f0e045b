"""The score of a call: what happens to its logits besides the scale and the mask, and to its
weights after the softmax.

A caller gives a `GivenScore`. Checked for the shapes of a call it is a `ScoreArguments`, which goes
through the layers below as one argument, and to the core as the tuple that it is. A plan depends on
the names of its parts alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .plans import ScorePart
from .shapes import Extents, checked_softcap, refuse_no_number

__all__: list[str] = []


GIVEN_TENSORS = "bias", "key_bias", "alibi_slopes", "relative", "sinks", "dropout_seed"


class GivenScore(NamedTuple):
    """The arguments of `fdma.attention` that make a score, as the caller gave them."""

    bias: Any = None
    key_bias: Any = None
    softcap: Any = None
    alibi_slopes: Any = None
    relative: Any = None
    sinks: Any = None
    dropout_p: Any = 0.0
    generator: Any = None
    dropout_seed: Any = None

    def tensors(self) -> tuple[Any, ...]:
        """Everything that may be a tensor, in the order of GIVEN_TENSORS."""
        bias, key_bias, _, slopes, table, sinks, _, _, seed = self
        if table is not None:
            table = table[0] if isinstance(table, tuple | list) and table else None
        if seed is not None and isinstance(seed, int | np.integer | tuple):
            seed = None
        return bias, key_bias, slopes, table, sinks, seed


class ScoreArguments(NamedTuple):
    """A checked score, in the order of the core: tensors, then numbers."""

    key_bias: Any = None
    """float32 [batch, heads_kv, kv_len]."""
    bias: Any = None
    """[batch or 1, heads or heads_kv or 1, q_len or 1, kv_len], float32 or of q's dtype."""
    alibi_slopes: Any = None
    """float32 [heads] or [batch, heads]."""
    relative: Any = None
    """float32 [heads or 1, size]."""
    sinks: Any = None
    """[heads] or [batch, heads, q_len], float32 or of q's dtype."""
    seeds: Any = None
    """int64 [2], seed and offset of dropout, read where the call runs; None: those below."""
    softcap: float = 0.0
    """0: none."""
    relative_left: int = 0
    """The element of a row of `relative` for the key at the query's position."""
    dropout_p: float = 0.0
    """0: none."""
    seed: int = 0
    offset: int = 0

    @property
    def tensors(self) -> tuple[Any, ...]:
        return self[:NUM_TENSORS]

    def with_tensors(self, tensors: Iterable[Any]) -> ScoreArguments:
        """The same numbers with other tensors."""
        return ScoreArguments._make((*tensors, *self.numbers))

    @property
    def numbers(self) -> tuple[Any, ...]:
        return self[NUM_TENSORS:]

    @property
    def parts(self) -> tuple[ScorePart, ...]:
        """The names of the core for what is there (score_parts.def)."""
        has = (
            self.softcap != 0,
            self.key_bias is not None,
            self.bias is not None,
            self.alibi_slopes is not None,
            self.relative is not None,
            self.sinks is not None,
            self.dropout_p != 0,
        )
        return tuple(name for name, is_there in zip(PARTS, has, strict=True) if is_there)


PARTS: tuple[ScorePart, ...] = (
    "softcap",
    "key_bias",
    "bias",
    "alibi",
    "relative_table",
    "sink",
    "dropout",
)
NUM_TENSORS = 6
NO_SCORE = ScoreArguments()
NO_TENSORS: tuple[None, ...] = (None,) * NUM_TENSORS

# Bits of the gradients that are wanted, in the order (dkey_bias, dbias, drelative, dsinks) in which
# they are given.
WANTS = WANTS_KEY_BIAS, WANTS_BIAS, WANTS_RELATIVE, WANTS_SINKS = 1, 2, 4, 8


def has_tensors(score: ScoreArguments) -> bool:
    """Whether a score has tensors."""
    key_bias, bias, slopes, table, sinks, seeds = score[:NUM_TENSORS]
    return not (key_bias is bias is slopes is table is sinks is seeds is None)


def with_gradients(score: ScoreArguments) -> tuple[Any, ...]:
    """The tensors that have gradients, in the order of the bits."""
    return score.key_bias, score.bias, score.relative, score.sinks


def wanted_of(needs: Sequence[bool]) -> int:
    """The bits, of whether each tensor of a score needs a gradient."""
    key_bias, bias, _, relative, sinks, _ = needs
    return (
        (WANTS_KEY_BIAS if key_bias else 0)
        | (WANTS_BIAS if bias else 0)
        | (WANTS_RELATIVE if relative else 0)
        | (WANTS_SINKS if sinks else 0)
    )


def inputs_order(dkey_bias: Any, dbias: Any, drelative: Any, dsinks: Any) -> tuple[Any, ...]:
    """The gradients of the tensors of a score in the order of the tensors."""
    return dkey_bias, dbias, None, drelative, dsinks, None


def wanted_of_inputs(needs: Sequence[bool]) -> int:
    """`wanted_of` an operator, of whose last arguments PyTorch omits those with default values."""
    return wanted_of((*needs, *(False,) * (NUM_TENSORS - len(needs))))


def refuse_key_bias(shape: Sequence[int], extents: Extents) -> None:
    """ValueError for a key bias that is not one number for each key, up to extents of 1."""
    wanted = extents.batch, extents.heads_kv, extents.kv_len
    if len(shape) == 3 and all(
        have == want or have == 1 for have, want in zip(shape, wanted, strict=True)
    ):
        return
    hint = ""
    if len(shape) == 4:
        hint = "; a bias for each query and key is bias="
    elif len(shape) == 2:
        is_per_element = shape[0] == extents.batch != extents.heads_kv
        hint = f"; write key_bias[{':, None' if is_per_element else 'None'}]"
    elif len(shape) == 1:
        hint = "; write key_bias[None, None]"
    raise ValueError(
        f"key_bias: expected 3 dimensions [batch, heads_kv, kv_len] = {list(wanted)}, each 1 or "
        f"that, got {list(shape)}{hint}"
    )


def refuse_bias(shape: Sequence[int], extents: Extents) -> None:
    """ValueError for a bias that is not one number for each query and key."""
    batch, heads, heads_kv, q_len, kv_len = extents[:5]
    if (
        len(shape) == 4
        and (shape[0] == batch or shape[0] == 1)
        and (shape[1] == heads or shape[1] == heads_kv or shape[1] == 1)
        and (shape[2] == q_len or shape[2] == 1)
        and shape[3] == kv_len
    ):
        return
    hints = {
        3: "; write bias[None] or bias[:, None]; a number for each key alone is key_bias=, "
        "[batch, heads_kv, kv_len]",
        2: "; write bias[None, None]",
        1: "; write bias[None, None, None]; a number for each key alone is key_bias=, "
        "key_bias[None, None]",
    }
    of_heads = f" (heads also {heads_kv})" if heads != heads_kv else ""
    raise ValueError(
        f"bias: expected 4 dimensions [batch, heads, q_len, kv_len] = [{batch}, {heads}, {q_len}, "
        f"{kv_len}], each but the last 1 or that{of_heads}, got {list(shape)}"
        + hints.get(len(shape), "")
    )


def refuse_slopes(shape: Sequence[int], extents: Extents) -> None:
    """ValueError for slopes that are not one for each query head."""
    batch, heads = extents.batch, extents.heads
    if not (
        (len(shape) == 1 and shape[0] == heads)
        or (len(shape) == 2 and shape[0] == batch and shape[1] == heads)
    ):
        raise ValueError(
            f"alibi_slopes: expected [heads] = [{heads}] or [batch, heads] = [{batch}, {heads}], "
            f"got {list(shape)}"
        )


def refuse_sinks(shape: Sequence[int], extents: Extents) -> None:
    """ValueError for sinks that are not one for each query head, or for each of its rows."""
    batch, heads, q_len = extents.batch, extents.heads, extents.q_len
    if not (
        (len(shape) == 1 and shape[0] == heads)
        or (len(shape) == 3 and shape[0] == batch and shape[1] == heads and shape[2] == q_len)
    ):
        raise ValueError(
            f"sinks: expected [heads] = [{heads}] or [batch, heads, q_len] = [{batch}, {heads}, "
            f"{q_len}], got {list(shape)}"
        )


def table_and_left(relative: Any) -> tuple[Any, int]:
    """The two elements of `relative`. TypeError for another thing than a pair."""
    if not isinstance(relative, tuple | list) or len(relative) != 2:
        raise TypeError(
            "relative: expected a pair (table, left), left being the element for the key at the "
            f"query's position, got {type(relative).__name__}"
        )
    table, left = relative
    if isinstance(left, bool) or not isinstance(left, int):
        raise TypeError(f"relative: expected an integer left, got {type(left).__name__}")
    return table, left


def refuse_table(shape: Sequence[int], left: int, extents: Extents) -> None:
    """ValueError for a table that is no row of numbers for each query head."""
    heads = extents.heads
    if len(shape) != 2 or (shape[0] != heads and shape[0] != 1):
        hint = "; write table[None] for one row for all heads" if len(shape) == 1 else ""
        raise ValueError(
            f"relative: expected a table [heads or 1, left + 1 + right] = [{heads} or 1, ..], got "
            f"{list(shape)}{hint}"
        )
    if not 0 <= left < shape[1]:
        raise ValueError(
            f"relative: expected a left from 0 to {shape[1] - 1}, the last element of a row of the "
            f"table, got {left}"
        )


def checked_dropout(dropout_p: Any) -> float:
    """The rate of dropout, at least 0 and below 1."""
    if not isinstance(dropout_p, float):
        refuse_no_number(dropout_p, "dropout_p", "")
    value = float(dropout_p)
    if not 0 <= value < 1:
        raise ValueError(f"dropout_p: expected at least 0 and below 1, got {dropout_p}")
    return value


def seed_and_offset(dropout_seed: Any) -> tuple[int, int]:
    """Two numbers of 64 bits. Signed, as PyTorch's operators have them."""
    pair = dropout_seed if isinstance(dropout_seed, tuple) else (dropout_seed, 0)
    if len(pair) != 2 or any(
        isinstance(x, bool) or not isinstance(x, int | np.integer) for x in pair
    ):
        raise TypeError(
            "dropout_seed: expected an integer or a pair (seed, offset) of integers, got "
            f"{dropout_seed!r}"
        )
    seed, offset = (int(x) for x in pair)
    for x in (seed, offset):
        if not -(1 << 63) <= x < 1 << 64:
            raise ValueError(f"dropout_seed: expected numbers of 64 bits, got {x}")
    return signed(seed), signed(offset)


def signed(bits: int) -> int:
    """A number of 64 bits as a signed one with the same bits."""
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def numbers_of(given: GivenScore) -> tuple[float, float]:
    """(softcap, dropout_p), checked."""
    softcap = 0.0 if given.softcap is None else checked_softcap(given.softcap)
    return softcap, checked_dropout(given.dropout_p)
