"""Tables about dense masks in files: dense_files.json (bench_dense_files.py)."""

from __future__ import annotations

from report_text import Run, bytes_text, goal_text, table

READ_GOAL = 0.8  # of pread, uncompressed
GZIP_GOAL = 9e9  # bytes of mask per second and thread, compressible masks, packing included
MEMORY_GOAL = 2**30
LARGE_BYTES = 2**32
LARGE = "large_limit"  # pread into 1 MiB


def rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f}" if bytes_per_second > 0 else "-"


def is_compressed(run: Run) -> bool:
    return str(run["storage"]).startswith("gzip")


def files_table(runs: list[Run]) -> str:
    rows = [
        [
            run["storage"],
            run["mask"],
            f"{run['length'] // 1024}K",
            run["dtype"],
            bytes_text(run["mask_bytes"]),
            bytes_text(run["file_bytes"]),
            "-" if is_compressed(run) else rate(run["limit"]),
            "-" if is_compressed(run) else rate(run["large_limit"]),
            rate(run["one_thread"]),
            "-" if is_compressed(run) else f"{100 * run['one_thread'] / run['limit']:.0f} %",
            rate(run["all_threads"]),
            rate(run["ordinary"]),
            rate(run["numpy"]),
            f"{run['one_thread'] / run['numpy']:.1f}",
            bytes_text(run["peak_bytes"]),
            bytes_text(run["result_bytes"]),
        ]
        for run in runs
    ]
    header = ["storage", "mask", "tokens", "dtype", "mask bytes", "file", "pread", "pread, 1 MiB"]
    header += ["FDMA, 1 thread", "of pread", "FDMA, all", "H5Dread + FDMA", "h5py + NumPy"]
    header += ["FDMA / NumPy"]
    return table([*header, "peak heap", "result"], rows)


def summary_table(runs: list[Run]) -> str:
    rows = [
        [
            run["storage"],
            run["mask"],
            f"{run['length'] // 1024}K",
            run["dtype"],
            bytes_text(run["file_bytes"]),
            rate(run["one_thread"]),
            "-" if is_compressed(run) else f"{100 * run['one_thread'] / run['limit']:.0f} %",
            rate(run["numpy"]),
            f"{run['one_thread'] / run['numpy']:.1f}",
        ]
        for run in runs
    ]
    header = ["storage", "mask", "tokens", "dtype", "file", "FDMA GB/s", "of pread"]
    return table([*header, "h5py + NumPy GB/s", "FDMA / NumPy"], rows)


def convert_table(runs: list[Run]) -> str:
    rows = [
        [
            f"{run['mask']}, {run['length'] // 1024}K, {run['storage']}",
            bytes_text(run["mask_bytes"]),
            bytes_text(run["result_bytes"]),
            f"{run['convert']['elapsed_s']:.2f} s",
            f"{run['convert']['cpu_s']:.2f} s",
            bytes_text(run["convert"]["peak_resident_bytes"]),
        ]
        for run in runs
        if "convert" in run
    ]
    return table(["input", "mask bytes", "result", "elapsed", "CPU time", "peak resident"], rows)


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
    machine = result["machine"]
    changed = " with uncommitted changes" if result["uncommitted_changes"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['os']}; {result['compiler']}; "
        f"{versions}; commit {result['commit']}{changed}, {result['date']}. Load average "
        f"{machine['load_avg'][0]:.1f} before, {machine['load_avg'][1]:.1f} after."
    )


def tables(result: Run) -> dict[str, str]:
    return {
        "dense-files-summary": summary(result["runs"]),
        "dense-files-machine": machine_text(result),
        "dense-files": files_table(result["runs"]),
        "dense-files-summary-table": summary_table(result["runs"]),
        "dense-files-convert": convert_table(result["runs"]),
    }
