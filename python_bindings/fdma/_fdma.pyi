"""
FDMA: masks compiled from short expressions, and attention that touches only
what they keep.

This module is private; the package fdma is its interface. MaskSyntaxError
means a specification that cannot be parsed, ValueError a wrong argument or
shape, NotImplementedError a call that this build, this device or these
tensors do not allow, MemoryError a result that does not fit, OSError a file
that cannot be read, and RuntimeError an error of CUDA.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer, CapsuleType

class _DLPack(Protocol):
    def __dlpack__(self) -> CapsuleType: ...

class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

Array = _DLPack | Buffer
"""An array that FDMA reads: of NumPy, PyTorch, JAX, CuPy, .., or any Python buffer."""

_Stream = int | _CudaStream
"""A cudaStream_t as a number, or an object that has one."""

class NewArray:
    """An array that FDMA allocates. numpy.asarray(x) and torch.from_dlpack(x) share its memory."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

_Out = TypeVar("_Out", bound=Array)
_Lse = TypeVar("_Lse", bound=Array)
_Format = Literal["segment", "parametric", "bitset", "bcsr", "columns", "dense"]
_Score = tuple[Any, ...]
"""The fields of ScoreArguments (fdma/attention/score.py), in their order."""

_ScorePart = Literal["softcap", "key_bias", "bias", "alibi", "relative_table", "sink", "dropout"]
_DType = Literal["float32", "float16", "bfloat16"]
_Stage = Literal["scores", "selection", "lists", "attention"]

__version__: str

class MaskSyntaxError(ValueError): ...

def bfloat16_from_bits(bits: NDArray[numpy.uint16]) -> NewArray:
    """
    An object with __dlpack__ that gives the memory of a writable uint16 array
    as bfloat16.

    NumPy has no bfloat16. Nothing is copied.
    """

def bits_from_bfloat16(array: Array) -> NDArray[numpy.uint16]:
    """
    A NumPy array of uint16 on the memory of a writable bfloat16 array. Nothing
    is copied.
    """

class BlockMask:
    """A compiled mask, which does not change. compile() makes it."""

    @property
    def format(self) -> _Format:
        """The name of the stored format."""

    @property
    def block(self) -> tuple[int, int]:
        """The sides (queries, keys) of a block."""

    @property
    def q_len(self) -> int:
        """The largest number of queries of a batch element."""

    @property
    def kv_len(self) -> int:
        """The largest number of keys of a batch element."""

    @property
    def q_lens(self) -> list[int]:
        """The number of queries of all batch elements, or of each."""

    @property
    def kv_lens(self) -> list[int]:
        """The number of keys of all batch elements, or of each."""

    @property
    def num_batches(self) -> int:
        """The number of batch elements."""

    @property
    def num_heads(self) -> int:
        """The number of heads."""

    @property
    def num_groups(self) -> int:
        """The number of different masks among the (batch element, head) pairs."""

    @property
    def num_cells(self) -> int:
        """
        The number of (query, key) pairs that exist, over all batch elements and
        heads.
        """

    @property
    def origin(self) -> tuple[int, int, int, int]:
        """
        The offsets (q, kv, batch, head) at which a crop lay in the mask that it was
        cut from.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that the mask holds."""

    @property
    def spec(self) -> str:
        """
        The specification from which the mask was compiled; empty if there was none.
        """

    @property
    def is_per_batch(self) -> bool:
        """True if the specification uses the batch index b."""

    @property
    def is_per_head(self) -> bool:
        """True if the specification uses the head index h."""

    @property
    def counts(self) -> dict[str, int]:
        """
        The numbers of tiles of each class and of allowed pairs, over all batch
        elements and heads.

        Each call counts them anew.
        """

    @property
    def counts_of_groups(self) -> list[dict[str, int]]:
        """The counts of each group, as `counts` has them for the mask."""

    def to_format(self, format: _Format, block: tuple[int, int]) -> BlockMask:
        """Returns the same cells in another format or with other block sides."""

    def combine(
        self, other: BlockMask, operation: Literal["and", "or", "minus", "xor"]
    ) -> BlockMask:
        """
        Returns the 'and', 'or', 'minus' or 'xor' of two masks, in format 'segment'.
        """

    def complement(self) -> BlockMask:
        """Returns the mask of the cells that exist and are not in this mask."""

    def shift(self, dq: int, dk: int) -> BlockMask:
        """
        Returns the mask with every cell moved by dq queries and dk keys. Lengths
        stay as they are.
        """

    def transpose(self) -> BlockMask:
        """Returns the mask with queries and keys swapped."""

    def crop(
        self,
        q_begin: int,
        q_end: int,
        kv_begin: int,
        kv_end: int,
        batch_begin: int,
        batch_end: int,
        head_begin: int,
        head_end: int,
    ) -> BlockMask:
        """
        Returns a window as a mask of its own, in the same format. Each range is
        half-open.
        """

    def select(self, batch_begin: int, batch_end: int, head_begin: int, head_end: int) -> BlockMask:
        """
        Returns a half-open range of batch elements and one of heads, at full
        lengths.
        """

    @staticmethod
    def stack(masks: Sequence[BlockMask]) -> BlockMask:
        """
        Returns one mask with the batch elements of several masks, in their order.

        The masks have the same format, block sides and number of heads; otherwise
        ValueError is raised.
        """

    def equal_cells(self, other: BlockMask) -> bool:
        """True if both masks have the same counts, lengths and cells."""

    def content_hash(self) -> str:
        """
        The hash of everything that is stored except the spec, as 32 hexadecimal
        digits.
        """

    def mask_hash(self) -> str:
        """The hash of counts, lengths and cells, as 32 hexadecimal digits."""

    def check_serves(self, batch: int, heads: int, name: str = "mask") -> None:
        """
        Raises ValueError if the mask cannot be used for tensors of `batch` elements
        and `heads` heads.

        A mask whose specification uses b or h and that was compiled for one element
        or head holds for that one only. `name` stands for the mask in the message.
        """

    def validate(self, level: Literal["sizes", "structure", "canonical"]) -> None:
        """
        Raises ValueError for the first inconsistency. level is 'sizes', 'structure'
        or 'canonical'.
        """

    def __repr__(self) -> str: ...
    @property
    def group_of(self) -> NDArray[numpy.int32]:
        """
        The group of each (batch element, head) pair, int32 [num_batches,
        num_heads]. It is read-only.
        """

    def arrays(self) -> list[dict[str, NDArray[Any]]]:
        """
        Returns the arrays of each group by their names in mask files. They are
        read-only views.
        """

    @staticmethod
    def from_arrays(
        *,
        format: str,
        q_lens: Sequence[int],
        kv_lens: Sequence[int],
        num_batches: int,
        num_heads: int,
        block: tuple[int, int],
        origin: tuple[int, int, int, int],
        spec: str,
        group_of: Array,
        groups: Sequence[Mapping[str, Array]],
        is_per_batch: bool = False,
        is_per_head: bool = False,
    ) -> BlockMask:
        """
        Returns the mask of arrays as `arrays` gives them, and copies them.

        ValueError names the first inconsistency.
        """

    def to_dense(
        self,
        *,
        batch: tuple[int, int] | None = None,
        heads: tuple[int, int] | None = None,
        max_bytes: int = 1 << 32,
    ) -> NDArray[numpy.bool_]:
        """
        Returns every cell as booleans [batches, heads, q_len, kv_len].

        `batch` and `heads` are half-open ranges; None means all. Cells past the
        lengths of a batch element are False. MemoryError is raised if the result
        takes more than max_bytes bytes.
        """

    @staticmethod
    def from_dense(cells: Array, *, block: tuple[int, int], format: _Format) -> BlockMask:
        """
        Returns the mask of an array of booleans, or of uint8 with the values 0 and
        1.

        The shape of cells is [q_len, kv_len], [batch, q_len, kv_len] or [batch,
        heads, q_len, kv_len].
        """

    def to_columns(
        self,
        *,
        batch: tuple[int, int] | None = None,
        heads: tuple[int, int] | None = None,
        max_bytes: int = 1 << 32,
    ) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32]]:
        """
        Returns the query intervals of each key as (begin, end), each int32
        [batches, heads, n, kv_len].

        An interval is half-open. `batch` and `heads` are half-open ranges; None
        means all. MemoryError is raised if the result takes more than max_bytes
        bytes.
        """

    @staticmethod
    def from_columns(
        begin: Array,
        end: Array,
        *,
        q_lens: Sequence[int],
        kv_lens: Sequence[int],
        block: tuple[int, int],
        format: _Format,
    ) -> BlockMask:
        """
        Returns the mask in which the union of its query intervals sees each key.

        begin and end are int32 or int64 [batch, heads, n, kv_len]; the intervals
        are half-open.
        """

    def difference_from(self, other: BlockMask, max_tiles: int) -> dict[str, Any]:
        """
        Returns the difference of two masks as a dict.

        only_in_a and only_in_b count the cells of one mask alone, and num_tiles the
        tiles that differ, in blocks of this mask. tiles holds at most max_tiles of
        these tiles as (batch, head, row, column). first_cell is (batch, head, q, k,
        whether this mask has it), or None. shape_reason is not empty if counts or
        lengths differ; no cell is then compared.
        """

