"""Dense masks in HDF5: how fast FDMA reads them, beside pread and beside h5py with NumPy.

    python3 bench_dense_files.py <bench_dense_file> <fdma-maskc> <folder for inputs> <result.json>

Layout x compression x size. Per file, one process of `bench_dense_file` measures FDMA, HDF5's own
data path and pread in turns; then h5py reads the same dataset in panels of rows and `np.packbits`
packs them (no tiles, no deduplication: less than FDMA does). Of masks above 4 GiB h5py reads the
first sixteenth. At last fdma-maskc converts, with its peak of resident memory. Inputs that are
there are kept.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from make_report import cpu_model, git
from report_store import write_result

SEED = 20261121
PANEL_ROWS = 256
LARGE_BYTES = 4 << 30


@dataclass(frozen=True)
class Input:
    """One file. `mask`: documents, eviction or random."""

    name: str
    mask: str
    length: int
    dtype: str = "bool"
    storage: dict[str, Any] = field(default_factory=dict)
    rounds: int = 7

    @property
    def mask_bytes(self) -> int:
        return self.length * self.length * np.dtype(self.dtype).itemsize


CHUNK = {"chunks": (256, 1024)}
GZIP = {**CHUNK, "compression": "gzip"}
INPUTS = (
    Input("contiguous", "documents", 16384),
    Input("contiguous", "documents", 32768, rounds=3),
    Input("contiguous", "documents", 16384, "float16"),
    Input("chunks", "documents", 16384, storage=CHUNK),
    Input("chunks, fletcher32", "documents", 16384, storage={**CHUNK, "fletcher32": True}),
    Input("gzip", "documents", 16384, storage=GZIP),
    Input("gzip", "documents", 32768, storage=GZIP, rounds=3),
    Input("gzip, fletcher32", "documents", 16384, storage={**GZIP, "fletcher32": True}),
    Input("gzip, shuffle", "documents", 16384, "int32", {**GZIP, "shuffle": True}, 3),
    Input("gzip, shuffle", "documents", 16384, "float16", {**GZIP, "shuffle": True}, 3),
    Input("gzip", "eviction", 16384, storage=GZIP, rounds=3),
    Input("gzip", "random", 16384, storage=GZIP, rounds=2),
    Input("gzip", "documents", 131072, storage=GZIP, rounds=2),
)
# What convert is measured on: the 16 GiB mask, and one whose result is an eighth of its bytes.
CONVERTED = (("gzip", "documents", 131072), ("gzip", "random", 16384))


def path_of(folder: Path, item: Input) -> Path:
    storage = item.name.replace(", ", "_")
    return folder / f"{item.mask}_{item.length}_{item.dtype}_{storage}.h5"


def panels(item: Input) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """The mask's rows, PANEL_ROWS at a time, as booleans."""
    tokens = np.arange(item.length)
    document = tokens * (7 * item.length // 16384) // item.length
    rng = np.random.default_rng(SEED)
    end = tokens + rng.integers(1, item.length, item.length)
    for row in range(0, item.length, PANEL_ROWS):
        q = tokens[row : row + PANEL_ROWS, None]
        if item.mask == "documents":
            yield row, (document[q] == document[None, :]) & (tokens <= q)
        elif item.mask == "eviction":
            yield row, (tokens <= q) & (q < end)
        else:
            yield row, rng.integers(0, 2, (PANEL_ROWS, item.length), np.uint8).astype(bool)


def write(path: Path, item: Input) -> None:
    temporary = path.with_suffix(".tmp")
    shape = (item.length, item.length)
    with h5py.File(temporary, "w") as file:
        dataset = file.create_dataset("mask", shape, item.dtype, **item.storage)
        compressed: dict[bytes, bytes] = {}
        for row, keeps in panels(item):
            if item.mask_bytes <= LARGE_BYTES:
                values = np.where(keeps, 0, -np.inf) if item.dtype == "float16" else keeps
                dataset[row : row + PANEL_ROWS] = values
                continue
            for column in range(0, item.length, CHUNK["chunks"][1]):  # quicker than through HDF5
                chunk = keeps[:, column : column + CHUNK["chunks"][1]].tobytes()
                if chunk not in compressed:
                    compressed = compressed if len(compressed) < 64 else {}
                    compressed[chunk] = zlib.compress(chunk, 4)
                dataset.id.write_direct_chunk((row, column), compressed[chunk])
    temporary.rename(path)


def read_with_numpy(path: Path, item: Input) -> float:
    """Bytes per second of h5py and np.packbits, by CPU time."""
    rows = item.length if item.mask_bytes <= LARGE_BYTES else item.length // 16
    best = float("inf")
    for _ in range(2):
        with h5py.File(path, "r") as file:
            dataset = file["mask"]
            begin = time.process_time()
            for row in range(0, rows, PANEL_ROWS):
                values = dataset[row : row + PANEL_ROWS]
                np.packbits(values == 0 if item.dtype == "float16" else values, axis=-1)
            best = min(best, time.process_time() - begin)
    return item.mask_bytes * rows / item.length / best


# A child's peak begins with that of the process that starts it: a small one does.
STARTER = """
import json, resource, subprocess, sys, time
begin = time.monotonic()
subprocess.run(sys.argv[1:], check=True)
elapsed = time.monotonic() - begin
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"elapsed_s": elapsed, "cpu_s": usage.ru_utime + usage.ru_stime,
                  "peak_resident_bytes": usage.ru_maxrss * 1024}))
"""


def convert(tool: Path, path: Path, output: Path) -> dict[str, Any]:
    """Time of fdma-maskc convert and peak memory of the largest of its processes."""
    words = [str(tool), "convert", f"{path}:/mask", "-o", str(output), "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", STARTER, *words], capture_output=True, text=True, check=True
    )
    output.unlink()
    return dict(json.loads(done.stdout))


def main() -> None:
    program, tool, folder, result_path = (Path(word).resolve() for word in sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    load = [os.getloadavg()[0]]
    runs, compiler = [], ""
    for item in INPUTS:
        path = path_of(folder, item)
        if not path.exists():
            write(path, item)
        words = [str(program), str(path), str(item.mask_bytes), str(item.rounds)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        run = json.loads(done.stdout)
        compiler = run.pop("compiler")
        run |= {
            "storage": item.name,
            "mask": item.mask,
            "length": item.length,
            "dtype": item.dtype,
            "mask_bytes": item.mask_bytes,
            "numpy": read_with_numpy(path, item),
        }
        if (item.name, item.mask, item.length) in CONVERTED:
            run["convert"] = convert(tool, path, folder / "converted.h5")
        runs.append(run)
        print(
            f"{item.mask} {item.length} {item.dtype} {item.name}: limit {run['limit'] / 1e9:.2f}, "
            f"one thread {run['one_thread'] / 1e9:.2f}, all {run['all_threads'] / 1e9:.2f}, "
            f"HDF5 {run['ordinary'] / 1e9:.2f}, NumPy {run['numpy'] / 1e9:.2f} GB/s",
            flush=True,
        )
    load.append(os.getloadavg()[0])
    sources = ("formats", "benchmarks/*.cpp", "benchmarks/*.py", "cmake", "CMakeLists.txt")
    result = {
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "load_avg": load,
            "os": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        },
        "compiler": compiler,
        "versions": {"h5py": h5py.__version__, "numpy": np.__version__},
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--", *sources)),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seed": SEED,
        "runs": runs,
    }
    result_path.parent.mkdir(parents=True, exist_ok=True)
    write_result(result_path, result)


if __name__ == "__main__":
    main()
