"""Reading a mask file in a process of its own, so that a crash of HDF5 is an error here.

The child opens the file, checks what reader.py checks, and writes attributes and arrays to its
standard output: a header in JSON, then the bytes of the arrays one after another. A damaged file
may make the child write anything, so its output is not trusted: the announced numbers of bytes are
compared with what arrives, and the core checks every entry as it does for all arrays.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import IO, Any

from numpy.typing import NDArray

from ..masks.state_stream import announced, bytes_of, filled

__all__: list[str] = []

_MAX_HEADER_BYTES = 1 << 30
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (KeyError, ValueError, TypeError, OSError, NotImplementedError, MemoryError,
                 FileNotFoundError, PermissionError, IsADirectoryError, ImportError)
}  # fmt: skip
_MAX_CPU_SECONDS = 300
"""HDF5 may loop on a damaged file; a whole one of 100 GiB takes less."""
_PROGRAM = f"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({_MAX_CPU_SECONDS}, {_MAX_CPU_SECONDS}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
request = json.loads(sys.stdin.buffer.read())
sys.path[:] = request["search"]
from fdma.files.isolated_load import send
send(request["path"], request["name"])
"""


def state_from_child(path: str, name: str | None) -> dict[str, Any]:
    """Returns and raises what `state_of_file` does; OSError if the reading process dies."""
    if not sys.executable:
        raise RuntimeError("isolate: this program has no Python interpreter to start")
    # The interpreter's own settings, and the folders that this process imports from.
    request = json.dumps({"search": sys.path, "path": path, "name": name})
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(request.encode())
            child.stdin.close()
            state = _receive(child.stdout)
        except (EOFError, BrokenPipeError):
            raise OSError(f"'{path}': {_end_of(child)} while it read the file") from None
        except (ValueError, TypeError, KeyError) as error:
            raise OSError(f"'{path}': a process that read the file sent no mask") from error
        finally:
            child.kill()
    if "error" in state:
        kind = _ERRORS.get(str(state["error"]), OSError)
        raise kind(str(state.get("message")))
    return state


def _end_of(child: subprocess.Popen[bytes]) -> str:
    try:
        status = child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return "a process fell silent"
    if status < 0:
        return f"a process died of {signal.Signals(-status).name}"
    return f"a process ended with status {status}"


def _receive(pipe: IO[bytes]) -> dict[str, Any]:
    """Reads the child's message. Errors: EOFError, ValueError, TypeError for a malformed one."""
    size = int.from_bytes(_read(pipe, 8), "little")
    if size > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {size} bytes")
    state = json.loads(_read(pipe, size))
    if not isinstance(state, dict):
        raise TypeError("no header")
    if "error" in state:
        return state
    return {key: filled(value, lambda size: _read(pipe, size)) for key, value in state.items()}


def _read(pipe: IO[bytes], size: int) -> bytes:
    """Reads `size` bytes. Memory grows with the bytes that arrive, not with the announced size."""
    pieces = []
    while size > 0:
        piece = pipe.read(min(size, 1 << 24))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def send(path: str, name: str | None) -> None:
    """The child's side: writes one mask, or the error, to standard output."""
    from .mask_files import state_of_file

    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # keeps other prints out of the message
    arrays: list[NDArray[Any]] = []
    try:
        header = announced(state_of_file(path, name), arrays)
    except Exception as error:
        kind = next((k for k in type(error).__mro__ if k.__name__ in _ERRORS), OSError)
        message = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        header = {"error": kind.__name__, "message": message}
    encoded = json.dumps(header).encode()
    out.write(len(encoded).to_bytes(8, "little") + encoded)
    for array in arrays:
        out.write(bytes_of(array))
    out.flush()
