"""A mask whose pattern changes at run time, within a capacity that is stated beforehand."""

from __future__ import annotations

from typing import Any

import fdma
from fdma import _fdma

from .masks import SparseMask, dtype_name, host_array, square_block, whole_number

__all__ = ["DynamicMask"]

_SCORE_TYPES = {"float32", "float16", "bfloat16"}


class DynamicMask(SparseMask):
    """A mask whose pattern `update` replaces, any number of times, within a capacity.

    seqlen_q, seqlen_k, batch, heads: the shape of every pattern.
    max_bytes, max_keys: the capacity, at least one of them. max_bytes bounds the bytes of the
    stored pattern, and max_keys the keys that any query may see. A caller can allocate memory once
    for all patterns.
    keep_window_size: the number of keys that a query keeps if `update` is given scores; the default
    is max_keys.
    causal: whether scores choose only among the keys up to the query's own.

    Raises TypeError if no capacity is given or an argument is not a whole number, and ValueError
    for an argument out of range. The class is thread safe: a reader of `mask` gets the pattern
    before or after an update.

    >>> import numpy as np
    >>> from flash_dmattn import DynamicMask
    >>> mask = DynamicMask(seqlen_q=256, seqlen_k=256, max_keys=64, keep_window_size=48)
    >>> scores = np.random.default_rng(0).random(256, np.float32)
    >>> int(mask.update(scores).to_dense().sum(axis=-1).max())
    48
    >>> mask.update(np.ones((256, 256), bool))
    Traceback (most recent call last):
    ValueError: update: the pattern has queries with 256 keys, but max_keys is 64
    >>> mask.num_updates
    1
    """

    def __init__(
        self,
        seqlen_q: int,
        seqlen_k: int | None = None,
        *,
        max_bytes: int | None = None,
        max_keys: int | None = None,
        keep_window_size: int | None = None,
        causal: bool = True,
        batch: int = 1,
        heads: int = 1,
        block_size: int = 128,
    ) -> None:
        if max_bytes is None and max_keys is None:
            raise TypeError("DynamicMask: expected a capacity: max_bytes, max_keys or both")
        self._set_lengths(seqlen_q, seqlen_k)
        self.max_bytes = None if max_bytes is None else whole_number("max_bytes", max_bytes, 0)
        self.max_keys = None if max_keys is None else whole_number("max_keys", max_keys, 0)
        kept = max_keys if keep_window_size is None else keep_window_size
        self.keep_window_size = None if kept is None else whole_number("keep_window_size", kept, 0)
        if self.max_keys is not None and (self.keep_window_size or 0) > self.max_keys:
            raise ValueError(
                f"keep_window_size: expected at most max_keys {self.max_keys}, got "
                f"{self.keep_window_size}"
            )
        self.causal = bool(causal)
        self.num_updates = 0
        """Patterns that were taken so far; plans are made anew where it has changed."""
        self._batch = whole_number("batch", batch, 1)
        self._heads = whole_number("heads", heads, 1)
        self._block = square_block(block_size)

    def update(self, pattern: object) -> DynamicMask:
        """Replaces the pattern, and returns the mask itself.

        pattern: one of
        - booleans [q, k], [batch, q, k] or [batch, heads, q, k], True where the query attends;
        - scores, a float for each key: [kv_len], [heads_kv, kv_len] or [batch, heads_kv, kv_len].
          Each query keeps the keep_window_size keys of highest score; the first of equal scores
          wins. Scores are float32; float16, and PyTorch's bfloat16, are converted;
        - an `fdma.BlockMask`, an `fdma.MaskExpr`, a mask of this package, or the text of one.

        Arrays on a GPU are copied to the host. A tensor that requires a gradient is an error,
        because selection has no gradient.

        Raises ValueError if the pattern exceeds the capacity or has other lengths; the previous
        pattern then stays. Raises TypeError for an object that is not a pattern.

        >>> from flash_dmattn import DynamicMask
        >>> mask = DynamicMask(seqlen_q=1024, seqlen_k=1024, max_bytes=1 << 16)
        >>> mask.update("causal & window(100)").update("causal").num_updates
        2
        """
        new = self._pattern(pattern)
        self._check(new)
        self._mask = new
        self.num_updates += 1
        return self

    def _pattern(self, pattern: object) -> fdma.BlockMask:
        if isinstance(pattern, fdma.BlockMask):
            return pattern
        if isinstance(pattern, SparseMask):
            return pattern.mask
        if isinstance(pattern, fdma.MaskExpr | str):
            return self._of_expr(pattern)
        array = host_array(pattern)
        name = dtype_name(array) if len(array.shape) > 0 else "no dimensions"
        if name == "bool":
            return fdma.BlockMask.from_dense(array, block=self._block)
        if name in _SCORE_TYPES:
            return self._of_scores(array if name == "float32" else _as_float32(array))
        raise TypeError(
            "pattern: expected booleans, float32 scores, a BlockMask, a MaskExpr, a mask of this "
            f"package or a text, got {type(pattern).__name__} ({name})"
        )

    def _of_expr(self, expr: fdma.MaskExpr | str) -> fdma.BlockMask:
        return fdma.compile(
            expr,
            self.seqlen_q,
            self.seqlen_k,
            batch=self._batch,
            heads=self._heads,
            block=self._block,
        )

    def _of_scores(self, scores: Any) -> fdma.BlockMask:
        if self.keep_window_size is None:
            raise ValueError(
                "keep_window_size: scores need the number of keys that a query keeps; state it (or "
                "max_keys) at construction"
            )
        among = fdma.causal() if self.causal else fdma.k < fdma.kv_len
        return self._of_expr(fdma.topk(scores, self.keep_window_size, among=among))

    def _check(self, new: fdma.BlockMask) -> None:
        expected = (self._batch, self._heads, self.seqlen_q, self.seqlen_k)
        lengths = {*new.q_lens}, {*new.kv_lens}
        is_shaped = lengths == ({self.seqlen_q}, {self.seqlen_k})
        if not is_shaped or new.batch not in (1, self._batch) or new.heads not in (1, self._heads):
            raise ValueError(
                f"pattern: expected [batch, heads, q, k] of {list(expected)} (1 in the first two "
                f"serves all), got {[new.batch, new.heads, new.q_len, new.kv_len]}"
            )
        new._core.check_serves(self._batch, self._heads, "pattern")
        if self.max_bytes is not None and new.nbytes > self.max_bytes:
            raise ValueError(
                f"update: the pattern takes {new.nbytes} bytes, but max_bytes is {self.max_bytes}"
            )
        if self.max_keys is not None:
            longest = _fdma.longest_row(new._core)
            if longest > self.max_keys:
                raise ValueError(
                    f"update: the pattern has queries with {longest} keys, but max_keys is "
                    f"{self.max_keys}"
                )

    @property
    def mask(self) -> fdma.BlockMask:
        """The pattern of the latest update. ValueError before the first."""
        if self._mask is None:
            raise ValueError("DynamicMask: no pattern yet; call update first")
        return self._mask

    @property
    def expr(self) -> fdma.MaskExpr:
        """The cells as a dense table of an expression, made anew at each call."""
        return fdma.bits(self.mask.to_dense())

    def __repr__(self) -> str:
        pairs = (("max_bytes", self.max_bytes), ("max_keys", self.max_keys))
        capacity = ", ".join(f"{name}={value}" for name, value in pairs if value is not None)
        return (
            f"<DynamicMask [{self._batch}, {self._heads}, {self.seqlen_q}, {self.seqlen_k}], "
            f"{capacity}, {self.num_updates} updates>"
        )


def _as_float32(array: Any) -> Any:
    """Converts float16 and bfloat16 to float32, which holds their values exactly."""
    return array.float() if hasattr(array, "float") else array.astype("float32")
