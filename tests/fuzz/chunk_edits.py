"""Edits of the chunk indices of HDF5 files: version 1 B-trees, and leaves of version 2, whose
checksum is put right."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

RANK = 2
_NODE_BYTES = 24
_KEY_BYTES = 8 + 8 * (RANK + 1)
_STRIDE = _KEY_BYTES + 8
_RECORD_BYTES = 8 + 8 * RANK  # of a version 2 leaf without filters
_LEAF_BYTES = 6


@dataclass
class KeyEdit:
    """`keeps_mask`: only where a chunk belongs was changed, so that no other mask may come out."""

    what: str
    keeps_mask: bool


def _places(data: bytearray) -> list[tuple[int, int, int]]:
    """For each key or record: where its coordinates, its address, and its size lie (0: none)."""
    places = []
    at = data.find(b"TREE\1")
    while at >= 0:
        (children,) = struct.unpack_from("<H", data, at + 6)
        for i in range(children):
            key = at + _NODE_BYTES + i * _STRIDE
            places.append((key + 8, key + _KEY_BYTES, key))
        at = data.find(b"TREE\1", at + 1)
    leaf = data.find(b"BTLF")
    if not places and leaf >= 0:
        for i in range(_num_records(data, leaf)):
            record = leaf + _LEAF_BYTES + i * _RECORD_BYTES
            places.append((record + 8, record, 0))
    return places


def _num_records(data: bytearray, leaf: int) -> int:
    """By the checksum behind them, which is right only there."""
    for records in range(1, 256):
        end = leaf + _LEAF_BYTES + records * _RECORD_BYTES
        if struct.unpack_from("<I", data, end)[0] == lookup3(bytes(data[leaf:end])):
            return records
    return 0


def _put_checksum_right(data: bytearray, records: int) -> None:
    leaf = data.find(b"BTLF")
    if records and leaf >= 0:
        end = leaf + _LEAF_BYTES + records * _RECORD_BYTES
        struct.pack_into("<I", data, end, lookup3(bytes(data[leaf:end])))


def _edited(data: bytearray, change: Callable[[list[tuple[int, int, int]]], None]) -> None:
    places = _places(data)
    is_leaf = places[0][2] == 0
    change(places)
    if is_leaf:
        _put_checksum_right(data, len(places))


def move_chunk(rng: random.Random, data: bytearray) -> KeyEdit:
    """Other coordinates for a chunk."""

    def change(places: list[tuple[int, int, int]]) -> None:
        at, _, _ = rng.choice(places)
        for d in range(RANK):
            (old,) = struct.unpack_from("<Q", data, at + 8 * d)
            (other,) = struct.unpack_from("<Q", data, rng.choice(places)[0] + 8 * d)
            new = rng.choice(
                (old, other, old + 1, old - 1, old + 16, old + 32, 0, 2**63, 2**64 - 1)
            )
            struct.pack_into("<Q", data, at + 8 * d, new % 2**64)

    _edited(data, change)
    return KeyEdit("coordinates", True)


def swap_chunks(rng: random.Random, data: bytearray) -> KeyEdit:
    """The coordinates of two chunks change places."""

    def change(places: list[tuple[int, int, int]]) -> None:
        (a, _, _), (b, _, _) = rng.choices(places, k=2)
        size = 8 * RANK
        data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]

    _edited(data, change)
    return KeyEdit("coordinates of two", True)


def share_address(rng: random.Random, data: bytearray) -> KeyEdit:
    """A chunk's bytes are those of another one, at its address and of its size."""

    def change(places: list[tuple[int, int, int]]) -> None:
        a, b = rng.choices(places, k=2)
        data[a[1] : a[1] + 8] = data[b[1] : b[1] + 8]
        if a[2]:
            data[a[2] : a[2] + 4] = data[b[2] : b[2] + 4]

    _edited(data, change)
    return KeyEdit("shared address", True)


def move_address(rng: random.Random, data: bytearray) -> KeyEdit:
    """Another address: nothing tells where plain data should have been."""

    def change(places: list[tuple[int, int, int]]) -> None:
        _, at, _ = rng.choice(places)
        (old,) = struct.unpack_from("<Q", data, at)
        new = rng.choice((0, old + 1, old + 512, old - 8, len(data) - 4, 2**63, 2**64 - 1))
        struct.pack_into("<Q", data, at, new % 2**64)

    _edited(data, change)
    return KeyEdit("address", False)


def change_size(rng: random.Random, data: bytearray) -> KeyEdit:
    """Another number of stored bytes, filter mask or number of children."""
    _, _, at = rng.choice(_places(data))
    if at == 0:
        return move_chunk(rng, data)
    kind = rng.randrange(3)
    if kind == 2:
        node = data.find(b"TREE\1")
        (children,) = struct.unpack_from("<H", data, node + 6)
        struct.pack_into("<H", data, node + 6, max(0, children + rng.choice((-1, 1))))
        return KeyEdit("children", False)
    (old,) = struct.unpack_from("<I", data, at + 4 * kind)
    new = rng.choice((old + 1, old - 1, old * 2, 0, 1, 2, 2**32 - 1))
    struct.pack_into("<I", data, at + 4 * kind, new % 2**32)
    return KeyEdit("size or filter mask", False)


CHUNK_EDITS = (move_chunk, move_chunk, swap_chunks, share_address, move_address, change_size)


def lookup3(data: bytes) -> int:
    """Bob Jenkins' hash, 2006, as HDF5's metadata checksum has it."""
    mask = 0xFFFFFFFF
    a: int
    b: int
    c: int

    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> (32 - bits)) & mask

    a = b = c = (0xDEADBEEF + len(data)) & mask
    at, left = 0, len(data)
    while left > 12:
        x, y, z = struct.unpack_from("<3I", data, at)
        a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
        a = (a - c & mask) ^ rotate(c, 4)
        c = c + b & mask
        b = (b - a & mask) ^ rotate(a, 6)
        a = a + c & mask
        c = (c - b & mask) ^ rotate(b, 8)
        b = b + a & mask
        a = (a - c & mask) ^ rotate(c, 16)
        c = c + b & mask
        b = (b - a & mask) ^ rotate(a, 19)
        a = a + c & mask
        c = (c - b & mask) ^ rotate(b, 4)
        b = b + a & mask
        at, left = at + 12, left - 12
    if left == 0:
        return c
    x, y, z = struct.unpack("<3I", data[at:].ljust(12, b"\0"))
    a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
    c = (c ^ b) - rotate(b, 14) & mask
    a = (a ^ c) - rotate(c, 11) & mask
    b = (b ^ a) - rotate(a, 25) & mask
    c = (c ^ b) - rotate(b, 16) & mask
    a = (a ^ c) - rotate(c, 4) & mask
    b = (b ^ a) - rotate(a, 14) & mask
    return (c ^ b) - rotate(b, 24) & mask
