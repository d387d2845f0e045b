"""Files that are right, to be mutated: masks of every format, dense masks in every kind of storage,
groups of other systems; and how h5py reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

MASKC = os.environ.get("FDMA_MASKC", "")
BUILD = Path(os.environ.get("FDMA_BUILD_DIR", "")).resolve()
sys.path.insert(0, str(BUILD / "python_bindings"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "python" / "support"))


SECONDS = 20
MAX_VALUES = 1 << 24
Q_LEN, KV_LEN = 96, 80


INTEROP = {
    "bsr": "bsr",
    "cu_seqlens": "cu_seqlens",
    "flash_mask": "flash_mask",
    "flex": "block_mask",
    "hf_mask": "hf_mask",
    "hf_mask_additive": "hf_mask",
    "hf_padding": "hf_padding",
}


@dataclass
class Seed:
    family: str  # own, dense, interop
    name: str
    data: bytes
    cells: Any  # of the whole mask, [batch, head, q, k]
    where: str = ""  # the dataset or the group
    layout: str = ""  # --from
    has_chunk_keys: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


def tool(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MASKC, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=False,
    )


def must(folder: Path, *words: str) -> None:
    done = tool(folder, *words)
    if done.returncode != 0:
        raise SystemExit(f"{words}: {done.stderr}")


def load_own(path: str, _: str) -> Any:
    import fdma

    return np.asarray(fdma.load(path).to_dense())


def load_dense(path: str, where: str) -> Any:
    with h5py.File(path) as file:
        dataset = file[where]
        if dataset.size > MAX_VALUES:
            raise MemoryError("too large to compare")
        values = dataset[()]
    return values.view(np.uint8) if values.dtype == np.bool_ else values


def load_group(path: str, where: str) -> Any:
    with h5py.File(path) as file:
        group = file[where]
        for name in group:
            if group[name].size > MAX_VALUES:
                raise MemoryError("too large to compare")
        fields = {name: (group[name][()], group[name].dtype) for name in group}
        return fields | {name: (value, None) for name, value in group.attrs.items()}


def random_cells(seed: int) -> Any:
    """Areas of either value and noise, so that no chunk is like another."""
    rng = np.random.default_rng(seed)
    cells = np.kron(rng.integers(0, 2, (Q_LEN // 8, KV_LEN // 8)), np.ones((8, 8), np.int64))
    return (cells ^ (rng.random((Q_LEN, KV_LEN)) < 0.1)).astype(np.uint8)


def dense_seeds(folder: Path) -> list[Seed]:
    gzip = {"compression": "gzip"}
    unlimited = {"maxshape": (None, None)}
    kinds: dict[str, tuple[str | None, dict[str, Any]]] = {
        "contiguous": (None, {}),
        "chunked": (None, {"chunks": (32, 16)}),
        "gzip": (None, {"chunks": (32, 16), **gzip}),
        "shuffle fletcher32": (None, {"chunks": (32, 16), "shuffle": True, "fletcher32": True}),
        "szip": (None, {"chunks": (32, 16), "compression": "szip"}),
        "scaleoffset": (None, {"chunks": (32, 16), "scaleoffset": 0}),
        "float16": (None, {"chunks": (32, 16), "shuffle": True, **gzip}),
        "v110 contiguous": ("v110", {}),
        "v110 gzip": ("v110", {"chunks": (32, 16), **gzip}),
        "v110 extensible": ("v110", {"chunks": (32, 16), "maxshape": (None, KV_LEN)}),
        "v110 unlimited": ("v110", {"chunks": (32, 16), **unlimited}),
    }
    seeds = []
    for number, (name, (version, storage)) in enumerate(kinds.items()):
        if name == "szip" and not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
            continue
        cells = random_cells(number)
        values = cells
        if name == "float16":
            values = np.where(cells == 1, 0.0, -65504.0).astype(np.float16)
        path = folder / "seed.h5"
        with h5py.File(path, "w", libver=(version, version) if version else None) as file:
            file.create_dataset("mask", data=values, **storage)
        has_keys = "chunks" in storage and (version is None or name == "v110 unlimited")
        whole = cells[None, None].astype(bool)
        seeds.append(Seed("dense", name, path.read_bytes(), whole, "mask", "", has_keys))
    return seeds


def own_seeds(folder: Path) -> list[Seed]:
    specs = dict.fromkeys(("segment", "parametric", "columns"), "causal & window(40 + 30 * h)")
    specs |= dict.fromkeys(("bitset", "bcsr", "dense"), "(q * 7 + k * k * (h + 1)) % 5 < 2")
    seeds = []
    for kind, spec in specs.items():
        words = ("--q-len", str(Q_LEN), "--kv-len", str(KV_LEN), "--heads", "2", "--block", "16x16")
        must(
            folder,
            "compile",
            "-s",
            spec,
            *words,
            "--format",
            kind,
            "-o",
            "seed.h5",
            "--force",
            "-q",
        )
        seeds.append(own_seed(folder, kind))
    large = ("--q-len", "2100", "--kv-len", "2000", "--format", "dense")
    must(
        folder, "compile", "-s", "(q * 7 + k * k) % 5 < 2", *large, "-o", "seed.h5", "--force", "-q"
    )
    seeds.append(own_seed(folder, "dense deflated", True))
    write_patterns(folder / "seed.h5")
    seeds.append(own_seed(folder, "patterns"))
    return seeds


def write_patterns(path: Path) -> None:
    import fdma
    from pattern_masks import pattern_state

    path.unlink()
    fdma.BlockMask.from_arrays(pattern_state()).save(path)


def own_seed(folder: Path, name: str, has_chunk_keys: bool = False) -> Seed:
    path = folder / "seed.h5"
    cells = load_own(str(path), "")
    return Seed("own", name, path.read_bytes(), cells, "", "", has_chunk_keys)


def interop_seeds(folder: Path) -> list[Seed]:
    words = ("--spec", "causal", "--q-len", "48", "--block", "16x16")
    must(folder, "compile", *words, "-o", "mask.h5", "-q")
    cells = load_own(str(folder / "mask.h5"), "")
    seeds = []
    for layout, group in INTEROP.items():
        must(folder, "convert", "mask.h5", "--to", layout, "-o", "seed.h5", "--force", "-q")
        data = (folder / "seed.h5").read_bytes()
        fields = load_group(str(folder / "seed.h5"), group)
        seeds.append(Seed("interop", layout, data, cells, group, layout, False, fields))
    return seeds
