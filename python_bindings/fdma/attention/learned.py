"""Learned masks (Dynamic Mask Attention): scores of keys, the mask that they choose, attention.

A key has one score for all queries. A query keeps the w keys of highest score among those that it
may see (topk in docs/spec-language.md). The kept scores are added to its logits, and the model
learns the scores through this bias.
"""

from __future__ import annotations

import operator
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np

from .. import _fdma
from ..masks.block_mask import BlockMask
from ..masks.compile import compile
from ..masks.expr_types import MaskExpr
from ..masks.names import intervals, topk
from .call import Backend, Layout, attention
from .foreign_keywords import refuse_keywords
from .frameworks import framework, in_framework
from .mask_argument import block_mask
from .plans import Entry, plans
from .shapes import checked_extents, checked_scale, is_heads_first
from .threads import checked_num_threads, process_threads

__all__ = ["dynamic_mask_attention", "select_topk", "zoh_scores", "zoh_scores_backward"]

_Array = TypeVar("_Array")
_LOG_OF_ZERO = -103.972084
"""Below it float32 rounds the exponential to 0."""


def zoh_scores(
    values: _Array,
    dt_proj: Any,
    a_coef: Any,
    mode: Literal["exp", "log"] = "exp",
    layout: Layout = "bhsd",
    *,
    num_threads: int | None = None,
) -> _Array:
    """Scores of keys from their values: exp(softplus(V dt_proj^T) * a_coef), float32.

    values is [batch, heads_kv, kv_len, head_dim] in layout "bhsd"; in "bshd" the length comes
    before the heads. dt_proj is [heads_kv, heads_kv * head_dim], or [heads_kv, head_dim] if each
    head reads only its own values. a_coef is [heads_kv]. The dtypes are float32, float16 or
    bfloat16, on the CPU or a GPU. The scores are [batch, heads_kv, kv_len] of the same framework.
    mode "log" leaves out the exponential. With PyTorch all three inputs get gradients. num_threads:
    as for `attention`.

    Raises ValueError for shapes, NotImplementedError for element types.

    >>> import fdma, numpy as np
    >>> values = np.ones((1, 2, 5, 4), np.float32)
    >>> scores = fdma.zoh_scores(values, np.zeros((2, 4), np.float32), np.float32([-1, 0]))
    >>> scores[0, :, 0].tolist()
    [0.5, 1.0]
    """
    given, name = _rows_of(values, mode, layout)
    if name == "torch":
        from .zoh_torch import scores_of

        said = checked_num_threads(num_threads)
        result: Any = scores_of(given, dt_proj, a_coef, mode == "log", said)
        return result  # type: ignore[no-any-return]
    threads = process_threads(num_threads)
    made = _fdma.zoh_scores(given, dt_proj, a_coef, mode=mode, num_threads=threads)
    return in_framework(made, name)  # type: ignore[no-any-return]


def zoh_scores_backward(
    dscores: Any,
    values: _Array,
    dt_proj: Any,
    a_coef: Any,
    mode: Literal["exp", "log"] = "exp",
    layout: Layout = "bhsd",
    *,
    num_threads: int | None = None,
) -> tuple[_Array, Any, Any]:
    """The gradients of `zoh_scores` with respect to values, dt_proj and a_coef.

    dscores: the gradient of the scores, float32 [batch, heads_kv, kv_len]. The other arguments are
    those of `zoh_scores`. Each gradient has the shape and dtype of its input; sums are float32, in
    a fixed order. A score with a dscore of 0 adds nothing, whatever its values are. PyTorch's
    autograd calls this function itself. num_threads: as for `attention`.

    Raises what `zoh_scores` raises.

    >>> import fdma, numpy as np
    >>> values, dt_proj = np.zeros((1, 1, 3, 2), np.float32), np.ones((1, 2), np.float32)
    >>> dscores, a_coef = np.float32([[[1, 0, 1]]]), np.float32([-1])
    >>> dvalues, ddt_proj, da_coef = fdma.zoh_scores_backward(dscores, values, dt_proj, a_coef)
    >>> dvalues[0, 0, :, 0].tolist()
    [-0.25, 0.0, -0.25]
    """
    given, name = _rows_of(values, mode, layout)
    if name == "torch":
        from .zoh_torch import zoh_scores_backward as backward

        all_wanted = (True, True, True)
        said = checked_num_threads(num_threads)
        found: Any = backward(dscores, given, dt_proj, a_coef, mode == "log", *all_wanted, said)
    else:
        threads = process_threads(num_threads)
        made = _fdma.zoh_scores_backward(
            given, dt_proj, a_coef, dscores, mode=mode, num_threads=threads
        )
        found = (in_framework(x, name) for x in made)
    dvalues, ddt_proj, da_coef = found
    return _turned(dvalues, layout, name), ddt_proj, da_coef


