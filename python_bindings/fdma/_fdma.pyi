"""
FDMA: masks compiled from short expressions, and attention that touches only what they keep
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
"""What FDMA reads: an array of NumPy, PyTorch, JAX, CuPy, .., or any Python buffer."""

_Stream = int | _CudaStream
"""A cudaStream_t as a number, or an object that has one."""

class NewArray:
    """What FDMA allocates: numpy.asarray(x), torch.from_dlpack(x), .. share its memory."""

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
_DType = Literal["float32", "float16", "bfloat16"]
_Stage = Literal["scores", "selection", "lists", "attention"]

__version__: str

class MaskSyntaxError(ValueError): ...

def bfloat16_from_bits(bits: NDArray[numpy.uint16]) -> NewArray:
    """
    The memory of a writable uint16 array as bfloat16, for NumPy, which has none: an object with __dlpack__.
    """

def bits_from_bfloat16(array: Array) -> NDArray[numpy.uint16]:
    """The memory of a writable bfloat16 array as a NumPy array of uint16."""

class BlockMask:
    """A compiled mask; compile() makes them."""

    @property
    def format(self) -> _Format: ...
    @property
    def block(self) -> tuple[int, int]: ...
    @property
    def q_len(self) -> int:
        """The longest one."""

    @property
    def kv_len(self) -> int:
        """The longest one."""

    @property
    def q_lens(self) -> list[int]:
        """One for all batch elements, or one for each."""

    @property
    def kv_lens(self) -> list[int]:
        """One for all batch elements, or one for each."""

    @property
    def num_batches(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_groups(self) -> int:
        """Different masks among the (batch, head) pairs."""

    @property
    def num_cells(self) -> int:
        """Query-key pairs that exist."""

    @property
    def origin(self) -> tuple[int, int, int, int]:
        """Where a crop lay: (q, kv, batch, head) offsets."""

    @property
    def nbytes(self) -> int: ...
    @property
    def spec(self) -> str: ...
    @property
    def is_per_batch(self) -> bool:
        """It was written with b."""

    @property
    def is_per_head(self) -> bool:
        """It was written with h."""

    @property
    def counts(self) -> dict[str, int]:
        """
        Tiles by class and allowed pairs, over all batch elements and heads; counted anew at each call.
        """

    @property
    def counts_of_groups(self) -> list[dict[str, int]]:
        """The same of each group."""

    def to_format(self, format: _Format, block: tuple[int, int]) -> BlockMask:
        """The same cells in another format or other blocks."""

    def combine(
        self, other: BlockMask, operation: Literal["and", "or", "minus", "xor"]
    ) -> BlockMask:
        """'and', 'or', 'minus' or 'xor' of two masks, as segments."""

    def complement(self) -> BlockMask:
        """The cells that exist and are not in the mask."""

    def shift(self, dq: int, dk: int) -> BlockMask:
        """Every cell moved; lengths stay."""

    def transpose(self) -> BlockMask:
        """Query rows and keys swapped."""

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
        """A window as a mask of its own, in the same format."""

    def select(self, batch_begin: int, batch_end: int, head_begin: int, head_end: int) -> BlockMask:
        """Some batch elements and heads, whole."""

    @staticmethod
    def stack(masks: Sequence[BlockMask]) -> BlockMask:
        """
        The batch elements of several masks of one format, block and number of heads.
        """

    def equal_cells(self, other: BlockMask) -> bool:
        """Counts, lengths and cells are the same."""

    def content_hash(self) -> str:
        """32 hexadecimal digits over everything stored but the spec."""

    def mask_hash(self) -> str:
        """32 hexadecimal digits over counts, lengths and cells."""

    def check_serves(self, batch: int, heads: int, name: str = "mask") -> None:
        """
        ValueError where a mask that was written with b or h and compiled for one element or head would serve several.
        """

    def validate(self, level: Literal["sizes", "structure", "canonical"]) -> None:
        """
        ValueError for the first inconsistency; level is 'sizes', 'structure' or 'canonical'.
        """

    def __repr__(self) -> str: ...
    @property
    def group_of(self) -> NDArray[numpy.int32]:
        """int32 [num_batches, num_heads]: which group each pair has. Read-only."""

    def arrays(self) -> list[dict[str, NDArray[Any]]]:
        """
        Of each group its arrays by name, as mask files hold them. Read-only, not copied.
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
        The mask of such arrays, copied; ValueError names what is inconsistent.
        """

    def to_dense(
        self,
        *,
        batch: tuple[int, int] | None = None,
        heads: tuple[int, int] | None = None,
        max_bytes: int = 1 << 32,
    ) -> NDArray[numpy.bool_]:
        """
        Every cell, as a boolean NumPy array [batches, heads, q_len, kv_len]; cells past an element's lengths are False.
        """

    @staticmethod
    def from_dense(cells: Array, *, block: tuple[int, int], format: _Format) -> BlockMask:
        """The mask of an array of booleans, or of uint8 0 and 1."""

    def to_columns(
        self,
        *,
        batch: tuple[int, int] | None = None,
        heads: tuple[int, int] | None = None,
        max_bytes: int = 1 << 32,
    ) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32]]:
        """
        (begin, end), int32 [batches, heads, n, kv_len]: the query intervals of each key.
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
        """The mask whose keys are seen by the union of their query intervals."""

    def difference_from(self, other: BlockMask, max_tiles: int) -> dict[str, Any]:
        """
        How two masks differ: counts of cells and tiles (in this mask's blocks), the first tiles and the first cell.
        """

