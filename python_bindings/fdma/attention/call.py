"""attention: softmax(scale * q k^T + bias, masked) v, on the arrays of whichever framework.

The first argument's type decides who runs (`attention_torch`, `attention_arrays`); nothing of a
framework is imported before one of its arrays comes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

if TYPE_CHECKING:
    from ..masks.block_mask import BlockMask
    from ..masks.expr_types import MaskExpr

__all__ = ["attention", "clear_plans"]

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
) -> tuple[_Array, _Array]: ...
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
) -> Any:
    """softmax(scale * q k^T + bias, masked) v, computing only what the mask keeps.

    q [batch, heads, q_len, head_dim], k [batch, heads_kv, kv_len, head_dim], v [batch, heads_kv,
    kv_len, head_dim_v] (layout "bhsd"), or lengths before heads ("bshd"); heads is a multiple of
    heads_kv, whose heads serve that many query heads each. float32, float16 or bfloat16, one type
    for all. Tensors of PyTorch on the CPU or a GPU, arrays of NumPy, CuPy or JAX; the result is of
    the same kind, [batch, heads, q_len, head_dim_v] in that layout. Work is queued on the current
    stream of the framework.

    mask: a BlockMask, a MaskExpr or a text of the mask language; None: every key. Texts are bound
    to the shape and compiled once for it; compile masks with arrays yourself where they serve more
    than one call. A row without keys gives 0. A mask with lengths per batch element may be shorter
    than the tensors: rows past an element's length give 0.

    bias: float, added to the logits of a key, after the scale: [batch, heads_kv, kv_len], or what
    broadcasts to that. scale: 1 / sqrt(head_dim) where None. return_lse: (result, log-sum-exp
    float32 [batch, heads, q_len]); it is -inf in rows without keys. backend: "auto" is "cpu" or
    "sm90" (Hopper GPUs) by where the tensors are; others are errors. num_threads: threads of the
    CPU, for the gradients too, 0 for all cores; None: torch.get_num_threads() with PyTorch, else
    what OMP_NUM_THREADS says. It changes no bit of a result, and nothing on a GPU.

    PyTorch: gradients of q, k, v and bias, through the result and the log-sum-exp; with
    deterministic, or torch.use_deterministic_algorithms, the same bits every time. torch.compile,
    CUDA graphs, autocast; torch.export and its kin, which write the mask down. A tensor whose
    strides a kernel cannot read (the last is not 1; on a GPU one is no multiple of 8 or the address
    none of 16 bytes) is copied first.

    Raises TypeError, ValueError naming the argument; NotImplementedError for what a backend lacks
    (element types, head sizes, gradients), saying which; MemoryError.

    Plans are kept by mask, shape and place; the first call with a mask makes one, some
    milliseconds. `clear_plans` lets them go.

    >>> import fdma, numpy as np
    >>> q, k, v = (np.random.default_rng(i).random((1, 8, 300, 64), np.float32) for i in range(3))
    >>> fdma.attention(q, k, v, "causal & window(64)").shape
    (1, 8, 300, 64)
    """
    run = _runners.get(type(q))
    if run is None:
        run = _runner_of(q)
    return run(q, k, v, mask, bias, scale, layout, return_lse, deterministic, backend, num_threads)


def clear_plans() -> None:
    """Lets plans and workspaces go that `attention` has kept, those of captured CUDA graphs too.

    >>> import fdma
    >>> fdma.clear_plans()
    """
    from .. import _fdma
    from .plans import plans

    plans.clear()
    _fdma.release_workspaces()


def _runner_of(q: Any) -> Callable[..., Any]:
    run: Callable[..., Any]
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
