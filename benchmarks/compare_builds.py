"""Two builds of the package beside one another: the time of the new one in times of the old one.

    python3 compare_builds.py <old folder of fdma> <new folder of fdma> [--device cpu] [--rows ..]

Each build has a process of its own, and rows run in turn in both: old, new, new, old, .. on the
same random tensors. A row shows the median ratio of neighbouring samples and between what bounds
the middle half of the ratios lies. Results must have the same bits where a build gives the same
bits every run.

Exit code 1: three of four ratios of a row are above --limit, results differ, or a row failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from build_rows import rows_of
from command_line import first_line
from provenance import gpu_state, machine_of_today, today
from report_store import write_result

# Of one sample: short calls are repeated so often that it takes about as long.
SAMPLE_MS = 20.0
MAX_CALLS = 400
ROUNDS = 9


class Build:
    """The process of one build."""

    def __init__(self, folder: Path, device: str) -> None:
        program = Path(__file__).with_name("build_rows.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(folder), "--device", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process ended at '{line}'")
        found = json.loads(answer)
        if isinstance(found, dict) and "error" in found:
            raise RuntimeError(found["error"])
        return found


def compared(old: Build, new: Build, row: str, rounds: int) -> dict[str, Any]:
    builds = (old, new)
    try:
        digests = [build.ask(f"open {row}") for build in builds]
        first = [min(build.ask("time 1") for _ in range(2)) for build in builds]
        calls = max(1, min(MAX_CALLS, round(SAMPLE_MS / max(min(first), 1e-4))))
        for build in builds:
            build.ask(f"time {calls}")
        samples: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds):
            for i in (0, 1) if turn % 2 == 0 else (1, 0):
                samples[i].append(builds[i].ask(f"time {calls}"))
    finally:
        for build in builds:
            build.ask("close")
    ratios = [b / a for a, b in zip(*samples, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "old_ms": statistics.median(samples[0]),
        "new_ms": statistics.median(samples[1]),
        "ratio": statistics.median(ratios),
        "quartiles": [low, high],
        "same_bits": digests[0] == digests[1],
        "calls": calls,
    }


def verdict(run: dict[str, Any], limit: float) -> str:
    """What is wrong with a row; empty: nothing."""
    if not run["same_bits"]:
        return "RESULTS DIFFER"
    if run["quartiles"][0] > limit:
        return "SLOWER"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=first_line(__doc__))
    parser.add_argument("old", type=Path, help="folder of the built package fdma before")
    parser.add_argument("new", type=Path, help="and after")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--rows", default="*", help="patterns of rows: 'forward/*,host/*'")
    parser.add_argument("--limit", type=float, default=1.01, help="ratio that is not slower yet")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--max-seconds", type=float, default=1e9, help="begin no row after this")
    parser.add_argument("--json", type=Path, help="file to write")
    options = parser.parse_args()
    begin = time.monotonic()
    patterns = options.rows.split(",")
    rows = [
        row
        for row in map(str, rows_of(options.device))
        if any(fnmatch.fnmatchcase(row, pattern) for pattern in patterns)
    ]
    old, new = Build(options.old, options.device), Build(options.new, options.device)
    found: dict[str, Any] = {}
    num_wrong = 0
    for done, row in enumerate(rows):
        if time.monotonic() - begin > options.max_seconds:
            print(f"out of time: {len(rows) - done} rows are left", flush=True)
            break
        try:
            run = compared(old, new, row, options.rounds)
        except RuntimeError as error:
            print(f"{row:50} FAILED: {error}", flush=True)
            num_wrong += 1
            continue
        wrong = verdict(run, options.limit)
        num_wrong += bool(wrong)
        found[row] = run
        low, high = run["quartiles"]
        print(
            f"{row:50} {run['old_ms']:10.4f} {run['new_ms']:10.4f} ms"
            f"  {run['ratio']:.4f} ({low:.4f} to {high:.4f}) {wrong}",
            flush=True,
        )
    ratios = [run["ratio"] for run in found.values()]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"{len(ratios)} rows: {mean:.4f} on average, {max(ratios):.4f} at most")
    if options.json:
        origin = {"machine": machine_of_today() | gpu_state(), "date": today()}
        write_result(options.json, origin | {"rows": found})
    if num_wrong:
        sys.exit(f"{num_wrong} rows are slower, differ or failed")


if __name__ == "__main__":
    main()
