"""A BlockMask as a text: what programs of PyTorch that are saved hold of it.

    fdma.BlockMask/1:<base64 of zlib of: 8 bytes, size of the header; header (JSON); arrays>

The state is that of masks/state.py with its content hash, as masks/state_stream.py writes it. A
program may come from anybody, so a text is not trusted, like any file: sizes are bounded, and every
entry and the hash are checked. No text of the mask language begins like one of these.
"""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections import OrderedDict
from typing import Any

from numpy.typing import NDArray

from .block_mask import BlockMask
from .handles import mask_of_handle
from .state import state_of
from .state_stream import announced, bytes_of, filled

__all__: list[str] = []

_FAMILY = "fdma.BlockMask/"
_VERSION = 1
_PREFIX = f"{_FAMILY}{_VERSION}:"
MAX_TEXT = 1 << 20
"""Characters. PyTorch copies the text at every call."""
MAX_BYTES = 64 << 20
"""Of what the text holds when it is unpacked."""
_MAX_MASKS = 64
_MAX_KEPT_BYTES = 256 << 20

_cached: OrderedDict[str, tuple[BlockMask, int]] = OrderedDict()
_lock = threading.Lock()


def is_mask_text(text: str) -> bool:
    """Whether it stands for a BlockMask: a text of the mask language does not."""
    return text.startswith(_FAMILY)


def text_of_mask(mask: BlockMask) -> str:
    """The text of a mask. NotImplementedError where it takes more than MAX_TEXT characters."""
    arrays: list[NDArray[Any]] = []
    state = {**state_of(mask._core), "content_hash": mask.content_hash}
    header = json.dumps(announced(state, arrays)).encode()
    num_bytes = 8 + len(header) + sum(array.nbytes for array in arrays)
    if num_bytes > MAX_BYTES:
        raise _too_large(mask, f"{num_bytes / 2**20:.0f} MiB", f"{MAX_BYTES >> 20} MiB unpacked")
    pieces: list[Any] = [len(header).to_bytes(8, "little"), header, *map(bytes_of, arrays)]
    packed = base64.b64encode(zlib.compress(b"".join(pieces))).decode()
    if len(_PREFIX) + len(packed) > MAX_TEXT:
        raise _too_large(mask, f"{len(packed) / 2**20:.1f} MiB", f"{MAX_TEXT >> 20} MiB")
    return _PREFIX + packed


def text_of_handle(handle: int) -> str:
    """The same by the mask's number: what torch.export of the strict kind calls, and keeps what it
    returns, takes numbers alone before PyTorch 2.12.
    """
    return text_of_mask(mask_of_handle(handle))


text_of_handle._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _too_large(mask: BlockMask, size: str, bound: str) -> NotImplementedError:
    return NotImplementedError(
        f"mask: {mask!r} takes {size} in a program that is saved, which holds up to {bound}; "
        "give its text or its expression instead, which the program compiles where it runs, or "
        "keep attention outside"
    )


def mask_of_text(text: str) -> BlockMask:
    """The mask of a text, unpacked once: the latest of them are kept.

    Errors: ValueError for a text that is damaged; NotImplementedError for a newer version.
    """
    with _lock:
        found = _cached.get(text)
        if found is not None:
            _cached.move_to_end(text)
            return found[0]
    mask, num_bytes = _unpacked(text)
    with _lock:
        found = _cached.setdefault(text, (mask, num_bytes))
        while len(_cached) > 1 and (len(_cached) > _MAX_MASKS or _kept_bytes() > _MAX_KEPT_BYTES):
            _cached.popitem(last=False)
        return found[0]


def _kept_bytes() -> int:
    return sum(num_bytes for _, num_bytes in _cached.values())


def _unpacked(text: str) -> tuple[BlockMask, int]:
    version, _, packed = text.removeprefix(_FAMILY).partition(":")
    if version != str(_VERSION):
        if version.isdecimal() and int(version[:9]) > _VERSION:
            raise NotImplementedError(
                f"mask: the program was saved by a newer FDMA (BlockMask of version {version[:9]}; "
                f"this one reads {_VERSION})"
            )
        raise _damaged(f"version {version[:9]!r}")
    if len(text) > MAX_TEXT:
        raise _damaged(f"{len(text)} characters, expected up to {MAX_TEXT}")
    try:
        data = _unzipped(base64.b64decode(packed, validate=True))
        mask = BlockMask.from_arrays(_state_in(data))
    except NotImplementedError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise _damaged(str(error)) from error
    return mask, len(text) + len(data)


def _damaged(why: str) -> ValueError:
    return ValueError(f"mask: the BlockMask in the program is damaged: {why}")


def _unzipped(packed: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError(f"expected one stream of up to {MAX_BYTES} bytes")
    return data


def _state_in(data: bytes) -> Any:
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        if size > len(data) - at:
            raise ValueError(f"{size} bytes announced, {len(data) - at} are there")
        at += size
        return data[at - size : at]

    header = read(int.from_bytes(read(8), "little"))
    state = filled(json.loads(header), read)
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes after the last array")
    if not isinstance(state, dict) or "content_hash" not in state:
        raise ValueError("no content_hash")
    return state
