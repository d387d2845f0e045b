"""Memory of `fdma-maskc compile` over periodic and table masks from 1K to 256K tokens.

Each mask is compiled, counted, hashed and written by a process of its own; what is held against the
limit is the peak of that process, less that of compiling 64 tokens of the same text (the libraries,
the table being one entry per token) and less the bytes of the result. A mask whose time is over
ends by --timeout, and its peak until then counts.

    python benchmarks/lowering_memory.py --tool build/release/tools/fdma-maskc --json rows.json

prints a row for each mask and length and a summary by length, and exits with 1 if any is above the
limit. Six masks whose result itself passes 256 MiB from 65,536 tokens on end there: building and
hashing a result takes about as much again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py
import numpy as np
from command_line import first_line
from process_usage import usage_of
from report_store import read_json, write_result

MIB = 1 << 20
LENGTHS = (1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144)

# Periodic in keys, in queries, in both, along the diagonal, in two scales; under causal, windows
# and the other way round.
PERIODIC = (
    "k % 2 == 0",
    "q % 2 == 0",
    "causal & k % 2 == 0",
    "causal & k % 3 == 0",
    "causal & k % 7 < 3",
    "causal & q % 2 == 0",
    "k <= q & k % 128 == 127",
    "k % 2 == 0 & q % 2 == 0",
    "k % 3 == 0 & q % 5 == 0",
    "k % 2 == 0 | q % 2 == 0",
    "k % 2 == 0 ^ q % 3 == 0",
    "k % 64 < 32 & q % 64 < 32",
    "k // 100 % 2 == q // 100 % 2",
    "(q - k) % 4 == 0",
    "causal & (q - k) % 16 < 3",
    "causal & (q - k) % 128 == 0",
    "window(4096) & k % 2 == 0",
    "k >= q & k % 2 == 1",
    "causal & ~(k % 5 == 0)",
    "where(k % 2 == 0, k <= q, k >= q)",
    "causal & k % 2 == 0 & q // 128 % 2 == 0",
    "k % 2 == 0 ^ k % 3 == 0 ^ causal",
    "causal & (k % 2 == 0 | q - k < 1000)",
    "k % 1000 < q % 1000",
)
# Tables by token: a random keep flag, ends soon after and anywhere after a key, ids of documents in
# order and at random.
TABLE = (
    "@keep[k]",
    "causal & @keep[k]",
    "causal & ~@keep[k]",
    "causal & (@keep[k] | q - k < 512)",
    "causal & (@keep[k] | k % 2 == 0)",
    "k <= q & q < @end[k]",
    "k <= q & q < @far[k]",
    "q < @far[k] & @keep[k]",
    "@doc[q] == @doc[k] & causal",
    "causal & @id[k] % 2 == 0",
)
# Each tile row or tile has cells of its own: the result is large itself.
LARGE = (
    "@keep[k] & @keep[q]",
    "@keep[k] | @keep[q]",
    "@keep[k] ^ @keep[q]",
    "@id[q] == @id[k]",
    "causal & @id[q] == @id[k]",
    "@id[q] < @id[k]",
)
MAX_LARGE_LENGTH = 32768
TABLES = ("keep", "end", "far", "doc", "id")


@dataclass
class Row:
    spec: str
    length: int
    seconds: float
    peak_bytes: int
    result_bytes: int
    beyond_bytes: int
    status: int


def write_tables(path: Path, length: int) -> None:
    rng = np.random.default_rng(length)
    positions = np.arange(length)
    with h5py.File(path, "w") as file:
        file["keep"] = rng.random(length) < 0.5
        file["end"] = np.minimum(positions + 1 + rng.integers(0, 4096, length), length)
        file["far"] = np.minimum(positions + 1 + rng.integers(0, length, length), length)
        file["doc"] = np.sort(rng.integers(0, max(length // 512, 1), length))
        file["id"] = rng.integers(0, 64, length)


def compiled(
    tool: str, folder: Path, spec: str, length: int, timeout: float
) -> tuple[int, float, int, int]:
    """Exit status, seconds, peak bytes, bytes of the result (0 if there is none)."""
    output = folder / "out.h5"
    output.unlink(missing_ok=True)
    words = [tool, "compile", "--spec", spec, "--q-len", str(length), "--json"]
    words += ["-o", str(output), "--timeout", f"{timeout:g}", "--no-isolate"]
    for name in TABLES:
        if f"@{name}" in spec:
            words += ["--table", f"{name}={folder / f'{length}.h5'}:/{name}"]
    printed = folder / "out.json"
    status, usage = usage_of(words, (0, 4), printed)
    result = read_json(printed)["mask"]["stored_bytes"] if status == 0 else 0
    return status, usage["elapsed_s"], usage["peak_resident_bytes"], result


def measured(tool: str, folder: Path, spec: str, length: int, timeout: float, base: int) -> Row:
    status, seconds, peak, result = compiled(tool, folder, spec, length, timeout)
    return Row(spec, length, seconds, peak, result, peak - base - result, status)


def main() -> int:
    options = argparse.ArgumentParser(description=first_line(__doc__))
    options.add_argument("--tool", type=Path, required=True)
    options.add_argument("--timeout", type=float, default=60, help="seconds for one mask")
    options.add_argument("--limit", type=float, default=256, help="MiB beyond the result")
    options.add_argument("--lengths", type=int, nargs="*", default=list(LENGTHS))
    options.add_argument("--json", type=Path, help="where all rows are written")
    given = options.parse_args()
    given.tool = given.tool.resolve()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for length in (64, *given.lengths):
            write_tables(folder / f"{length}.h5", length)
        for spec in PERIODIC + TABLE + LARGE:
            base = compiled(str(given.tool), folder, spec, 64, given.timeout)[2]
            for length in given.lengths:
                if spec in LARGE and length > MAX_LARGE_LENGTH:
                    continue
                row = measured(str(given.tool), folder, spec, length, given.timeout, base)
                rows.append(row)
                print(
                    f"{row.beyond_bytes / MIB:7.1f} MiB beyond {row.result_bytes / MIB:7.1f}, "
                    f"{row.seconds:6.1f} s{'' if row.status == 0 else ' (stopped)'}  "
                    f"{length:>7}  {spec}",
                    flush=True,
                )
    if given.json:
        write_result(given.json, [asdict(row) for row in rows])
    print(f"\n{'length':>7} {'masks':>6} {'stopped':>8} {'most beyond':>12}  of")
    for length in given.lengths:
        those = [row for row in rows if row.length == length]
        worst = max(those, key=lambda row: row.beyond_bytes)
        stopped = sum(row.status != 0 for row in those)
        print(
            f"{length:>7} {len(those):>6} {stopped:>8} {worst.beyond_bytes / MIB:>8.1f} MiB  "
            f"{worst.spec}"
        )
    above = [row for row in rows if row.beyond_bytes > given.limit * MIB]
    print(f"{len(rows)} masks, {len(above)} above {given.limit:g} MiB beyond the result")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