def stored_array_specs(
    format: str, q_len: int, kv_len: int, block: tuple[int, int]
) -> list[tuple[str, str, int | None, int, int]]:
    """
    Name, element type, width (None: one dimension), least and most rows of each array of a group.
    """

def to_dense(mask: BlockMask, *, max_bytes: int = 1 << 32) -> NDArray[numpy.bool_]:
    """
    Every cell, as a boolean NumPy array [num_batches, num_heads, q_len, kv_len]; cells past an element's lengths are False.
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
    """The exact compiled mask of a specification, given as text or finished."""

class AttentionPlan:
    """What will run; make_plan() makes them."""

    @property
    def backend(self) -> str: ...
    @property
    def tile(self) -> tuple[int, int]: ...
    @property
    def heads_per_tile(self) -> int:
        """
        Query heads that share a tile, whose rows are then tile[0] for each of them.
        """

    @property
    def num_items(self) -> int: ...
    @property
    def num_split_rows(self) -> int:
        """Query tiles whose keys are split over several items."""

    @property
    def form(self) -> str: ...
    @property
    def direction(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]:
        """Tiles and index tiles over all items."""

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
    key_bias: bool = False,
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
    The plan of a mask for tensors of a shape, to be used by many calls of attention. form='parametric' keeps the mask in closed form: calls may bring lengths and documents. direction='backward' is for attention_backward_call. num_threads make it (0: all) and do not change it.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | DevicePlan,
    *,
    key_bias: Array | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: None = None,
    lse: None = None,
    return_lse: Literal[True] = True,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
) -> tuple[NewArray, NewArray]:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan. q_lens, kv_lens [batch] and cu_seqlens [documents + 1] or [batch, documents + 1], int32 and where q is, replace those of a closed-form plan.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | DevicePlan,
    *,
    key_bias: Array | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: None = None,
    lse: None = None,
    return_lse: Literal[False],
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
) -> NewArray:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan. q_lens, kv_lens [batch] and cu_seqlens [documents + 1] or [batch, documents + 1], int32 and where q is, replace those of a closed-form plan.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | DevicePlan,
    *,
    key_bias: Array | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: _Out,
    lse: None = None,
    return_lse: Literal[True] = True,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
) -> tuple[_Out, NewArray]:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan. q_lens, kv_lens [batch] and cu_seqlens [documents + 1] or [batch, documents + 1], int32 and where q is, replace those of a closed-form plan.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | DevicePlan,
    *,
    key_bias: Array | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: _Out,
    lse: None = None,
    return_lse: Literal[False],
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
) -> _Out:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan. q_lens, kv_lens [batch] and cu_seqlens [documents + 1] or [batch, documents + 1], int32 and where q is, replace those of a closed-form plan.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | DevicePlan,
    *,
    key_bias: Array | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: None = None,
    lse: _Lse,
    return_lse: Literal[True] = True,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
) -> tuple[NewArray, _Lse]:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan. q_lens, kv_lens [batch] and cu_seqlens [documents + 1] or [batch, documents + 1], int32 and where q is, replace those of a closed-form plan.
    """

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BlockMask | AttentionPlan | DevicePlan,
    *,
    key_bias: Array | None = None,
    softmax_scale: float | None = None,
    stream: _Stream | None = None,
    num_threads: int = 0,
    out: _Out,
    lse: _Lse,
    return_lse: Literal[True] = True,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    cu_seqlens: Array | None = None,
) -> tuple[_Out, _Lse]:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan. q_lens, kv_lens [batch] and cu_seqlens [documents + 1] or [batch, documents + 1], int32 and where q is, replace those of a closed-form plan.
    """

def cpu_target() -> str:
    """The instruction set that the CPU backend runs with here."""

def available_backends() -> list[str]:
    """The backends that can run here."""

class DevicePlan:
    """A plan in the memory of a GPU; upload() makes them."""

    @property
    def device(self) -> int: ...
    @property
    def tile(self) -> tuple[int, int]: ...
    @property
    def nbytes(self) -> int:
        """Bytes of device memory, workspaces apart."""

    @property
    def launch_nbytes(self) -> int:
        """Bytes of workspace that one launch needs."""

    @property
    def workspace_nbytes(self) -> int:
        """
        Bytes of its own workspaces so far: one for each stream and each graph capture of `attention`, one for each capture of `attention_call`, whose streams share theirs among plans.
        """

    @property
    def is_captured(self) -> bool:
        """
        Whether a CUDA graph holds a call by it, for as long as which it has to live.
        """

    def __repr__(self) -> str: ...

def upload(
    plan: AttentionPlan,
    *,
    device: int | None = None,
    stream: _Stream | None = None,
    waits: bool = False,
    deterministic: bool = False,
) -> DevicePlan:
    """
    Copies a plan for sm90 to a GPU, the current one unless `device` says which; with waits it is there on return, for every stream; a backward plan with what deterministic calls need if so asked.
    """

def attention_call(
    plan: AttentionPlan | DevicePlan,
    q: Array,
    k: Array,
    v: Array,
    key_bias: Array | None,
    out: Array,
    lse: Array | None,
    softmax_scale: float = 0.0,
    heads_first: bool = False,
    out_low: Array | None = None,
    num_threads: int = 0,
    stream: _Stream | None = None,
) -> int:
    """
    Attention by a plan for these tensors into out and lse, which nothing else uses and which lie without gaps; rows past lengths are 0 and -inf. heads_first: q, k, v, out are [batch, heads, len, head_dim]. out_low: like out, of 16 bits; its low half, for attention_backward_call. num_threads: of the CPU; 0: all. Returns 0; or, having done nothing, a bit for each of q, k, v, key_bias that has to be made contiguous first. Gradients are the caller's affair.
    """

def attention_backward_call(
    plan: AttentionPlan | DevicePlan,
    q: Array,
    k: Array,
    v: Array,
    key_bias: Array | None,
    out: Array,
    lse: Array,
    dout: Array,
    dlse: Array | None,
    dq: Array,
    dk: Array,
    dv: Array,
    dkey_bias: Array | None,
    softmax_scale: float = 0.0,
    heads_first: bool = False,
    deterministic: bool = False,
    workspace: Array | None = None,
    out_low: Array | None = None,
    num_threads: int = 0,
    stream: _Stream | None = None,
) -> int:
    """
    The gradients of attention_call by a plan of direction 'backward': into dq, dk, dv and, where wanted, dkey_bias. workspace: of a plan on a GPU, plan.launch_nbytes bytes that nothing else uses on that stream meanwhile; None: the plan's own. out_low: of attention_call; without it a gradient of a bias, and those of few queries, cost a pass over all keys more. num_threads: of the CPU; 0: all. Returns 0; or, having done nothing, a bit for each of q, k, v, key_bias, dout, dlse that has to be made contiguous first.
    """

def release_workspaces() -> None:
    """Lets go of the workspaces that attention_call's streams share."""

