"""Prints the golden rows of test_dropout_bits.cpp, by the definition of dropout in NumPy."""

import numpy as np

QUERIES, KEYS = 45, 150


def philox(counter: list[np.ndarray], key: list[int]) -> list[np.ndarray]:
    """Returns the four words of Philox4x32-7; counters are arrays of uint64 below 2^32."""
    low = np.uint64(0xFFFFFFFF)
    for step in range(7):
        product_0 = counter[0] * np.uint64(0xD2511F53)
        product_1 = counter[2] * np.uint64(0xCD9E8D57)
        key_0 = np.uint64((key[0] + step * 0x9E3779B9) & 0xFFFFFFFF)
        key_1 = np.uint64((key[1] + step * 0xBB67AE85) & 0xFFFFFFFF)
        counter = [
            (product_1 >> np.uint64(32)) ^ counter[1] ^ key_0,
            product_1 & low,
            (product_0 >> np.uint64(32)) ^ counter[3] ^ key_1,
            product_0 & low,
        ]
    return counter


def kept(rate: float, seed: int, offset: int, head: int) -> np.ndarray:
    """Returns which pairs of the first queries and keys of a head are kept."""
    q, k = np.meshgrid(np.arange(QUERIES), np.arange(KEYS), indexing="ij")
    first = np.full_like(q, offset & 0xFFFFFFFF, dtype=np.uint64)
    blocks = [(x // 16 * 8 + x % 8).astype(np.uint64) for x in (q, k)]
    key = [seed & 0xFFFFFFFF, (seed >> 32) ^ (offset >> 32)]
    words = np.stack(philox([first, np.full_like(first, head), *blocks], key))
    word = np.take_along_axis(words, (2 * (q // 8 % 2) + k // 8 % 2)[None], 0)[0]
    return np.asarray(word >= np.uint64(round(rate * 2**32)))


def fnv(bits: np.ndarray) -> int:
    """Returns FNV-1a of the pairs, a byte each, row by row."""
    value = 0xCBF29CE484222325
    for bit in bits.ravel():
        value = (value ^ int(bit)) * 0x100000001B3 % 2**64
    return value


if __name__ == "__main__":
    for rate, seed, offset, head in [
        (0.1, 0, 0, 0),
        (0.5, 1234, 4, 3),
        (0.25, 0x0123456789ABCDEF, 0xFEDCBA9876543210, 77),
        (0.9, 2**64 - 1, 2**64 - 4, 2**32 - 1),
    ]:
        pairs = kept(rate, seed, offset, head)
        print(f"{{{rate}, {seed:#x}U, {offset:#x}U, {head:#x}U, {pairs.sum()}, {fnv(pairs):#x}U}},")
