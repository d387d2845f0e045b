"""Block sparse rows: SciPy's bsr_array and bsr_matrix, PyTorch's sparse_bsr, cuSPARSE's BSR.

Compressed sparse rows (CSR) are the same format with blocks of 1 x 1, and from_bsr reads them as
such. A stored one attends, a stored zero does not. The matrix has one batch element and one head.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import _fdma
from ..masks.block_mask import BlockMask
from ..masks.compiled_regions import made_outside
from .arrays import (
    host_array,
    import_torch,
    integers,
    is_tensor,
    mask_of,
    outgoing,
    pair,
    with_rank,
    zeros_and_ones,
)

__all__ = ["BsrArrays", "from_bsr", "to_bsr"]


class BsrArrays(NamedTuple):
    """The three arrays of a matrix and its lengths; from_bsr(arrays) returns the mask.

    cuSPARSE calls them values, colInd and rowOffsets.
    """

    data: Any
    """bool [blocks, block_q, block_kv], row-major."""
    indices: Any
    """int64 [blocks]: block columns, ascending in a row."""
    indptr: Any
    """int64 [block rows + 1]."""
    q_len: int
    kv_len: int


@made_outside
def from_bsr(
    matrix: Any,
    *,
    q_len: int | None = None,
    kv_len: int | None = None,
    index_base: int = 0,
    order: Literal["row", "column"] = "row",
    block: int | Sequence[int] = (128, 128),
) -> BlockMask:
    """The mask of a block sparse row matrix of zeros and ones.

    Args:
        matrix: a sparse array or matrix of SciPy (other layouts than BSR and CSR are converted to
            CSR, by SciPy), a sparse_bsr or sparse_csr tensor of PyTorch (a tensor on a GPU is
            copied, which waits for the GPU), or a tuple (data [blocks, block_q, block_kv],
            indices [blocks], indptr [block rows + 1]) such as BsrArrays or the arrays of a cuSPARSE
            matrix. Elements are booleans, or numbers that are 0 or 1. Blocks may have any size.
        q_len, kv_len: the lengths of the mask if the matrix is rounded up to blocks; cells past
            them must be 0. The default is the extents of the matrix; a plain tuple of arrays needs
            kv_len.
        index_base: the first index, 0 or 1, in indices and indptr of a tuple.
        order: the order of cells in a block of a tuple, by rows or by columns (cusparseOrder_t).
        block: the block of the result.

    Errors: ValueError for offsets that do not describe rows, a column outside the matrix or twice
    in a row (SciPy adds such blocks up; call sum_duplicates() first), and a cell that is neither 0
    nor 1 or lies past the lengths; TypeError for other objects; NotImplementedError for batches of
    matrices.

    >>> import fdma
    >>> import numpy as np
    >>> arrays = (np.ones((2, 2, 2)), [0, 1], [0, 1, 2])         # two blocks on the diagonal
    >>> fdma.from_bsr(arrays, kv_len=4).to_dense()[0, 0].astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 1],
           [0, 0, 1, 1]])
    """
    if order not in ("row", "column"):
        raise ValueError(f"order: expected 'row' or 'column', got {order!r}")
    data, indices, indptr, extents = _parts(matrix)
    blocks = zeros_and_ones("data", data, "[blocks, block_q, block_kv]")
    offsets = integers("indptr", indptr, "[block rows + 1]", np.int64)
    rows = q_len if q_len is not None else extents[0]
    columns = kv_len if kv_len is not None else extents[1]
    if rows is None:
        rows = max(len(offsets) - 1, 0) * blocks.shape[1]
    if columns is None:
        raise TypeError("kv_len: needed with plain arrays, which do not say how wide the matrix is")
    core = _fdma.block_mask_from_bsr(
        blocks,
        integers("indices", indices, "[blocks]", np.int64),
        offsets,
        (int(rows), int(columns)),
        pair("block", block),
        index_base,
        order == "column",
    )
    return mask_of(core)


def to_bsr(
    mask: BlockMask,
    *,
    block: int | Sequence[int] | None = None,
    pad: bool = False,
    arrays: bool = False,
    device: Any = None,
    max_bytes: int = 1 << 34,
) -> Any:
    """The matrix of a mask. It stores the blocks that hold a true cell, columns ascending.

    Args:
        block: the sides of the matrix's blocks, multiples of 16; the default is the mask's block.
        pad: allow lengths that are not multiples of the block. The matrix is then larger than the
            mask, with zeros past the lengths, and from_bsr needs q_len and kv_len to undo that.
        arrays: return BsrArrays (NumPy arrays, or tensors on `device`) instead of a matrix. They
            include the lengths.
        device: a PyTorch device returns a sparse_bsr tensor on it; None returns a
            scipy.sparse.bsr_array of booleans.
        max_bytes: the largest allowed size of the data, which takes one byte per cell.

    Errors: ValueError for lengths that need `pad` and for blocks that FDMA does not support;
    NotImplementedError for several batch elements or heads (crop() selects one); MemoryError above
    max_bytes; ImportError without SciPy or PyTorch.

    >>> import fdma
    >>> arrays = fdma.compile("causal", 64).to_bsr(block=32, arrays=True)
    >>> arrays.indptr.tolist(), arrays.indices.tolist(), arrays.data.shape
    ([0, 1, 3], [0, 0, 1], (3, 32, 32))
    """
    core = mask._core
    sides = core.block if block is None else pair("block", block)
    data, indices, indptr = _fdma.bsr_from_block_mask(core, sides, max_bytes)
    if arrays:
        convert = outgoing(device)
        return BsrArrays(convert(data), convert(indices), convert(indptr), core.q_len, core.kv_len)
    shape = (-(-core.q_len // sides[0]) * sides[0], -(-core.kv_len // sides[1]) * sides[1])
    if shape != (core.q_len, core.kv_len) and not pad:
        raise ValueError(
            f"block: a mask of {core.q_len} x {core.kv_len} is no whole number of blocks of "
            f"{sides[0]} x {sides[1]}; pad=True makes the matrix {shape[0]} x {shape[1]}, or "
            "choose other blocks, or arrays=True"
        )
    if device is not None:
        torch = import_torch()
        tensors = [torch.from_numpy(part) for part in (indptr, indices, data)]
        return torch.sparse_bsr_tensor(*tensors, size=shape).to(device)
    try:
        import scipy.sparse
    except ImportError as error:
        raise ImportError(
            "to_bsr: SciPy is needed for a bsr_array; arrays=True gives NumPy arrays"
        ) from error
    return scipy.sparse.bsr_array((data, indices, indptr), shape=shape)


def _parts(matrix: Any) -> tuple[Any, Any, Any, tuple[int | None, int | None]]:
    """data, indices and indptr of the object, and its extents where it has them."""
    if is_tensor(matrix):
        return _parts_of_tensor(matrix)
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(matrix):
        if matrix.format not in ("bsr", "csr"):
            matrix = matrix.tocsr()
        data = host_array("data", matrix.data)
        if matrix.format == "csr":
            data = data.reshape(-1, 1, 1)
        return data, matrix.indices, matrix.indptr, tuple(matrix.shape)
    if isinstance(matrix, BsrArrays):
        return matrix.data, matrix.indices, matrix.indptr, (matrix.q_len, matrix.kv_len)
    if isinstance(matrix, tuple) and len(matrix) == 3:
        return *matrix, (None, None)
    raise TypeError(
        "matrix: expected a sparse matrix of SciPy, a sparse_bsr or sparse_csr tensor of PyTorch, "
        f"or a tuple (data, indices, indptr), got {type(matrix).__name__}"
    )


def _parts_of_tensor(matrix: Any) -> tuple[Any, Any, Any, tuple[int | None, int | None]]:
    torch = import_torch()
    if matrix.layout not in (torch.sparse_bsr, torch.sparse_csr):
        raise TypeError(
            "matrix: expected a tensor of layout sparse_bsr or sparse_csr, got "
            f"{str(matrix.layout).removeprefix('torch.')}; to_sparse_bsr() makes one"
        )
    if matrix.dim() != 2:
        raise NotImplementedError(
            f"matrix: expected 2 dimensions, got {matrix.dim()}; import one matrix at a time"
        )
    data = with_rank(
        "values",
        host_array("values", matrix.values()),
        3 if matrix.layout == torch.sparse_bsr else 1,
        "[blocks, block_q, block_kv]" if matrix.layout == torch.sparse_bsr else "[entries]",
    )
    if matrix.layout == torch.sparse_csr:
        data = data.reshape(-1, 1, 1)
    return data, matrix.col_indices(), matrix.crow_indices(), tuple(matrix.shape)