class CachedCalls:
    """
    Calls of attention on PyTorch's tensors that were made before: by the number of the mask and by what q, k, v and the bias show.
    """

    def __init__(self, empty_like: object, contiguous: object, new_outputs: object) -> None:
        """
        empty_like, and the memory format: PyTorch's. new_outputs(q, k, v, heads_first, with_lse): (out, lse or None) where no tensor like q will do.
        """

    def add(
        self,
        mask: int,
        q: object,
        k: object,
        v: object,
        bias: object | None,
        heads_first: bool,
        is_backward: bool,
        is_deterministic: bool,
        entry: object,
        lse_like: object,
    ) -> bool:
        """
        From now on such a call is made by entry.plan; entry.last_use is the time of its last one. lse_like: of the extents, type and place of the log-sum-exp, in whatever strides. False, having done nothing, where the tensors do not describe themselves to C.
        """

    def find(
        self,
        mask: int,
        q: object,
        k: object,
        v: object,
        bias: object | None,
        heads_first: bool,
        is_backward: bool,
        is_deterministic: bool,
    ) -> object:
        """The plan of a call, or None."""

    def run(
        self,
        mask: int,
        q: object,
        k: object,
        v: object,
        bias: object | None,
        softmax_scale: float,
        heads_first: bool,
        wants_lse: bool,
        num_threads: int,
    ) -> object:
        """
        Attention by a forward plan (added with is_deterministic=False): out, or (out, lse), by num_threads threads of the CPU (0: all). None, having done nothing, where the call is not known or its tensors cannot be read as they lie. Gradients are the caller's affair.
        """

    def clear(self) -> None:
        """Lets go of all."""

    def __len__(self) -> int: ...

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
    Scores float32 [batch, heads_kv, kv_len] of values [batch, kv_len, heads_kv, head_dim].
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
    Scores float32 [batch, heads_kv, kv_len] of values [batch, kv_len, heads_kv, head_dim].
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
    The gradients (dvalues, ddt_proj, da_coef) of zoh_scores, from those of its scores. Each goes into the array that is given, of its input's type or float32; True: a new array; False: it is not wanted and None. other_dvalues: a gradient of values that dvalues holds as well; may be dvalues itself. workspace: of CUDA tensors, zoh_backward_workspace_nbytes bytes; without it the call waits for the GPU.
    """

def zoh_backward_workspace_nbytes(
    batch: int, kv_len: int, heads_kv: int, head_dim: int, wide: bool
) -> int:
    """
    Bytes of workspace of zoh_scores_backward on a GPU; wide: dt_proj is [heads_kv, heads_kv * head_dim].
    """

OPEN_END: int = 2147483647

class IncrementalTopk:
    """Top-k selection of one row of scores that follows a growing sequence."""

    def __init__(self, w: int) -> None: ...
    def append(
        self, scores: Array, among: Array | None = None, num_queries: int | None = None
    ) -> None:
        """
        More keys and queries. Without among key i is visible from the i-th of these queries on (causal); among, int32 [keys, 2], gives each key's queries, with OPEN_END for an end that is not known yet.
        """

    def end_group(self) -> None:
        """No later query sees the keys so far: a document ends."""

    def live_keys(self) -> NewArray:
        """
        The keys that later queries may keep, ascending: what a cache has to hold.
        """

    def dropped_keys(self) -> NewArray:
        """The keys that the last append or end_group made dead."""

    def intervals(self) -> NewArray:
        """
        int32 [kv_len, 2]: the queries so far that keep each key, 0, 0 for none.
        """

    def state(self) -> dict[str, Any]:
        """All that it knows: the arguments of `restore`."""

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
        What goes on as the one that `state` was asked of. ValueError for a state that cannot be.
        """

    @property
    def w(self) -> int: ...
    @property
    def q_len(self) -> int: ...
    @property
    def kv_len(self) -> int: ...
    @property
    def num_live_keys(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class DeviceTopk:
    """Top-k selection on a GPU among the keys of a mask, prepared once."""

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
        Selects w keys a query among those that the mask `among` shows, for each batch element and KV head. One interval per key: causal, documents, prefixes, padding; others are an error, compile() selects among any.
        """

    def select(
        self, scores: Array, *, out: Array | None = None, stream: _Stream | None = None
    ) -> NewArray:
        """
        int32 [batch, heads_kv, kv_len, 2] on the GPU: the queries that keep each key, 0, 0 for none; from float32 scores [batch, heads_kv, kv_len].
        """

    def saw_nan(self, *, stream: _Stream | None = None) -> bool:
        """
        Whether a score was NaN (it ranks lowest) since the last time this was asked.
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
        What select() returned as a mask: waits for it and copies it to the host.
        """

    @property
    def w(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def workspace_nbytes(self) -> int:
        """Bytes of one workspace: each stream and each graph capture has one."""

class DeviceIncrementalTopk:
    """
    Top-k selection on a GPU that follows growing sequences, all rows with one mask.
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
    ) -> None: ...
    def append(
        self,
        scores: Array,
        among: Array | None = None,
        num_queries: int | None = None,
        *,
        stream: _Stream | None = None,
    ) -> None:
        """
        More keys, scores [batch, heads_kv, keys] on the GPU, and queries; among as IncrementalTopk.append has it.
        """

    def end_group(self, *, stream: _Stream | None = None) -> None:
        """No later query sees the keys so far: a document ends."""

    def refresh(self, *, stream: _Stream | None = None) -> None:
        """Takes q_len and kv_len from the device, after graphs were replayed."""

    def live_keys(self, *, stream: _Stream | None = None) -> tuple[NewArray, NewArray]:
        """
        On the GPU: int32 [batch, heads_kv, w] with the keys that later queries may keep, ascending, and int32 [batch, heads_kv] with how many there are.
        """

    def intervals(self, *, stream: _Stream | None = None) -> NewArray:
        """
        int32 [batch, heads_kv, kv_len, 2] on the host: the queries so far that keep each key.
        """

    @property
    def w(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def q_len(self) -> int: ...
    @property
    def kv_len(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class DynamicMaskAttention:
    """
    Scores of keys, the w best for each query and attention over those, prepared for a shape.
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
        Selects among the keys that the mask `among` shows (of 1 or heads_kv heads), or, given q_len and kv_len, under causal. bias: exp, log or none, what is added to logits. gradients: backward() may be called.
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
        (out, lse, scores, kept), None for what is not wanted. Scores come from v, dt_proj and a_coef, or are given: float32 [batch, heads_kv, kv_len]. kept: int32 [batch, heads_kv, kv_len, 2], the queries that keep each key. stages: on a GPU, the first and the last part to run, to time them. scores_out, kept_out: memory for scores that are made, and for kept. out_low: like out, of 16 bits; its low half, for backward().
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
        Gradients of a call of run(), into dq, dk, dv and, where wanted, dscores, ddt_proj and da_coef. dt_proj and a_coef: None where scores were given. kept: on a GPU as run() wrote it, unless reading is all. out_low: of that call, if it had one. workspace: on a GPU, backward_workspace_nbytes bytes (deterministic_workspace_nbytes) there, at a multiple of 256, that nothing else uses until the call's work is done.
        """

    def to_mask(
        self, kept: Array, *, block: tuple[int, int] = (128, 128), stream: _Stream | None = None
    ) -> BlockMask:
        """
        What run() returned as kept as a mask of heads_q heads; on a GPU waits and copies.
        """

    def saw_nan(self, *, stream: _Stream | None = None) -> bool:
        """
        On a GPU: whether a score was NaN (it ranks lowest) since this was last asked.
        """

    @property
    def backend(self) -> str: ...
    @property
    def reading(self) -> str:
        """How attention reads the selection: gather, scan or all."""

    @property
    def heads_per_tile(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def workspace_nbytes(self) -> int:
        """Bytes of one workspace: each stream and each graph capture has one."""

    @property
    def backward_workspace_nbytes(self) -> int:
        """Bytes of workspace of backward(); 0 on the host."""

    @property
    def deterministic_workspace_nbytes(self) -> int:
        """The same of backward() with deterministic."""

class CusparseAttention:
    """
    Attention by cuSPARSE alone (SDDMM, softmax, SpMM), prepared once for a mask: what FDMA is measured beside and tested against.
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
        On the current device. precision='tensor' keeps the types of the tensors where cuSPARSE takes them; library names libcusparse.so.12 or its folder.
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
        """attention() into `out` and `lse`. One call at a time."""

    @property
    def device(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""

    @property
    def num_cells(self) -> int:
        """Cells of all distinct masks."""

def cusparse_version(library: str = "") -> str:
    """
    The version of cuSPARSE that CusparseAttention would use; NotImplementedError without one.
    """

class ExprNode:
    """One operation of an expression over shared operands; immutable."""

    @property
    def table_free_text(self) -> str | None:
        """The text as it stands, unchecked; None where there are tables in it."""

    @property
    def depends_on_cell(self) -> bool:
        """
        True where the value may differ between cells of one batch element and head.
        """

    @property
    def operands(self) -> list[ExprNode]: ...
    def text(self, same: Mapping[str, str] = {}) -> str:
        """The text as it stands, unchecked; `same` as for finish_expr."""

    def table_names(self, same: Mapping[str, str] = {}) -> dict[str, str]:
        """The names that text() writes for automatic tables, by symbol."""

def expr_node(
    op: str, operands: Sequence[ExprNode] = [], value: int = 0, symbol: str = ""
) -> ExprNode:
    """An operation by its name, all but named masks."""

def named_node(name: str, operands: Sequence[ExprNode], keywords: Sequence[str]) -> ExprNode:
    """A named mask; keywords are "" for what is given by position."""

class Expr:
    """A finished expression; parse_expr and finish_expr make it."""

    @property
    def text(self) -> str:
        """As parsed, or in the canonical spelling."""

    @property
    def canonical_text(self) -> str: ...
    @property
    def table_names(self) -> list[str]:
        """Sorted, without @."""

    @property
    def needs_selection(self) -> bool:
        """True where it has a topk."""

    def mentions(self, variable: str) -> bool: ...
    def dump(self) -> str:
        """One operation a line."""

    def node(self, automatic: Mapping[str, str], number: int) -> ExprNode:
        """
        Its nodes; tables in `automatic` and all loop variables under automatic symbols.
        """

    def equals(self, other: Expr) -> bool:
        """Structural equality."""

def parse_expr(text: str) -> Expr:
    """Errors: MaskSyntaxError."""

class FinishedExpr:
    @property
    def expr(self) -> Expr: ...
    @property
    def table_names(self) -> dict[str, str]:
        """The names that automatic tables have in it, by symbol."""

def finish_expr(
    node: ExprNode, same: Mapping[str, str] = {}, ignore_wishes: bool = False
) -> FinishedExpr:
    """
    Checks an expression and names its automatic tables (#number:wish) and loop variables (%number:wish); `same` maps symbols to others of the same array.
    """

class DeviceProfile:
    """What work costs on a device (docs/estimates.md)."""

    @staticmethod
    def shipped(name: str) -> DeviceProfile:
        """One that comes with the library."""

    @staticmethod
    def shipped_names() -> list[str]: ...
    @staticmethod
    def from_json(text: str) -> DeviceProfile: ...
    @staticmethod
    def read(path: str) -> DeviceProfile:
        """A file, as fdma-maskc calibrate writes it."""

    def to_json(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def provisional(self) -> bool: ...
    @property
    def num_workers(self) -> int: ...
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
) -> dict[str, object]:
    """
    What `fdma-maskc estimate --json` says of this mask, its member `mask` apart.
    """

def estimate_plan(
    plan: AttentionPlan,
    profile: DeviceProfile,
    *,
    deterministic: bool = False,
    corrects_delta: bool = False,
) -> dict[str, object]:
    """
    The predicted time of this plan, of its direction: what `estimate` says as `masked`.

    Backward with deterministic gradients, or with a pass over the keys for the sums
    of rows, where asked for.
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
    One (batch, head) pair as text, a character for each tile or rectangle of tiles, and a legend line.
    """

def picture(
    mask: BlockMask, *, batch: int = 0, head: int = 0, max_side: int = 512
) -> tuple[NDArray[numpy.uint8], tuple[int, int]]:
    """
    One (batch, head) pair in at most max_side x max_side pixels: shades uint8 [rows, keys], 0 empty, 255 full, between them partial, 1 to 254 by the share of live cells; and the query rows and keys of a pixel.
    """

def longest_row(mask: BlockMask) -> int:
    """
    The most keys that any query sees. Cost: O(query rows of the distinct (batch, head) pairs * their intervals).
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
    The mask of FlexAttention's tables, each a pair of int32 arrays (num_blocks, indices); own_cells is the pair (fdma_bitmap_index int32, fdma_bitmaps uint64).
    """

def flex_from_block_mask(
    mask: BlockMask,
    block: tuple[int, int],
    separate_full_blocks: bool = True,
    with_transpose: bool = True,
    with_cells: bool = True,
    max_bytes: int = 17179869184,
) -> dict[str, Any]:
    """FlexAttention's fields by name, NumPy arrays and pairs of integers."""

def block_mask_from_flash_mask(
    startend_row_indices: NDArray[numpy.int32],
    causal: bool,
    q_len: int,
    block: tuple[int, int],
    heads: int = 0,
) -> BlockMask:
    """The mask of int32 [batch, heads, kv_len, columns]."""

def flash_mask_from_block_mask(
    mask: BlockMask, causal: bool | None = None, num_columns: int | None = None
) -> tuple[NDArray[numpy.int32], bool]:
    """(startend_row_indices, causal)."""

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
    The mask of uint8 data [blocks, block_q, block_kv], int64 indices and indptr.
    """

def bsr_from_block_mask(
    mask: BlockMask, block: tuple[int, int], max_bytes: int = 1 << 34
) -> tuple[NDArray[numpy.bool_], NDArray[numpy.int64], NDArray[numpy.int64]]:
    """(data, indices, indptr)."""

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
    """The mask of FlashAttention's varlen arguments; arrays of int32."""

def cu_seqlens_from_block_mask(mask: BlockMask) -> dict[str, Any]:
    """
    cu_seqlens_q, cu_seqlens_k, causal, window_size, seqused_q, seqused_k, packed.
    """

def block_mask_from_hf_mask(
    attention_mask: Array, block: tuple[int, int], heads: int = 0
) -> BlockMask:
    """The mask of [batch, heads, q_len, kv_len] booleans or additive floats."""

def hf_mask_from_block_mask(
    mask: BlockMask, dtype: str = "bool", use_infinity: bool = False, max_bytes: int = 1 << 34
) -> NewArray:
    """[batch, heads, q_len, kv_len], an object with __dlpack__."""

def block_mask_from_hf_padding(
    attention_mask: NDArray[numpy.uint8],
    causal: bool,
    q_len: int,
    heads: int,
    block: tuple[int, int],
) -> BlockMask:
    """The mask of [batch, kv_len] uint8: 1 for a token, 0 for padding."""

def hf_padding_from_block_mask(
    mask: BlockMask, causal: bool | None = None
) -> tuple[NDArray[numpy.uint8], bool]:
    """(attention_mask uint8, causal)."""
