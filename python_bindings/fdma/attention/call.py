"""fdma.attention: softmax(score, masked) v for PyTorch, NumPy, CuPy and JAX.

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
from .frameworks import framework
from .plans import plans
from .score import GivenScore

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
    *,
    bias: _Array | None = None,
    key_bias: _Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: _Array | None = None,
    relative: tuple[_Array, int] | None = None,
    sinks: _Array | None = None,
    dropout_p: float = 0.0,
    generator: Any = None,
    dropout_seed: Any = None,
    return_lse: Literal[False] = False,
    return_max_logit: Literal[False] = False,
    return_probabilities: Literal[False] = False,
    deterministic: bool = False,
    layout: Layout = "bhsd",
    backend: Backend = "auto",
    num_threads: int | None = None,
) -> _Array: ...
@overload
def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    mask: BlockMask | MaskExpr | str | None = None,
    *,
    bias: _Array | None = None,
    key_bias: _Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: _Array | None = None,
    relative: tuple[_Array, int] | None = None,
    sinks: _Array | None = None,
    dropout_p: float = 0.0,
    generator: Any = None,
    dropout_seed: Any = None,
    return_lse: Literal[True],
    return_max_logit: Literal[False] = False,
    return_probabilities: Literal[False] = False,
    deterministic: bool = False,
    layout: Layout = "bhsd",
    backend: Backend = "auto",
    num_threads: int | None = None,
) -> tuple[_Array, _Array]: ...
@overload
def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    mask: BlockMask | MaskExpr | str | None = None,
    *,
    bias: _Array | None = None,
    key_bias: _Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: _Array | None = None,
    relative: tuple[_Array, int] | None = None,
    sinks: _Array | None = None,
    dropout_p: float = 0.0,
    generator: Any = None,
    dropout_seed: Any = None,
    return_lse: bool = False,
    return_max_logit: bool = False,
    return_probabilities: bool = False,
    deterministic: bool = False,
    layout: Layout = "bhsd",
    backend: Backend = "auto",
    num_threads: int | None = None,
) -> _Array | tuple[_Array, ...]: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    bias: Any = None,
    key_bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    relative: tuple[Any, int] | None = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    generator: Any = None,
    dropout_seed: Any = None,
    return_lse: bool = False,
    return_max_logit: bool = False,
    return_probabilities: bool = False,
    deterministic: bool = False,
    layout: Layout = "bhsd",
    backend: Backend = "auto",
    num_threads: int | None = None,
    **others: NoReturn,
) -> Any:
    """softmax(score of scale * q k^T, masked) v, computing only what the mask keeps.

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

    The following make the score of query q and key k, whose position is pos = q + kv_len - q_len.
    They have heads before lengths in every layout.

    scale: a number; None means 1 / sqrt(head_dim).
    softcap: a number above 0, which caps scaled products x before anything is added: they become
    softcap * tanh(x / softcap). None and 0 mean no cap.
    key_bias: floats [batch, heads_kv, kv_len] (extents may be 1), added for each key.
    bias: floats [batch or 1, heads or heads_kv or 1, q_len or 1, kv_len], added for each query and
    key. float32 and the dtype of q are read as they are.
    alibi_slopes: floats [heads] or [batch, heads], times abs(pos - k) subtracted (ALiBi).
    relative: a pair (table, left), whose table [heads or 1, left + 1 + right] of floats is added by
    distance: element left + k - pos, or for keys further away the first or last one.
    sinks: floats [heads] or [batch, heads, q_len], the logit of one more key, whose value is 0. It
    takes weight from the keys (gpt-oss).
    dropout_p: the probability, below 1, with which a pair is dropped after the softmax; the weights
    of the others are divided by 1 - dropout_p. Whether a pair is dropped is a function of the seed,
    the batch element, the head, the query and the key.
    generator: the torch.Generator (for NumPy's arrays the numpy.random.Generator) that the seed is
    drawn from. None means PyTorch's own; on a GPU each call advances its offset by 4.
    dropout_seed: the seed itself: an integer, a pair (seed, offset), or a tensor int64 [2] of both
    where q is, which is read when the call runs.

    return_lse: return the log-sum-exp after the result, float32 [batch, heads, q_len], and -inf in
    rows without keys. It counts no sink and no dropout.
    return_max_logit: not there yet.
    return_probabilities: return the weights of the values last, float32 [batch, heads, q_len,
    kv_len]: with PyTorch alone, and up to 2^28 of them.
    backend: "auto" chooses "cpu" or "sm90" (Hopper GPUs) by where the tensors are. A backend that
    does not match the tensors' place is an error.
    num_threads: CPU threads of the call and of its gradients; 0 means all cores. None means
    torch.get_num_threads() for PyTorch and OMP_NUM_THREADS for other frameworks. The result has the
    same bits for every number of threads. The argument has no effect on a GPU.

    With PyTorch, q, k, v, bias, key_bias, sinks and the table of relative get gradients, through
    the result and through the log-sum-exp. With `deterministic` or
    torch.use_deterministic_algorithms, gradients have the same bits every time. torch.compile, CUDA
    graphs and autocast work. torch.export and other recorders store the mask in the program. A
    tensor with strides that a kernel cannot read is copied first: the last stride must be 1, and on
    a GPU the others must be multiples of 8 elements and the address a multiple of 16 bytes.

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
    given = None
    if not (
        bias is key_bias is softcap is alibi_slopes is relative is sinks is dropout_seed is None
        and dropout_p == 0.0
    ):
        given = GivenScore(
            bias,
            key_bias,
            softcap,
            alibi_slopes,
            relative,
            sinks,
            dropout_p,
            generator,
            dropout_seed,
        )
    words = scale, layout, return_lse, deterministic, backend, num_threads
    if return_max_logit or return_probabilities:
        return _with_more(q, k, v, mask, given, return_max_logit, *words)
    return run(q, k, v, mask, given, *words)


def _with_more(
    q: Any, k: Any, v: Any, mask: Any, given: GivenScore | None, max_logit: bool, *words: Any
) -> Any:
    """The results of a call that asks for more than the log-sum-exp."""
    if max_logit:
        raise NotImplementedError(
            "return_max_logit: no backend gives the largest logit of a head yet; return_lse=True "
            "bounds it from above"
        )
    if framework(q) != "torch":
        raise NotImplementedError(
            "return_probabilities: only tensors of PyTorch have probabilities; "
            "torch.from_numpy(q) is one"
        )
    from .weights import attention_with_probabilities

    return attention_with_probabilities(q, k, v, mask, given, *words)


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