def stored_array_specs(
    format: str, q_len: int, kv_len: int, block: tuple[int, int]
) -> list[tuple[str, str, int | None, int, int, bool]]:
    """
    Returns (name, element type, width, least rows, most rows, whether only masks
    with patterns have it) of each array of a group.

    The width is None for an array of one dimension.
    """

def to_dense(mask: BlockMask, *, max_bytes: int = 1 << 32) -> NDArray[numpy.bool_]:
    """
    Returns every cell as booleans [num_batches, num_heads, q_len, kv_len].

    Cells past the lengths of a batch element are False. MemoryError is raised
    if the result takes more than max_bytes bytes.
    """

def compile(
    spec: str | Expr,
    q_len: int | Sequence[int],
    kv_len: int | Sequence[int] | None = None,
    batch: int = 1,
    heads: int = 1,
    tables: Mapping[str, Array] | None = None,
    format: _Format = "segment",
    block: tuple[int, int] = (128, 128),
    num_threads: int = 0,
    timeout: float | None = None,
    max_work: int | None = None,
) -> BlockMask:
    """
    Returns the exact compiled mask of a specification, which is a text or a
    finished expression.

    q_len and kv_len are one length or one for each batch element; kv_len
    defaults to q_len. tables holds the arrays that the specification reads.
    num_threads counts threads of the CPU; 0 means all. timeout is in seconds;
    TimeoutError is raised after it. max_work counts operations in the bodies of
    loops; NotImplementedError is raised for a mask that takes more.
    """

def explain(
    spec: str | Expr,
    q_len: int | Sequence[int],
    kv_len: int | Sequence[int] | None = None,
    batch: int = 1,
    heads: int = 1,
    tables: Mapping[str, Array] | None = None,
    block: tuple[int, int] = (128, 128),
    num_threads: int = 0,
    timeout: float | None = None,
    max_work: int | None = None,
) -> list[dict[str, Any]]:
    """
    Compiles as compile does and returns how each distinct program was lowered:
    the members of fdma.ProgramReport.
    """

class AttentionPlan:
    """
    What will run for a mask and the shapes of the tensors. make_plan() makes
    it.
    """

    @property
    def backend(self) -> str:
        """The name of the backend that runs the plan."""

    @property
    def tile(self) -> tuple[int, int]:
        """The sides (queries, keys) of a tile."""

    @property
    def heads_per_tile(self) -> int:
        """
        The number of query heads that share a tile. Such a tile has tile[0] rows
        for each of them.
        """

    @property
    def num_work_tiles(self) -> int:
        """The number of work tiles."""

    @property
    def num_split_rows(self) -> int:
        """
        The number of query tiles whose keys are split over several work tiles.
        """

    @property
    def form(self) -> str:
        """How the plan holds the mask: 'segments' or 'parametric'."""

    @property
    def direction(self) -> str:
        """'forward' or 'backward'."""

    @property
    def nbytes(self) -> int:
        """Bytes that the plan holds."""

    @property
    def counts(self) -> dict[str, int]:
        """
        The numbers of tiles of each kind and of index tiles, over all work tiles.
        """

    @property
    def choices(self) -> str:
        """
        What the planner chose, what else it considered, and the predicted costs.
        """

    def __str__(self) -> str: ...

