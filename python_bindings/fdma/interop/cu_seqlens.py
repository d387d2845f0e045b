"""FlashAttention's varlen arguments: sequences of different lengths, one after another.

Sequence s has the query rows [cu_seqlens_q[s], cu_seqlens_q[s + 1]) and the keys
[cu_seqlens_k[s], cu_seqlens_k[s + 1]). A row sees only keys of its own sequence. In a sequence of
sq rows and sk keys, row i sees the keys j with

    i + sk - sq - left <= j <= i + sk - sq + right

so that the last row is aligned with the last key. -1 means no bound on that side; causal means
right = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _fdma
from ..masks.block_mask import BlockMask
from ..masks.compiled_regions import made_outside
from .arrays import flag, host_array, integers, mask_of, outgoing, pair

__all__ = ["CuSeqlens", "from_cu_seqlens", "to_cu_seqlens"]


class CuSeqlens(NamedTuple):
    """The result of to_cu_seqlens; from_cu_seqlens(**arguments._asdict()) returns the mask."""

    cu_seqlens_q: Any
    """int32 [sequences + 1], from 0."""
    cu_seqlens_k: Any
    """int32 [sequences + 1], from 0."""
    causal: bool
    window_size: tuple[int, int]
    """Numbers of keys to the left and right of the diagonal; -1 means no bound."""
    seqused_q: Any
    """int32 [sequences], the rows in use of each sequence; None means all rows."""
    seqused_k: Any
    """int32 [sequences], the keys in use of each sequence; None means all keys."""
    packed: bool
    """True if one batch element holds all sequences, False if each sequence has its own."""
    heads: int
    """The number of heads of the mask; all have the same cells."""

    def flash_attention(self) -> dict[str, Any]:
        """The keyword arguments of flash_attn_varlen_func, max_seqlen_q and max_seqlen_k included.

        seqused_q and seqused_k (FlashAttention 3) are included only if the mask needs them.

        >>> import fdma
        >>> arguments = fdma.compile("causal & documents(lengths=@n)", 5, n=[2, 3]).to_cu_seqlens()
        >>> arguments.flash_attention()["max_seqlen_k"]
        3
        """
        longest = [
            int(np.diff(host_array("cu_seqlens", offsets)).max(initial=0))
            for offsets in (self.cu_seqlens_q, self.cu_seqlens_k)
        ]
        arguments = {
            "cu_seqlens_q": self.cu_seqlens_q,
            "cu_seqlens_k": self.cu_seqlens_k,
            "max_seqlen_q": longest[0],
            "max_seqlen_k": longest[1],
            "causal": self.causal,
            "window_size": self.window_size,
        }
        used = {"seqused_q": self.seqused_q, "seqused_k": self.seqused_k}
        return arguments | {name: values for name, values in used.items() if values is not None}


@made_outside
def from_cu_seqlens(
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    *,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    seqused_q: Any = None,
    seqused_k: Any = None,
    packed: bool = True,
    heads: int = 1,
    block: int | Sequence[int] = (128, 128),
) -> BlockMask:
    """The mask of FlashAttention's varlen arguments.

    Args:
        cu_seqlens_q, cu_seqlens_k: integers [sequences + 1], ascending from 0; two equal neighbours
            are an empty sequence. cu_seqlens_k is cu_seqlens_q by default. They are NumPy arrays,
            lists, PyTorch tensors or similar; CUDA tensors are copied, 4 bytes an entry, which
            waits for the GPU.
        causal: no row sees a key to the right of the diagonal, whatever window_size is.
        window_size: FlashAttention's inclusive pair (left, right); -1 means no bound.
        seqused_q, seqused_k: integers [sequences], the numbers of rows and keys in use at the start
            of each sequence. The remaining rows see no key, and no row sees the remaining keys.
        packed: True makes a mask of one batch element, with all sequences as they lie in memory.
            False makes one batch element per sequence, each with its lengths.
        heads: the number of heads of the mask; all have the same cells.
        block: the block of the result.

    Errors: ValueError for offsets that do not ascend from 0, a count outside its sequence, a window
    below -1 and other extents; TypeError for elements that are not integers.

    >>> import fdma
    >>> fdma.from_cu_seqlens([0, 2, 5], causal=True).to_dense()[0, 0].astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 0, 1, 0, 0],
           [0, 0, 1, 1, 0],
           [0, 0, 1, 1, 1]])
    """

    def offsets(name: str, array: Any) -> Any:
        return integers(name, array, "[sequences + 1]")

    def counts(name: str, array: Any) -> Any:
        return None if array is None else integers(name, array, "[sequences]")

    queries = offsets("cu_seqlens_q", cu_seqlens_q)
    if len(queries) and queries[0] != 0:
        raise ValueError(
            f"cu_seqlens_q[0]: {queries[0]}, expected 0; offsets begin with 0, "
            "numpy.cumsum([0, *lengths]) makes them of lengths"
        )
    keys = queries if cu_seqlens_k is None else offsets("cu_seqlens_k", cu_seqlens_k)
    core = _fdma.block_mask_from_cu_seqlens(
        queries,
        keys,
        flag("causal", causal),
        pair("window_size", window_size),
        counts("seqused_q", seqused_q),
        counts("seqused_k", seqused_k),
        flag("packed", packed),
        heads,
        pair("block", block),
    )
    return mask_of(core)


def to_cu_seqlens(mask: BlockMask, *, device: Any = None) -> CuSeqlens:
    """The varlen arguments of a mask; equal masks give equal arguments.

    Args:
        device: None returns NumPy arrays, a PyTorch device returns tensors on it.

    A mask of one batch element is packed: consecutive rows that share keys form one sequence. A
    mask of several batch elements has one sequence for each. A window has no bound on a side where
    a bound would not matter, and a right window of 0 is given as causal.

    Errors: NotImplementedError if no window over sequences has these cells (the message names the
    first cell that does not fit), and for heads that differ.

    >>> import fdma
    >>> arguments = fdma.compile("causal & documents(lengths=@n)", 5, n=[2, 3]).to_cu_seqlens()
    >>> arguments.cu_seqlens_q.tolist(), arguments.causal, arguments.window_size
    ([0, 2, 5], True, (-1, 0))
    """
    fields = _fdma.cu_seqlens_from_block_mask(mask._core)
    convert = outgoing(device)
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"):
        if fields[name] is not None:
            fields[name] = convert(fields[name])
    return CuSeqlens(**fields, heads=mask._core.num_heads)
