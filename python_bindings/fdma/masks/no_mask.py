"""What is handed in as a mask and is none: what it is, and what to write instead.

The module imports no framework. It recognizes the objects of PyTorch, transformers and xformers by
modules that are loaded already.
"""

from __future__ import annotations

import sys
from typing import Any

from . import names
from .block_mask import BlockMask
from .expr_types import IntExpr, MaskExpr
from .table_arrays import describe

__all__: list[str] = []


def described(value: Any, *, has_bias: bool = False) -> str:
    """The kind of `value` and what to write instead, as far as that is known.

    has_bias: the function that refuses the value has an argument `bias`.
    """
    kind = type(value)
    if isinstance(value, BlockMask):
        return "BlockMask, which is compiled already (to_format converts it)"
    if isinstance(value, MaskExpr):
        return "MaskExpr, which has no lengths yet; fdma.compile(mask, q_len) gives its BlockMask"
    if isinstance(value, IntExpr):
        return "IntExpr; compare the integer, for example with != 0"
    if isinstance(value, str):
        return "str; fdma.compile(text, q_len) gives the BlockMask of a text"
    if _is_flex_mask(value):
        return (
            "a BlockMask of PyTorch's FlexAttention; fdma.from_flex(block_mask) gives FDMA's mask "
            "of it"
        )
    if kind.__module__.startswith("torch.nn.attention.bias"):
        is_upper = getattr(getattr(value, "variant", None), "name", "") == "UPPER_LEFT"
        text = '"k <= q"' if is_upper else '"causal"'
        return f"a {kind.__name__} of PyTorch; write {text}"
    if kind.__module__.startswith("xformers"):
        return (
            f"a {kind.__name__} of xformers; write the mask by its name, "
            '"causal & documents(lengths=@lengths)" for BlockDiagonalCausalMask'
        )
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _of_array(value, has_bias)
    if isinstance(value, bool):
        return f'{value}; write "causal" for causal attention, None for attention to every key'
    if value is None:
        return 'NoneType; "true" is the mask that keeps every key'
    if isinstance(value, int | float):
        return f"{kind.__name__}" + ("; a number is scale=" if has_bias else "")
    if isinstance(value, list | tuple) and value and all(isinstance(x, BlockMask) for x in value):
        return (
            f"{kind.__name__} of BlockMasks; fdma.BlockMask.concatenate(masks) makes one mask "
            "with their batch elements"
        )
    if isinstance(value, list | tuple):
        return (
            f"{kind.__name__}; fdma.BlockMask.from_dense(cells) compiles booleans [.., q, k], "
            "True where a query attends"
        )
    if getattr(value, "__module__", None) == names.__name__ and callable(value):
        return f"the function that makes it: call {value.__name__}(..)"
    if callable(value) and not isinstance(value, type):
        return (
            "function; fdma.compile takes functions of (b, h, q_idx, kv_idx), "
            "fdma.compile(function, q_len)"
        )
    return kind.__name__


def as_operand(value: Any) -> str:
    """What to write for a mask beside a MaskExpr; the empty text for anything else."""
    if isinstance(value, str):
        return "str; fdma.MaskExpr.parse(text) makes an expression of a text"
    if isinstance(value, BlockMask):
        return (
            "BlockMask, which is compiled; combine it with fdma.compile(expression, mask.q_lens, "
            "mask.kv_lens)"
        )
    if _is_flex_mask(value):
        return f"{described(value)}, which combines with fdma.compile(expression, q_len)"
    return ""


def _is_flex_mask(value: Any) -> bool:
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    return flex is not None and isinstance(value, flex.BlockMask)


def _of_array(array: Any, has_bias: bool) -> str:
    dtype = str(array.dtype)
    kind = f"a dense mask, {describe(array)}"
    if len(array.shape) == 2 and array.shape[0] != array.shape[1]:
        return (
            f"{kind}; fdma.from_hf_padding(tokens, causal=..) compiles padding [batch, len], 1 "
            "where a key is real, fdma.BlockMask.from_dense(cells) booleans [q, k], once for all "
            "calls"
        )
    if "float" in dtype:
        others = "are bias=" if has_bias else "are the bias= of fdma.attention"
        return (
            f"{kind}; fdma.from_hf_mask(cells) compiles an additive mask [batch, heads, q, k] of 0 "
            f"and -inf, once for all calls; other numbers {others}"
        )
    cells = "cells" if dtype.endswith("bool") else "cells != 0"
    return (
        f"{kind}; fdma.BlockMask.from_dense({cells}) compiles booleans [.., q, k], True where a "
        "query attends (negate those of torch.nn.MultiheadAttention), once for all calls"
    )


def check_cells(cells: Any) -> None:
    """TypeError for cells that are no array, and for floats, of which 0 may mean either."""
    dtype = str(getattr(cells, "dtype", "")).removeprefix("torch.")
    if not dtype and not hasattr(cells, "__dlpack__") and not _has_buffer(cells):
        raise TypeError(f"cells: expected an array of booleans, got {described(cells)}")
    if "float" in dtype:
        raise TypeError(
            f"cells: expected booleans, or uint8 0 and 1, got {dtype}; write cells > 0 for scores, "
            "cells == 0 or fdma.from_hf_mask(cells) for an additive mask"
        )


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


_CELLS = "to_dense() gives the cells as an array of NumPy"
_FLEX = "to_flex() gives PyTorch's BlockMask"
_PLACE = "a mask lies on the host and serves tensors on every device"
_INSTEAD_OF_ATTRIBUTE = {
    **dict.fromkeys(
        ("numpy", "tolist", "dtype", "ndim", "size", "dim", "sum", "all", "any"), _CELLS
    ),
    **dict.fromkeys(("to", "cuda", "cpu", "device"), _PLACE),
    **dict.fromkeys(("BLOCK_SIZE", "mask_mod", "kv_num_blocks", "kv_indices", "as_tuple"), _FLEX),
    "sparsity": "1 - density is the share of pairs that are left out",
    "seq_lengths": "q_len and kv_len, or q_lens and kv_lens",
    "T": "transpose()",
    "head": "heads",
}


def instead_of_attribute(name: str) -> str:
    """What stands for an attribute of tensors or of PyTorch's BlockMask, behind a semicolon."""
    if name in _INSTEAD_OF_ATTRIBUTE:
        return f"; {_INSTEAD_OF_ATTRIBUTE[name]}"
    import difflib

    near = difflib.get_close_matches(name, [n for n in dir(BlockMask) if n[0] != "_"], 1)
    return f"; did you mean {near[0]}?" if near else ""
