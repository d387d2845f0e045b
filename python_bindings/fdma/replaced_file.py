"""A file that takes the place of another when it is complete, written by h5py.

HDF5 does not stand a write that fails: closing the file afterwards fails too, and may end the
process. So it never sees one: it writes through a Python object that keeps the first error of the
disk to itself and discards what comes after it; once HDF5 has closed the file, the error is raised.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__: list[str] = []


class DiskFile:
    """A file descriptor as h5py's driver for Python objects wants it; writing never fails."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._at = 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (os.fstat(self._descriptor).st_size if base is None else base)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        data = bytearray(size)
        self.readinto(memoryview(data))
        return bytes(data)

    def readinto(self, buffer: memoryview) -> int:
        """Zeros past the end, where a write that failed would have been."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], self._at + done)
            if count == 0:
                view[done:] = bytes(len(view) - done)
                break
            done += count
        self._at += len(view)
        return len(view)

    def write(self, data: memoryview) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and self.error is None:
            try:
                done += os.pwrite(self._descriptor, view[done:], self._at + done)
            except OSError as error:
                self.error = error
        self._at += len(view)
        return len(view)

    def truncate(self, size: int) -> int:
        if self.error is None:
            try:
                os.ftruncate(self._descriptor, size)
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """At the end, by `replaced_file`."""


@contextmanager
def replaced_file(path: str) -> Iterator[tuple[DiskFile, bool]]:
    """What to write to, and whether it holds what is at `path` now; it goes there at the end.

    Through a symbolic link the file behind it is replaced, and permissions stay. If anything fails
    nothing at `path` changes and no other file is left. Errors: OSError.
    """
    target = Path(os.path.realpath(path))
    exists = target.exists()
    if target.is_dir():
        raise IsADirectoryError(f"cannot write '{path}': a folder")
    if exists and not target.is_file():
        raise OSError(f"cannot write '{path}': not a regular file")
    name = os.fsencode(target.name)[:200].decode(errors="ignore")
    temporary = target.with_name(f".{name}.fdma-{os.getpid()}-{secrets.token_hex(4)}")
    with _explained(path):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            file = DiskFile(descriptor)
            if exists:
                with _explained(path):
                    os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
                    shutil.copyfile(target, temporary)
            try:
                yield file, exists
            except Exception:
                if file.error is None:
                    raise
            with _explained(path):
                if file.error is not None:  # what HDF5 said of it is beside the point
                    raise file.error
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with _explained(path):
            temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot write '{path}': {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    """The file is complete either way; not every file system can sync a folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
