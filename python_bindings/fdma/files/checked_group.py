"""One HDF5 group of a mask file. The reader expects every attribute and dataset by name, type and
extents, and refuses all others. It allocates memory only for data that the file can hold."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5t, h5z
from numpy.typing import NDArray

__all__: list[str] = []

_MAX_COMPRESSION = 1040
"""Deflate shrinks by 1032 at most; a dataset that claims more than this factor has no data."""
_MAX_CHUNK_BYTES = 64 << 20
_MAX_NAMES = 1 << 20
_NOBODY = "fdma: none of this name"


class DamagedFileError(OSError):
    """The file exists, but its contents are not a valid mask."""


class Attributes:
    """The attributes of one object. Each is read once; an attribute left over is an error."""

    def __init__(self, group: Any, where: str) -> None:
        self._attributes = group.attrs
        self._where = where
        # Listing damaged attributes crashes HDF5 up to 1.14. A lookup of an attribute that does not
        # exist decodes all attributes first, and fails with an error instead of a crash.
        if _NOBODY in group.attrs:
            raise DamagedFileError(f"{where}: unknown attribute {_NOBODY}")
        self._left = {str(name) for name in group.attrs}

    def has(self, name: str) -> bool:
        return name in self._left

    def expect_no_more(self) -> None:
        if self._left:
            raise DamagedFileError(f"{self._where}: unknown attribute {min(self._left)}")

    def _open(self, name: str) -> Any:
        if name not in self._left:
            raise DamagedFileError(f"{self._where}: attribute {name} is missing")
        self._left.remove(name)
        attribute = self._attributes.get_id(name)
        if attribute.get_space().get_simple_extent_npoints() != 1:
            raise DamagedFileError(f"{self._where}: attribute {name}: expected one value")
        return attribute

    def integer(self, name: str, least: int, most: int) -> int:
        kind = self._open(name).get_type()
        if not isinstance(kind, h5t.TypeIntegerID) or kind.get_size() > 8:
            raise DamagedFileError(f"{self._where}: attribute {name}: expected an integer")
        value = int(np.asarray(self._attributes[name]).reshape(()))
        if not least <= value <= most:
            raise DamagedFileError(
                f"{self._where}: attribute {name}: {value} is outside [{least}, {most}]"
            )
        return value

    def text(self, name: str, max_bytes: int) -> str:
        kind = self._open(name).get_type()
        if not isinstance(kind, h5t.TypeStringID) or kind.is_variable_str():
            raise DamagedFileError(
                f"{self._where}: attribute {name}: expected a string of fixed length (numpy.bytes_ "
                "in h5py)"
            )
        if kind.get_size() > max_bytes:
            raise DamagedFileError(
                f"{self._where}: attribute {name}: {kind.get_size()} bytes, expected {max_bytes} "
                "at most"
            )
        return _decoded(self._attributes[name], f"{self._where}: attribute {name}")


class Arrays:
    """The objects of one group. Each is read once; an object left over is an error."""

    def __init__(self, group: Any, where: str) -> None:
        self._group = group
        self._where = where
        self._left = set(names_of(group, where))

    def has(self, name: str) -> bool:
        return name in self._left

    def expect_no_more(self) -> None:
        if self._left:
            raise DamagedFileError(f"{self._where}: unknown object {min(self._left)}")

    def _take(self, name: str) -> Any:
        if name not in self._left:
            raise DamagedFileError(f"{self._where}/{name}: missing")
        self._left.remove(name)
        return open_object(self._group, name, f"{self._where}/{name}")

    def group(self, name: str) -> Any:
        group = self._take(name)
        if not isinstance(group, h5py.Group):
            raise DamagedFileError(f"{self._where}/{name}: not a group")
        return group

    def _dataset(self, name: str) -> Any:
        dataset = self._take(name)
        if not isinstance(dataset, h5py.Dataset):
            raise DamagedFileError(f"{self._where}/{name}: not a dataset")
        return dataset

    def read(
        self, name: str, dtype: str, width: int | None, min_rows: int, max_rows: int
    ) -> NDArray[Any]:
        """The array, in the machine's byte order. Memory is allocated only after all checks."""
        dataset = self._dataset(name)
        where = f"{self._where}/{name}"
        stored = dataset.id.get_type()
        if (
            not isinstance(stored, h5t.TypeIntegerID)
            or dataset.dtype.newbyteorder("=") != dtype
            or stored.get_precision() != 8 * stored.get_size()
        ):
            raise DamagedFileError(f"{where}: type {dataset.dtype}, expected {dtype}")
        shape = dataset.shape
        rank = 1 if width is None else 2
        if (
            shape is None
            or len(shape) != rank
            or not min_rows <= shape[0] <= max_rows
            or (rank == 2 and shape[1] != width)
        ):
            rows = str(max_rows) if min_rows == max_rows else f"at most {max_rows}"
            expected = rows if width is None else f"{rows}, {width}"
            raise DamagedFileError(f"{where}: extents {shape}, expected [{expected}]")
        _check_storage(dataset, where)
        values = np.empty(shape, dtype)
        if values.size:
            dataset.read_direct(values)
        return values

    def text(self, name: str, max_bytes: int) -> str:
        """A scalar dataset of one string of fixed length."""
        dataset = self._dataset(name)
        where = f"{self._where}/{name}"
        kind = dataset.id.get_type()
        if (
            not isinstance(kind, h5t.TypeStringID)
            or kind.is_variable_str()
            or dataset.shape != ()
            or kind.get_size() > max_bytes
        ):
            raise DamagedFileError(f"{where}: expected one string of fixed length")
        _check_storage(dataset, where)
        return _decoded(dataset[()], where)


