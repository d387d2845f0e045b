"""FDMA: masks compiled from short expressions, and attention that touches only what they keep.

A mask is written as an expression of named masks (causal, window, sink, documents, prefix, padding,
chunked, dilated, global_, tree, ..) and conditions on q, k, b, h, pos; as a text of the same
language, "causal & (window(1024) | sink(4))"; or as a mask_mod function of FlexAttention. compile
makes the BlockMask of a shape of it, which print draws. attention, plan and merge compute with it,
estimate predicts what that costs, load and save keep it in files, from_* read the masks of other
libraries. fdma.nn has layers, fdma.hf the implementation "fdma" for models of transformers.
available_backends says what runs here.

>>> import fdma
>>> mask = fdma.compile("causal & (window(1024) | sink(4))", 4096)
>>> fdma.__version__.count(".")
2
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _fdma, torch_operators
from ._fdma import MaskSyntaxError
from .attention.call import attention, available_backends, clear_plans
from .attention.incremental_topk import IncrementalTopk
from .attention.learned import dynamic_mask_attention, select_topk, zoh_scores, zoh_scores_backward
from .attention.merge import merge
from .attention.plan import AttentionPlan, plan
from .estimate import Estimate, device_profile, estimate
from .files import methods as _file_methods  # noqa: F401
from .files.mask_files import list_masks, load, save
from .interop import methods as _interop_methods  # noqa: F401
from .interop.formats import (
    from_bsr,
    from_cu_seqlens,
    from_flashmask,
    from_flex,
    from_hf_mask,
    from_hf_padding,
)
from .masks.block_mask import BlockMask, MaskOrigin, TileCounts
from .masks.compile import Explanation, ProgramReport, compile, explain
from .masks.compile import read_functions_by as _read_functions_by
from .masks.difference import MaskDifference
from .masks.expr import (
    IntExpr,
    MaskExpr,
    TableExpr,
    absolute,
    all_of,
    any_of,
    at,
    b,
    bitand,
    bitor,
    bitxor,
    clamp,
    h,
    k,
    kv_len,
    maximum,
    minimum,
    pos,
    q,
    q_len,
    shl,
    shr,
    table,
    to_int,
    where,
)
from .masks.names import (
    bits,
    block_causal,
    block_diffusion,
    causal,
    causal_blockwise,
    chunked,
    dilated,
    documents,
    global_,
    intervals,
    natten2d,
    natten3d,
    padding,
    prefix,
    prefix_documents,
    rows,
    share_question,
    sink,
    tiles,
    topk,
    tree,
    window,
)

if TYPE_CHECKING:
    from .trace.trace import TraceError, sample_mask_mod, trace_mask_mod

__all__ = [
    "AttentionPlan",
    "BlockMask",
    "Estimate",
    "Explanation",
    "IncrementalTopk",
    "IntExpr",
    "MaskDifference",
    "MaskExpr",
    "MaskOrigin",
    "MaskSyntaxError",
    "ProgramReport",
    "TableExpr",
    "TileCounts",
    "TraceError",
    "__version__",
    "absolute",
    "all_of",
    "any_of",
    "at",
    "attention",
    "available_backends",
    "b",
    "bitand",
    "bitor",
    "bits",
    "bitxor",
    "block_causal",
    "block_diffusion",
    "causal",
    "causal_blockwise",
    "chunked",
    "clamp",
    "clear_plans",
    "compile",
    "device_profile",
    "dilated",
    "documents",
    "dynamic_mask_attention",
    "estimate",
    "explain",
    "from_bsr",
    "from_cu_seqlens",
    "from_flashmask",
    "from_flex",
    "from_hf_mask",
    "from_hf_padding",
    "global_",
    "h",
    "intervals",
    "k",
    "kv_len",
    "list_masks",
    "load",
    "maximum",
    "merge",
    "minimum",
    "natten2d",
    "natten3d",
    "padding",
    "plan",
    "pos",
    "prefix",
    "prefix_documents",
    "q",
    "q_len",
    "rows",
    "sample_mask_mod",
    "save",
    "select_topk",
    "share_question",
    "shl",
    "shr",
    "sink",
    "table",
    "tiles",
    "to_int",
    "topk",
    "trace_mask_mod",
    "tree",
    "where",
    "window",
    "zoh_scores",
    "zoh_scores_backward",
]

__version__: str = _fdma.__version__
MaskSyntaxError.__module__ = __name__  # where programs find it; the module below is private

torch_operators.register()


def _expression_of_function(function: Any, sampled: tuple[int, int, int, int] | None) -> MaskExpr:
    """What fdma.compile makes of a function, by the tracer, which is loaded now."""
    from .trace import trace

    if sampled:
        return trace.sample_mask_mod(function, *sampled)
    return trace.trace_mask_mod(function)


_read_functions_by(_expression_of_function)


_OF_TRACER = ("TraceError", "sample_mask_mod", "trace_mask_mod")

if not TYPE_CHECKING:  # a checker would take every name of a module with __getattr__ for one

    def __getattr__(name: str) -> Any:
        """The names of the tracer, which is loaded when one of them is first used."""
        if name in _OF_TRACER:
            from .trace import trace

            return getattr(trace, name)
        import difflib

        near = [] if name.startswith("_") else difflib.get_close_matches(name, __dir__(), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, *_OF_PYTHON])


# Names of the language that are Python's own too: `from fdma import *` does not import them.
abs = absolute
all = all_of
any = any_of
max = maximum
min = minimum
_OF_PYTHON = ("abs", "all", "any", "max", "min")