def make_plan(
    mask: BlockMask,
    *,
    batch: int | None = None,
    heads_q: int,
    heads_kv: int | None = None,
    head_dim: int,
    head_dim_v: int | None = None,
    dtype: _DType = "float32",
    out_dtype: _DType | None = None,
    score: Sequence[_ScorePart] = (),
    backend: Literal["cpu", "sm90", "auto"] = "cpu",
    tile: tuple[int, int] = (0, 0),
    columns: Literal["automatic", "scan", "gather", "reorder"] = "automatic",
    split: Literal["automatic", "never"] = "automatic",
    pack: Literal["automatic", "never"] = "automatic",
    num_workers: int = 0,
    form: Literal["segments", "parametric"] = "segments",
    direction: Literal["forward", "backward"] = "forward",
    num_threads: int = 0,
) -> AttentionPlan:
    """
    Returns the plan of a mask for the shapes of q, k and v. Any number of calls
    may use it.

    form='parametric' keeps the mask in closed form, and each call may then
    bring its own lengths and documents. direction='backward' makes a plan for
    attention_backward_call. tile is (queries, keys); (0, 0) leaves the choice
    to the backend. num_workers counts the workers that rows are split for; 0
    means 132 on a GPU. num_threads counts the threads of the CPU that make the
    plan (0 means all) and does not change it. score names the parts that each
    call brings. ValueError is raised for counts
    of heads or batch elements that do not fit the mask, NotImplementedError for
    a plan that the backend does not run.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | PreparedPlan,
    *,
    score: _Score | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: None = None,
    lse: None = None,
    return_lse: Literal[True] = True,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
    waits: bool = False,
) -> tuple[NewArray, NewArray]:
    """
    Computes softmax(score of softmax_scale * q k^T, masked) v and the
    log-sum-exp of each row.

    q is [batch, q_len, heads_q, head_dim], k [batch, kv_len, heads_kv,
    head_dim] and v [batch, kv_len, heads_kv, head_dim_v], in float32, float16
    or bfloat16. score is a tuple of the fields of ScoreArguments. out is [batch,
    q_len, heads_q, head_dim_v], and lse is float32 [batch, heads_q, q_len],
    -inf for a row without keys. softmax_scale defaults to 1 / sqrt(head_dim).
    mask is a BlockMask, an AttentionPlan or a PreparedPlan. The int32 arrays
    q_lens and kv_lens [batch], and cu_seqlens [documents + 1] or [batch,
    documents + 1], lie on the device of q and replace the lengths and documents
    of a closed-form plan. On a GPU a call by a PreparedPlan returns after the
    launch; with waits=True it returns when the results are there.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | PreparedPlan,
    *,
    score: _Score | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: None = None,
    lse: None = None,
    return_lse: Literal[False],
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
    waits: bool = False,
) -> NewArray:
    """
    Computes softmax(score of softmax_scale * q k^T, masked) v and the
    log-sum-exp of each row.

    q is [batch, q_len, heads_q, head_dim], k [batch, kv_len, heads_kv,
    head_dim] and v [batch, kv_len, heads_kv, head_dim_v], in float32, float16
    or bfloat16. score is a tuple of the fields of ScoreArguments. out is [batch,
    q_len, heads_q, head_dim_v], and lse is float32 [batch, heads_q, q_len],
    -inf for a row without keys. softmax_scale defaults to 1 / sqrt(head_dim).
    mask is a BlockMask, an AttentionPlan or a PreparedPlan. The int32 arrays
    q_lens and kv_lens [batch], and cu_seqlens [documents + 1] or [batch,
    documents + 1], lie on the device of q and replace the lengths and documents
    of a closed-form plan. On a GPU a call by a PreparedPlan returns after the
    launch; with waits=True it returns when the results are there.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | PreparedPlan,
    *,
    score: _Score | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: _Out,
    lse: None = None,
    return_lse: Literal[True] = True,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
    waits: bool = False,
) -> tuple[_Out, NewArray]:
    """
    Computes softmax(score of softmax_scale * q k^T, masked) v and the
    log-sum-exp of each row.

    q is [batch, q_len, heads_q, head_dim], k [batch, kv_len, heads_kv,
    head_dim] and v [batch, kv_len, heads_kv, head_dim_v], in float32, float16
    or bfloat16. score is a tuple of the fields of ScoreArguments. out is [batch,
    q_len, heads_q, head_dim_v], and lse is float32 [batch, heads_q, q_len],
    -inf for a row without keys. softmax_scale defaults to 1 / sqrt(head_dim).
    mask is a BlockMask, an AttentionPlan or a PreparedPlan. The int32 arrays
    q_lens and kv_lens [batch], and cu_seqlens [documents + 1] or [batch,
    documents + 1], lie on the device of q and replace the lengths and documents
    of a closed-form plan. On a GPU a call by a PreparedPlan returns after the
    launch; with waits=True it returns when the results are there.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | PreparedPlan,
    *,
    score: _Score | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: _Out,
    lse: None = None,
    return_lse: Literal[False],
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
    waits: bool = False,
) -> _Out:
    """
    Computes softmax(score of softmax_scale * q k^T, masked) v and the
    log-sum-exp of each row.

    q is [batch, q_len, heads_q, head_dim], k [batch, kv_len, heads_kv,
    head_dim] and v [batch, kv_len, heads_kv, head_dim_v], in float32, float16
    or bfloat16. score is a tuple of the fields of ScoreArguments. out is [batch,
    q_len, heads_q, head_dim_v], and lse is float32 [batch, heads_q, q_len],
    -inf for a row without keys. softmax_scale defaults to 1 / sqrt(head_dim).
    mask is a BlockMask, an AttentionPlan or a PreparedPlan. The int32 arrays
    q_lens and kv_lens [batch], and cu_seqlens [documents + 1] or [batch,
    documents + 1], lie on the device of q and replace the lengths and documents
    of a closed-form plan. On a GPU a call by a PreparedPlan returns after the
    launch; with waits=True it returns when the results are there.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | PreparedPlan,
    *,
    score: _Score | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: None = None,
    lse: _Lse,
    return_lse: Literal[True] = True,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
    waits: bool = False,
) -> tuple[NewArray, _Lse]:
    """
    Computes softmax(score of softmax_scale * q k^T, masked) v and the
    log-sum-exp of each row.

    q is [batch, q_len, heads_q, head_dim], k [batch, kv_len, heads_kv,
    head_dim] and v [batch, kv_len, heads_kv, head_dim_v], in float32, float16
    or bfloat16. score is a tuple of the fields of ScoreArguments. out is [batch,
    q_len, heads_q, head_dim_v], and lse is float32 [batch, heads_q, q_len],
    -inf for a row without keys. softmax_scale defaults to 1 / sqrt(head_dim).
    mask is a BlockMask, an AttentionPlan or a PreparedPlan. The int32 arrays
    q_lens and kv_lens [batch], and cu_seqlens [documents + 1] or [batch,
    documents + 1], lie on the device of q and replace the lengths and documents
    of a closed-form plan. On a GPU a call by a PreparedPlan returns after the
    launch; with waits=True it returns when the results are there.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | PreparedPlan,
    *,
    score: _Score | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: _Out,
    lse: _Lse,
    return_lse: Literal[True] = True,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
    waits: bool = False,
) -> tuple[_Out, _Lse]:
    """
    Computes softmax(score of softmax_scale * q k^T, masked) v and the
    log-sum-exp of each row.

    q is [batch, q_len, heads_q, head_dim], k [batch, kv_len, heads_kv,
    head_dim] and v [batch, kv_len, heads_kv, head_dim_v], in float32, float16
    or bfloat16. score is a tuple of the fields of ScoreArguments. out is [batch,
    q_len, heads_q, head_dim_v], and lse is float32 [batch, heads_q, q_len],
    -inf for a row without keys. softmax_scale defaults to 1 / sqrt(head_dim).
    mask is a BlockMask, an AttentionPlan or a PreparedPlan. The int32 arrays
    q_lens and kv_lens [batch], and cu_seqlens [documents + 1] or [batch,
    documents + 1], lie on the device of q and replace the lengths and documents
    of a closed-form plan. On a GPU a call by a PreparedPlan returns after the
    launch; with waits=True it returns when the results are there.
    """

