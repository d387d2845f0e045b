"""Writes one mask into an open HDF5 file. The order is fixed: equal masks give equal contents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..masks.block_mask import BlockMask
from ..masks.state import MARKS

__all__: list[str] = []

MASKS = "masks"
MAX_SPEC_ATTRIBUTE = 32000
"""A longer spec is a dataset: an object header holds 64 KiB in all."""
MAX_SPEC_BYTES = 1 << 28
_MIN_COMPRESSED_BYTES = 4096
_CHUNK_BYTES = 256 * 1024
_DEFLATE_LEVEL = 4
_LENGTHS = ("q_lens", "kv_lens")


def check_names(masks: Mapping[str, BlockMask]) -> None:
    """Checks the names of masks. Errors: TypeError, ValueError."""
    if not isinstance(masks, Mapping):
        raise TypeError(f"masks: expected a mapping from names, got {type(masks).__name__}")
    for name, mask in masks.items():
        if not isinstance(name, str):
            raise TypeError(f"name: expected a str, got {type(name).__name__}")
        if not isinstance(mask, BlockMask):
            raise TypeError(f"masks[{name!r}]: expected a BlockMask, got {type(mask).__name__}")
        try:
            num_bytes = len(name.encode())
        except UnicodeEncodeError:
            raise ValueError(f"name: {name!r} is not UTF-8 text") from None
        if not 0 < num_bytes <= 255 or name in (".", "..") or "/" in name or "\0" in name:
            raise ValueError(
                f"name: expected 1 to 255 bytes without '/', not '.' or '..', got {name!r}"
            )
        if len(mask.spec.encode()) > MAX_SPEC_BYTES or "\0" in mask.spec:
            raise ValueError(
                f"masks[{name!r}]: its spec is longer than {MAX_SPEC_BYTES} bytes or holds a zero "
                "byte"
            )


def write_mask(file: Any, name: str, mask: BlockMask, *, overwrite: bool, path: str) -> None:
    """Writes /masks/<name>. Errors: FileExistsError, OSError."""
    if MASKS in file:
        masks = file[MASKS]
        if not hasattr(masks, "create_group"):
            raise OSError(f"'{path}': /{MASKS} is not a group")
    else:
        masks = _new_group(file, MASKS)
    if masks.get(name, getlink=True) is not None:
        if not overwrite:
            raise FileExistsError(
                f"'{path}' holds a mask '{name}' already; overwrite=True replaces it"
            )
        del masks[name]
    state = mask.arrays()
    group = _new_group(masks, name)
    _write_text(group, "format", state["format"])
    _write_integer(group, "version", state["version"])
    for lengths in _LENGTHS:
        if lengths in state:
            _write_array(group, lengths, state[lengths])
        else:
            _write_integer(group, lengths[:-1], state[lengths[:-1]])
    for attribute in ("num_batches", "num_heads", "block_q", "block_kv"):
        _write_integer(group, attribute, state[attribute])
    for attribute in ("q_offset", "kv_offset", "batch_offset", "head_offset"):
        _write_integer(group, attribute, state[attribute])
    for attribute in MARKS:
        if attribute in state:
            _write_integer(group, attribute, state[attribute])
    _write_spec(group, state["spec"])
    _write_text(group, "content_hash", mask.content_hash)
    _write_text(group, "mask_hash", mask.mask_hash)
    _write_array(group, "group_of", state["group_of"])
    groups = _new_group(group, "groups")
    for number, arrays in enumerate(state["groups"]):
        stored = _new_group(groups, str(number))
        for array_name, array in arrays.items():
            _write_array(stored, array_name, array)


def _new_group(parent: Any, name: str) -> Any:
    return parent.create_group(name, track_order=False)


def _write_integer(group: Any, name: str, value: int) -> None:
    group.attrs.create(name, value, dtype="<i8")


def _text_of(text: str) -> tuple[NDArray[Any], Any]:
    """The bytes of a text and its HDF5 type: fixed length, UTF-8, padded with zero bytes."""
    from h5py import string_dtype

    encoded = text.encode()
    length = max(len(encoded), 1)
    return np.array(encoded, f"S{length}"), string_dtype("utf-8", length)


def _write_text(group: Any, name: str, text: str) -> None:
    value, dtype = _text_of(text)
    group.attrs.create(name, value, dtype=dtype)


def _write_spec(group: Any, spec: str) -> None:
    if len(spec.encode()) <= MAX_SPEC_ATTRIBUTE:
        _write_text(group, "spec", spec)
        return
    from h5py import h5s

    value, dtype = _text_of(spec)
    dataset = group.create_dataset("spec", (), dtype, track_times=False).id
    dataset.write(h5s.ALL, h5s.ALL, value, dataset.get_type())


def _write_array(group: Any, name: str, values: NDArray[Any]) -> None:
    """Writes an array, little-endian. Above 4 KiB it is chunked, shuffled and deflated."""
    storage: dict[str, Any] = {}
    if values.nbytes > _MIN_COMPRESSED_BYTES:
        rows = values.shape[0]
        chunk = [min(max(_CHUNK_BYTES // (values.nbytes // rows), 1), rows)]
        if values.ndim == 2:
            chunk.append(min(values.shape[1], _CHUNK_BYTES // 8))
        storage = {
            "chunks": tuple(chunk),
            "shuffle": True,
            "compression": "gzip",
            "compression_opts": _DEFLATE_LEVEL,
        }
    dtype = values.dtype.newbyteorder("<")
    group.create_dataset(name, data=values, dtype=dtype, track_times=False, **storage)
