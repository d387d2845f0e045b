"""Makes the input files of the tests of fdma-maskc by name; each function writes into a folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np

DATA = Path(__file__).resolve().parents[2] / "data"


def document_lengths() -> list[int]:
    """Returns the first 8192-token sample of tests/data/document_lengths.json."""
    sample = json.loads((DATA / "document_lengths.json").read_text())["8192"][0]
    return [length for _, length in sample["documents"]]


def causal_documents(lengths: list[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns the dense mask `causal & documents(lengths)` of sum(lengths) tokens."""
    ids = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(ids))
    return np.asarray((ids[:, None] == ids[None, :]) & (position[None, :] <= position[:, None]))


def _write(path: Path, **datasets: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file.create_dataset(name, data=values, track_times=False)


def docs(folder: Path) -> None:
    """docs.h5: /lengths of packed documents, 8192 tokens."""
    _write(folder / "docs.h5", lengths=np.array(document_lengths(), np.int64))


def dense(folder: Path) -> None:
    """dense.h5: /mask, the dense causal mask of those documents."""
    with h5py.File(folder / "dense.h5", "w") as file:
        file.create_dataset(
            "mask",
            data=causal_documents(document_lengths()),
            chunks=(512, 512),
            compression="gzip",
            compression_opts=1,
        )


def qkv(folder: Path) -> None:
    """qkv.h5: /q, /k, /v for those documents, 4 heads on 2, float16."""
    random = np.random.default_rng(0)
    heads = {"q": 4, "k": 2, "v": 2}
    _write(
        folder / "qkv.h5",
        **{
            name: random.standard_normal((1, 8192, count, 32), np.float32).astype(np.float16)
            for name, count in heads.items()
        },
    )


def small(folder: Path) -> None:
    """small.h5: /mask, 40 x 56 (documents, causal); /flipped, one cell of it flipped; /wide."""
    mask = causal_documents([10, 30, 16])[16:, :]
    flipped = mask.copy()
    flipped[7, 20] ^= True
    _write(folder / "small.h5", mask=mask, flipped=flipped, wide=np.pad(mask, ((0, 0), (0, 1))))


def floats(folder: Path) -> None:
    """floats.h5: additive causal masks; /soft has 0.5 at [3, 1], /nan at [0, 0], /low uses -1e4."""
    causal = np.tril(np.ones((32, 32), bool))
    bias = np.where(causal, 0.0, -np.inf).astype(np.float32)
    soft = bias.copy()
    soft[3, 1] = 0.5
    bad = bias.copy()
    bad[0, 0] = np.nan
    _write(
        folder / "floats.h5",
        bias=bias,
        soft=soft,
        nan=bad,
        low=np.where(causal, 0.0, -1e4).astype(np.float16),
    )


def numbers(folder: Path) -> None:
    """numbers.h5: integer masks of 2 to 4 dimensions; /two holds a 2 at [5, 6]."""
    causal = np.tril(np.ones((32, 32), np.uint8))
    two = causal.copy()
    two[5, 6] = 2
    batched = np.broadcast_to(causal, (2, 3, 32, 32)).copy()
    batched[1, 2] = 0
    keys = np.arange(48)
    _write(
        folder / "numbers.h5",
        two=two,
        batched=batched,
        three=batched[1],
        padding=np.stack([keys < 48, keys < 20]).astype(np.int64),
        inverted=1 - causal,
    )


def tables(folder: Path) -> None:
    """tables.h5: /short of 5 entries, /words of text, /real of floats."""
    _write(
        folder / "tables.h5", short=np.arange(5), words=np.array([b"a", b"b"]), real=np.array([0.5])
    )


def scores(folder: Path) -> None:
    """scores.h5: /scores [64], /by_head [2, 64] of float32, /with_nan."""
    values = np.random.default_rng(11).normal(size=(2, 64)).astype(np.float32)
    with_nan = values[0].copy()
    with_nan[5] = np.nan
    _write(folder / "scores.h5", scores=values[0], by_head=values, with_nan=with_nan)


def learned(folder: Path) -> None:
    """learned.h5: tensors of zoh scores, 64 keys, 2 KV heads of 8 values; weights.h5: weights."""
    rng = np.random.default_rng(12)
    values = rng.normal(size=(1, 64, 2, 8)).astype(np.float16)
    wide = (rng.normal(size=(2, 16)) / 2).astype(np.float32)
    a_coef = np.array([-1.5, -0.25], dtype=np.float32)
    _write(
        folder / "learned.h5",
        values=values,
        two=np.concatenate([values, values[:, ::-1]]),
        wide=wide,
        a_coef=a_coef,
        short=a_coef[:1],
        count=np.arange(2),
    )
    _write(folder / "weights.h5", per_head=wide[:, :8], a_coef=a_coef)


def damaged(folder: Path) -> None:
    """random.h5, text.h5, empty.h5: no HDF5; half.h5: the first half of a proper file."""
    (folder / "random.h5").write_bytes(np.random.default_rng(7).bytes(4096))
    (folder / "text.h5").write_text("not HDF5\n")
    (folder / "empty.h5").write_bytes(b"")
    whole = folder / "whole.h5"
    _write(whole, mask=causal_documents([100, 156]))
    data = whole.read_bytes()
    whole.unlink()
    (folder / "half.h5").write_bytes(data[: len(data) // 2])


def newcomer(folder: Path) -> None:
    """newcomer.h5: masks, padding, lengths and scores as users of NumPy store them."""
    keys = np.arange(24)
    padding = np.stack([keys < 24, keys < 9])
    causal = np.tril(np.ones((24, 24), bool))
    half = np.float16(0.5)
    _write(
        folder / "newcomer.h5",
        attention_mask=padding.astype(np.int64),
        extended=padding[:, None, None, :],
        heads=np.broadcast_to(causal, (2, 24, 24)),
        lengths=np.array([10, 14]),
        lengths64=np.array([10.0, 14.0]),
        mask=causal,
        ones=causal.astype(np.float32),
        ones16=causal.astype(np.float16),
        ones64=causal.astype(np.float64),
        part=np.where(causal, half, np.float16(0)),
        scores16=np.arange(24, dtype=np.float16)[::-1] / 4,
        scores64=np.arange(24) / 10,
    )
    with h5py.File(folder / "newcomer.h5", "a") as file:
        file.create_dataset("lzf", data=causal, chunks=(8, 24), compression="lzf", shuffle=True)


def safetensors_bytes(tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """Returns a safetensors file of tensors by name: type, extents, bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (kind, shape, values) in tensors.items():
        header[name] = {
            "dtype": kind,
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + len(values)],
        }
        data += values
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def arrays(folder: Path) -> None:
    """mask.npy, all.npz (stored), packed.npz (deflated), t.safetensors: causal 40 x 40, lengths."""
    causal = np.tril(np.ones((40, 40), bool))
    additive = np.where(causal, 0, -np.inf).astype(np.float32)
    lengths = np.array([15, 25])
    np.save(folder / "mask.npy", causal)
    np.save(folder / "lengths.npy", lengths)
    np.save(folder / "fortran.npy", np.asfortranarray(causal))
    np.save(folder / "swapped.npy", additive.astype(">f4"))
    np.savez(folder / "all.npz", mask=causal, additive=additive, lengths=lengths)
    np.savez_compressed(folder / "packed.npz", mask=causal, lengths=lengths)
    upper = (additive.view(np.uint32) >> 16).astype("<u2")
    (folder / "t.safetensors").write_bytes(
        safetensors_bytes(
            {
                "block.mask": ("BOOL", causal.shape, causal.tobytes()),
                "block.bias": ("BF16", upper.shape, upper.tobytes()),
                "lengths": ("I64", lengths.shape, lengths.astype("<i8").tobytes()),
            }
        )
    )
    whole = (folder / "mask.npy").read_bytes()
    (folder / "short.npy").write_bytes(whole[:-1])
    (folder / "shape.npy").write_bytes(whole.replace(b"(40, 40)", b"(40, -4)"))
    stored = (folder / "all.npz").read_bytes()
    (folder / "cut.npz").write_bytes(stored[: len(stored) // 2])
    deflated = bytearray((folder / "packed.npz").read_bytes())
    deflated[80] ^= 0xFF
    (folder / "flipped.npz").write_bytes(deflated)
    text = (folder / "t.safetensors").read_bytes()
    (folder / "json.safetensors").write_bytes(text[:40] + b"\x00" + text[41:])
    (folder / "range.safetensors").write_bytes(text.replace(b"[0, 1600]", b"[0, 9600]"))


def spec_file(folder: Path) -> None:
    """local.mask: a specification of several lines."""
    (folder / "local.mask").write_text(
        "# local attention that keeps the first keys\n"
        "let near = window(32);\ncausal & (near | sink(4))\n"
    )


def deep(folder: Path) -> None:
    """deep.mask: 100,000 open parentheses."""
    (folder / "deep.mask").write_text("(" * 100_000)


def huge(folder: Path) -> None:
    """huge.h5: /mask of 2^20 x 2^20 in chunks that were never written; reading takes a minute."""
    with h5py.File(folder / "huge.h5", "w") as file:
        file.create_dataset(
            "mask", shape=(1 << 20, 1 << 20), dtype=bool, chunks=(512, 512), fillvalue=True
        )


def two_masks(folder: Path) -> None:
    """two.h5: masks a and b, written by the tool and put into one file with h5py."""
    for name, spec in (("a", "causal"), ("b", "causal & window(16)")):
        subprocess.run(
            [
                os.environ["FDMA_MASKC"],
                "compile",
                "--spec",
                spec,
                "--q-len",
                "64",
                "--name",
                name,
                "--quiet",
                "--output",
                str(folder / f"{name}.h5"),
            ],
            check=True,
        )
    with h5py.File(folder / "two.h5", "w") as both:
        both.create_group("masks")
        for name in "ab":
            with h5py.File(folder / f"{name}.h5") as one:
                both.attrs.update(one.attrs)
                one.copy(f"masks/{name}", both["masks"])
            (folder / f"{name}.h5").unlink()


INPUTS = {
    function.__name__: function
    for function in (
        docs,
        dense,
        qkv,
        small,
        floats,
        numbers,
        tables,
        scores,
        learned,
        damaged,
        newcomer,
        arrays,
        spec_file,
        deep,
        huge,
        two_masks,
    )
}
