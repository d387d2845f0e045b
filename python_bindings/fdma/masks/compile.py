"""compile: from a mask to the exact BlockMask of a shape.

This module converts the arguments of `compile` to what the core takes: an expression or a text,
arrays in host memory by the names of their tables, lengths as lists. The core checks, binds and
lowers the mask (docs/architecture.md) without the GIL.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .. import _fdma
from . import names
from .block_mask import BlockMask, Format
from .compiled_regions import made_outside
from .expr_types import MaskExpr, MaskLike, TableExpr, _is_condition, _same_symbols
from .no_mask import described
from .table_arrays import as_array, describe, is_same, on_host

__all__ = ["Explanation", "ProgramReport", "compile", "explain"]

MaskMod: TypeAlias = Callable[[Any, Any, Any, Any], Any]
Lengths: TypeAlias = "int | Sequence[int] | np.ndarray[Any, Any] | Any"

# Arguments of create_block_mask, of attention and of other libraries' masks.
_IN_THE_MASK = "write it in the mask"
_INSTEAD = {
    "B": "write batch=",
    "H": "write heads=",
    "Q_LEN": "write q_len=",
    "KV_LEN": "write kv_len=",
    "BLOCK_SIZE": "write block=",
    "block_size": "write block=",
    "device": "leave it out: a mask is compiled on the host and serves every device",
    "num_heads": "write heads=",
    "n_heads": "write heads=",
    "batch_size": "write batch=",
    "seq_len": "write q_len=",
    "threads": "write num_threads=",
    "window_size": f'{_IN_THE_MASK}, "causal & window(w)"',
    "window": f'{_IN_THE_MASK}, "causal & window(w)"',
    "sliding_window": f'{_IN_THE_MASK}, "causal & window(w)"',
    "is_causal": f'{_IN_THE_MASK}, "causal"',
    "causal": f'{_IN_THE_MASK}, "causal"',
    "mask_mod": "write it as the first argument",
    "score_mod": "fdma.attention has softcap=, alibi_slopes=, relative= and bias= in their place",
}

FunctionReader: TypeAlias = "Callable[[MaskMod, tuple[int, int, int, int] | None], MaskExpr]"
_function_reader: list[FunctionReader] = []


@made_outside
def compile(
    mask: MaskLike | str | MaskMod,
    q_len: Lengths,
    kv_len: Lengths | None = None,
    batch: int | None = None,
    heads: int = 1,
    *,
    tables: Mapping[str, Any] | None = None,
    format: Format = "segment",
    block: int | tuple[int, int] = (128, 128),
    num_threads: int = 0,
    sample: bool = False,
    timeout: float | None = None,
    max_work: int | None = None,
    **named_tables: Any,
) -> BlockMask:
    """The exact mask of a shape: a MaskExpr, a text of the mask language, or a mask_mod function.

    q_len, kv_len: one integer, or one for each batch element; kv_len is q_len by default.
    batch, heads: the numbers of batch elements and query heads. batch is the number of lengths by
    default. A mask that uses neither b nor h and has no table with a batch extent serves every
    batch and head count; leave both at 1 for it.
    tables, keywords such as `doc=ids`: the arrays of tables that do not travel with the mask. They
    are integer or boolean arrays of 0 to 4 dimensions (float32 for the scores of topk) of NumPy,
    PyTorch or anything with DLPack, sequences, or numbers for tables without dimensions. compile
    reads them and does not keep them; tensors on a GPU are copied to the host.
    sample: evaluate a FlexAttention function of (b, h, q_idx, kv_idx) at every cell. Otherwise the
    function is traced (fdma.trace_mask_mod).
    format: segment, parametric, bitset, bcsr, columns or dense.
    block: the sides of a block, multiples of 16.
    num_threads: CPU threads; 0 means all cores, whatever OMP_NUM_THREADS and PyTorch are set to.
    The result is the same for every number.
    timeout: seconds after which compiling stops.
    max_work: a bound on the cost of the loops (any, all), counted in evaluations of one operation
    for one cell and iteration. The default is 2**38, about ten minutes of one core; 0 means no
    limit. Set timeout and max_work for texts from untrusted sources.

    Raises fdma.MaskSyntaxError for a wrong text; TypeError for a wrong type; ValueError for a
    table that is missing, unknown or of the wrong shape, for a bad parameter, and for a mask with
    an undefined cell, which it names; NotImplementedError for cells that the format cannot hold, a
    function that cannot be traced, and a mask that exceeds max_work; TimeoutError after `timeout`.
    Ctrl-C stops compiling.

    Cost: O(runs) if the rows of the mask shift uniformly, as in causal masks and windows, otherwise
    O(tables + live partial tiles). Memory is never O(q_len * kv_len).

    >>> import fdma
    >>> mask = fdma.compile(fdma.causal() & fdma.documents(lengths=[700, 1300, 48]), 2048)
    >>> mask.spec, mask.counts.full
    ('causal & documents(lengths=@lengths)', 46)
    >>> fdma.compile("k <= q & q - k < @w", 4096, w=512).counts.partial
    60
    >>> fdma.compile(lambda b, h, q, k: q >= k, 4096, format="bcsr").format
    'bcsr'
    """
    request = _request(mask, q_len, kv_len, batch, heads, sample, tables, named_tables)
    core = _fdma.compile(
        *request,
        format,
        _block(block),
        _integer("num_threads", num_threads),
        _seconds(timeout),
        None if max_work is None else _integer("max_work", max_work),
    )
    return BlockMask._wrap(core)


@dataclass(frozen=True)
class ProgramReport:
    """How one distinct program of a mask was lowered.

    engine made it, in the way that method says; declined holds the engines that were tried before,
    each with its reason. Of num_tiles tiles, num_bounded_tiles were decided by bounds,
    num_evaluated_tiles were evaluated and num_repeated_tiles are the same as a tile before;
    interval form does not go from tile to tile and counts none. phases holds what took how many
    seconds, summed over threads. lines says all that as text, and for slow programs where the time
    went.

    >>> import fdma
    >>> fdma.explain("causal", 4096).programs[0].engine
    'interval'
    """

    engine: str
    method: str
    declined: tuple[tuple[str, str], ...]
    seconds: float
    num_tiles: int
    num_bounded_tiles: int
    num_evaluated_tiles: int
    num_repeated_tiles: int
    phases: tuple[tuple[str, float], ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """How a mask was compiled: one report for each distinct program, and all of them as text.

    >>> import fdma
    >>> print(fdma.explain("causal", 4096))
    interval form: bands of rows: 1, key intervals: 1
    """

    programs: tuple[ProgramReport, ...]

    def __str__(self) -> str:
        texts = ["\n".join(program.lines) for program in self.programs]
        if len(texts) == 1:
            return texts[0]
        return "\n".join(f"program {i}:\n{text}" for i, text in enumerate(texts))


@made_outside
def explain(
    mask: MaskLike | str | MaskMod,
    q_len: Lengths,
    kv_len: Lengths | None = None,
    batch: int | None = None,
    heads: int = 1,
    *,
    tables: Mapping[str, Any] | None = None,
    block: int | tuple[int, int] = (128, 128),
    num_threads: int = 0,
    sample: bool = False,
    timeout: float | None = None,
    max_work: int | None = None,
    **named_tables: Any,
) -> Explanation:
    """How compile makes a mask: by which engine, why, from how many tiles, and what was slow.

    The arguments are those of compile, and so are the errors and the cost: the mask is compiled
    and dropped. Raises NotImplementedError for masks with topk.

    >>> import fdma
    >>> program = fdma.explain("bitand(q, k) == 0", 4096).programs[0]
    >>> program.engine, program.num_tiles, program.num_evaluated_tiles < 100
    ('box', 1024, True)
    """
    request = _request(mask, q_len, kv_len, batch, heads, sample, tables, named_tables)
    programs = _fdma.explain(
        *request,
        _block(block),
        _integer("num_threads", num_threads),
        _seconds(timeout),
        None if max_work is None else _integer("max_work", max_work),
    )
    return Explanation(tuple(ProgramReport(**program) for program in programs))


def _request(
    mask: Any,
    q_len: Lengths,
    kv_len: Lengths | None,
    batch: int | None,
    heads: int,
    sample: bool,
    tables: Mapping[str, Any] | None,
    named_tables: dict[str, Any],
) -> tuple[_fdma.Expr, list[int], list[int], int, int, dict[str, Any]]:
    """What the core takes first: the expression, lengths, counts and arrays."""
    q_lens = _lengths("q_len", q_len)
    kv_lens = q_lens if kv_len is None else _lengths("kv_len", kv_len)
    count = max(len(q_lens), len(kv_lens)) if batch is None else _integer("batch", batch)
    num_heads = _integer("heads", heads)
    is_function = not isinstance(mask, str | MaskExpr | TableExpr) and callable(mask)
    if sample and not is_function:
        kind = type(mask).__name__
        raise TypeError(f"sample: only functions are sampled, got {kind}; leave sample out")
    if count != 1 or num_heads != 1 or len(q_lens) != 1 or len(kv_lens) != 1:
        _check_counts(count, num_heads, q_lens, kv_lens)
    arrays: dict[str, Any] = {}
    if isinstance(mask, str):
        _refuse_no_text(mask)
        expr = _fdma.parse_expr(mask)
    else:
        if is_function:
            mask = _of_function(mask, sample, max(q_lens), max(kv_lens), count, num_heads)
        expr, arrays = _finished(mask)
    if (wanted := expr.table_names) or tables or named_tables:
        arrays = _bound(wanted, arrays, tables, named_tables)
    return expr, q_lens, kv_lens, count, num_heads, arrays


def _check_counts(batch: int, heads: int, q_lens: list[int], kv_lens: list[int]) -> None:
    for name, number in (("batch", batch), ("heads", heads)):
        if number < 1:
            raise ValueError(f"{name}: expected at least 1, got {number}")
    for name, given in (("q_len", q_lens), ("kv_len", kv_lens)):
        if len(given) not in (1, batch):
            raise ValueError(f"{name}: {len(given)} lengths, expected 1 or batch = {batch}")


def _refuse_no_text(text: str) -> None:
    """TypeError for texts of other languages and for names of files."""
    if text.lstrip().startswith("lambda"):
        raise TypeError(
            "mask: expected a text of the mask language, got a lambda in quotes; "
            "write the function without quotes"
        )
    if text.endswith((".h5", ".hdf5")):
        raise TypeError(
            "mask: expected a text of the mask language, got the name of a file; "
            "fdma.load(path) reads the masks of a file"
        )


def _finished(mask: Any) -> tuple[_fdma.Expr, dict[str, Any]]:
    """The checked expression and its arrays by the names in it."""
    if not isinstance(mask, MaskExpr):
        if not isinstance(mask, TableExpr) and not _is_condition(mask):
            raise TypeError(
                "mask: expected a MaskExpr, a text of the mask language or a function of (b, h, "
                f"q_idx, kv_idx), got {described(mask)}"
            )
        mask = MaskExpr(mask)
    if not mask._arrays:
        return _fdma.finish_expr(mask._node).expr, {}
    finished = _fdma.finish_expr(mask._node, _same_symbols(mask._arrays))
    symbols = finished.table_names
    return finished.expr, {symbols.get(symbol, symbol): a for symbol, a in mask._arrays.items()}


def _of_function(
    function: Any, sample: bool, q_len: int, kv_len: int, batch: int, heads: int
) -> MaskExpr:
    if getattr(function, "__module__", None) == names.__name__:
        raise TypeError(f"mask: expected a mask, got {described(function)}")
    (reader,) = _function_reader
    return reader(function, (q_len, kv_len, batch, heads) if sample else None)


def read_functions_by(reader: FunctionReader) -> None:
    """Sets what makes an expression of a function, by sampling it at every cell of (q_len, kv_len,
    batch, heads) if they are given. The package calls it: the tracer, which does this, knows masks.
    """
    _function_reader[:] = [reader]


def _bound(
    wanted: list[str],
    travelling: dict[str, Any],
    tables: Mapping[str, Any] | None,
    named: dict[str, Any],
) -> dict[str, Any]:
    """The arrays of all tables of the mask, in host memory."""
    given: dict[str, Any] = {}
    if tables is not None:
        if not isinstance(tables, Mapping):
            raise TypeError(f"tables: expected a mapping, got {type(tables).__name__}")
        given.update(tables)
    for name in given.keys() & named.keys():
        raise ValueError(f"{name}: given as an argument and in tables")
    arrays = dict(travelling)
    for name, value in (given | named).items():
        if name not in wanted:
            has = ", ".join(f"@{known}" for known in wanted) or "none"
            instead = "" if name in given else _INSTEAD.get(name, "")
            raise ValueError(
                f"{name}: the mask has no table @{name} (it has {has})"
                + ("" if name in given else f", and compile no argument {name}")
                + (f"; {instead}" if instead else "")
            )
        array = as_array(value, name)
        if name in travelling and not is_same(array, travelling[name]):
            raise ValueError(
                f"{name}: the mask has its own array for @{name}, {describe(travelling[name])}"
            )
        arrays[name] = array
    for name in wanted:
        if name not in arrays:
            is_argument = name in inspect.signature(compile).parameters
            how = f'tables={{"{name}": ..}}' if is_argument else f"{name}=.. or in tables"
            raise ValueError(f"{name}: no array for table @{name}; give it as {how}")
    return {name: on_host(array) for name, array in arrays.items()}


# ---- numbers


_ORDER = (
    "; the order is fdma.compile(mask, q_len, kv_len, batch, heads), that of create_block_mask is "
    "mask_mod, B, H, Q_LEN, KV_LEN"
)


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        hint = _ORDER if value is None and name == "q_len" else ""
        if isinstance(value, float) and value.is_integer():
            hint = f"; write {int(value)}"
        elif isinstance(value, str) and value.isdecimal():
            hint = f"; write {int(value)}, without quotes"
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}{hint}")
    return operator.index(value)


def _seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool | np.bool_) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout: expected seconds, got {type(timeout).__name__}")
    return float(timeout)


def _lengths(name: str, value: Any) -> list[int]:
    if type(value) is int:
        return [value]
    if len(getattr(value, "shape", ())) > 1 or type(value).__name__ == "Size":
        shape = list(getattr(value, "shape", value))
        raise TypeError(
            f"{name}: expected an integer or one for each batch element, got the shape {shape}; "
            f"write one extent, q.shape[-2] for tensors [batch, heads, len, head_dim]"
        )
    if hasattr(value, "tolist"):  # arrays, tensors, NumPy's numbers
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        lengths = [_integer(f"{name}[{i}]", length) for i, length in enumerate(value)]
        if not lengths:
            raise ValueError(f"{name}: expected an integer or one for each batch element, got none")
        return lengths
    return [_integer(name, value)]


def _block(block: Any) -> tuple[int, int]:
    if isinstance(block, Sequence) and not isinstance(block, str):
        if len(block) != 2:
            raise ValueError(f"block: expected one or two sides, got {len(block)}")
        return _integer("block", block[0]), _integer("block", block[1])
    side = _integer("block", block)
    return side, side