def cpu_target() -> str:
    """
    Returns the name of the instruction set with which the CPU backend runs
    here.
    """

def available_backends() -> list[str]:
    """Returns the names of the backends that can run here."""

class PreparedPlan:
    """A plan where its backend runs it. prepare() makes it."""

    @property
    def backend(self) -> str:
        """The name of the backend that runs it."""

    @property
    def device(self) -> int:
        """The index of the GPU; -1 for the CPU."""

    @property
    def tile(self) -> tuple[int, int]:
        """The sides (queries, keys) of a tile."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes where its backend computes, without workspaces."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of workspace that one call needs; 0 on the CPU."""

    @property
    def is_captured(self) -> bool:
        """
        True if a CUDA graph holds a call by this plan. The plan must live as long
        as the graph.
        """

    def __repr__(self) -> str: ...

def prepare(
    plan: AttentionPlan,
    *,
    device: int | None = None,
    stream: _Stream | None = None,
    waits: bool = False,
    deterministic: bool = False,
) -> PreparedPlan:
    """
    Brings a plan to where its backend runs it.

    A plan for the CPU is kept as it is. One for a GPU is copied to the GPU with
    the index `device`; None means the current one. The copy is ordered in
    `stream`; with waits=True it is complete on return, for every stream.
    deterministic=True also copies what deterministic calls of a backward plan
    need. NotImplementedError is raised where the backend cannot run.
    """

def release_workspaces() -> None:
    """
    Frees the workspaces that calls on GPUs share, one for each stream.

    Those of captured CUDA graphs live as long as their plans.
    """

def workspaces_nbytes() -> int:
    """Returns the bytes of all workspaces on GPUs, shared and captured."""

def attention_call(
    plan: PreparedPlan,
    q: Array,
    k: Array,
    v: Array,
    score: _Score | None,
    out: Array,
    lse: Array | None,
    softmax_scale: float = 0.0,
    heads_first: bool = False,
    out_low: Array | None = None,
    num_threads: int = 0,
    stream: _Stream | None = None,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
) -> int:
    """
    Computes attention by a plan into out and lse, and returns 0.

    q, k, v and out are [batch, len, heads, head_dim], or [batch, heads, len,
    head_dim] with heads_first. score has the parts that the plan's score has.
    lse is float32 [batch, heads_q, q_len]. out and lse are contiguous and
    overlap no other tensor. Rows past the lengths become 0 in out and -inf in
    lse. softmax_scale 0 means 1 / sqrt(head_dim). out_low has the shape and
    type of out, of 16 bits; it receives the low half of O for
    attention_backward_call. num_threads counts threads of the CPU; 0 means all.
    q_lens, kv_lens and cu_seqlens are those of attention.

    If kernels cannot read some of the tensors with their strides, nothing is
    written and the result has bit i set for the i-th of q, k, v, key_bias, bias,
    alibi_slopes, relative, sinks that must be made contiguous. The caller
    computes gradients.
    """

def attention_backward_call(
    plan: PreparedPlan,
    q: Array,
    k: Array,
    v: Array,
    score: _Score | None,
    out: Array,
    lse: Array,
    dout: Array,
    dlse: Array | None,
    dq: Array,
    dk: Array,
    dv: Array,
    dscore: tuple[Array | None, Array | None, Array | None, Array | None] | None,
    softmax_scale: float = 0.0,
    heads_first: bool = False,
    deterministic: bool = False,
    workspace: Array | None = None,
    out_low: Array | None = None,
    num_threads: int = 0,
    stream: _Stream | None = None,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
) -> int:
    """
    Computes the gradients of attention_call into dq, dk, dv and dscore, and
    returns 0.

    plan has direction 'backward'. dq, dk, dv and dout have the shapes of q, k,
    v and out, dlse that of lse. dscore is (dkey_bias, dbias, drelative, dsinks),
    of the shapes and types of these tensors; None means that a gradient is not
    wanted, for dlse that it is 0. out_low is that of attention_call; without it
    a gradient of a bias, and gradients of few queries, take one more pass over
    all keys. On a GPU workspace has plan.workspace_nbytes bytes that nothing
    else uses on the stream during the call; None means that which the stream's
    calls share. num_threads counts threads of the CPU; 0 means all. score,
    q_lens, kv_lens and cu_seqlens are those of the forward call. Gradients of
    rows past the lengths are 0.

    If kernels cannot read some of the tensors with their strides, nothing is
    written and the result has bit i set for the i-th of q, k, v, key_bias, bias,
    alibi_slopes, relative, sinks, dout, dlse that must be made contiguous.
    """

class CachedCalls:
    """
    A cache of the plans of calls on PyTorch's tensors.

    The key of a call is the number of its mask, the descriptors of q, k and v, and
    the parts of its score.
    """

    def __init__(self, empty_like: object, contiguous: object, new_outputs: object) -> None:
        """
        Takes the functions that allocate results.

        empty_like is torch.empty_like, and contiguous is torch.contiguous_format.
        new_outputs(q, k, v, heads_first, with_lse) returns (out, lse or None); it
        is called where a tensor like q cannot hold the result.
        """

    def add(
        self,
        mask: int,
        q: object,
        k: object,
        v: object,
        score: _Score | None,
        heads_first: bool,
        is_backward: bool,
        is_deterministic: bool,
        entry: object,
        lse_like: object,
    ) -> bool:
        """
        Adds a call, which is then made by entry.plan, and returns True.

        Each use sets entry.last_use to the time in nanoseconds. lse_like has the
        extents, type and device of the log-sum-exp, with any strides. The result is
        False, and nothing is added, if a tensor has no descriptor in C.
        """

    def find(
        self,
        mask: int,
        q: object,
        k: object,
        v: object,
        score: _Score | None,
        heads_first: bool,
        is_backward: bool,
        is_deterministic: bool,
    ) -> object:
        """Returns the plan of a call, or None if the cache does not hold it."""

    def run(
        self,
        mask: int,
        q: object,
        k: object,
        v: object,
        score: _Score | None,
        softmax_scale: float,
        heads_first: bool,
        wants_lse: bool,
        num_threads: int,
    ) -> object:
        """
        Computes attention by the cached forward plan, and returns out, or (out,
        lse) with wants_lse.

        The plan was added with is_backward=False and is_deterministic=False.
        num_threads counts threads of the CPU; 0 means all. The result is None, and
        nothing is computed, if the cache does not hold the call or kernels cannot
        read its tensors with their strides. The caller computes gradients.
        """

    def clear(self) -> None:
        """Removes all calls."""

    def __len__(self) -> int: ...