def _rows_of(values: Any, mode: str, layout: Layout) -> tuple[Any, str]:
    """values [batch, kv_len, heads_kv, head_dim] and their framework."""
    if (name := framework(values)) == "torch":
        from .tensor_layouts import refuse_layouts

        refuse_layouts(values=values)
    if len(values.shape) != 4:
        raise ValueError(f"values: expected 4 dimensions, got {len(values.shape)}")
    if mode not in ("exp", "log"):
        raise ValueError(f'mode: expected "exp" or "log", got {mode!r}')
    return _turned(values, layout, name), name


def _turned(values: Any, layout: Layout, name: str) -> Any:
    """An array transposed from [batch, kv_len, heads_kv, head_dim] to the layout, or back."""
    if not is_heads_first(layout):
        return values
    return values.transpose(1, 2) if name == "torch" else values.swapaxes(1, 2)


def select_topk(
    scores: Any,
    w: int,
    among: BlockMask | MaskExpr | str = "causal",
    *,
    q_len: int | None = None,
    heads: int | None = None,
    num_threads: int | None = None,
) -> BlockMask:
    """The mask in which every query keeps the w keys of highest score that `among` shows it.

    scores: float32 [batch, heads_kv, kv_len], [heads_kv, kv_len] or [kv_len], without NaN. The
    first of several equal scores is kept.
    q_len: the number of queries. The default is that of `among` if it is a BlockMask, otherwise the
    number of keys.
    heads: the number of query heads, a multiple of heads_kv; the default is heads_kv.
    num_threads: as for `attention`.

    Selection among scores on a GPU runs on that GPU; `among` may then combine causal masks,
    documents, prefixes and padding. The result is copied to the host. Selection has no gradient. In
    `dynamic_mask_attention` a score is also a bias, and its gradient flows through that bias.

    Raises ValueError for shapes and NaN; NotImplementedError for `among` on a GPU that shows a key
    again after hiding it (windows; use scores.cpu()).

    >>> import fdma, numpy as np
    >>> mask = fdma.select_topk(np.float32([3, 1, 2, 0]), 2)
    >>> mask.to_dense()[0, 0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 0, 1, 0],
           [1, 0, 1, 0]])
    """
    if framework(scores) == "torch":
        from .torch_modes import refuse_recording

        refuse_recording("select_topk")
    extents = (1,) * (3 - len(scores.shape)) + tuple(scores.shape)
    if len(extents) != 3:
        raise ValueError(
            f"scores: expected up to 3 dimensions [batch, heads_kv, kv_len], got {list(extents)}"
        )
    batch, heads_kv, kv_len = extents
    if batch == 0 or heads_kv == 0:
        raise ValueError(
            f"scores: expected at least one batch element and KV head, got {list(extents)}"
        )
    heads = heads_kv if heads is None else heads
    if heads < 1 or heads % heads_kv != 0:
        raise ValueError(f"heads: expected a multiple of {heads_kv}, got {heads}")
    if q_len is None:
        q_len = among.q_len if isinstance(among, BlockMask) else kv_len
    if isinstance(among, BlockMask):
        among._core.check_serves(batch, heads, "among")
    name = framework(scores)
    if name == "torch":
        scores = scores.detach()
    if (name == "torch" and scores.device.type == "cuda") or name == "cupy":
        mask = _among(among, q_len, kv_len, batch, heads_kv)
        if mask is not among and mask._core.is_per_head and heads != heads_kv:
            raise NotImplementedError(
                "among: it was written with h, the query head, but a GPU selects once for each of "
                f"the {heads_kv} KV heads, not of {heads} heads; give the scores in host memory"
            )
        return _on_gpu(scores.reshape(extents), w, mask, heads)
    chosen = topk(scores, w, among=_expression(among))
    threads = _host_threads(num_threads, name)
    return compile(chosen, q_len, kv_len, batch, heads, num_threads=threads)


