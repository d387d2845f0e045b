"""A file that takes the place of another when it is complete, written by h5py.

HDF5 does not survive a failed write: closing the file afterwards fails too and may end the process.
HDF5 therefore writes through a Python object that never reports a failure. The object stores the
first error of the disk and discards all later writes. The error is raised after HDF5 has closed the
file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__: list[str] = []


class DiskFile:
    """A file descriptor for h5py's driver for Python objects; its writes never fail."""

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
        """Reads; bytes past the end, where a failed write would have been, are zeros."""
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
        """Does nothing: `replaced_file` syncs the file at the end."""


class FileAppearedError(Exception):
    """Another program has made a file at a path that had none when writing began."""


@contextmanager
def replaced_file(path: str) -> Iterator[tuple[DiskFile, bool]]:
    """The file to write to, and whether it starts as a copy of `path`, which it finally replaces.

    A symbolic link is followed: the file behind it is replaced or made. Mode, owner and group stay
    as far as this process may set them. Other programs that take the same lock (fdma-maskc does) do
    not change the file in between. If anything fails, nothing at `path` changes and no other file
    is left. Errors: OSError; FileAppearedError if `path` had no file at the start and has one at
    the end, after which the caller starts again.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"cannot write '{path}': a folder")
    if target.is_symlink():  # realpath returns a link only for links in a circle
        raise OSError(errno.ELOOP, f"cannot write '{path}': {os.strerror(errno.ELOOP)}")
    shown = f"{path}' -> '{target}" if Path(path).is_symlink() else path
    with _locked(target, path) as replaced:
        name = os.fsencode(target.name)[:200].decode(errors="ignore")
        temporary = target.with_name(f".{name}.fdma-{os.getpid()}-{secrets.token_hex(4)}")
        with _explained(shown):
            # The file may have to be private, so nobody else may open it before its mode is set.
            mode = 0o600 if replaced else 0o666
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            try:
                file = DiskFile(descriptor)
                if replaced is not None:
                    with _explained(path):
                        shutil.copyfile(target, temporary)
                        _take_permissions(descriptor, replaced)
                try:
                    yield file, replaced is not None
                except Exception:
                    if file.error is None:
                        raise
                with _explained(path):
                    if file.error is not None:  # the cause; HDF5's own error only follows from it
                        raise file.error
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with _explained(path):
                if replaced is None:
                    _move_if_new(temporary, target)
                else:
                    temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    _sync_folder(target.parent)


_LOCKED_BYTE = 1 << 62
"""Of the lock: no file has it. HDF5 locks by flock, which does not meet it."""


@contextmanager
def _locked(target: Path, path: str) -> Iterator[os.stat_result | None]:
    """The state of the file, or None if there is none.

    If this process may open the file for writing, it is locked against other writers that take the
    lock.
    """
    descriptor = _open_locked(target, path)
    try:
        if descriptor is not None:
            yield os.fstat(descriptor)
        else:
            yield target.stat() if target.exists() else None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_locked(target: Path, path: str) -> int | None:
    """A locked descriptor, or None if there is no file or none that may be opened for writing.

    A process that waited for another writer may have locked the old file; it then starts again.
    """
    while True:
        try:
            descriptor = os.open(target, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, PermissionError):
            return None
        except OSError as error:
            raise OSError(error.errno, f"cannot write '{path}': {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"cannot write '{path}': not a regular file")
            _lock(descriptor)
            if target.exists() and os.path.samestat(status, target.stat()):
                _check_no_writer(descriptor, path)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _check_no_writer(descriptor: int, path: str) -> None:
    """OSError if a program has the file open for writing: its pending writes would be lost."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as HDF5 locks what it reads
    except BlockingIOError:
        raise OSError(
            f"cannot write '{path}': it is open for writing, here or in another program"
        ) from None
    except OSError:  # a file system without locks
        pass


def _lock(descriptor: int) -> None:
    """Locks the file. File systems and systems without locks are used without a lock."""
    command = getattr(fcntl, "F_OFD_SETLKW", None)
    if command is None:
        return
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_BYTE, 1, 0)
    try:
        fcntl.fcntl(descriptor, command, lock)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP):
            raise


def _take_permissions(descriptor: int, replaced: os.stat_result) -> None:
    """Copies owner, group and mode.

    If the group cannot be kept, the new group gets at most the permissions of others.
    """
    mode = stat.S_IMODE(replaced.st_mode)
    created = os.fstat(descriptor)
    if created.st_uid != replaced.st_uid:
        try:
            os.fchown(descriptor, replaced.st_uid, -1)
        except OSError:
            mode &= ~stat.S_ISUID
    if created.st_gid != replaced.st_gid:
        try:
            os.fchown(descriptor, -1, replaced.st_gid)
        except OSError:
            mode &= ~stat.S_ISGID & (~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3)
    os.fchmod(descriptor, mode)


def _move_if_new(temporary: Path, target: Path) -> None:
    """Moves the file to a path that has none. Errors: FileAppearedError; OSError."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise FileAppearedError from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        if target.exists():
            raise FileAppearedError from None
        temporary.replace(target)
    else:
        temporary.unlink()


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot write '{path}': {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    """Syncs the folder, if the file system can. The file is complete even if this fails."""
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
