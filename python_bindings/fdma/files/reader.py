"""One mask out of an open HDF5 file, which is untrusted: mask_files.py says what that means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py

from .. import _fdma
from ..masks.state import MARKS, PATTERN_VERSION, VERSION
from .checked_group import Arrays, Attributes, DamagedFileError, names_of, open_object
from .mask_files import reason
from .writer import MASKS, MAX_SPEC_BYTES

__all__: list[str] = []

_MAX_COUNT = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_COUNTS = {
    "num_batches": (1, _MAX_COUNT),
    "num_heads": (1, _MAX_COUNT),
    "block_q": (1, 1024),
    "block_kv": (1, 1024),
    "q_offset": (-_MAX_INT64, _MAX_INT64),
    "kv_offset": (-_MAX_INT64, _MAX_INT64),
    "batch_offset": (-_MAX_INT64, _MAX_INT64),
    "head_offset": (-_MAX_INT64, _MAX_INT64),
}


def mask_names(file: Any, path: str) -> list[str]:
    """Names of the masks, sorted. Errors: OSError."""
    with _as_damage(f"'{path}'"):
        if file.get(MASKS, getlink=True) is None:
            raise DamagedFileError(
                f"'{path}' holds no group /masks, so it is not an FDMA mask file (a dense mask is "
                "read with h5py and BlockMask.from_dense)"
            )
        return sorted(names_of(open_object(file, MASKS, f"'{path}': /masks"), f"'{path}': /masks"))


def read_state(file: Any, name: str, path: str) -> dict[str, Any]:
    """Attributes and arrays of /masks/<name>, as core_of of masks/state.py takes them.

    Errors: OSError (damage), NotImplementedError (newer version).
    """
    where = f"'{path}': /masks/{name}"
    with _as_damage(where):
        group = open_object(open_object(file, MASKS, where), name, where)
        if not isinstance(group, h5py.Group):
            raise DamagedFileError(f"{where}: not a group")
        return _state_of(group, where)


def _state_of(group: Any, where: str) -> dict[str, Any]:
    attributes = Attributes(group, where)
    version = attributes.integer("version", 1, _MAX_INT64)
    if version > VERSION:
        raise NotImplementedError(
            f"{where}: written by a newer FDMA (file format version {version}; this one reads up "
            f"to {VERSION})"
        )
    arrays = Arrays(group, where)
    state: dict[str, Any] = {"version": version, "format": attributes.text("format", 64)}
    for name, (least, most) in _COUNTS.items():
        state[name] = attributes.integer(name, least, most)
    for name in MARKS:
        if attributes.has(name):
            state[name] = attributes.integer(name, 1, 1)
    batches = state["num_batches"]
    for name in ("q_len", "kv_len"):
        if arrays.has(name + "s"):
            if attributes.has(name):
                raise DamagedFileError(f"{where}: both attribute {name} and dataset {name}s")
            state[name + "s"] = arrays.read(name + "s", "int64", None, batches, batches)
        else:
            state[name] = attributes.integer(name, 0, _MAX_COUNT)
    if attributes.has("spec") or not arrays.has("spec"):
        state["spec"] = attributes.text("spec", 64 << 10)
    else:
        state["spec"] = arrays.text("spec", MAX_SPEC_BYTES)
    for name in ("content_hash", "mask_hash"):
        state[name] = attributes.text(name, 64)
        if not re.fullmatch("[0-9a-f]{32}", state[name]):
            raise DamagedFileError(f"{where}: attribute {name}: not 32 hexadecimal digits")
    attributes.expect_no_more()
    state["group_of"] = arrays.read("group_of", "int32", state["num_heads"], batches, batches)
    groups = arrays.group("groups")
    arrays.expect_no_more()
    state["groups"] = _groups_of(state, groups, f"{where}/groups")
    return state


def _groups_of(state: Mapping[str, Any], groups: Any, where: str) -> list[dict[str, Any]]:
    """The arrays of every group, with the extents that its batch elements' lengths imply."""
    children = Arrays(groups, where)
    firsts: list[int] = []  # batch element of the first pair of each group
    for index, group in enumerate(state["group_of"].flat):
        if not 0 <= group <= len(firsts):
            raise DamagedFileError(
                f"{where}: group_of: entry {index} is {group}, expected groups numbered by first "
                "occurrence"
            )
        if group == len(firsts):
            firsts.append(index // state["num_heads"])
    block = (state["block_q"], state["block_kv"])
    result = []
    for number, batch in enumerate(firsts):
        q_len, kv_len = (
            state[name] if name in state else int(state[name + "s"][batch])
            for name in ("q_len", "kv_len")
        )
        try:
            specs = _fdma.stored_array_specs(state["format"], q_len, kv_len, block)
        except ValueError as error:
            raise DamagedFileError(f"{where}: {error}") from None
        arrays = Arrays(children.group(str(number)), f"{where}/{number}")
        has_patterns = state["version"] >= PATTERN_VERSION and arrays.has("patterns")
        result.append(
            {
                name: arrays.read(name, dtype, width, min_rows, max_rows)
                for name, dtype, width, min_rows, max_rows, only_with_patterns in specs
                if has_patterns or not only_with_patterns
            }
        )
        arrays.expect_no_more()
    children.expect_no_more()
    return result


@contextmanager
def _as_damage(where: str) -> Iterator[None]:
    """Turns h5py's errors for data that HDF5 cannot decode into an OSError that says where."""
    try:
        yield
    except (DamagedFileError, NotImplementedError, MemoryError):
        raise
    except (OSError, KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{where}: HDF5 cannot read it: {reason(error)}") from error