def merge(
    parts: Sequence[tuple[Array, Array]],
    *,
    sinks: Array | None,
    out: Array,
    lse: Array,
    num_threads: int = 0,
    stream: _Stream | None = None,
) -> None:
    """
    Merges attention results (out, lse) over disjoint sets of keys into `out` and `lse`. out is [batch, q_len, heads_q, head_dim_v], lse [batch, heads_q, q_len], sinks [heads_q] or [batch, heads_q, q_len].
    """

@overload
def zoh_scores(
    values: Array,
    dt_proj: Array,
    a_coef: Array,
    *,
    mode: Literal["exp", "log"] = "exp",
    num_threads: int = 0,
    out: None = None,
    stream: _Stream | None = None,
) -> NewArray:
    """
    Returns the scores of keys, float32 [batch, heads_kv, kv_len].

    values is [batch, kv_len, heads_kv, head_dim] in float32, float16 or
    bfloat16. dt_proj is [heads_kv, heads_kv * head_dim] or [heads_kv,
    head_dim], and a_coef is [heads_kv]. The score is exp(A softplus(dt)), or A
    softplus(dt) with mode='log'. num_threads counts threads of the CPU; 0 means
    all.
    """

@overload
def zoh_scores(
    values: Array,
    dt_proj: Array,
    a_coef: Array,
    *,
    mode: Literal["exp", "log"] = "exp",
    num_threads: int = 0,
    out: _Out,
    stream: _Stream | None = None,
) -> _Out:
    """
    Returns the scores of keys, float32 [batch, heads_kv, kv_len].

    values is [batch, kv_len, heads_kv, head_dim] in float32, float16 or
    bfloat16. dt_proj is [heads_kv, heads_kv * head_dim] or [heads_kv,
    head_dim], and a_coef is [heads_kv]. The score is exp(A softplus(dt)), or A
    softplus(dt) with mode='log'. num_threads counts threads of the CPU; 0 means
    all.
    """

