"""What random damage does to a file's bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

Mutate = Callable[[random.Random, bytearray, bytes], None]


def place(rng: random.Random, data: bytearray) -> int:
    """Anywhere, or in the first 4 KiB, where most structures lie."""
    return rng.randrange(min(len(data), rng.choice((4096, len(data)))))


def flip_bits(rng: random.Random, data: bytearray, _: bytes) -> None:
    for _i in range(rng.randint(1, 8)):
        data[place(rng, data)] ^= 1 << rng.randrange(8)


def set_bytes(rng: random.Random, data: bytearray, _: bytes) -> None:
    at = place(rng, data)
    for i in range(at, min(at + rng.randint(1, 8), len(data))):
        data[i] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def truncate(rng: random.Random, data: bytearray, _: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def splice(rng: random.Random, data: bytearray, other: bytes) -> None:
    size = rng.randint(1, 512)
    at, begin = place(rng, data), rng.randrange(len(other))
    piece = other[begin : begin + size]
    data[at : at + len(piece)] = piece[: len(data) - at]


def header_of_other(rng: random.Random, data: bytearray, other: bytes) -> None:
    size = rng.choice((8, 48, 96, 256, 800, 2048))
    data[:size] = other[:size][: len(data)]


def set_number(rng: random.Random, data: bytearray, _: bytes) -> None:
    at = place(rng, data) // 8 * 8
    old = int.from_bytes(data[at : at + 8], "little")
    new = rng.choice(
        (0, 1, old + 1, old - 1, old * 2, old // 2, 2**31, 2**63, 2**64 - 1, len(data))
    )
    width = len(data[at : at + 8])
    data[at : at + 8] = (new % 2**64).to_bytes(8, "little")[:width]


def set_zeros(rng: random.Random, data: bytearray, _: bytes) -> None:
    at = place(rng, data)
    size = min(rng.randint(1, 256), len(data) - at)
    data[at : at + size] = bytes(size)


def copy_within(rng: random.Random, data: bytearray, _: bytes) -> None:
    splice(rng, data, bytes(data))


MUTATIONS: dict[str, Mutate] = {
    "bit flips": flip_bits,
    "bytes": set_bytes,
    "truncation": truncate,
    "splices": splice,
    "headers of others": header_of_other,
    "8-byte numbers": set_number,
    "zeros": set_zeros,
    "copies": copy_within,
}
