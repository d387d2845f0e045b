"""PyTorch FlexAttention's BlockMask, from and to a mask.

A BlockMask lists tiles: kv_indices lists the partial tiles, whose cells its function mask_mod
decides, and full_kv_indices the full ones. Only the function knows the cells of partial tiles, so
reading a BlockMask needs the function (which fdma.trace traces) or a second mask. Every tile is
then compared with the cells. A full tile must be full, a tile in no list must be empty, and a
partial tile must be partial or reach past a length.

Fields are read by name, because as_tuple() orders them differently in every version of PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _fdma
from ..masks.block_mask import BlockMask
from ..masks.compile import compile as compile_mask
from ..masks.compiled_regions import made_outside
from ..masks.no_mask import described
from .arrays import Host, import_torch, integers, mask_of, pair
from .flex_mask_mod import MaskMod, mask_mod_of_tables

__all__ = ["from_flex", "to_flex", "to_flex_arrays"]

_TABLES = ("kv", "full_kv", "q", "full_q")
_OPTIONAL = {"full_kv", "q", "full_q"}
_OWN = ("fdma_bitmap_index", "fdma_bitmaps")
_FIELDS = {
    "seq_lengths",
    "BLOCK_SIZE",
    *_OWN,
    *(f"{table}_{part}" for table in _TABLES for part in ("num_blocks", "indices")),
}

Table = tuple[Host, Host]


@made_outside
def from_flex(
    block_mask: Any,
    cells: Any = None,
    *,
    sample: bool = False,
    tiles_only: bool = False,
) -> BlockMask:
    """The exact mask of a FlexAttention BlockMask.

    Args:
        block_mask: torch.nn.attention.flex_attention.BlockMask, or a mapping of its fields by name:
            seq_lengths, BLOCK_SIZE, kv_num_blocks and kv_indices, and optionally full_kv_*, q_* and
            full_q_* (checked to be the transposes) and the bitmaps of to_flex_arrays
            (fdma_bitmap_index, fdma_bitmaps). Counts are integers [batch, heads, rows], indices
            [batch, heads, rows, width], in any order, with any padding. CUDA tensors are copied, 4
            bytes an entry, which waits for the GPU.
        cells: the cells of partial tiles. They are an fdma.BlockMask of the same lengths (with the
            same number of batch elements and heads, or one), or anything that fdma.compile accepts
            (a MaskExpr, a text, a mask_mod). The default is block_mask.mask_mod, traced; a mapping
            with bitmaps needs none.
        sample: call the function for every cell if it cannot be traced.
        tiles_only: treat every listed tile as full and ignore the function. Compiled kernels read a
            BlockMask without mask_mod in this way. If the lists have fewer tiles than the function
            allows, they compute from_flex(.., tiles_only=True) & fdma.compile(mask_mod, ..).

    The result has the block of BLOCK_SIZE and the arrays' number of batch elements and heads.

    Errors: ValueError, which names the tile, for a tile whose class is not that of its cells, an
    index outside the table or listed twice, q_* fields that are not the transpose, a partial tile
    without cells, and other extents; NotImplementedError for a BLOCK_SIZE that FDMA does not
    support (it supports multiples of 16 up to 1024), and for a function that cannot be traced,
    naming the operation.

    >>> import fdma
    >>> from torch.nn.attention.flex_attention import create_block_mask
    >>> flex = create_block_mask(lambda b, h, q, k: q >= k, None, None, 300, 300, "cpu")
    >>> fdma.from_flex(flex) == fdma.compile("causal", 300)
    True
    """
    fields = _fields_of(block_mask)
    lengths = pair("seq_lengths", fields["seq_lengths"])
    block = pair("BLOCK_SIZE", fields["BLOCK_SIZE"])
    tables = {name: _table(name, fields) for name in _TABLES}
    kv = tables["kv"]
    assert kv is not None
    own: Table | None = None
    if tiles_only:
        if cells is not None:
            raise TypeError("tiles_only: takes no cells")
        _check_sides(block)
        kv = _merged(kv, tables["full_kv"])
        own = _whole_tiles(kv, lengths, block)
        core = _fdma.block_mask_from_flex(lengths, block, kv, own_cells=own)
        return mask_of(core)
    if all(name in fields for name in _OWN):
        own = (
            integers(_OWN[0], fields[_OWN[0]], "[listed in kv]"),
            integers(_OWN[1], fields[_OWN[1]], "[bitmaps, words]", np.uint64),
        )
    if cells is None and own is None:
        cells = _cells_of_function(getattr(block_mask, "mask_mod", None))
    pairs = (int(kv[0].shape[0]), int(kv[0].shape[1]))
    source = None if cells is None else _compiled(cells, lengths, pairs, sample)
    try:
        core = _fdma.block_mask_from_flex(
            lengths,
            block,
            kv,
            tables["full_kv"],
            tables["q"],
            tables["full_q"],
            own,
            None if source is None else source._core,
        )
    except ValueError as error:
        if source is None or "in the mask that gives the cells" not in str(error):
            raise
        advice = _advice(source, lengths, block, tables["full_kv"])
        raise ValueError(f"{error}{advice}") from None
    return mask_of(core)


def to_flex(
    mask: BlockMask,
    device: Any = None,
    mask_mod: MaskMod | None = None,
    *,
    block: int | Sequence[int] = 128,
    separate_full_blocks: bool = True,
    check: bool = True,
    sample: bool = False,
    max_bytes: int = 1 << 34,
) -> Any:
    """FlexAttention's BlockMask of a mask, bit for bit as create_block_mask makes it.

    Args:
        device: the device of the tensors; the default is that of create_block_mask, the accelerator
            if there is one, else the CPU.
        mask_mod: the function that belongs to the arrays. The default function looks up the exact
            cells in a table, which takes 4 bytes a tile and block_q * block_kv / 8 bytes for each
            distinct partial tile. Your own function in closed form may make a faster kernel.
        block: BLOCK_SIZE, one number or (queries, keys).
        separate_full_blocks: False lists full tiles among the partial ones.
        check: compare mask_mod, traced, with the mask.
        sample: call mask_mod for every cell if it cannot be traced.
        max_bytes: the largest allowed size of all index tables together.

    Returns a torch.nn.attention.flex_attention.BlockMask: counts int32 [batch, heads, rows] and
    indices int32 [batch, heads, rows, width] of the key and of the query side, with the mask's
    batch and heads. A row of indices holds the listed tiles in ascending order and then the other
    tiles in ascending order. A tile that reaches past a length is never listed as full. The result
    has no metadata of deterministic gradients (dq_write_order). The tables take 16 bytes per tile,
    batch element and head.

    Errors: NotImplementedError for lengths per batch element; ValueError for a block that FDMA does
    not support, and, naming the tile, for a mask_mod that differs from the mask; MemoryError above
    max_bytes.

    >>> import fdma
    >>> from torch.nn.attention.flex_attention import create_block_mask
    >>> theirs = create_block_mask(lambda b, h, q, k: q >= k, None, None, 300, 300, "cpu")
    >>> ours = fdma.compile("causal", 300).to_flex("cpu")
    >>> bool((ours.kv_indices == theirs.kv_indices).all())
    True
    """
    if mask_mod is not None and not callable(mask_mod):
        raise TypeError(
            f"mask_mod: expected a function of (b, h, q_idx, kv_idx), got {type(mask_mod).__name__}"
        )
    torch = import_torch()
    from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    fields = _export(mask, block, separate_full_blocks, mask_mod is None or check, max_bytes)
    if mask_mod is None:
        mask_mod = mask_mod_of_tables(mask, fields, device)
    elif check:
        _check_function(mask_mod, mask, fields, sample)

    def tensor(name: str) -> Any:
        return torch.from_numpy(fields[name]).to(device) if name in fields else None

    return FlexBlockMask(
        seq_lengths=fields["seq_lengths"],
        **{name: tensor(name) for name in sorted(_FIELDS) if name.endswith(("blocks", "indices"))},
        BLOCK_SIZE=fields["BLOCK_SIZE"],
        mask_mod=mask_mod,
    )


def to_flex_arrays(
    mask: BlockMask,
    *,
    block: int | Sequence[int] = 128,
    separate_full_blocks: bool = True,
    cells: bool = True,
    max_bytes: int = 1 << 34,
) -> dict[str, Any]:
    """The fields of FlexAttention's BlockMask by name, as NumPy arrays, without PyTorch.

    Args:
        block: BLOCK_SIZE, one number or (queries, keys).
        separate_full_blocks: False lists full tiles among the partial ones.
        cells: add FDMA's two fields with the cells of partial tiles: fdma_bitmap_index, int32
            [tiles listed in kv], and fdma_bitmaps, uint64 [bitmaps, block_q * block_kv / 64]. Cell
            (r, c) of a tile is bit r * block_kv + c, least significant first. from_flex needs
            nothing else then.
        max_bytes: the largest allowed size of all index tables together.

    Errors: those of to_flex.

    >>> import fdma
    >>> mask = fdma.compile("causal", 300)
    >>> fields = mask.to_flex_arrays()
    >>> fields["kv_num_blocks"], fields["kv_indices"][0, 0].tolist()
    (array([[[1, 1, 3]]], dtype=int32), [[0, 1, 2], [1, 0, 2], [0, 1, 2]])
    >>> fdma.from_flex(fields) == mask
    True
    """
    return _export(mask, block, separate_full_blocks, cells, max_bytes)


def _export(
    mask: BlockMask,
    block: int | Sequence[int],
    separate_full_blocks: bool,
    with_cells: bool,
    max_bytes: int,
) -> dict[str, Any]:
    return _fdma.flex_from_block_mask(
        mask._core,
        pair("block", block),
        separate_full_blocks=separate_full_blocks,
        with_cells=with_cells,
        max_bytes=max_bytes,
    )


def _fields_of(block_mask: Any) -> Mapping[str, Any]:
    """The fields that the object has, by name."""
    if isinstance(block_mask, Mapping):
        unknown = sorted(set(block_mask) - _FIELDS)
        if unknown:
            raise ValueError(f"{unknown[0]}: no field of a FlexAttention BlockMask")
        given = dict(block_mask)
    elif hasattr(block_mask, "kv_num_blocks"):
        given = {name: getattr(block_mask, name, None) for name in _FIELDS}
    else:
        raise TypeError(
            "block_mask: expected a BlockMask of FlexAttention or a mapping of its fields, got "
            f"{described(block_mask)}"
        )
    fields = {name: value for name, value in given.items() if value is not None}
    for name in ("seq_lengths", "BLOCK_SIZE", "kv_num_blocks", "kv_indices"):
        if name not in fields:
            raise ValueError(f"{name}: missing among the fields of the BlockMask")
    return fields


def _table(name: str, fields: Mapping[str, Any]) -> Table | None:
    counts, indices = f"{name}_num_blocks", f"{name}_indices"
    if name in _OPTIONAL and counts not in fields and indices not in fields:
        return None
    for field in (counts, indices):
        if field not in fields:
            raise ValueError(f"{field}: missing among the fields of the BlockMask")
    return (
        integers(counts, fields[counts], "[batch, heads, rows]"),
        integers(indices, fields[indices], "[batch, heads, rows, width]"),
    )


def _cells_of_function(mask_mod: Any) -> Any:
    """The source of the cells: the mask that the function was made from, or the function."""
    if mask_mod is None:
        return None
    own = getattr(mask_mod, "fdma_mask", None)
    if own is not None:
        return own
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    if flex is not None and mask_mod is flex.noop_mask:
        return "true"
    return mask_mod


def _compiled(
    cells: Any, lengths: tuple[int, int], pairs: tuple[int, int], sample: bool
) -> BlockMask:
    if isinstance(cells, BlockMask):
        return cells
    return compile_mask(cells, *lengths, batch=pairs[0], heads=pairs[1], sample=sample)


def _check_function(
    mask_mod: Callable[..., Any], mask: BlockMask, fields: Mapping[str, Any], sample: bool
) -> None:
    """ValueError unless the function has the cells of the mask."""
    pairs = (mask._core.num_batches, mask._core.num_heads)
    source = _compiled(_cells_of_function(mask_mod), fields["seq_lengths"], pairs, sample)
    if source == mask:
        return
    try:
        from_flex(fields, cells=source)  # compares every bitmap with the cells, and names a tile
    except ValueError as error:
        raise ValueError(f"mask_mod: other cells than the mask's: {error}") from error


def _advice(
    source: BlockMask, lengths: tuple[int, int], block: tuple[int, int], full_kv: Table | None
) -> str:
    """How to read lists whose tiles are not those of the cells, as PyTorch's kernels compute them;
    the empty text if that is something else.
    """
    if full_kv is not None:
        tiles = _whole_tiles(full_kv, lengths, block)
        core = _fdma.block_mask_from_flex(lengths, block, full_kv, own_cells=tiles)
        if (mask_of(core) - source).counts.allowed_pairs:
            return ""
    listed = "fdma.from_flex(block_mask, tiles_only=True)"
    if source.density == 1:
        return (
            f"; if the lists are a selection of blocks without a function, {listed} takes the "
            "listed tiles whole, as PyTorch's compiled kernels do"
        )
    return (
        f"; if the lists are meant to have other tiles than the function, {listed} & "
        "fdma.compile(block_mask.mask_mod, q_len, kv_len) is what PyTorch's compiled kernels "
        "compute"
    )


def _check_sides(block: tuple[int, int]) -> None:
    """The core's check of the block, made here before bitmaps of that size are allocated."""
    if not all(16 <= side <= 1024 and side % 16 == 0 for side in block):
        raise NotImplementedError(f"BLOCK_SIZE: {block}, expected multiples of 16 from 16 to 1024")


