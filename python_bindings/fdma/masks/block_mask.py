"""BlockMask: a compiled mask. One long class: each method says what it takes and shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _fdma
from .compiled_regions import made_outside
from .difference import DifferingCell, DifferingTile, MaskDifference
from .handles import handle_of
from .ranges import block_sides, pair_range, row_range
from .state import core_of, state_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._fdma import Array
    from ..files.methods import FileMethods
    from ..interop.methods import InteropMethods

    class _OtherRooms(FileMethods, InteropMethods): ...

else:
    _OtherRooms = object

__all__ = ["BlockMask", "MaskOrigin", "TileCounts"]

Format: TypeAlias = Literal["segment", "parametric", "bitset", "bcsr", "columns", "dense"]
Operation: TypeAlias = Literal["and", "or", "minus", "xor"]
Block: TypeAlias = int | tuple[int, int]
Range: TypeAlias = "slice | range | None"
Pairs: TypeAlias = "int | slice | range | None"


_set = object.__setattr__  # masks themselves refuse it


class TileCounts(NamedTuple):
    """Tiles of a mask by class, and its cells, over all batch elements and heads.

    >>> import fdma
    >>> empty, full, partial, allowed_pairs = fdma.compile("causal", 256).counts
    >>> full, partial, allowed_pairs
    (1, 2, 32896)
    """

    empty: int
    full: int
    partial: int
    allowed_pairs: int


class MaskOrigin(NamedTuple):
    """Where a crop lay in the mask that it was cut from.

    >>> import fdma
    >>> fdma.compile("causal", 256, heads=4).crop(q=slice(100, 200), heads=3).origin
    MaskOrigin(q=100, kv=0, batch=0, head=3)
    """

    q: int
    kv: int
    batch: int
    head: int


class BlockMask(_OtherRooms):
    """A mask as stored: which queries attend to which keys, for every batch element and head.

    `fdma.compile` makes them, and so do `from_dense`, `from_columns`, `fdma.load` and the
    importers. A mask never changes: operations return new ones, and threads may share it. Masks
    compare by their cells (`==`, `hash`), whatever they are stored as.

    >>> import fdma
    >>> mask = fdma.compile("causal & window(1024)", 8192)
    >>> mask
    <BlockMask 'causal & window(1024)' [1, 1, 8192, 8192] segment 128 x 128, density 0.117, 4.2 KiB>
    >>> mask.counts
    TileCounts(empty=3556, full=420, partial=120, allowed_pairs=7864832)
    >>> (mask | fdma.compile("sink(4)", 8192)).to_dense()[0, 0, 5000, :6].tolist()
    [True, True, True, True, False, False]
    """

    __slots__ = ("__weakref__", "_cache", "_core", "_handle")
    __array_ufunc__ = None  # operators with arrays are TypeErrors, not arrays of masks

    _core: _fdma.BlockMask
    _cache: dict[str, Any]
    _handle: int

    def __init__(self) -> None:
        raise TypeError(
            "BlockMask: made by fdma.compile, fdma.load, BlockMask.from_dense and the importers"
        )

    @classmethod
    def _wrap(cls, core: _fdma.BlockMask) -> Self:
        mask = cls.__new__(cls)
        _set(mask, "_core", core)
        _set(mask, "_cache", {})
        _set(mask, "_handle", handle_of(mask))
        return mask

    # Properties: shape, storage and origin.

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, q_len, kv_len), the longest lengths."""
        return self.batch, self.heads, self.q_len, self.kv_len

    @property
    def q_len(self) -> int:
        """Query rows; with lengths per batch element those of the longest."""
        return self._core.q_len

    @property
    def kv_len(self) -> int:
        """Keys; with lengths per batch element those of the longest."""
        return self._core.kv_len

    @property
    def q_lens(self) -> tuple[int, ...]:
        """Query rows of each batch element.

        >>> import fdma
        >>> fdma.compile("causal", [100, 70], batch=2).q_lens
        (100, 70)
        """
        lengths = tuple(self._core.q_lens)
        return lengths * self.batch if len(lengths) == 1 else lengths

    @property
    def kv_lens(self) -> tuple[int, ...]:
        """Keys of each batch element."""
        lengths = tuple(self._core.kv_lens)
        return lengths * self.batch if len(lengths) == 1 else lengths

    @property
    def batch(self) -> int:
        """Batch elements that it tells apart; 1 where it serves any batch.

        A mask of 1 batch element that uses b, or a table with an entry for each element, serves
        that element only. Using it for several elements is a ValueError.
        """
        return self._core.num_batches

    @property
    def heads(self) -> int:
        """Query heads that it tells apart; 1 where it serves any number of heads.

        A mask of 1 head that uses h serves that head only. Using it for several heads is a
        ValueError. A single head that `crop` took of several serves any number of heads.

        >>> import fdma
        >>> a, b = fdma.compile("window(h + 1)", 8), fdma.compile("causal", 8, heads=4)
        >>> a & b
        Traceback (most recent call last):
        ValueError: combine: one mask was written with h and compiled for one head, the other has \
4; compile it with heads=4
        """
        return self._core.num_heads

    @property
    def num_groups(self) -> int:
        """Different masks among the (batch, head) pairs; each is stored once."""
        return self._core.num_groups

    @property
    def group_of(self) -> NDArray[np.int32]:
        """int32 [batch, heads], read-only: which of the stored masks each pair has.

        >>> import fdma
        >>> fdma.compile("window(8 * shl(1, h % 2))", 256, heads=4).group_of.tolist()
        [[0, 1, 0, 1]]
        """
        return self._core.group_of

    @property
    def format(self) -> Format:
        """'segment', 'parametric', 'bitset', 'bcsr', 'columns' or 'dense'."""
        return self._core.format

    @property
    def block(self) -> tuple[int, int]:
        """Sides of a tile: (query rows, keys)."""
        return self._core.block

    @property
    def origin(self) -> MaskOrigin:
        """Where a crop lay in the mask that it was cut from; zeros for others."""
        return MaskOrigin(*self._core.origin)

    @property
    def spec(self) -> str:
        """The text that it was compiled from; empty for what operations and imports made."""
        return self._core.spec

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays.

        >>> import fdma
        >>> fdma.compile("causal", 1_048_576).nbytes < 4096
        True
        """
        return self._core.nbytes

    # Contents: counts and cells.

    @property
    def counts(self) -> TileCounts:
        """Tiles by class and allowed query-key pairs, over all batch elements and heads.

        >>> import fdma
        >>> fdma.compile("causal", 256).counts
        TileCounts(empty=1, full=1, partial=2, allowed_pairs=32896)
        """
        if "counts" not in self._cache:
            self._cache["counts"] = TileCounts(**self._core.counts)
        counts: TileCounts = self._cache["counts"]
        return counts

    @property
    def counts_per_head(self) -> dict[str, NDArray[np.int64]]:
        """Counts of each (batch, head) pair: int64 [batch, heads] for each field of TileCounts.

        >>> import fdma
        >>> mask = fdma.compile("window(8 * shl(1, h))", 256, heads=3)
        >>> mask.counts_per_head["allowed_pairs"].tolist()
        [[3784, 7696, 15136]]
        """
        groups = self._core.counts_of_groups
        return {
            name: np.array([group[name] for group in groups], np.int64)[self.group_of]
            for name in TileCounts._fields
        }

    @property
    def num_tiles(self) -> int:
        """Tiles in all, empty ones included; `counts` tells them apart.

        >>> import fdma
        >>> fdma.compile("causal", 1000).num_tiles
        64
        """
        counts = self.counts
        return counts.empty + counts.full + counts.partial

    @property
    def density(self) -> float:
        """Allowed query-key pairs, as a share of those that exist; 0.0 where none exist.

        >>> import fdma
        >>> fdma.compile("causal", 3).density
        0.6666666666666666
        """
        cells = self._core.num_cells
        return self.counts.allowed_pairs / cells if cells else 0.0

    def to_dense(
        self, *, batch: Pairs = None, heads: Pairs = None, max_bytes: int = 1 << 32
    ) -> NDArray[np.bool_]:
        """Every cell: bool [batch, heads, q_len, kv_len], True where the query attends to the key.

        An integer `batch` or `heads` takes one index and drops the dimension, a slice takes several
        indices, and None takes all. q_len and kv_len are the longest of the batch elements taken;
        cells past an element's own lengths are False.

        Errors: MemoryError above `max_bytes`; IndexError for an index that does not exist.

        >>> import fdma
        >>> fdma.compile("causal", 3, heads=2).to_dense(batch=0, heads=1).astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [1, 1, 1]])
        """
        b, drops_b = pair_range("batch", batch, self.batch)
        h, drops_h = pair_range("heads", heads, self.heads)
        cells = self._core.to_dense(batch=b, heads=h, max_bytes=max_bytes)
        taken = cells[(0 if drops_b else slice(None), 0 if drops_h else slice(None))]
        return taken

    @classmethod
    def from_dense(
        cls,
        cells: Array | Sequence[Any],
        *,
        block: Block = (128, 128),
        format: Format = "segment",
    ) -> Self:
        """The mask of an array [q, k], [batch, q, k] or [batch, heads, q, k], exactly.

        Elements are booleans, or uint8 or int8 with values 0 and 1. The array lies in host memory
        with any strides, and comes from NumPy, PyTorch or anything with DLPack or the buffer
        protocol. It is packed into bits without another copy. (Batch, head) pairs with equal cells
        are stored once.

        Errors: TypeError (element type), ValueError (dimensions, a value that is neither 0 nor 1,
        block), NotImplementedError (not in host memory; format 'parametric' for cells that have no
        closed form).

        >>> import fdma, numpy as np
        >>> mask = fdma.BlockMask.from_dense(np.tri(300, dtype=bool))
        >>> mask == fdma.compile("causal", 300)
        True
        """
        _check_format(format)
        array: Any = np.asarray(cells) if isinstance(cells, list | tuple) else cells
        from .no_mask import check_cells

        check_cells(array)
        return cls._wrap(_fdma.BlockMask.from_dense(array, block=block_sides(block), format=format))

    def to_columns(
        self, *, batch: Pairs = None, heads: Pairs = None, max_bytes: int = 1 << 32
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The queries that see each key: begin and end, int32 [batch, heads, n, kv_len].

        Query q sees key k iff begin[.., i, k] <= q < end[.., i, k] for some i. n is the largest
        number of intervals that a key has, at least 1; keys with fewer intervals are filled up with
        [0, 0). An integer `batch` or `heads` drops its dimension. `from_columns` takes these
        arrays, and the mask `intervals(begin=, end=)` takes those of one pair.

        Errors: MemoryError if one of the two arrays exceeds `max_bytes`; IndexError for an index
        that does not exist.

        >>> import fdma
        >>> begin, end = fdma.compile("causal & window(2)", 4).to_columns(batch=0, heads=0)
        >>> begin.tolist(), end.tolist()
        ([[0, 1, 2, 3]], [[2, 3, 4, 4]])
        """
        b, drops_b = pair_range("batch", batch, self.batch)
        h, drops_h = pair_range("heads", heads, self.heads)
        begin, end = self._core.to_columns(batch=b, heads=h, max_bytes=max_bytes)
        at = (0 if drops_b else slice(None), 0 if drops_h else slice(None))
        return begin[at], end[at]

    @classmethod
    def from_columns(
        cls,
        begin: object,
        end: object,
        *,
        q_len: int | Sequence[int],
        kv_len: int | Sequence[int] | None = None,
        block: Block = (128, 128),
        format: Format = "columns",
    ) -> Self:
        """The mask whose key k is seen by the queries in the union of [begin[i, k], end[i, k]).

        Learned masks have this form: a key is kept from some query on until it is dropped. `begin`
        and `end` are integers of one shape: [kv_len], [n, kv_len], [batch, heads, kv_len] or
        [batch, heads, n, kv_len]. Empty intervals are left out, and intervals that meet are merged.
        `q_len` and `kv_len` may be given per batch element; entries past an element's keys are not
        read.

        Errors: TypeError (elements that are not integers); ValueError (shapes, an interval outside
        [0, q_len)).

        >>> import fdma
        >>> mask = fdma.BlockMask.from_columns([0, 1, 2, 3], [2, 3, 4, 4], q_len=4)
        >>> mask == fdma.compile("causal & window(2)", 4)
        True
        """
        _check_format(format)
        arrays = [_columns("begin", begin), _columns("end", end)]
        keys = arrays[0].shape[-1]
        core = _fdma.BlockMask.from_columns(
            *arrays,
            q_lens=_lengths(q_len),
            kv_lens=[keys] if kv_len is None else _lengths(kv_len),
            block=block_sides(block),
            format=format,
        )
        return cls._wrap(core)

    # Conversions and windows.

    def to_format(self, format: Format, *, block: Block | None = None) -> BlockMask:
        """The same cells in another format, or in other blocks.

        block: (query rows, keys), or one number for both sides; None keeps the mask's block.

        Errors: ValueError (format, block), NotImplementedError ('parametric' for cells that have no
        closed form), MemoryError ('dense' above 16 GiB, or more memory than available).

        >>> import fdma
        >>> mask = fdma.compile("causal", 4096)
        >>> {f: mask.to_format(f).nbytes for f in ("parametric", "bcsr", "dense")}
        {'parametric': 72, 'bcsr': 6536, 'dense': 2097152}
        """
        _check_format(format)
        core = self._core.to_format(format, self.block if block is None else block_sides(block))
        return self._like(core, same_cells=True)

    def crop(
        self, *, q: Range = None, kv: Range = None, batch: Pairs = None, heads: Pairs = None
    ) -> BlockMask:
        """A window of the mask as a new mask in the same format; `origin` says where it lay.

        `q` and `kv` are slices or ranges. A slice works as on a list and is applied to the lengths
        of each batch element; a range must lie inside every element. `batch` and `heads` may also
        be integers, and then keep a dimension of 1. A step other than 1 is an error.

        Errors: ValueError (a step, a range outside the mask), IndexError.

        >>> import fdma
        >>> chunk = fdma.compile("causal", 4096).crop(q=slice(1024, 2048), kv=slice(2048))
        >>> chunk.shape, chunk.origin
        ((1, 1, 1024, 2048), MaskOrigin(q=1024, kv=0, batch=0, head=0))
        >>> chunk == fdma.compile("causal", 1024, 2048)
        True
        """
        (b, b_end), _ = pair_range("batch", batch, self.batch)
        (h, h_end), _ = pair_range("heads", heads, self.heads)
        core = self._core
        if q is None and kv is None:
            return BlockMask._wrap(core.select(b, b_end, h, h_end))
        q_lens, kv_lens = self.q_lens[b:b_end], self.kv_lens[b:b_end]
        rows = [row_range("q", q, length) for length in q_lens]
        keys = [row_range("kv", kv, length) for length in kv_lens]
        if len(set(rows)) == len(set(keys)) == 1:
            return BlockMask._wrap(core.crop(*rows[0], *keys[0], b, b_end, h, h_end))
        parts = [
            core.crop(*rows[i], *keys[i], b + i, b + i + 1, h, h_end) for i in range(b_end - b)
        ]
        return BlockMask._wrap(_fdma.BlockMask.stack(parts))

    def shift(self, dq: int, dk: int) -> BlockMask:
        """The mask with its cells moved by dq query rows and dk keys of either sign; lengths stay.

        Cell (q, k) of the result is cell (q - dq, k - dk), and False where that does not exist.

        >>> import fdma
        >>> fdma.compile("causal", 3).shift(0, 1).to_dense()[0, 0].astype(int)
        array([[0, 1, 0],
               [0, 1, 1],
               [0, 1, 1]])
        """
        return BlockMask._wrap(self._core.shift(index(dq), index(dk)))

    def transpose(self) -> BlockMask:
        """The mask with query rows and keys swapped, and the sides of its blocks too.

        >>> import fdma
        >>> fdma.compile("causal", 2, 3).transpose().shape
        (1, 1, 3, 2)
        """
        return BlockMask._wrap(self._core.transpose())

    @staticmethod
    def concatenate(masks: Iterable[BlockMask]) -> BlockMask:
        """One mask with the batch elements of several masks, in the given order.

        All masks must have the same format, block and number of heads; lengths may differ.

        Errors: ValueError for masks that differ in one of these.

        >>> import fdma
        >>> masks = [fdma.compile("causal", n) for n in (300, 200)]
        >>> fdma.BlockMask.concatenate(masks).q_lens
        (300, 200)
        """
        cores = [_mask("masks", mask)._core for mask in masks]
        return BlockMask._wrap(_fdma.BlockMask.stack(cores))

    # Set algebra: a mask is the set of (b, h, q, k) that attend.

    def __and__(self, other: BlockMask) -> BlockMask:
        """Cells in both masks.

        All operators: lengths must agree. If the batch or head counts differ, one of them must be
        1; that mask serves all batch elements or heads (see `heads`). The result is stored as
        segments in this mask's blocks. ValueError names shapes that do not agree.

        >>> import fdma
        >>> a, b = fdma.compile("causal", 512), fdma.compile("chunked(128)", 512)
        >>> (a & b) == fdma.compile("causal & chunked(128)", 512)
        True
        """
        return self._combine(other, "and")

    def __or__(self, other: BlockMask) -> BlockMask:
        """Cells in at least one of the masks."""
        return self._combine(other, "or")

    def __xor__(self, other: BlockMask) -> BlockMask:
        """Cells in exactly one of the masks."""
        return self._combine(other, "xor")

    def __sub__(self, other: BlockMask) -> BlockMask:
        """Cells of this mask that the other mask lacks."""
        return self._combine(other, "minus")

    def __invert__(self) -> BlockMask:
        """Cells within the lengths that are not in this mask.

        >>> import fdma
        >>> (~fdma.compile("causal", 4)).to_dense()[0, 0, 1].tolist()
        [False, False, True, True]
        """
        return BlockMask._wrap(self._core.complement())

    @made_outside
    def _combine(self, other: object, operation: Operation) -> BlockMask:
        if not isinstance(other, BlockMask):
            _refuse_operand(other, operation)
        return BlockMask._wrap(self._core.combine(other._core, operation))

    def __add__(self, other: object) -> NoReturn:
        """Raises TypeError: masks are sets."""
        raise TypeError("+: masks combine with & | ^ - ~; write a | b")

    def __mul__(self, other: object) -> NoReturn:
        """Raises TypeError: masks are sets."""
        raise TypeError("*: masks combine with & | ^ - ~; write a & b")

    def __getitem__(self, index: object) -> NoReturn:
        """Raises TypeError: cells are read by to_dense, parts by crop."""
        raise TypeError(
            "BlockMask has no indices: to_dense(batch=0, heads=0) gives cells, "
            "crop(q=slice(..), kv=slice(..), batch=.., heads=..) a part as a mask"
        )

    def __rand__(self, other: object) -> NoReturn:
        """Raises TypeError: the other side is no BlockMask, which has `&` itself."""
        _refuse_operand(other, "and")

    def __ror__(self, other: object) -> NoReturn:
        """Raises TypeError: the other side is no BlockMask, which has `|` itself."""
        _refuse_operand(other, "or")

    def __rxor__(self, other: object) -> NoReturn:
        """Raises TypeError: the other side is no BlockMask, which has `^` itself."""
        _refuse_operand(other, "xor")

    def __rsub__(self, other: object) -> NoReturn:
        """Raises TypeError: the other side is no BlockMask, which has `-` itself."""
        _refuse_operand(other, "minus")

    def __bool__(self) -> NoReturn:
        """Raises TypeError, because `mask_a and mask_b` would return one of the two masks."""
        raise TypeError(
            "BlockMask has no truth value: combine masks with & | ~ instead of and, or, not; write "
            "`mask is not None` for whether there is one, `mask.counts.allowed_pairs > 0` for "
            "whether it lets anything through"
        )

    # Equality.

    def __eq__(self, other: object) -> bool:
        """True iff batch and head counts, lengths and every cell are the same. Formats, blocks,
        groups and origins may differ. `content_hash` tells whether two masks are stored alike.

        >>> import fdma
        >>> mask = fdma.compile("causal & window(100)", 1000)
        >>> mask == mask.to_format("bcsr", block=(32, 64))
        True
        """
        if not isinstance(other, BlockMask):
            return NotImplemented
        if self._core is other._core:
            return True
        mine, others = self._cache.get("mask_hash"), other._cache.get("mask_hash")
        if mine is not None and others is not None and mine != others:
            return False
        return self._core.equal_cells(other._core)

    def __hash__(self) -> int:
        return hash(self.mask_hash)

    @property
    def mask_hash(self) -> str:
        """A hash of counts, lengths and cells, 32 hexadecimal digits; equal masks have equal ones.

        It does not depend on the format, and `fdma-maskc inspect` prints the same digits. It is
        computed once, from what is stored, at a cost that grows with that alone.

        >>> import fdma
        >>> mask = fdma.compile("causal", 1000)
        >>> mask.mask_hash == mask.to_format("dense").mask_hash
        True
        """
        if "mask_hash" not in self._cache:
            self._cache["mask_hash"] = self._core.mask_hash()
        digits: str = self._cache["mask_hash"]
        return digits

    @property
    def content_hash(self) -> str:
        """A hash of all that is stored except the spec, 32 hexadecimal digits.

        Format, blocks, groups and arrays take part in it.
        """
        if "content_hash" not in self._cache:
            self._cache["content_hash"] = self._core.content_hash()
        digits: str = self._cache["content_hash"]
        return digits

    def diff(self, other: BlockMask, *, max_tiles: int = 100) -> MaskDifference:
        """The differences from another mask: how many cells and tiles, and which come first.

        >>> import fdma
        >>> a, b = fdma.compile("causal", 512), fdma.compile("causal & window(300)", 512)
        >>> difference = a.diff(b)
        >>> difference.only_in_self, difference.only_in_other, difference.num_tiles
        (22578, 0, 3)
        >>> difference.first_cell
        DifferingCell(batch=0, head=0, q=300, k=0, in_self=True)
        """
        found = self._core.difference_from(_mask("other", other)._core, max_tiles)
        cell = found["first_cell"]
        return MaskDifference(
            equal=not found["shape_reason"] and cell is None,
            reason=found["shape_reason"],
            block=self.block,
            only_in_self=found["only_in_a"],
            only_in_other=found["only_in_b"],
            num_tiles=found["num_tiles"],
            first_cell=None if cell is None else DifferingCell(*cell),
            tiles=tuple(DifferingTile(*tile) for tile in found["tiles"]),
        )

    def validate(self, level: Literal["sizes", "structure", "canonical"] = "canonical") -> None:
        """Checks the stored arrays.

        level: "sizes" checks the sizes of the arrays, "structure" also every entry, and "canonical"
        also that FDMA would build the same arrays. Masks that FDMA has built pass. Masks in files
        are checked when they are read.

        Errors: ValueError names the first inconsistency.

        >>> import fdma
        >>> fdma.compile("causal", 1000).validate()
        """
        self._core.validate(level)

    # Pickles, arrays.

    def arrays(self) -> dict[str, Any]:
        """Everything stored, as docs/file-format.md names it: attributes and NumPy arrays.

        Arrays are read-only views of the mask's own memory; `groups` is a list of dicts.

        >>> import fdma
        >>> arrays = fdma.compile("causal", 32, block=(16, 16), format="bcsr").arrays()
        >>> arrays["format"], arrays["groups"][0]["col_indices"]
        ('bcsr', array([0, 0, 1], dtype=int32))
        """
        return state_of(self._core)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """The mask of a mapping that `arrays` returned. The arrays are copied, every entry checked.

        Errors: TypeError; ValueError, which names the array and the entry; NotImplementedError for
        a newer version.

        >>> import fdma
        >>> mask = fdma.compile("causal", 1000)
        >>> fdma.BlockMask.from_arrays(mask.arrays()) == mask
        True
        """
        return cls._wrap(core_of(arrays))

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        return type(self).from_arrays, (self.arrays(),)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    # Drawings.

    def __repr__(self) -> str:
        spec = f" {_shortened(self.spec)!r}" if self.spec else ""
        lengths = ", ".join(
            str(lens[0]) if len(set(lens)) == 1 else f"{min(lens)}..{max(lens)}"
            for lens in (self.q_lens, self.kv_lens)
        )
        return (
            f"<BlockMask{spec} [{self.batch}, {self.heads}, {lengths}] {self.format} "
            f"{self.block[0]} x {self.block[1]}, density {self.density:.3g}, {_bytes(self.nbytes)}>"
        )

    def __str__(self) -> str:
        """A drawing for the terminal: full, partial and empty tiles."""
        from .drawing import draw

        return draw(self)

    def _repr_html_(self) -> str:
        from .drawing import html

        return html(self)

    def draw(
        self,
        *,
        batch: int = 0,
        heads: int = 0,
        max_width: int = 80,
        max_height: int = 40,
        unicode: bool | None = None,
        **others: NoReturn,
    ) -> str:
        """A drawing for the terminal of one (batch, head) pair; `print(mask)` shows the first.

        A character stands for a tile or a rectangle of tiles, as in `fdma.masks.drawing.draw`.

        >>> import fdma
        >>> print(fdma.compile("window(128 * h + 1)", 512, heads=4).draw(heads=1, unicode=False))
        #+..
        +#+.
        .+#+
        ..+#
        # full 4, + partial 6, . empty 6; 512 x 512 cells, blocks 128 x 128, 115072 allowed \
pairs; batch 0 of 1, head 1 of 4
        """
        from .drawing import draw

        options: Any = {"max_width": max_width, "max_height": max_height, "unicode": unicode}
        return draw(self, batch=batch, heads=heads, **options, **others)

    def plot(
        self,
        ax: Any = None,
        *,
        batch: int = 0,
        heads: int = 0,
        max_side: int = 1024,
        legend: bool = True,
        **others: NoReturn,
    ) -> Any:
        """One (batch, head) pair with matplotlib, on `ax` or new axes; returns the axes.

        Both axes are in cells. max_side: the largest number of pixels on a side, 1 to 16384.

        >>> import fdma
        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> fdma.compile("causal", 1000).plot().figure.savefig("mask.png")
        """
        from .drawing import plot

        options: Any = {"max_side": max_side, "legend": legend}
        return plot(self, ax, batch=batch, heads=heads, **options, **others)

    def _like(self, core: _fdma.BlockMask, *, same_cells: bool) -> BlockMask:
        mask = BlockMask._wrap(core)
        if same_cells and "mask_hash" in self._cache:
            mask._cache["mask_hash"] = self._cache["mask_hash"]
        return mask

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        _refuse(name)

    def __delattr__(self, name: str) -> NoReturn:
        _refuse(name)

    if not TYPE_CHECKING:  # a checker would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raises AttributeError, which says what stands for an attribute of tensors."""
            if name.startswith("_"):
                raise AttributeError(name)
            from .no_mask import instead_of_attribute

            raise AttributeError(f"{name}: no attribute of a BlockMask{instead_of_attribute(name)}")


