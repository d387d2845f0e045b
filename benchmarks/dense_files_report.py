"""Tables about dense masks in files: dense_files.json (bench_dense_files.py)."""

from __future__ import annotations

import columns
from report_text import (
    Run,
    bytes_text,
    commit_text,
    goal_text,
    host_text,
    tokens_text,
)

READ_GOAL = 0.8  # of pread, uncompressed
GZIP_GOAL = 9e9  # bytes of mask per second and thread, compressible masks, packing included
MEMORY_GOAL = 2**30
LARGE_BYTES = 2**32
LARGE = "large_limit"  # pread into 1 MiB


def rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f}" if bytes_per_second > 0 else "-"


def is_compressed(run: Run) -> bool:
    return str(run["storage"]).startswith("gzip")


FILE_COLUMNS = (
    columns.value("storage", "storage"),
    columns.MASK,
    ("tokens", lambda run: tokens_text(run["length"])),
    columns.value("dtype", "dtype"),
)
OF_PREAD: columns.Column = (
    "of pread",
    lambda run: "-" if is_compressed(run) else f"{100 * run['one_thread'] / run['limit']:.0f} %",
)
TO_NUMPY: columns.Column = ("FDMA / NumPy", lambda run: f"{run['one_thread'] / run['numpy']:.1f}")


def rate_column(header: str, key: str, is_of_file: bool = False) -> columns.Column:
    """`is_of_file`: pread's, which says nothing of compressed files."""
    return header, lambda run: "-" if is_of_file and is_compressed(run) else rate(run[key])


ALL_COLUMNS = (
    *FILE_COLUMNS,
    columns.size("mask bytes", "mask_bytes"),
    columns.size("file", "file_bytes"),
    rate_column("pread", "limit", is_of_file=True),
    rate_column("pread, 1 MiB", LARGE, is_of_file=True),
    rate_column("FDMA, 1 thread", "one_thread"),
    OF_PREAD,
    rate_column("FDMA, all", "all_threads"),
    rate_column("H5Dread + FDMA", "ordinary"),
    rate_column("h5py + NumPy", "numpy"),
    TO_NUMPY,
    columns.size("peak heap", "peak_bytes"),
    columns.size("result", "result_bytes"),
)
SUMMARY_COLUMNS = (
    *FILE_COLUMNS,
    columns.size("file", "file_bytes"),
    rate_column("FDMA GB/s", "one_thread"),
    OF_PREAD,
    rate_column("h5py + NumPy GB/s", "numpy"),
    TO_NUMPY,
)
CONVERT_COLUMNS = (
    ("input", lambda run: f"{run['mask']}, {tokens_text(run['length'])}, {run['storage']}"),
    columns.size("mask bytes", "mask_bytes"),
    columns.size("result", "result_bytes"),
    ("elapsed", lambda run: f"{run['convert']['elapsed_s']:.2f} s"),
    ("CPU time", lambda run: f"{run['convert']['cpu_s']:.2f} s"),
    ("peak resident", lambda run: bytes_text(run["convert"]["peak_resident_bytes"])),
)


def summary(runs: list[Run]) -> str:
    uncompressed = [run for run in runs if not is_compressed(run)]
    plain = [run for run in uncompressed if "fletcher32" not in run["storage"]]
    summed = [run for run in uncompressed if "fletcher32" in run["storage"]]

    least = min(run["one_thread"] / run["limit"] for run in plain)

    def shares(of: list[Run], limit: str) -> str:
        percent = [round(100 * run["one_thread"] / run[limit]) for run in of]
        return f"{min(percent)}" + (f" to {max(percent)}" if max(percent) > min(percent) else "")

    packed = [
        run["one_thread"]
        for run in runs
        if is_compressed(run) and run["mask"] == "documents" and run["dtype"] == "bool"
    ]
    large = [
        run["convert"]["peak_resident_bytes"]
        for run in runs
        if "convert" in run and run["mask_bytes"] > LARGE_BYTES
    ]

    return "\n".join(
        [
            f"- Uncompressed: {shares(plain, 'limit')} % of pread on one core (goal: 80 %, "
            f"{goal_text(least >= READ_GOAL)}), {shares(plain, LARGE)} % of pread into 1 MiB; "
            f"with checksums to verify {shares(summed, 'limit')} and {shares(summed, LARGE)} %.",
            f"- gzip'd chunks of packed documents, one byte a cell: {rate(min(packed))} to "
            f"{rate(max(packed))} GB/s a thread (goal: 9, {goal_text(min(packed) >= GZIP_GOAL)}).",
            f"- 128K x 128K (16 GiB) converted within {bytes_text(max(large))} of resident memory "
            f"(goal: 1 GiB, {goal_text(max(large) <= MEMORY_GOAL)}).",
        ]
    )


def machine_text(result: Run) -> str:
    load = result["machine"]["load_avg"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"{host_text(result)}; {result['compiler']}; {versions}; {commit_text(result)}. "
        f"Load average {load[0]:.1f} before, {load[1]:.1f} after."
    )


def tables(result: Run) -> dict[str, str]:
    runs = result["runs"]
    converted = [run for run in runs if "convert" in run]
    return {
        "dense-files-summary": summary(runs),
        "dense-files-machine": machine_text(result),
        "dense-files": columns.table(ALL_COLUMNS, runs),
        "dense-files-summary-table": columns.table(SUMMARY_COLUMNS, runs),
        "dense-files-convert": columns.table(CONVERT_COLUMNS, converted),
    }