def _merged(kv: Table, full_kv: Table | None) -> Table:
    """One table that lists the tiles of both at the start of each row."""
    if full_kv is None:
        return kv
    for name, mine, other in zip(("num_blocks", "indices"), kv, full_kv, strict=True):
        if mine.shape[:3] != other.shape[:3]:
            raise ValueError(f"full_kv_{name}: shape {other.shape}, but kv_{name} has {mine.shape}")
    listed = np.concatenate(
        [np.arange(t[1].shape[3]) < t[0][..., None] for t in (kv, full_kv)], axis=3
    )
    order = np.argsort(~listed, axis=3, kind="stable")
    indices = np.take_along_axis(np.concatenate([kv[1], full_kv[1]], axis=3), order, axis=3)
    return kv[0] + full_kv[0], np.ascontiguousarray(indices)


def _whole_tiles(kv: Table, lengths: tuple[int, int], block: tuple[int, int]) -> Table:
    """Bitmaps of listed tiles whose existing cells are all true.

    A length may cut a tile off on the right, below, or both.
    """
    (q_len, kv_len), (block_q, block_kv) = lengths, block
    last_row, last_column = -(-q_len // block_q) - 1, -(-kv_len // block_kv) - 1
    bitmaps = np.zeros((4, block_q, block_kv), np.bool_)
    for kind in range(4):
        rows = q_len - last_row * block_q if kind & 2 else block_q
        columns = kv_len - last_column * block_kv if kind & 1 else block_kv
        bitmaps[kind, :rows, :columns] = True
    listed = np.arange(kv[1].shape[3]) < kv[0][..., None]
    rows_of = np.nonzero(listed)[2]
    index = (rows_of == last_row) * 2 + (kv[1][listed] == last_column)
    words = np.packbits(bitmaps.reshape(4, -1), axis=1, bitorder="little").view("<u8")
    return index.astype(np.int32), np.ascontiguousarray(words, np.uint64)
