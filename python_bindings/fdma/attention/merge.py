"""fdma.merge: attention results over disjoint sets of keys, as one result.

attention/merge_torch.py has the part for PyTorch's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from .. import _fdma
from .arrays import rows_of
from .frameworks import framework
from .merge_arguments import check_shapes, checked_pairs
from .shapes import is_heads_first
from .threads import process_threads

__all__ = ["merge"]

_Array = TypeVar("_Array")


def merge(
    parts: Sequence[tuple[_Array, _Array]],
    sinks: _Array | None = None,
    *,
    layout: Literal["bhsd", "bshd"] = "bhsd",
    num_threads: int | None = None,
) -> tuple[_Array, _Array]:
    """Merges attention results (out, lse) over disjoint sets of keys.

    The result (out, lse) is that of attention over all of these keys, for each row

        lse = log(sum of exp(lse_i))
        out = sum of exp(lse_i - lse) * out_i * sigmoid(lse - sink)

    parts: 1 to 32 pairs, as `fdma.attention(.., return_lse=True)` returns them. out is [batch,
    heads, q_len, head_dim_v] (in layout "bshd" the length comes before the heads) of float32,
    float16 or bfloat16, lse is float32 [batch, heads, q_len]. All parts have one shape and dtype.
    The arrays are PyTorch tensors on the CPU or a GPU, or arrays of NumPy or CuPy; the result
    belongs to the same framework.

    sinks: [heads] or [batch, heads, q_len], float32 or the dtype of the parts. A sink is the logit
    of one more key, whose value is 0 (gpt-oss). It takes weight from the keys; -inf takes nothing.
    The lse of the result does not count it, so that the result can be merged again: give sinks to
    the last merge alone.
    num_threads: as in `fdma.attention`.

    A row whose every lse_i is -inf has out 0 and lse -inf. The out_i of a part without keys is not
    used, whatever it holds. With PyTorch every out_i, every lse_i and the sinks get gradients, and
    torch.compile and CUDA graphs work. An out_i whose last stride is not 1 is copied first.

    Raises TypeError and ValueError, which name the argument.

    Cost: reads each part once.

    >>> import fdma, numpy as np
    >>> q, k, v = (np.random.default_rng(i).random((1, 8, 300, 64), np.float32) for i in range(3))
    >>> whole, lse = fdma.attention(q, k, v, return_lse=True)
    >>> halves = [
    ...     fdma.attention(q, k[:, :, keys], v[:, :, keys], return_lse=True)
    ...     for keys in (slice(100), slice(100, 300))
    ... ]
    >>> out, merged_lse = fdma.merge(halves)
    >>> bool(np.allclose(out, whole, atol=1e-6) and np.allclose(merged_lse, lse))
    True
    """
    heads_first = is_heads_first(layout)
    pairs = checked_pairs(parts)
    first = pairs[0][0]
    name = framework(first)
    if name == "torch":
        from .merge_torch import merge as merge_tensors

        return merge_tensors(pairs, sinks, heads_first, num_threads)  # type: ignore[no-any-return]
    if isinstance(first, np.ndarray):
        return _merge_arrays(np, pairs, sinks, heads_first, num_threads)
    if name == "cupy":
        import cupy

        with first.device:
            return _merge_arrays(cupy, pairs, sinks, heads_first, num_threads)
    raise TypeError(
        "parts[0]: expected tensors of PyTorch or arrays of NumPy or CuPy, got "
        f"{type(first).__name__}"
    )


def _merge_arrays(
    xp: Any,
    pairs: list[tuple[Any, Any]],
    sinks: Any,
    heads_first: bool,
    num_threads: int | None,
) -> tuple[Any, Any]:
    for i, part in enumerate(pairs):
        for name, x in zip(("out", "lse"), part, strict=True):
            if not isinstance(x, xp.ndarray):
                raise TypeError(
                    f"parts[{i}] {name}: expected an array of {xp.__name__}, as parts[0], got "
                    f"{type(x).__name__}"
                )
    if sinks is not None and not isinstance(sinks, xp.ndarray):
        raise TypeError(
            f"sinks: expected an array of {xp.__name__}, as parts, got {type(sinks).__name__}"
        )
    check_shapes(pairs, sinks, heads_first)
    first, first_lse = pairs[0]
    out, lse = xp.empty(first.shape, first.dtype), xp.empty(first_lse.shape, xp.float32)
    views = [(rows_of(xp, x), part_lse) for x, part_lse in pairs]
    written = out
    if heads_first:
        written = xp.swapaxes(out, 1, 2)
        views = [(xp.swapaxes(x, 1, 2), part_lse) for x, part_lse in views]
    if sinks is not None:
        sinks = xp.ascontiguousarray(sinks, xp.float32)
    _fdma.merge(views, sinks=sinks, out=written, lse=lse, num_threads=process_threads(num_threads))
    return out, lse
