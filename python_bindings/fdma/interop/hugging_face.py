"""Hugging Face's masks: the tokenizer's attention_mask, [batch, keys], and the masks that models
make of it for attention, [batch, heads or 1, queries, keys], boolean (SDPA) or additive (eager).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _fdma
from ..masks.block_mask import BlockMask
from ..masks.compiled_regions import made_outside
from .arrays import (
    flag,
    host_array,
    host_tensor,
    import_torch,
    is_tensor,
    mask_of,
    outgoing,
    pair,
    with_rank,
    zeros_and_ones,
)

__all__ = ["HfPadding", "from_hf_mask", "from_hf_padding", "to_hf_mask", "to_hf_padding"]

_AXES = "[batch, heads, queries, keys]"


class HfPadding(NamedTuple):
    """The result of to_hf_padding; from_hf_padding(**arrays._asdict()) returns the mask."""

    attention_mask: Any
    """int64 [batch, keys]: 1 for a token, 0 for padding."""
    causal: bool
    """True for a decoder, whose rows see no later position."""
    q_len: int
    """The number of query rows, which are the last positions of the keys."""
    heads: int
    """The number of heads of the mask; all have the same cells."""


@made_outside
def from_hf_padding(
    attention_mask: Any,
    causal: bool,
    *,
    q_len: int | None = None,
    heads: int = 1,
    block: int | Sequence[int] = (128, 128),
) -> BlockMask:
    """The mask of a tokenizer's attention_mask.

    Row q of batch element b sees key k iff attention_mask[b, k] is 1 and, if causal,
    k <= q + keys - q_len. Rows of padding tokens are not masked. A row that sees no key is kept as
    it is.

    Args:
        attention_mask: [batch, keys] of 0 and 1, booleans or numbers, with padding anywhere. It is
            an array of NumPy, PyTorch or similar, or lists; a CUDA tensor is copied, which waits
            for the GPU.
        causal: True for a decoder, False for an encoder.
        q_len: the number of query rows, which are the last positions; the default is the number of
            keys.
        heads: the number of heads of the mask; all have the same cells.
        block: the block of the result.

    Errors: ValueError for a value that is neither 0 nor 1, and for other extents.

    >>> import fdma
    >>> fdma.from_hf_padding([[0, 1, 1]], causal=True).to_dense()[0, 0].astype(int)
    array([[0, 0, 0],
           [0, 1, 0],
           [0, 1, 1]])
    """
    tokens = zeros_and_ones("attention_mask", attention_mask, "[batch, keys]")
    rows = tokens.shape[1] if q_len is None else q_len
    core = _fdma.block_mask_from_hf_padding(
        tokens, flag("causal", causal), rows, heads, pair("block", block)
    )
    return mask_of(core)


def to_hf_padding(mask: BlockMask, *, causal: bool | None = None, device: Any = None) -> HfPadding:
    """The tokenizer's attention_mask of a mask.

    Args:
        causal: the form; the default is the form that is not causal if it can hold the mask.
        device: None returns a NumPy array, a PyTorch device returns a tensor on it.

    Errors: NotImplementedError if the form cannot hold these cells (the message names the first
    cell that does not fit), for heads that differ and for lengths per batch element.

    >>> import fdma
    >>> padding = fdma.compile("causal & padding(lengths=@n)", 3, batch=2, n=[2, 3]).to_hf_padding()
    >>> padding.attention_mask.tolist(), padding.causal
    ([[1, 1, 0], [1, 1, 1]], True)
    """
    tokens, is_causal = _fdma.hf_padding_from_block_mask(mask._core, causal)
    core = mask._core
    return HfPadding(
        outgoing(device)(tokens.astype(np.int64)), is_causal, core.q_len, core.num_heads
    )


@made_outside
def from_hf_mask(
    attention_mask: Any,
    *,
    heads: int | None = None,
    block: int | Sequence[int] = (128, 128),
) -> BlockMask:
    """The mask of a four-dimensional attention_mask, boolean or additive.

    Args:
        attention_mask: [batch, heads or 1, queries, keys]. True attends in booleans, and 1 in
            integers that are 0 or 1, as in scaled_dot_product_attention. In float16, bfloat16,
            float32 and float64, 0 attends; -inf, finfo(dtype).min and the lowest finite number of a
            narrower type do not. It is an array of NumPy, PyTorch or similar; an array that is not
            contiguous, or is on a GPU, is copied whole.
        heads: the number of heads of the mask, for an array that has one head; the default is the
            array's number of heads.
        block: the block of the result.

    Errors: ValueError for any other value, with its place. Floats of 0 and 1 are refused because
    their polarity is the opposite one, and -10000 because it is a bias. ValueError for other
    extents.

    >>> import fdma
    >>> import numpy as np
    >>> lowest = np.finfo(np.float32).min
    >>> additive = np.array([[[[0, lowest], [0, 0]]]], np.float32)
    >>> fdma.from_hf_mask(additive) == fdma.compile("causal", 2)
    True
    """
    array: Any
    if is_tensor(attention_mask):
        array = host_tensor(attention_mask)
        if not array.is_floating_point():
            array = array.numpy()
    elif getattr(getattr(attention_mask, "dtype", None), "name", "") == "bfloat16":
        array = _fdma.bfloat16_from_bits(np.array(attention_mask, order="C").view(np.uint16))
    else:
        array = host_array("attention_mask", attention_mask)
    if isinstance(array, np.ndarray):
        if array.dtype.kind in "iu":
            array = zeros_and_ones("attention_mask", array, _AXES)
        array = np.ascontiguousarray(with_rank("attention_mask", array, 4, _AXES))
    core = _fdma.block_mask_from_hf_mask(array, pair("block", block), 0 if heads is None else heads)
    return mask_of(core)


def to_hf_mask(
    mask: BlockMask,
    dtype: Any = np.bool_,
    *,
    use_infinity: bool = False,
    device: Any = None,
    max_bytes: int = 1 << 34,
) -> Any:
    """The four-dimensional attention_mask of a mask: [batch, heads, q_len, kv_len].

    Args:
        dtype: bool (True attends), or float16, float32, float64 or bfloat16 for an additive mask.
            It is a dtype of NumPy or PyTorch, or its name.
        use_infinity: additive masks hold -inf instead of finfo(dtype).min.
        device: a PyTorch device returns a tensor on it. None returns a tensor on the CPU for a
            PyTorch dtype, else a NumPy array.
        max_bytes: the largest allowed size of the array.

    Errors: MemoryError above max_bytes; ValueError for other types, and for bfloat16 without
    PyTorch (NumPy has none); NotImplementedError for lengths per batch element.

    >>> import fdma
    >>> fdma.compile("causal", 2).to_hf_mask("float16").tolist()
    [[[[0.0, -65504.0], [0.0, 0.0]]]]
    """
    name = str(dtype).removeprefix("torch.")
    of_torch = str(dtype).startswith("torch.") or device is not None
    if name not in ("bool", "bfloat16"):
        name = name if str(dtype).startswith("torch.") else np.dtype(dtype).name
    if name == "bfloat16" and not of_torch:
        raise ValueError(
            "dtype: NumPy has no bfloat16; give torch.bfloat16, or a device of PyTorch"
        )
    array = _fdma.hf_mask_from_block_mask(mask._core, name, use_infinity, max_bytes)
    if not of_torch:
        return np.asarray(array)
    torch = import_torch()
    return torch.from_dlpack(array).to("cpu" if device is None else device)
