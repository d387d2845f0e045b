"""Types of module _fdma; python_bindings/README.md says what the functions do."""

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

class BlockMask:
    @property
    def format(self) -> str: ...
    @property
    def block(self) -> tuple[int, int]: ...
    @property
    def q_len(self) -> int: ...
    @property
    def kv_len(self) -> int: ...
    @property
    def q_lens(self) -> list[int]: ...
    @property
    def kv_lens(self) -> list[int]: ...
    @property
    def num_batches(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_groups(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def spec(self) -> str: ...
    @property
    def counts(self) -> dict[str, int]: ...

class AttentionPlan:
    @property
    def backend(self) -> str: ...
    @property
    def tile(self) -> tuple[int, int]: ...
    @property
    def num_items(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]: ...

class DevicePlan:
    @property
    def device(self) -> int: ...
    @property
    def tile(self) -> tuple[int, int]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def workspace_nbytes(self) -> int: ...

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
) -> BlockMask: ...
def to_dense(mask: BlockMask, *, max_bytes: int = 1 << 32) -> NDArray[np.bool_]: ...
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
) -> AttentionPlan: ...
def upload(
    plan: AttentionPlan, *, device: int | None = None, stream: _Stream | None = None
) -> DevicePlan: ...
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
) -> tuple[NewArray, NewArray]: ...
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
) -> NewArray: ...
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
) -> tuple[_Out, NewArray]: ...
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
) -> _Out: ...
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
) -> tuple[NewArray, _Lse]: ...
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
) -> tuple[_Out, _Lse]: ...
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
) -> NewArray: ...
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
) -> _Out: ...

OPEN_END: int

class IncrementalTopk:
    def __init__(self, w: int) -> None: ...
    def append(
        self, scores: Array, among: Array | None = None, num_queries: int | None = None
    ) -> None: ...
    def end_group(self) -> None: ...
    def live_keys(self) -> NewArray: ...
    def dropped_keys(self) -> NewArray: ...
    def intervals(self) -> NewArray: ...
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
    def __init__(
        self,
        among: BlockMask,
        w: int,
        *,
        batch: int | None = None,
        heads_kv: int | None = None,
        device: int | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def select(
        self, scores: Array, *, out: Array | None = None, stream: _Stream | None = None
    ) -> NewArray: ...
    def saw_nan(self, *, stream: _Stream | None = None) -> bool: ...
    def to_mask(
        self,
        kept: Array,
        *,
        heads_q: int | None = None,
        block: tuple[int, int] = (128, 128),
        stream: _Stream | None = None,
    ) -> BlockMask: ...
    @property
    def w(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def workspace_nbytes(self) -> int: ...

class DeviceIncrementalTopk:
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
    ) -> None: ...
    def end_group(self, *, stream: _Stream | None = None) -> None: ...
    def refresh(self, *, stream: _Stream | None = None) -> None: ...
    def live_keys(self, *, stream: _Stream | None = None) -> tuple[NewArray, NewArray]: ...
    def intervals(self, *, stream: _Stream | None = None) -> NewArray: ...
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

def cpu_target() -> str: ...
def available_backends() -> list[str]: ...
def bfloat16_from_bits(bits: NDArray[np.uint16]) -> NewArray: ...
def bits_from_bfloat16(array: Array) -> NDArray[np.uint16]: ...