def zoh_scores_backward(
    values: Array,
    dt_proj: Array,
    a_coef: Array,
    dscores: Array,
    *,
    dvalues: Array | bool = True,
    ddt_proj: Array | bool = True,
    da_coef: Array | bool = True,
    other_dvalues: Array | None = None,
    mode: Literal["exp", "log"] = "exp",
    num_threads: int = 0,
    workspace: Array | None = None,
    stream: _Stream | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """
    Returns the gradients (dvalues, ddt_proj, da_coef) of zoh_scores.

    dscores is the gradient of the scores, float32 [batch, heads_kv, kv_len].
    Each gradient has the shape of its input. It is written into the array that
    is given, which has the type of the input or float32; True asks for a new
    array, and False for no gradient, which is returned as None. other_dvalues
    is another gradient of values that is added to dvalues; it may be dvalues
    itself. For CUDA tensors workspace has zoh_backward_workspace_nbytes bytes;
    without it the call waits for the GPU.
    """

def zoh_backward_workspace_nbytes(
    batch: int, kv_len: int, heads_kv: int, head_dim: int, wide: bool
) -> int:
    """
    Returns the bytes of workspace that zoh_scores_backward needs on a GPU.

    wide says that dt_proj is [heads_kv, heads_kv * head_dim].
    """

OPEN_END: int = 2147483647

class IncrementalTopk:
    """
    The top-k selection of one row of scores, kept up to date while keys and
    queries are appended.
    """

    def __init__(self, w: int) -> None: ...
    def append(
        self, scores: Array, among: Array | None = None, num_queries: int | None = None
    ) -> None:
        """
        Appends keys with their scores, float32 [keys], and queries.

        Without among there is one query for each key, and key i is visible from the
        i-th of these queries on (causal). among is int32 [keys, 2], the half-open
        interval of queries that see each key; OPEN_END stands for an end that is
        not yet known. ValueError is raised for a NaN score and for a key that an
        earlier query would see.
        """

    def end_group(self) -> None:
        """Ends a document: no later query sees the keys so far."""

    def live_keys(self) -> NewArray:
        """
        Returns the keys that later queries may keep, ascending, as int32. A cache
        needs no others.
        """

    def dropped_keys(self) -> NewArray:
        """Returns the keys that the last append or end_group evicted, as int32."""

    def intervals(self) -> NewArray:
        """
        Returns the half-open interval of the queries so far that keep each key,
        int32 [kv_len, 2].

        The interval is (0, 0) for a key that no query keeps.
        """

    def state(self) -> dict[str, Any]:
        """Returns the whole state as a dict of the arguments of `restore`."""

    @staticmethod
    def restore(
        *,
        w: int,
        q_len: int,
        group_end: int,
        last_key: int,
        last: tuple[int, int],
        kept: Array,
        live: Array,
        waiting: Array,
        waiting_queries: Array,
        dropped: Array,
    ) -> IncrementalTopk:
        """
        Returns a selection that continues from a state.

        ValueError is raised for a state that no calls lead to.
        """

    @property
    def w(self) -> int:
        """The number of keys that each query keeps at most."""

    @property
    def q_len(self) -> int:
        """The number of queries so far."""

    @property
    def kv_len(self) -> int:
        """The number of keys so far."""

    @property
    def num_live_keys(self) -> int:
        """The number of keys that later queries may keep."""

    @property
    def nbytes(self) -> int:
        """Bytes that the selection holds."""

class DeviceTopk:
    """
    Top-k selection on a GPU among the keys of a mask. It is prepared once for
    many calls.
    """

    def __init__(
        self,
        among: BlockMask,
        w: int,
        *,
        batch: int | None = None,
        heads_kv: int | None = None,
        device: int | None = None,
        stream: _Stream | None = None,
    ) -> None:
        """
        Prepares the selection of w keys for each query, batch element and KV head.

        The mask `among` says which keys a query may keep. It belongs to the
        one-interval class, as causal, documents, prefixes and padding do; another
        mask is a NotImplementedError, and compile() selects among its keys on the
        host. batch and heads_kv default to those of the mask. device is the index
        of the GPU; None means the current one.
        """

    def select(
        self, scores: Array, *, out: Array | None = None, stream: _Stream | None = None
    ) -> NewArray:
        """
        Returns the half-open interval of the queries that keep each key.

        It is int32 [batch, heads_kv, kv_len, 2] on the GPU, and (0, 0) for a key
        that no query keeps. scores is float32 [batch, heads_kv, kv_len] on the same
        GPU.
        """

    def saw_nan(self, *, stream: _Stream | None = None) -> bool:
        """
        True if a score was NaN since the last call of this method. A NaN ranks
        lowest.
        """

    def to_mask(
        self,
        kept: Array,
        *,
        heads_q: int | None = None,
        block: tuple[int, int] = (128, 128),
        stream: _Stream | None = None,
    ) -> BlockMask:
        """
        Returns the result of select() as a mask. The call waits for it and copies
        it to the host.

        heads_q is a multiple of heads_kv, by default heads_kv itself.
        """

    @property
    def w(self) -> int:
        """The number of keys that each query keeps at most."""

    @property
    def device(self) -> int:
        """The index of the GPU."""

    @property
    def nbytes(self) -> int:
        """Bytes of device memory without the workspaces."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of workspace that one call needs."""

    @property
    def is_captured(self) -> bool:
        """
        True if a CUDA graph holds a call. This object must live as long as the graph.
        """

class DeviceIncrementalTopk:
    """
    The top-k selection on a GPU of sequences that grow. All rows have the same
    mask.
    """

    def __init__(
        self,
        w: int,
        capacity: int,
        *,
        batch: int = 1,
        heads_kv: int = 1,
        keys_may_wait: bool = False,
        device: int | None = None,
        stream: _Stream | None = None,
    ) -> None:
        """
        Prepares the selection of w keys for each query in rows of up to `capacity` keys.

        keys_may_wait allows keys whose first query comes in a later call of append().
        device is the index of the GPU; None means the current one.
        """

    def append(
        self,
        scores: Array,
        among: Array | None = None,
        num_queries: int | None = None,
        *,
        stream: _Stream | None = None,
    ) -> None:
        """
        Appends keys with their scores, float32 [batch, heads_kv, keys] on the GPU,
        and queries.

        among and num_queries are those of IncrementalTopk.append. A NaN ranks
        lowest. ValueError is raised for more keys than capacity.
        """

    def end_group(self, *, stream: _Stream | None = None) -> None:
        """Ends a document: no later query sees the keys so far."""

    def refresh(self, *, stream: _Stream | None = None) -> None:
        """
        Reads q_len and kv_len from the device after graphs were replayed. The call
        waits.
        """

    def live_keys(self, *, stream: _Stream | None = None) -> tuple[NewArray, NewArray]:
        """
        Returns the keys that later queries may keep, ascending, and their number,
        on the GPU.

        The keys are int32 [batch, heads_kv, min(w, capacity)], their number is
        int32 [batch, heads_kv].
        """

    def intervals(self, *, stream: _Stream | None = None) -> NewArray:
        """
        Returns the half-open interval of the queries so far that keep each key.

        It is int32 [batch, heads_kv, kv_len, 2] on the host; the call waits and
        copies.
        """

    @property
    def w(self) -> int:
        """The number of keys that each query keeps at most."""

    @property
    def capacity(self) -> int:
        """The largest number of keys of a row."""

    @property
    def q_len(self) -> int:
        """The number of queries so far."""

    @property
    def kv_len(self) -> int:
        """The number of keys so far."""

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""

class DynamicMaskAttention:
    """
    Scores of keys, selection of the best ones for each query, and attention
    over these.

    It is prepared once for the shapes of the tensors.
    """

    def __init__(
        self,
        keep_window_size: int,
        *,
        among: BlockMask | None = None,
        q_len: int | Sequence[int] | None = None,
        kv_len: int | Sequence[int] | None = None,
        batch: int | None = None,
        heads_q: int,
        heads_kv: int | None = None,
        head_dim: int,
        head_dim_v: int | None = None,
        dtype: _DType = "float32",
        out_dtype: _DType | None = None,
        bias: Literal["exp", "log", "none"] = "exp",
        drop_zero_scores: bool = False,
        backend: Literal["auto", "cpu", "sm90"] = "auto",
        reading: Literal["automatic", "gather", "scan", "all"] = "automatic",
        gradients: bool = False,
        device: int | None = None,
        stream: _Stream | None = None,
    ) -> None:
        """
        Prepares calls in which each query keeps at most keep_window_size keys.

        The mask `among`, of 1 or heads_kv heads, says which keys a query may keep;
        with q_len and kv_len in its place the mask is causal. bias says what is
        added to the logits of kept keys: exp(A softplus(dt)), A softplus(dt) with
        'log', or nothing. drop_zero_scores drops keys whose score is 0. reading
        says how a GPU reads the selection. gradients=True prepares backward().
        device is the index of the GPU; None means the current one.
        """

    def run(
        self,
        q: Array,
        k: Array,
        v: Array,
        dt_proj: Array | None = None,
        a_coef: Array | None = None,
        *,
        scores: Array | None = None,
        softmax_scale: float | None = None,
        stream: _Stream | None = None,
        num_threads: int = 0,
        out: Array | None = None,
        lse: Array | None = None,
        return_lse: bool = True,
        return_scores: bool = False,
        return_kept: bool = False,
        stages: tuple[_Stage, _Stage] = ("scores", "attention"),
        scores_out: Array | None = None,
        kept_out: Array | None = None,
        out_low: Array | None = None,
    ) -> tuple[Any, Any, Any, Any]:
        """
        Returns (out, lse, scores, kept), with None in place of what is not wanted.

        q, k, v, out and lse have the shapes of attention(). Scores are computed
        from v, dt_proj and a_coef as by zoh_scores, or they are given as float32
        [batch, heads_kv, kv_len]. kept is int32 [batch, heads_kv, kv_len, 2], the
        half-open interval of the queries that keep each key. scores_out and
        kept_out are memory for both. out_low has the shape and type of out, of 16
        bits; it receives the low half of O for backward(). On a GPU stages names
        the first and the last stage that run, so that they can be timed.
        """

    def backward(
        self,
        q: Array,
        k: Array,
        v: Array,
        dt_proj: Array | None,
        a_coef: Array | None,
        scores: Array,
        kept: Array | None,
        out: Array,
        lse: Array,
        dout: Array,
        dlse: Array | None,
        dq: Array,
        dk: Array,
        dv: Array,
        dscores: Array | None = None,
        ddt_proj: Array | None = None,
        da_coef: Array | None = None,
        *,
        softmax_scale: float | None = None,
        deterministic: bool = False,
        workspace: Array | None = None,
        stream: _Stream | None = None,
        num_threads: int = 0,
        out_low: Array | None = None,
    ) -> None:
        """
        Computes the gradients of a call of run() into dq, dk, dv, dscores, ddt_proj
        and da_coef.

        The last three may be None, which means that they are not wanted. Each
        gradient has the shape of its input. dt_proj and a_coef are None if scores
        were given. On a GPU kept is what run() wrote, unless reading is 'all'.
        out_low is that of the call, if it had one. On a GPU workspace has
        backward_workspace_nbytes bytes, or deterministic_workspace_nbytes with
        deterministic=True, at an address that is a multiple of 256; nothing else
        uses it until the work of the call is done.
        """

    def to_mask(
        self, kept: Array, *, block: tuple[int, int] = (128, 128), stream: _Stream | None = None
    ) -> BlockMask:
        """
        Returns kept, a result of run(), as a mask of heads_q heads. On a GPU the
        call waits and copies.
        """

    def saw_nan(self, *, stream: _Stream | None = None) -> bool:
        """
        True if a score was NaN since the last call of this method, on a GPU. A NaN
        ranks lowest.
        """

    @property
    def backend(self) -> str:
        """The name of the backend."""

    @property
    def reading(self) -> str:
        """How attention reads the selection on a GPU: 'gather', 'scan' or 'all'."""

    @property
    def heads_per_tile(self) -> int:
        """The number of query heads that share a tile."""

    @property
    def device(self) -> int:
        """The index of the GPU."""

    @property
    def nbytes(self) -> int:
        """Bytes that the prepared call holds, without the workspaces."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of workspace that one call of run() needs; 0 on the host."""

    @property
    def is_captured(self) -> bool:
        """
        True if a CUDA graph holds a call. This object must live as long as the graph.
        """

    @property
    def backward_workspace_nbytes(self) -> int:
        """Bytes of workspace that backward() needs; 0 on the host."""

    @property
    def deterministic_workspace_nbytes(self) -> int:
        """
        Bytes of workspace that backward() needs with deterministic=True; 0 on the
        host.
        """

class CusparseAttention:
    """
    Attention by cuSPARSE alone (SDDMM, softmax, SpMM). It is prepared once for
    a mask.

    FDMA is compared with it in tests and benchmarks.
    """

    def __init__(
        self,
        mask: BlockMask,
        *,
        batch: int | None = None,
        heads_q: int,
        heads_kv: int | None = None,
        head_dim: int,
        head_dim_v: int | None = None,
        dtype: _DType = "float32",
        out_dtype: _DType | None = None,
        key_bias: bool = False,
        precision: Literal["float32", "tensor"] = "float32",
        spmm: Literal["alg1", "alg2", "alg3"] = "alg3",
        library: str = "",
    ) -> None:
        """
        Prepares attention on the current device.

        precision='tensor' keeps the types of the tensors where cuSPARSE accepts
        them. library is the path of libcusparse.so.12 or of its folder.
        NotImplementedError is raised without the library.
        """

    def run(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        out: Array,
        lse: Array | None = None,
        key_bias: Array | None = None,
        softmax_scale: float | None = None,
        stream: _Stream | None = None,
    ) -> None:
        """Computes attention() into out and lse. Calls must not overlap."""

    @property
    def device(self) -> int:
        """The index of the GPU."""

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""

    @property
    def num_cells(self) -> int:
        """The number of cells of all distinct masks."""

def cusparse_version(library: str = "") -> str:
    """
    Returns the version of cuSPARSE that CusparseAttention would use.

    NotImplementedError is raised without one.
    """

class ExprNode:
    """
    One operation of an expression. Its operands may be shared; nothing changes
    them.
    """

    @property
    def table_free_text(self) -> str | None:
        """The text of the expression, not checked; None if the expression reads a table."""

    @property
    def depends_on_cell(self) -> bool:
        """
        True if the value may differ between cells of one batch element and head.
        """

    @property
    def operands(self) -> list[ExprNode]:
        """The operands, in order."""

    def text(self, same: Mapping[str, str] = {}) -> str:
        """
        Returns the text of the expression, not checked. `same` is that of
        finish_expr.
        """

    def table_names(self, same: Mapping[str, str] = {}) -> dict[str, str]:
        """Returns the names that text() gives to automatic tables, by symbol."""

def expr_node(
    op: str, operands: Sequence[ExprNode] = [], value: int = 0, symbol: str = ""
) -> ExprNode:
    """Returns the operation of a name. Named masks are made by named_node."""

def fold_expr(op: str, operands: Sequence[int]) -> int | None:
    """
    Returns the value of an operation on numbers, conditions being 0 and 1. It is
    None where the value is undefined.
    """

def named_masks() -> list[tuple[str, str, str]]:
    """
    Returns the name, the signature and an example of each form of a named mask.
    """

def operator_names() -> list[tuple[str, str, str]]:
    """
    Returns three names of each operation: the one here, the one in texts, and the
    method or function of Python.
    """

def named_node(name: str, operands: Sequence[ExprNode], keywords: Sequence[str]) -> ExprNode:
    """
    Returns a named mask. The keyword of an operand that is given by position is
    "".
    """

class Expr:
    """A finished expression. parse_expr and finish_expr make it."""

    @property
    def text(self) -> str:
        """
        The text that was parsed, or the canonical spelling of an expression that
        was not.
        """

    @property
    def canonical_text(self) -> str:
        """The text in the canonical spelling."""

    @property
    def table_names(self) -> list[str]:
        """The sorted names of the tables, without @."""

    @property
    def needs_selection(self) -> bool:
        """True if the expression has a topk."""

    def mentions(self, variable: str) -> bool:
        """True if the expression uses the variable."""

    def dump(self) -> str:
        """Returns the operations as text, one on each line."""

    def node(self, automatic: Mapping[str, str], number: int) -> ExprNode:
        """
        Returns the nodes of the expression.

        Tables named in `automatic` and all loop variables get automatic symbols
        with `number`.
        """

    def equals(self, other: Expr) -> bool:
        """True if both expressions have the same structure."""

def parse_expr(text: str) -> Expr:
    """Parses a specification. MaskSyntaxError shows the place of an error."""

class FinishedExpr:
    """A finished expression and its table names."""

    @property
    def expr(self) -> Expr:
        """The expression."""

    @property
    def table_names(self) -> dict[str, str]:
        """The names that automatic tables have in the expression, by symbol."""

def finish_expr(
    node: ExprNode, same: Mapping[str, str] = {}, ignore_wishes: bool = False
) -> FinishedExpr:
    """
    Checks an expression and names its automatic tables and loop variables.

    Their symbols are #number:wish and %number:wish. `same` maps symbols to
    others of the same array. ignore_wishes=True makes the names depend on the
    structure alone. ValueError is raised for an expression that cannot be
    typed.
    """

class DeviceProfile:
    """What work costs on a device (docs/estimates.md)."""

    @staticmethod
    def shipped(name: str) -> DeviceProfile:
        """
        Returns the profile of this name that comes with the library. Another name
        is a ValueError.
        """

    @staticmethod
    def shipped_names() -> list[str]:
        """Returns the names of the profiles that come with the library."""

    @staticmethod
    def from_json(text: str) -> DeviceProfile:
        """
        Returns the profile of a JSON document. ValueError names a wrong member.
        """

    @staticmethod
    def read(path: str) -> DeviceProfile:
        """Reads a profile from a file that fdma-maskc calibrate wrote."""

    def to_json(self) -> str:
        """Returns the profile as a JSON document."""

    @property
    def name(self) -> str:
        """The name of the profile."""

    @property
    def source(self) -> str:
        """A sentence that says where the constants come from."""

    @property
    def provisional(self) -> bool:
        """True if constants were not measured on the device."""

    @property
    def num_workers(self) -> int:
        """The number of threads or multiprocessors."""

    def __repr__(self) -> str: ...

def estimate(
    mask: BlockMask,
    profile: DeviceProfile,
    *,
    batch: int,
    heads: int,
    heads_kv: int,
    head_dim: int,
    head_dim_v: int,
    dtype: str = "bfloat16",
    direction: str = "forward",
    tile: tuple[int, int] | None = None,
    columns: str = "automatic",
    workers: int = 0,
    count_all: bool = False,
    score: str = "",
) -> dict[str, object]:
    """
    Returns what `fdma-maskc estimate --json` prints for this mask, without its
    member `mask`.

    tile is (queries, keys); None means the first of the profile. workers 0
    means those of the profile. score has the names of parts, separated by
    commas. Times are in microseconds.
    """

def estimate_plan(
    plan: AttentionPlan,
    profile: DeviceProfile,
    *,
    deterministic: bool = False,
    corrects_delta: bool = False,
) -> dict[str, object]:
    """
    Returns the predicted time of a plan, as the member `masked` of `estimate`.

    deterministic and corrects_delta add the cost of deterministic gradients and
    of the correction pass to a backward plan. Times are in microseconds.
    """

def draw(
    mask: BlockMask,
    *,
    batch: int = 0,
    head: int = 0,
    max_width: int = 80,
    max_height: int = 40,
    unicode: bool = True,
) -> str:
    """
    Draws one (batch element, head) pair as text.

    A character stands for a tile or a rectangle of tiles. The last line is a
    legend. max_width and max_height count characters.
    """

def picture(
    mask: BlockMask, *, batch: int = 0, head: int = 0, max_side: int = 512
) -> tuple[NDArray[numpy.uint8], tuple[int, int]]:
    """
    Draws one (batch element, head) pair in at most max_side x max_side pixels.

    Returns the shades, uint8 [rows, columns], and the (queries, keys) of a
    pixel. A shade is 0 for an empty pixel, 255 for a full one and otherwise 1
    to 254, by the share of live cells.
    """

def longest_row(mask: BlockMask) -> int:
    """
    Returns the largest number of keys that a query sees.

    The cost is linear in the intervals of all query rows of the distinct (batch
    element, head) pairs.
    """

def block_mask_from_flex(
    seq_lengths: tuple[int, int],
    block: tuple[int, int],
    kv: tuple[NDArray[numpy.int32], NDArray[numpy.int32]],
    full_kv: tuple[NDArray[numpy.int32], NDArray[numpy.int32]] | None = None,
    q: tuple[NDArray[numpy.int32], NDArray[numpy.int32]] | None = None,
    full_q: tuple[NDArray[numpy.int32], NDArray[numpy.int32]] | None = None,
    own_cells: tuple[NDArray[numpy.int32], NDArray[numpy.uint64]] | None = None,
    cells: BlockMask | None = None,
) -> BlockMask:
    """
    Returns the mask of FlexAttention's tables.

    kv, full_kv, q and full_q are pairs of int32 arrays (num_blocks, indices).
    own_cells is the pair (fdma_bitmap_index int32, fdma_bitmaps uint64).
    """

def flex_from_block_mask(
    mask: BlockMask,
    block: tuple[int, int],
    separate_full_blocks: bool = True,
    with_transpose: bool = True,
    with_cells: bool = True,
    max_bytes: int = 17179869184,
) -> dict[str, Any]:
    """
    Returns FlexAttention's fields by name, as NumPy arrays and pairs of
    integers.

    MemoryError is raised if the result takes more than max_bytes bytes.
    """

def block_mask_from_flash_mask(
    startend_row_indices: NDArray[numpy.int32],
    causal: bool,
    q_len: int,
    block: tuple[int, int],
    heads: int = 0,
) -> BlockMask:
    """
    Returns the mask of startend_row_indices, int32 [batch, heads, kv_len,
    columns].
    """

def flash_mask_from_block_mask(
    mask: BlockMask, causal: bool | None = None, num_columns: int | None = None
) -> tuple[NDArray[numpy.int32], bool]:
    """
    Returns (startend_row_indices int32 [batch, heads, kv_len, columns],
    causal).
    """

def block_mask_from_bsr(
    data: NDArray[numpy.uint8],
    indices: NDArray[numpy.int64],
    indptr: NDArray[numpy.int64],
    lengths: tuple[int, int],
    block: tuple[int, int],
    index_base: int = 0,
    by_columns: bool = False,
) -> BlockMask:
    """
    Returns the mask of a block-sparse matrix.

    data is uint8 [blocks, block_q, block_kv]; indices and indptr are int64 of
    one dimension.
    """

def bsr_from_block_mask(
    mask: BlockMask, block: tuple[int, int], max_bytes: int = 1 << 34
) -> tuple[NDArray[numpy.bool_], NDArray[numpy.int64], NDArray[numpy.int64]]:
    """
    Returns (data bool [blocks, block_q, block_kv], indices int64, indptr
    int64).

    MemoryError is raised if the result takes more than max_bytes bytes.
    """

def block_mask_from_cu_seqlens(
    cu_seqlens_q: NDArray[numpy.int32],
    cu_seqlens_k: NDArray[numpy.int32],
    causal: bool,
    window_size: tuple[int, int],
    seqused_q: NDArray[numpy.int32] | None,
    seqused_k: NDArray[numpy.int32] | None,
    packed: bool,
    heads: int,
    block: tuple[int, int],
) -> BlockMask:
    """
    Returns the mask of FlashAttention's varlen arguments. The arrays are int32.
    """

def cu_seqlens_from_block_mask(mask: BlockMask) -> dict[str, Any]:
    """
    Returns cu_seqlens_q, cu_seqlens_k, causal, window_size, seqused_q,
    seqused_k and packed by name.
    """

def block_mask_from_hf_mask(
    attention_mask: Array, block: tuple[int, int], heads: int = 0
) -> BlockMask:
    """
    Returns the mask of booleans or additive floats [batch, heads, q_len,
    kv_len].
    """

def hf_mask_from_block_mask(
    mask: BlockMask, dtype: str = "bool", use_infinity: bool = False, max_bytes: int = 1 << 34
) -> NewArray:
    """
    Returns the mask as an object with __dlpack__, [batch, heads, q_len,
    kv_len].

    MemoryError is raised if the result takes more than max_bytes bytes.
    """

def block_mask_from_hf_padding(
    attention_mask: NDArray[numpy.uint8],
    causal: bool,
    q_len: int,
    heads: int,
    block: tuple[int, int],
) -> BlockMask:
    """
    Returns the mask of attention_mask, uint8 [batch, kv_len], which is 1 for a
    token and 0 for padding.
    """

def hf_padding_from_block_mask(
    mask: BlockMask, causal: bool | None = None
) -> tuple[NDArray[numpy.uint8], bool]:
    """Returns (attention_mask uint8 [batch, kv_len], causal)."""
