"""fdma.attention: softmax(scale * q k^T + bias, masked) v for PyTorch, NumPy, CuPy and JAX.

The type of the first argument chooses the implementation: attention/pytorch.py for PyTorch's
tensors, attention/arrays.py for all other arrays. A framework is imported only after one of its
arrays has been passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

import numpy as np

from .. import _fdma
from .foreign_keywords import refuse_keywords
from .plans import plans

if TYPE_CHECKING:
    from ..masks.block_mask import BlockMask
    from ..masks.expr_types import MaskExpr

__all__ = ["attention", "available_backends", "clear_plans"]

Layout = Literal["bhsd", "bshd"]
Backend = Literal["auto", "cpu", "sm90"]
_Array = TypeVar("_Array")

_runners: dict[type, Callable[..., Any]] = {}


@overload
def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    mask: BlockMask | MaskExpr | str | None = None,
    bias: _Array | None = None,
    scale: float | None = None,
    layout: Layout = "bhsd",
    return_lse: Literal[False] = False,
    deterministic: bool = False,
    backend: Backend = "auto",
    *,
    num_threads: int | None = None,
    softcap: float | None = None,
) -> _Array: ...
@overload
def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    mask: BlockMask | MaskExpr | str | None = None,
    bias: _Array | None = None,
    scale: float | None = None,
    layout: Layout = "bhsd",
    *,
    return_lse: Literal[True],
    deterministic: bool = False,
    backend: Backend = "auto",
    num_threads: int | None = None,
    softcap: float | None = None,
) -> tuple[_Array, _Array]: ...
@overload
def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    mask: BlockMask | MaskExpr | str | None = None,
    bias: _Array | None = None,
    scale: float | None = None,
    layout: Layout = "bhsd",
    *,
    return_lse: bool,
    deterministic: bool = False,
    backend: Backend = "auto",
    num_threads: int | None = None,
    softcap: float | None = None,
) -> _Array | tuple[_Array, _Array]: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    bias: Any = None,
    scale: float | None = None,
    layout: Layout = "bhsd",
    return_lse: bool = False,
    deterministic: bool = False,
    backend: Backend = "auto",
    *,
    num_threads: int | None = None,
    softcap: float | None = None,
    **others: NoReturn,
) -> Any:
    """softmax(softcap(scale * q k^T) + bias, masked) v, computing only what the mask keeps.

    q is [batch, heads, q_len, head_dim], k is [batch, heads_kv, kv_len, head_dim] and v is [batch,
    heads_kv, kv_len, head_dim_v] in layout "bhsd". In layout "bshd" the length comes before the
    heads. heads is a multiple of heads_kv; each KV head serves heads / heads_kv query heads. The
    dtype is float32, float16 or bfloat16, the same for q, k and v. The arguments are PyTorch
    tensors on the CPU or a GPU, or arrays of NumPy, CuPy or JAX. The result belongs to the same
    framework and is [batch, heads, q_len, head_dim_v] in the same layout. On a GPU the work is
    queued on the framework's current stream.

    mask: a BlockMask, a MaskExpr or a text of the mask language; None keeps every key. A text is
    compiled once for each shape. A MaskExpr with arrays is compiled at every call, so compile it
    with `fdma.compile` if several calls use it. A row without keys gives 0. A mask with lengths per
    batch element may be shorter than the tensors; rows past an element's length give 0.

    bias: floats of shape [batch, heads_kv, kv_len], or of a shape that broadcasts to it. They are
    added to the logits of each key after the scale.
    scale: a number; None means 1 / sqrt(head_dim).
    softcap: a number above 0, which caps scaled products x before the bias is added: they become
    softcap * tanh(x / softcap). None and 0 mean no cap.
    return_lse: return (result, log-sum-exp). The log-sum-exp is float32 [batch, heads, q_len], and
    -inf in rows without keys.
    backend: "auto" chooses "cpu" or "sm90" (Hopper GPUs) by where the tensors are. A backend that
    does not match the tensors' place is an error.
    num_threads: CPU threads of the call and of its gradients; 0 means all cores. None means
    torch.get_num_threads() for PyTorch and OMP_NUM_THREADS for other frameworks. The result has the
    same bits for every number of threads. The argument has no effect on a GPU.

    With PyTorch, q, k, v and bias get gradients, through the result and through the log-sum-exp.
    With `deterministic` or torch.use_deterministic_algorithms, gradients have the same bits every
    time. torch.compile, CUDA graphs and autocast work. torch.export and other recorders store the
    mask in the program. A tensor with strides that a kernel cannot read is copied first: the last
    stride must be 1, and on a GPU the others must be multiples of 8 elements and the address a
    multiple of 16 bytes.

    Raises TypeError and ValueError, which name the argument (`others` are the keywords of other
    libraries: the error says what to write instead); NotImplementedError, which names what
    the backend lacks (an element type, a head size, a gradient); MemoryError.

    Cost: the first call with a mask makes a plan, which takes some milliseconds. Plans are cached
    by mask, shape and device; `clear_plans` drops them. `fdma.plan` makes a plan ahead.

    >>> import fdma, numpy as np
    >>> q, k, v = (np.random.default_rng(i).random((1, 8, 300, 64), np.float32) for i in range(3))
    >>> fdma.attention(q, k, v, "causal & window(64)").shape
    (1, 8, 300, 64)
    """
    if others:
        refuse_keywords(attention, others)
    run = _runners.get(type(q))
    if run is None:
        run = runner_of(q)
    words = scale, layout, return_lse, deterministic, backend, num_threads, softcap
    return run(q, k, v, mask, bias, *words)


def clear_plans() -> None:
    """Drops the cached plans and workspaces of all calls, those of CUDA graphs included.

    They are those of `attention`, `dynamic_mask_attention` and `select_topk`. A plan object
    (`fdma.plan`) keeps its own.

    >>> import fdma
    >>> fdma.clear_plans()
    """
    plans.clear()
    _fdma.release_workspaces()


def available_backends() -> list[str]:
    """The backends that can run here: "cpu", and "sm90" if this build has its kernels and a Hopper
    GPU is there.

    >>> import fdma
    >>> "cpu" in fdma.available_backends()
    True
    """
    return _fdma.available_backends()


def runner_of(q: Any) -> Callable[..., Any]:
    """`attention` for the framework of an array, with the arguments in their order."""
    run: Callable[..., Any]
    if type(q) in _runners:
        return _runners[type(q)]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(q, torch.Tensor):
        from .pytorch import attention as run
    elif isinstance(q, np.ndarray):
        from .arrays import numpy_attention as run
    else:
        kinds = {kind.__module__.partition(".")[0] for kind in type(q).__mro__}
        if "cupy" in kinds:
            from .arrays import cupy_attention as run
        elif kinds & {"jax", "jaxlib"}:
            from .arrays import jax_attention as run
        else:
            raise TypeError(
                "q: expected a tensor of PyTorch or an array of NumPy, CuPy or JAX, got "
                f"{type(q).__name__}"
            )
    _runners[type(q)] = run
    return run
