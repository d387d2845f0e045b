"""Compression of stored masks: FDMA's formats beside dense masks deflated by h5py.

    python3 compression.py <bench_compression> <work folder> [<repository>]

Runs bench_compression (native formats), takes the dense bits that it leaves in the work folder, and
stores the same cells as h5py users would: one byte a cell and eight cells a byte (packbits), gzip
level 4, chunks of 256 x 1024 cells. Writes benchmarks/results/compression.json and the tables of
docs/compression.md. Needs 6 GiB of memory; some ten minutes. What an interrupted run has measured
(native.json, dense.json in the work folder) is kept.

Times are CPU times of the process, the least of three runs, or of one if that takes a second.
Masks of bytes at 131072 tokens are 16 GiB: one stands for them all (BYTES_TOO).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import h5py
import numpy as np
from make_report import replace_tables
from numpy.typing import NDArray
from report_store import read_json, store_compression, write_result
from report_text import Run, bytes_text, machine_text, table, time_text, tokens_text

Words = NDArray[np.uint64]

LONGEST = 131072
BYTES_TOO = ("causal_document",)
GZIP_LEVEL = 4
CHUNK = (256, 1024)  # cells
REPETITIONS = 3
LONG_SECONDS = 1.0
PANEL_ROWS = 2048  # taken apart at a time


def least_us(work: Callable[[], float]) -> float:
    """The least of the seconds that `work` returns, in microseconds."""
    least = float("inf")
    for _ in range(REPETITIONS):
        least = min(least, work())
        if least > LONG_SECONDS:
            break
    return 1e6 * least


def cells_of(words: Words, tokens: int) -> NDArray[np.uint8]:
    """One byte a cell."""
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    return bits[:, :tokens]


def panels_of(words: Words, tokens: int, storage: str) -> Iterator[NDArray[np.uint8]]:
    """The mask as it is handed to h5py, in panels of rows."""
    for begin in range(0, tokens, PANEL_ROWS):
        panel = words[begin : begin + PANEL_ROWS]
        if storage == "h5py bits":
            yield panel.view(np.uint8)[:, : (tokens + 7) // 8]
        else:
            yield cells_of(panel, tokens)


def measure(words: Words, mask: str, tokens: int, storage: str, path: Path) -> Run:
    width = (tokens + 7) // 8 if storage == "h5py bits" else tokens
    chunk = (CHUNK[0], CHUNK[1] // 8 if storage == "h5py bits" else CHUNK[1])

    def write(panels: Iterable[NDArray[np.uint8]]) -> float:
        """Seconds, without those in which a panel is made."""
        seconds = -time.process_time()
        with h5py.File(path, "w") as file:
            data = file.create_dataset(
                "mask",
                (tokens, width),
                np.uint8,
                chunks=chunk,
                compression="gzip",
                compression_opts=GZIP_LEVEL,
            )
            begin = 0
            seconds += time.process_time()
            for panel in panels:
                start = time.process_time()
                data[begin : begin + len(panel)] = panel
                begin += len(panel)
                seconds += time.process_time() - start
            seconds -= time.process_time()
        return seconds + time.process_time()

    def read() -> float:
        start = time.process_time()
        with h5py.File(path) as file:
            for begin in range(0, tokens, PANEL_ROWS):
                file["mask"][begin : begin + PANEL_ROWS]
        return time.process_time() - start

    row = {
        "mask": mask,
        "tokens": tokens,
        "storage": storage,
        "memory_bytes": tokens * width,
        "write_us": least_us(lambda: write(panels_of(words, tokens, storage))),
        "read_us": least_us(read),
        "file_bytes": path.stat().st_size,
    }
    path.unlink()
    print(mask, tokens, storage, row["file_bytes"], "B", file=sys.stderr)
    return row


def dense_rows(native: list[Run], folder: Path) -> list[Run]:
    """Both ways of h5py for every mask with dense bits; dense.json keeps what is measured."""
    kept = folder / "dense.json"
    rows: list[Run] = read_json(kept) if kept.exists() else []
    known = {(row["mask"], row["tokens"], row["storage"]) for row in rows}
    for row in native:
        if row["storage"] != "dense":
            continue
        mask, tokens = row["mask"], row["tokens"]
        wanted = [s for s in ("h5py bits", "h5py bytes") if (mask, tokens, s) not in known]
        if tokens >= LONGEST and mask not in BYTES_TOO and "h5py bytes" in wanted:
            wanted.remove("h5py bytes")
        if not wanted:
            continue
        with h5py.File(folder / f"{mask}-{tokens}-dense.h5") as file:
            words: Words = file["masks/mask/groups/0/words"][:]
        for storage in wanted:
            rows.append(measure(words, mask, tokens, storage, folder / "h5py.h5"))
            write_result(kept, rows)
    return rows


STORAGES = (
    "parametric",
    "segment",
    "bcsr",
    "bitset",
    "columns",
    "dense",
    "h5py bits",
    "h5py bytes",
)


def by_mask(rows: list[Run], tokens: int) -> dict[str, dict[str, Run]]:
    masks: dict[str, dict[str, Run]] = {}
    for row in rows:
        if row["tokens"] == tokens:
            masks.setdefault(row["mask"], {})[row["storage"]] = row
    return masks


def storage_table(rows: list[Run], tokens: int, text: Callable[[Run], str]) -> str:
    masks = by_mask(rows, tokens)
    shown = [s for s in STORAGES if any(s in stored for stored in masks.values())]
    lines = [
        [mask, *(text(stored[s]) if s in stored else "-" for s in shown)]
        for mask, stored in masks.items()
    ]
    return table(["mask", *shown], lines)


def ratio_table(rows: list[Run]) -> str:
    """The smallest native file of each mask beside the two that h5py writes."""
    lines = []
    for tokens in sorted({row["tokens"] for row in rows}):
        for mask, stored in by_mask(rows, tokens).items():
            native = {s: row for s, row in stored.items() if not s.startswith("h5py")}
            best = min(native.values(), key=lambda row: int(row["file_bytes"]))
            segment = stored["segment"]
            line = [mask, tokens_text(tokens), best["storage"]]
            line.append(bytes_text(best["file_bytes"]))
            for storage in ("h5py bits", "h5py bytes"):
                dense = stored.get(storage)
                if dense is None:
                    line += ["-", "-"]
                    continue
                line.append(f"{dense['file_bytes'] / best['file_bytes']:,.0f}")
                line.append(f"{dense['read_us'] / segment['read_us']:,.0f}")
            lines.append(line)
    header = ["mask", "tokens", "smallest", "file"]
    header += ["gzip'd bits, file", "read", "gzip'd bytes, file", "read"]
    return table(header, lines)


def tables(result: Run, page: Path) -> None:
    rows = result["rows"]
    content = {
        "compression-machine": machine_text(result),
        "compression-ratio": ratio_table(rows),
    }
    for tokens in sorted({row["tokens"] for row in rows}):
        suffix = tokens_text(tokens)
        content[f"compression-file-{suffix}"] = storage_table(
            rows, tokens, lambda row: bytes_text(row["file_bytes"])
        )
        content[f"compression-memory-{suffix}"] = storage_table(
            rows, tokens, lambda row: bytes_text(row["memory_bytes"])
        )
        content[f"compression-time-{suffix}"] = storage_table(
            rows,
            tokens,
            lambda row: f"{time_text(row['write_us'])} / {time_text(row['read_us'])}",
        )
    replace_tables(page, content)


def main() -> None:
    program, folder = Path(sys.argv[1]), Path(sys.argv[2])
    repository = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(__file__).resolve().parents[1]
    folder.mkdir(parents=True, exist_ok=True)
    raw_path = folder / "native.json"
    if not raw_path.exists():
        subprocess.run([program, folder, raw_path], check=True)
    raw = read_json(raw_path)
    raw["rows"] += dense_rows(raw["rows"], folder)
    for path in folder.glob("*.h5"):
        path.unlink()
    result_path = repository / "benchmarks" / "results" / "compression.json"
    store_compression(raw, result_path)
    tables(read_json(result_path), repository / "docs" / "compression.md")


if __name__ == "__main__":
    main()
