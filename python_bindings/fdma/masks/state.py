"""A mask as plain arrays and attributes, those of mask files of version 2, and back.

`BlockMask.arrays`, pickles and files share this form; docs/file-format.md names its members. The
core exports the arrays without a copy, and checks every entry of arrays that it imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _fdma

__all__: list[str] = []

VERSION = 2
PATTERN_VERSION = 2  # masks of version 1 have no patterns
MASK_HASH_VERSION = 2  # files of version 1 may hold a mask hash of another definition
_OFFSETS = ("q_offset", "kv_offset", "batch_offset", "head_offset")
_COUNTS = ("num_batches", "num_heads", "block_q", "block_kv", *_OFFSETS)
MARKS = {"is_per_batch": "num_batches", "is_per_head": "num_heads"}
"""Integers that are 1, or not there: they mean something where a count is 1."""
_MAX_INT64 = 2**63 - 1


def state_of(core: _fdma.BlockMask) -> dict[str, Any]:
    """Attributes as int and str, arrays read-only and not copied, `groups` a list of dicts."""
    lengths: dict[str, Any] = {}
    for name, values in (("q_len", core.q_lens), ("kv_len", core.kv_lens)):
        if len(values) == 1:
            lengths[name] = values[0]
        else:
            lengths[name + "s"] = np.array(values, np.int64)
    return {
        "version": VERSION,
        "format": core.format,
        **lengths,
        "num_batches": core.num_batches,
        "num_heads": core.num_heads,
        "block_q": core.block[0],
        "block_kv": core.block[1],
        **dict(zip(_OFFSETS, core.origin, strict=True)),
        **{
            name: 1
            for name, count in MARKS.items()
            if getattr(core, name) and getattr(core, count) == 1
        },
        "spec": core.spec,
        "group_of": core.group_of,
        "groups": core.arrays(),
    }


def core_of(state: Mapping[str, Any]) -> _fdma.BlockMask:
    """The mask of such a dict, copied.

    Errors: TypeError for an object that is not a mapping of these types; NotImplementedError for a
    newer version; ValueError for a member that is missing, unknown or inconsistent. The content
    hash is checked if the mapping has one.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"arrays: expected a mapping, got {type(state).__name__}")
    left = dict(state)
    version = _integer(left, "version")
    if version > VERSION:
        raise NotImplementedError(
            f"version: written by a newer FDMA (file format version {version}; this one reads up "
            f"to {VERSION})"
        )
    if version < 1:
        raise ValueError(f"version: expected 1 or more, got {version}")
    q_lens, kv_lens = _lengths(left, "q_len"), _lengths(left, "kv_len")
    counts = {name: _integer(left, name) for name in _COUNTS}
    for side in ("block_q", "block_kv"):
        if not 0 < counts[side] <= 1024:
            raise ValueError(f"{side}: expected a multiple of 16 up to 1024, got {counts[side]}")
    marks = {name: _mark(left, name) for name in MARKS}
    groups = _take(left, "groups")
    if not isinstance(groups, list | tuple) or not all(isinstance(g, Mapping) for g in groups):
        raise TypeError("groups: expected a list of mappings from names to arrays")
    named = [{_name(name): _array(name, a) for name, a in group.items()} for group in groups]
    for number, group in enumerate(named):
        if version < PATTERN_VERSION and "patterns" in group:
            raise ValueError(f"groups/{number}/patterns: unknown array (version {version})")
    format_name, spec = _text(left, "format"), _text(left, "spec")
    group_of = _array("group_of", _take(left, "group_of"))
    content_hash, mask_hash = left.pop("content_hash", None), left.pop("mask_hash", None)
    if left:
        raise ValueError(f"{min(map(str, left))}: unknown")
    core = _fdma.BlockMask.from_arrays(
        format=format_name,
        q_lens=q_lens,
        kv_lens=kv_lens,
        num_batches=counts["num_batches"],
        num_heads=counts["num_heads"],
        block=(counts["block_q"], counts["block_kv"]),
        origin=tuple(counts[name] for name in _OFFSETS),  # type: ignore[arg-type]
        spec=spec,
        group_of=group_of,
        groups=named,
        **marks,
    )
    if content_hash is not None and content_hash != core.content_hash():
        raise ValueError(
            f"content_hash is {content_hash}, but the arrays have {core.content_hash()}"
        )
    if version >= MASK_HASH_VERSION and mask_hash not in (None, core.mask_hash()):
        raise ValueError(f"mask_hash is {mask_hash}, but the cells have {core.mask_hash()}")
    return core


def _take(left: dict[str, Any], name: str) -> Any:
    try:
        return left.pop(name)
    except KeyError:
        raise ValueError(f"{name}: missing") from None


def _integer(left: dict[str, Any], name: str) -> int:
    value = _take(left, name)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if abs(int(value)) > _MAX_INT64:
        raise ValueError(f"{name}: expected an integer of 64 bits, got {value}")
    return int(value)


def _mark(left: dict[str, Any], name: str) -> bool:
    if name not in left:
        return False
    value = _integer(left, name)
    if value != 1:
        raise ValueError(f"{name}: expected 1, or nothing, got {value}")
    return True


def _text(left: dict[str, Any], name: str) -> str:
    value = _take(left, name)
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    return value


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"groups: expected names as keys, got {type(name).__name__}")
    return name


def _array(name: object, values: object) -> NDArray[Any]:
    """A contiguous NumPy array in the machine's byte order, its element type as it is."""
    if not isinstance(values, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(values).__name__}")
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {values.dtype}")
    return np.asarray(values, values.dtype.newbyteorder("="), order="C")


def _lengths(left: dict[str, Any], name: str) -> list[int]:
    if name in left and name + "s" in left:
        raise ValueError(f"both {name} and {name}s")
    if name + "s" not in left:
        return [_integer(left, name)]
    values = _array(name + "s", left.pop(name + "s"))
    if values.ndim != 1 or values.dtype != np.int64:
        raise ValueError(
            f"{name}s: expected int64 [num_batches], got {values.dtype} {values.shape}"
        )
    return [int(value) for value in values]