def _check_storage(dataset: Any, where: str) -> None:
    """Checks that the values lie in this file, pass only the two filters of the schema, and do not
    exceed what the file's bytes can hold."""
    creation = dataset.id.get_create_plist()
    layout = creation.get_layout()
    if layout == h5d.VIRTUAL:
        raise DamagedFileError(
            f"{where}: a virtual dataset, which is refused; copy it into an ordinary one"
        )
    if creation.get_external_count() != 0:
        raise DamagedFileError(
            f"{where}: its values lie in another file (external storage): refused"
        )
    if layout not in (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED):
        raise DamagedFileError(f"{where}: unknown storage layout")
    filters = [creation.get_filter(i)[0] for i in range(creation.get_nfilters())]
    if not set(filters) <= {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE} or len(set(filters)) < len(
        filters
    ):
        raise DamagedFileError(f"{where}: its filters are not shuffle and deflate, once each")
    element = dataset.id.get_type().get_size()
    num_bytes = math.prod(dataset.shape) * element
    held = min(dataset.id.get_storage_size(), dataset.file.id.get_filesize())
    if num_bytes > held * (_MAX_COMPRESSION if h5z.FILTER_DEFLATE in filters else 1):
        raise DamagedFileError(
            f"{where}: extents {dataset.shape} need {element} bytes each, but the file holds only "
            f"{held} bytes of it"
        )
    if layout == h5d.CHUNKED:
        chunk_bytes = math.prod(creation.get_chunk()) * element
        if chunk_bytes > _MAX_CHUNK_BYTES:
            raise DamagedFileError(
                f"{where}: chunks {creation.get_chunk()} are larger than {_MAX_CHUNK_BYTES} bytes"
            )
        # HDF5 reads the size of a chunk and the type of its elements from different places of the
        # file.
        stored = dataset.id.get_storage_size()
        if not filters and stored != dataset.id.get_num_chunks() * chunk_bytes:
            raise DamagedFileError(
                f"{where}: its chunks take {stored} bytes, expected {chunk_bytes} each"
            )


def names_of(group: Any, where: str) -> list[str]:
    if not isinstance(group, h5py.Group):
        raise DamagedFileError(f"{where}: not a group")
    if len(group) > _MAX_NAMES:
        raise DamagedFileError(f"{where}: {len(group)} names, expected {_MAX_NAMES} at most")
    names = list(group)
    for name in names:
        if not isinstance(name, str):  # h5py gives bytes for what is not UTF-8
            raise DamagedFileError(f"{where}: a name that is not UTF-8 text: {name!r}")
    return names


def open_object(group: Any, path: str, where: str) -> Any:
    """The object behind a path. Soft links inside the file are followed, other links refused."""
    rest = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    found = group
    for _ in range(256):
        if not rest:
            return found
        part = rest.pop()
        if not isinstance(found, h5py.Group):
            raise DamagedFileError(f"{where}: what comes before '{part}' is not a group")
        link = found.get(part, getlink=True)
        if link is None:
            raise DamagedFileError(f"{where}: no object '{part}' in the file")
        if isinstance(link, h5py.HardLink):
            found = found[part]
        elif isinstance(link, h5py.SoftLink):
            rest += [p for p in reversed(link.path.split("/")) if p not in ("", ".")]
            found = found.file["/"] if link.path.startswith("/") else found
        else:
            raise DamagedFileError(
                f"{where}: '{part}' is a link to another file, which is refused; copy its target "
                "into this file"
            )
    raise DamagedFileError(f"{where}: too many soft links")


def _decoded(value: Any, where: str) -> str:
    encoded = value.encode() if isinstance(value, str) else bytes(value)
    try:
        return encoded.split(b"\0", 1)[0].decode()
    except UnicodeDecodeError:
        raise DamagedFileError(f"{where}: not UTF-8 text") from None
