"""Mask files through h5py, in the HDF5 schema of docs/file-format.md, which `fdma-maskc` uses too.

Files are untrusted. Links are checked before they are followed, so that no data of another file is
read. Type, extents, storage and filters of a dataset are compared with those that the lengths
imply, and its bytes with the size of the file, before memory is allocated. The core then checks
every entry and the content hash. HDF5 decodes the file in this process, even if it is damaged,
unless `isolate` starts another process.

Writing is atomic. A copy of the existing file, or a new file, is written beside it under another
name, synced and renamed. If anything fails, the old file is unchanged and no new file is left.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from ..masks.block_mask import BlockMask
from ..masks.state import core_of
from .replaced_file import FileAppearedError, replaced_file

__all__ = ["list_masks", "load", "save"]

AnyPath: TypeAlias = "str | PathLike[str]"


def save(path: AnyPath, masks: Mapping[str, BlockMask], *, overwrite: bool = False) -> None:
    """Writes masks into an HDF5 file under their names; other contents of the file stay.

    Names have 1 to 255 bytes and no '/'. A name that the file already has is an error, unless
    `overwrite` replaces that mask. The file appears whole or not at all, with mode, owner and group
    of the file that it replaces. Programs that save into the same file at the same time, fdma-maskc
    included, wait for each other, so that the file holds the masks of all of them at the end.

    Errors: FileExistsError (a name that exists), ValueError (wrong names), TypeError, OSError (the
    operating system, a file that is not HDF5, a file that is open for writing), ImportError
    without h5py.

    >>> import fdma
    >>> import h5py
    >>> fdma.save("masks.h5", {"local": fdma.compile("causal & window(64)", 512),
    ...                  "global": fdma.compile("causal", 512)})
    >>> fdma.list_masks("masks.h5")
    ['global', 'local']
    """
    h5py = _h5py()
    from .writer import check_names, write_mask

    path = os.fsdecode(path)
    check_names(masks)
    while True:
        if Path(path).exists():
            _check_is_hdf5(h5py, path)
        try:
            with replaced_file(path) as (disk, exists), _explained(path, "write"):
                # The oldest structures that suffice, so that HDF5 1.8 and later read a new file.
                libver = ("earliest", "latest" if exists else "v108")
                with h5py.File(disk, "r+" if exists else "w", libver=libver) as file:
                    for name, mask in masks.items():
                        write_mask(file, name, mask, overwrite=overwrite, path=path)
            return
        except FileAppearedError:
            continue


def load(path: AnyPath, name: str | None = None, *, isolate: bool = False) -> BlockMask:
    """The mask with this name, or the only mask of the file.

    isolate: read the file in another process, which costs the start of that process and a copy. If
    HDF5 crashes on a file that was damaged on purpose, that process dies and this one raises an
    OSError.

    Errors: FileNotFoundError and other OSError (the operating system; a file without masks; damage,
    with the dataset and the entry), KeyError (no such name), ValueError (several masks and no
    name), NotImplementedError (written by a newer FDMA), ImportError without h5py.

    >>> import fdma
    >>> import h5py
    >>> fdma.compile("causal", 512).save("masks.h5")
    >>> fdma.load("masks.h5")
    <BlockMask 'causal' [1, 1, 512, 512] segment 128 x 128, density 0.501, 2.1 KiB>
    """
    path = os.fsdecode(path)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name: expected a str, got {type(name).__name__}")
    if isolate:
        from .isolated_load import state_from_child

        state = state_from_child(path, name)
    else:
        state = state_of_file(path, name)
    where = state.pop("where", f"'{path}'")
    try:
        core = core_of(state)
    except (TypeError, ValueError) as error:
        raise OSError(f"{where}: {error}") from None
    return BlockMask._wrap(core)


def state_of_file(path: str, name: str | None) -> dict[str, Any]:
    """The attributes and arrays that `load` reads. Only their sizes are checked."""
    with _opened(path) as file:
        from .reader import mask_names, read_state

        names = mask_names(file, path)
        if name is None:
            if not names:
                raise OSError(f"'{path}' holds no mask")
            if len(names) > 1:
                raise ValueError(
                    f"'{path}' holds {len(names)} masks, name one of: {_some_of(names)}"
                )
            name = names[0]
        if name not in names:
            raise KeyError(f"'{path}' holds no mask '{name}'; it holds: {_some_of(names)}")
        state = read_state(file, name, path)
    state["where"] = f"'{path}': /masks/{name}"
    return state


def list_masks(path: AnyPath) -> list[str]:
    """Names of the masks in a file, in alphabetical order.

    Errors: OSError (the operating system; a file without masks), ImportError without h5py.

    >>> import fdma
    >>> import h5py
    >>> for n in (256, 512):
    ...     fdma.compile("causal", n).save("masks.h5", name=f"causal_{n}")
    >>> fdma.list_masks("masks.h5")
    ['causal_256', 'causal_512']
    """
    path = os.fsdecode(path)
    with _opened(path) as file:
        from .reader import mask_names

        return mask_names(file, path)


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise ImportError("mask files need h5py: pip install h5py") from None
    return h5py


def _check_is_hdf5(h5py: Any, path: str) -> None:
    """Raises the operating system's error, or an error that says that the file is not HDF5."""
    status = Path(path).stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"'{path}' is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"'{path}' is not a regular file")
    with Path(path).open("rb"):  # the reason of the operating system, if there is one
        pass
    if not h5py.is_hdf5(path):
        raise OSError(f"'{path}' is not an HDF5 file")


@contextmanager
def _explained(path: str, what: str) -> Iterator[None]:
    """Turns h5py's errors for files that it cannot use into an OSError that names the file."""
    try:
        yield
    except FileExistsError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        if f"'{path}'" in str(error):
            raise
        raise OSError(f"cannot {what} '{path}': {reason(error)}") from error


def reason(error: Exception) -> str:
    """HDF5's message, with advice for file structures that this HDF5 does not know."""
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    if "version number" in text:
        text += (
            "; if a newer HDF5 wrote the file (h5py with libver='latest'), rewrite it with "
            "h5py.File(path, 'w', libver=('v108', 'v110'))"
        )
    return text


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    h5py = _h5py()
    _check_is_hdf5(h5py, path)
    with _explained(path, "open"):
        file = h5py.File(path, "r")
    with file:
        yield file


def _some_of(names: list[str], shown: int = 8) -> str:
    text = ", ".join(names[:shown]) or "none"
    return text + (f" and {len(names) - shown} more" if len(names) > shown else "")
