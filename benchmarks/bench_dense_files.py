"""Dense masks in HDF5: how fast FDMA reads them, beside pread and beside h5py with NumPy.

    python3 bench_dense_files.py <bench_dense_file> <fdma-maskc> <folder for inputs> <result.json>

Layout x compression x size. Per file, one process of `bench_dense_file` measures FDMA, HDF5's own
data path and pread in turns; then h5py reads the same dataset in panels of rows and `np.packbits`
packs them (no tiles, no deduplication: less than FDMA does). Of masks above 4 GiB h5py reads the
first sixteenth. At last fdma-maskc converts, with its peak of resident memory. Inputs that are
there are kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
from dense_inputs import CHUNK, GZIP, LARGE_BYTES, PANEL_ROWS, SEED, Input, write_if_missing
from process_usage import usage_of
from provenance import machine_of_today, origin
from report_store import write_result
from report_text import Run

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


def convert(tool: Path, path: Path, output: Path) -> Run:
    """Time of fdma-maskc convert and peak memory of the largest of its processes."""
    words = [str(tool), "convert", f"{path}:/mask", "-o", str(output), "--quiet"]
    _, usage = usage_of(words)
    output.unlink()
    return usage


def main() -> None:
    program, tool, folder, result_path = (Path(word).resolve() for word in sys.argv[1:])
    load = [os.getloadavg()[0]]
    runs, compiler = [], ""
    for item in INPUTS:
        path = path_of(folder, item)
        write_if_missing(path, item)
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
        "machine": machine_of_today() | {"load_avg": load},
        "compiler": compiler,
        "versions": {"h5py": h5py.__version__, "numpy": np.__version__},
        **origin(sources),
        "seed": SEED,
        "runs": runs,
    }
    write_result(result_path, result)


if __name__ == "__main__":
    main()