def _host_threads(num_threads: int | None, name: str) -> int:
    """The core's number of threads for arrays of a framework."""
    if name != "torch":
        return process_threads(num_threads)
    from .tensors import threads_of_call

    return threads_of_call(checked_num_threads(num_threads))


def _expression(among: Any) -> MaskExpr:
    if isinstance(among, MaskExpr):
        return among
    if isinstance(among, str):
        return MaskExpr.parse(among)
    if not isinstance(among, BlockMask):
        raise TypeError(
            f"among: expected a BlockMask, a MaskExpr or a text, got {type(among).__name__}"
        )
    if among.heads != 1:
        raise NotImplementedError(
            f"among: a BlockMask of {among.heads} heads; give the expression that it was made of"
        )
    begin, end = among.to_columns(heads=0)
    if among.batch == 1:
        return intervals(begin=begin[0], end=end[0])
    return intervals(begin=begin, end=end)


def _among(among: Any, q_len: int, kv_len: int, batch: int, heads_kv: int) -> BlockMask:
    if isinstance(among, BlockMask):
        return among
    if not isinstance(among, str) or not _fdma.parse_expr(among).table_names:
        return compile(among, q_len, kv_len, batch, heads_kv)
    raise ValueError("among: the text has tables; give an expression with its arrays")


def _on_gpu(scores: Any, w: int, among: BlockMask, heads: int) -> BlockMask:
    batch, heads_kv, _ = scores.shape
    device = scores.device.index if hasattr(scores.device, "index") else int(scores.device.id)
    marks = among._core.is_per_batch, among._core.is_per_head
    key = ("select_topk", among.content_hash, marks, w, batch, heads_kv, device)

    def prepare() -> Entry:
        made = _fdma.DeviceTopk(among._core, w, batch=batch, heads_kv=heads_kv, device=device)
        return Entry(made, made.nbytes)

    selector: _fdma.DeviceTopk = plans.prepared(key, prepare).plan
    kept: Any = selector.select(scores)
    mask = BlockMask._wrap(selector.to_mask(kept, heads_q=heads))
    if selector.saw_nan():
        raise ValueError("scores: at least one is NaN")
    return mask


