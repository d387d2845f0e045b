"""Masks by the names of FDMA's earlier versions: thin classes over `fdma.MaskExpr` and `BlockMask`.

`seqlen_q` and `seqlen_k` are the numbers of query rows and keys. The last query is aligned with the
last key (`pos` in docs/spec-language.md).
"""

from __future__ import annotations

import operator
from typing import Any, ClassVar, TypeVar

import fdma
import numpy as np
from fdma.masks.table_arrays import on_host
from numpy.typing import NDArray

__all__ = [
    "BCSRMask",
    "BlockBitsetMask",
    "CausalMask",
    "CausalWindowMask",
    "SparseMask",
    "WindowMask",
]

_Stored = TypeVar("_Stored", bound="_StoredMask")


def whole_number(name: str, value: object, low: int) -> int:
    """`value` as an int of at least `low`; TypeError and ValueError name the argument."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}: expected an integer, got {kind}") from None
    if number < low:
        raise ValueError(f"{name}: expected {low} or more, got {number}")
    return number


def square_block(block_size: object) -> tuple[int, int]:
    """The block of `block_size` query rows by as many keys."""
    side = whole_number("block_size", block_size, 1)
    if side % 16 != 0 or side > 1024:
        raise ValueError(f"block_size: expected a multiple of 16 from 16 to 1024, got {side}")
    return side, side


class SparseMask:
    """A mask with its lengths, the base of every mask of this package.

    `create_sparse_mask` makes one from a text. The mask is compiled when `mask` is first read.

    >>> from flash_dmattn import create_sparse_mask
    >>> mask = create_sparse_mask("causal & (window(64) | sink(4))", seqlen_q=1024, seqlen_k=1024)
    >>> mask.mask.density < 0.13, mask.to_dense().shape
    (True, (1, 1, 1024, 1024))
    """

    _mask: fdma.BlockMask | None = None

    def __init__(
        self,
        expr: fdma.MaskExpr,
        seqlen_q: int,
        seqlen_k: int | None = None,
        *,
        batch: int = 1,
        heads: int = 1,
        block_size: int = 128,
    ) -> None:
        self._set_lengths(seqlen_q, seqlen_k)
        self._expr = expr
        self._batch = whole_number("batch", batch, 1)
        self._heads = whole_number("heads", heads, 1)
        self._block = square_block(block_size)

    def _set_lengths(self, seqlen_q: int, seqlen_k: int | None) -> None:
        self.seqlen_q = whole_number("seqlen_q", seqlen_q, 0)
        self.seqlen_k = self.seqlen_q if seqlen_k is None else whole_number("seqlen_k", seqlen_k, 0)

    @property
    def expr(self) -> fdma.MaskExpr:
        """The mask as an expression, without lengths."""
        return self._expr

    @property
    def mask(self) -> fdma.BlockMask:
        """The compiled mask, exact; made at the first use and kept."""
        if self._mask is None:
            self._mask = self._compile("segment")
        return self._mask

    def _compile(self, format: Any) -> fdma.BlockMask:
        return fdma.compile(
            self._expr,
            self.seqlen_q,
            self.seqlen_k,
            batch=self._batch,
            heads=self._heads,
            format=format,
            block=self._block,
        )

    @property
    def nbytes(self) -> int:
        """The number of bytes that are stored for the pattern."""
        return self.mask.nbytes

    def to_dense(self) -> NDArray[np.bool_]:
        """Every cell: bool [batch, heads, seqlen_q, seqlen_k], True where the query attends.

        >>> from flash_dmattn import CausalMask
        >>> CausalMask(seqlen_q=2, seqlen_k=3).to_dense()[0, 0].astype(int)
        array([[1, 1, 0],
               [1, 1, 1]])
        """
        return self.mask.to_dense()

    def __str__(self) -> str:
        return str(self.mask)

    def _repr_html_(self) -> str:
        return self.mask._repr_html_()


class _ParametricMask(SparseMask):
    """A closed-form mask. Its parameters define it, so nothing is stored."""

    @property
    def mask(self) -> fdma.BlockMask:
        """The compiled mask, in closed form; made at the first use and kept."""
        if self._mask is None:
            self._mask = self._compile("parametric")
        return self._mask

    @property
    def nbytes(self) -> int:
        """Always 0, because kernels compute the pattern from the parameters."""
        return 0


class CausalMask(_ParametricMask):
    """A query sees the keys up to its own: `causal`. Zero storage.

    Raises TypeError or ValueError for lengths that are not whole numbers of at least 0.

    >>> from flash_dmattn import CausalMask
    >>> mask = CausalMask(seqlen_q=4096, seqlen_k=4096)
    >>> mask, mask.nbytes, mask.mask.counts.allowed_pairs == 4096 * 4097 // 2
    (CausalMask(seqlen_q=4096, seqlen_k=4096), 0, True)
    """

    def __init__(
        self, seqlen_q: int, seqlen_k: int | None = None, *, block_size: int = 128
    ) -> None:
        super().__init__(fdma.causal(), seqlen_q, seqlen_k, block_size=block_size)

    def __repr__(self) -> str:
        return f"CausalMask(seqlen_q={self.seqlen_q}, seqlen_k={self.seqlen_k})"


class WindowMask(_ParametricMask):
    """A query sees the keys closer than `window_size` on both sides: `window(w)`. Zero storage.

    These are `2 * window_size - 1` keys, its own included. Raises TypeError or ValueError for a
    window that is not a whole number of at least 1, and for lengths as `CausalMask` does.

    >>> from flash_dmattn import WindowMask
    >>> WindowMask(window_size=2, seqlen_q=4, seqlen_k=4).to_dense()[0, 0].astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 1, 0],
           [0, 1, 1, 1],
           [0, 0, 1, 1]])
    """

    def __init__(
        self, window_size: int, seqlen_q: int, seqlen_k: int | None = None, *, block_size: int = 128
    ) -> None:
        self.window_size = whole_number("window_size", window_size, 1)
        super().__init__(fdma.window(self.window_size), seqlen_q, seqlen_k, block_size=block_size)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(window_size={self.window_size}, seqlen_q={self.seqlen_q}, "
            f"seqlen_k={self.seqlen_k})"
        )


class CausalWindowMask(WindowMask):
    """A query sees the last `window_size` keys, its own included: `causal & window(w)`.

    Zero storage. Raises the errors of `WindowMask`.

    >>> from flash_dmattn import CausalWindowMask
    >>> CausalWindowMask(window_size=2, seqlen_q=3, seqlen_k=3).to_dense()[0, 0].astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """

    def __init__(
        self, window_size: int, seqlen_q: int, seqlen_k: int | None = None, *, block_size: int = 128
    ) -> None:
        super().__init__(window_size, seqlen_q, seqlen_k, block_size=block_size)
        self._expr = fdma.causal() & self._expr


class _StoredMask(SparseMask):
    """A mask of given cells, in one of the stored formats."""

    _format: ClassVar[Any]

    def __init__(self, mask: fdma.BlockMask) -> None:
        if not isinstance(mask, fdma.BlockMask):
            kind = type(mask).__name__
            raise TypeError(f"mask: expected a BlockMask, got {kind}; from_dense_mask takes arrays")
        self._set_lengths(mask.q_len, mask.kv_len)
        self._mask = mask.to_format(self._format)

    @classmethod
    def from_dense_mask(cls: type[_Stored], dense_mask: object, block_size: int = 128) -> _Stored:
        """The exact mask of a dense array.

        dense_mask: booleans [q, k], [batch, q, k] or [batch, heads, q, k], True where the query
        attends, of NumPy, PyTorch or any library with DLPack or the buffer protocol. A tensor on a
        GPU is copied to the host.
        block_size: the query rows and keys of a block, a multiple of 16 up to 1024.

        Raises TypeError for elements that are not booleans, and ValueError for other dimensions or
        a wrong block_size.

        >>> import numpy as np
        >>> from flash_dmattn import BCSRMask
        >>> BCSRMask.from_dense_mask(np.tri(1000, dtype=bool), block_size=64).mask.density
        0.5005
        """
        cells = host_array(dense_mask)
        name = dtype_name(cells)
        if name != "bool":
            raise TypeError(f"dense_mask: expected booleans, True where attended, got {name}")
        if not 2 <= len(cells.shape) <= 4:
            raise ValueError(
                "dense_mask: expected 2 dimensions [q, k], 3 [batch, q, k] or 4 "
                f"[batch, heads, q, k], got {len(cells.shape)}"
            )
        block = square_block(block_size)
        return cls(fdma.BlockMask.from_dense(cells, block=block, format=cls._format))

    @property
    def expr(self) -> fdma.MaskExpr:
        """The cells as the table of an expression: dense, made anew at each call."""
        return fdma.bits(self.mask.to_dense())

    def __repr__(self) -> str:
        mask = self.mask
        return (
            f"<{type(self).__name__} [{mask.batch}, {mask.heads}, {self.seqlen_q}, "
            f"{self.seqlen_k}], blocks of {mask.block[0]} x {mask.block[1]}, {self.nbytes} bytes>"
        )


class BlockBitsetMask(_StoredMask):
    """Given cells, stored as two bits per block (active, full) and the bitmaps of partial blocks.

    This mask suits moderate sparsity.

    >>> import numpy as np
    >>> from flash_dmattn import BlockBitsetMask
    >>> dense = np.tri(1000, dtype=bool)
    >>> mask = BlockBitsetMask.from_dense_mask(dense)
    >>> mask
    <BlockBitsetMask [1, 1, 1000, 1000], blocks of 128 x 128, 4328 bytes>
    >>> bool((mask.to_dense() == dense).all())
    True
    """

    _format = "bitset"


class BCSRMask(_StoredMask):
    """Given cells, stored as sorted active blocks per block row and the bitmaps of partial blocks.

    This mask suits high, irregular sparsity.

    >>> import numpy as np
    >>> from flash_dmattn import BCSRMask
    >>> dense = np.eye(1000, dtype=bool)
    >>> bool((BCSRMask.from_dense_mask(dense, block_size=32).to_dense() == dense).all())
    True
    """

    _format = "bcsr"


def host_array(value: object) -> Any:
    """An array in host memory: lists become NumPy arrays, tensors on a GPU are copied."""
    if isinstance(value, list | tuple):
        return np.asarray(value)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return np.asarray(value)
    return on_host(value)


def dtype_name(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")