def add_methods(methods: type) -> None:
    """Gives BlockMask the public members of a class. Rooms that know masks (files, interop) call it
    when the package is imported; masks knows none of them.
    """
    for name, member in vars(methods).items():
        if not name.startswith("_"):
            setattr(BlockMask, name, member)


def _refuse_operand(value: object, operation: Operation) -> NoReturn:
    from .no_mask import described

    sign = {"and": "&", "or": "|", "xor": "^", "minus": "-"}[operation]
    raise TypeError(f"{sign}: expected a BlockMask on both sides, got {described(value)}")


def _refuse(name: str) -> NoReturn:
    raise AttributeError(f"{name}: a BlockMask does not change")


def _mask(name: str, value: object) -> BlockMask:
    if not isinstance(value, BlockMask):
        from .no_mask import described

        raise TypeError(f"{name}: expected a BlockMask, got {described(value)}")
    return value


def _check_format(format: object) -> None:
    if not isinstance(format, str):
        raise TypeError(f"format: expected a str, got {type(format).__name__}")


def _lengths(lengths: int | Sequence[int]) -> list[int]:
    return [int(lengths)] if isinstance(lengths, int | np.integer) else [int(n) for n in lengths]


def _columns(name: str, values: object) -> NDArray[Any]:
    """Integers [batch, heads, n, kv_len] from an array that may lack the first dimensions."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise TypeError(f"{name}: expected integers of up to 64 bits with sign, got {array.dtype}")
    if not 1 <= array.ndim <= 4:
        raise ValueError(
            f"{name}: expected [kv_len], [n, kv_len], [batch, heads, kv_len] or [batch, heads, n, "
            f"kv_len], got {array.ndim} dimensions"
        )
    array = np.ascontiguousarray(array, np.int32 if array.dtype == np.int32 else np.int64)
    keys = array.shape[-1]
    if array.ndim == 3:
        return array.reshape(array.shape[0], array.shape[1], 1, keys)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _shortened(spec: str, limit: int = 60) -> str:
    return spec if len(spec) <= limit else spec[: limit - 3] + "..."


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
