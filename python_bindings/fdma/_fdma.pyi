"""
FDMA: masks compiled from short expressions, and attention that touches only what they keep
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeVar, overload

import numpy as np
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

__version__: str

class MaskSyntaxError(ValueError): ...

def bfloat16_from_bits(bits: NDArray[np.uint16]) -> NewArray:
    """
    The memory of a writable uint16 array as bfloat16, for NumPy, which has none: an object with __dlpack__.
    """

def bits_from_bfloat16(array: Array) -> NDArray[np.uint16]:
    """The memory of a writable bfloat16 array as a NumPy array of uint16."""

class BlockMask:
    """A compiled mask; compile() makes them."""

    @property
    def format(self) -> str: ...
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
    def nbytes(self) -> int: ...
    @property
    def spec(self) -> str: ...
    @property
    def counts(self) -> dict[str, int]:
        """
        Tiles by class and allowed pairs, over all batch elements and heads; counted anew at each call.
        """

    def __repr__(self) -> str: ...

def compile(
    spec: str,
    q_len: int | Sequence[int],
    kv_len: int | Sequence[int] | None = None,
    batch: int = 1,
    heads: int = 1,
    tables: Mapping[str, Array] | None = None,
    format: _Format = "segment",
    block: tuple[int, int] = (128, 128),
    num_threads: int = 0,
) -> BlockMask:
    """The exact compiled mask of a specification."""

def to_dense(mask: BlockMask, *, max_bytes: int = 1 << 32) -> NDArray[np.bool_]:
    """
    Every cell, as a boolean NumPy array [num_batches, num_heads, q_len, kv_len]; cells past an element's lengths are False.
    """

class AttentionPlan:
    """What will run; make_plan() makes them."""

    @property
    def backend(self) -> str: ...
    @property
    def tile(self) -> tuple[int, int]: ...
    @property
    def num_items(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]:
        """Tiles and gather chunks over all items."""

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
    columns: Literal["automatic", "scan", "gather"] = "automatic",
) -> AttentionPlan:
    """
    The plan of a mask for tensors of a shape, to be used by many calls of attention.
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
) -> tuple[NewArray, NewArray]:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan.
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
) -> NewArray:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan.
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
) -> tuple[_Out, NewArray]:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan.
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
) -> _Out:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan.
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
) -> tuple[NewArray, _Lse]:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan.
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
) -> tuple[_Out, _Lse]:
    """
    softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask, an AttentionPlan or a DevicePlan.
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
    def workspace_nbytes(self) -> int:
        """
        Bytes of the workspaces so far: one for each stream and each graph capture.
        """

    def __repr__(self) -> str: ...

def upload(
    plan: AttentionPlan, *, device: int | None = None, stream: _Stream | None = None
) -> DevicePlan:
    """
    Copies a plan for sm90 to a GPU, the current one unless `device` says which.
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