def dynamic_mask_attention(
    q: _Array,
    k: _Array,
    v: _Array,
    dt_proj: Any,
    a_coef: Any,
    keep_window_size: int,
    among: BlockMask | MaskExpr | str = "causal",
    bias: Literal["exp", "log", "none"] = "exp",
    scale: float | None = None,
    layout: Layout = "bhsd",
    return_lse: bool = False,
    drop_zero_scores: bool = False,
    deterministic: bool = False,
    backend: Backend = "auto",
    *,
    num_threads: int | None = None,
    **others: NoReturn,
) -> Any:
    """Attention in which every query keeps the keys of highest ZOH score and adds it to its logits.

    q, k, v, scale, layout, return_lse, deterministic, backend, num_threads: as for `attention`.
    dt_proj, a_coef: as for `zoh_scores`, applied to v.
    keep_window_size: the number of keys that a query keeps of those that `among` shows it.
    bias: what is added to the logits: the score, its logarithm A softplus(dt), or nothing ("none").
    Keys are ranked by what is added, and by the score for "none".
    drop_zero_scores: hide keys with a score of 0.

    With PyTorch, q, k, v, dt_proj and a_coef get gradients. Selection has no gradient, and a key
    that no query keeps has a gradient of 0. Setup is cached per shape, with and without gradients.
    Calls are asynchronous on a GPU and may be captured into a CUDA graph after a first call of the
    same shape. Sums of gradients have no fixed order on a GPU, unless `deterministic` or
    torch.use_deterministic_algorithms asks for one.

    Cost: in torch.compile, under autocast and with masks that a GPU cannot select among, each call
    with gradients makes its mask and plans on the host. Such a call waits for the GPU and takes
    some milliseconds for 10,000 keys.

    Raises what `attention`, `zoh_scores` and `select_topk` raise.

    >>> import fdma, numpy as np
    >>> random = np.random.default_rng(0)
    >>> q, k, v = (random.standard_normal((1, h, 200, 16), np.float32) for h in (4, 2, 2))
    >>> dt_proj, a_coef = random.standard_normal((2, 32), np.float32), np.float32([-1, -2])
    >>> fdma.dynamic_mask_attention(q, k, v, dt_proj, a_coef, 32).shape
    (1, 4, 200, 16)
    """
    if others:
        refuse_keywords(dynamic_mask_attention, others)
    if bias not in ("exp", "log", "none"):
        raise ValueError(f'bias: expected "exp", "log" or "none", got {bias!r}')
    tensors: Any = (q, k, v)
    heads_first = is_heads_first(layout)
    if framework(q) == "torch":
        from .learned_torch import check_modes
        from .tensor_layouts import refuse_layouts

        refuse_layouts(q=q, k=k, v=v)
        check_modes(*tensors, dt_proj, a_coef)
    q_shape, k_shape, v_shape = (x.shape for x in tensors)
    extents = checked_extents(q_shape, k_shape, v_shape, heads_first)
    _refuse_no_integer(keep_window_size)
    scale = checked_scale(scale) or None
    from .learned_call import CallParams, one_call

    params = CallParams(
        keep_window_size,
        among,
        bias,
        scale,
        heads_first,
        drop_zero_scores,
        backend,
        deterministic,
        _needs_gradient(*tensors, dt_proj, a_coef),
        _host_threads(num_threads, framework(q)),
    )
    found = one_call(tensors, dt_proj, a_coef, extents, params)
    if found is not None:
        return found if return_lse else found[0]
    mode: Literal["exp", "log"] = "log" if bias == "log" else "exp"
    scores: Any = zoh_scores(v, dt_proj, a_coef, mode, layout, num_threads=num_threads)
    if extents.batch == 0:
        seen = block_mask(among, 0, extents.heads_kv, extents.q_len, extents.kv_len)
        mask: Any = seen if seen.heads == 1 else None  # no row reads it
    else:
        counts: Any = {"q_len": extents.q_len, "heads": extents.heads, "num_threads": num_threads}
        mask = select_topk(scores, keep_window_size, among, **counts)
    added = None if bias == "none" else scores
    if drop_zero_scores:
        is_zero = scores < _LOG_OF_ZERO if bias == "log" else scores == 0
        added = without_zeros(scores * 0 if added is None else added, is_zero)
    run: Any = attention
    return run(
        *tensors,
        mask,
        key_bias=added,
        scale=scale,
        return_lse=return_lse,
        deterministic=deterministic,
        layout=layout,
        backend=backend,
        num_threads=num_threads,
    )


def _refuse_no_integer(keep_window_size: Any) -> None:
    try:
        if not isinstance(keep_window_size, bool):
            operator.index(keep_window_size)
            return
    except TypeError:
        pass
    kind = type(keep_window_size).__name__
    raise TypeError(f"keep_window_size: expected an integer, got {kind}")


def _needs_gradient(*tensors: Any) -> bool:
    if framework(tensors[0]) != "torch":
        return False
    import torch

    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)


def without_zeros(bias: Any, is_zero: Any) -> Any:
    """The bias, with -inf where the score is 0, so that such a key has weight 0."""
    if framework(bias) == "torch":
        return bias.masked_fill(is_zero, -np.inf)
    if framework(bias) == "jax":
        return bias.at[is_zero].set(-np.inf)
    result = bias.copy()
    result[is_zero] = -np.inf
    return result
