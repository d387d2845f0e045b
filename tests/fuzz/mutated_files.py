"""Mutated files of every family through the built tool, against h5py's reading of the same files.

    FDMA_MASKC=build/dev/tools/fdma-maskc FDMA_BUILD_DIR=build/dev \\
        python tests/fuzz/mutated_files.py --files 20000 --seed 1 --jobs 2

A file that the tool accepts must be what h5py reads from it, or, where h5py refuses it, what it was
before the mutation; with a chunk's coordinates changed, what it was, whatever h5py reads. For
groups of other systems h5py's arrays go into a new file, which must convert to the same. What the
tool refuses, it refuses with words, one of its exit codes and no file left behind, within 20 s and
4 GiB. The files go through read_files.cpp, which reads as the tool does without a process for each,
and every twentieth through the tool as well, with the same outcome.

What is accepted as another mask where h5py refuses the file has no reading to be compared with; it
is listed.

docs/fuzzing.md has the figures. --keep FOLDER keeps the files that are listed; the exit status is 1
if there are findings. File number i depends on the seed and i alone.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from byte_mutations import MUTATIONS
from chunk_edits import CHUNK_EDITS, KeyEdit
from seed_files import (
    BUILD,
    MASKC,
    SECONDS,
    Seed,
    dense_seeds,
    interop_seeds,
    load_dense,
    load_group,
    load_own,
    own_seeds,
    tool,
)

MEMORY_BYTES = 4 << 30
OUTCOMES = ("equal", "original", "refused", "no reading", "too large", "reader crashed", "finding")
TOOL_EVERY = 20


# Readings of files by h5py, in a process that a damaged file may end.


class Reader:
    """`load` in a process of its own, a new one after a crash or when it takes too long."""

    def __init__(self, load: Callable[[str, str], Any]) -> None:
        self._load = load
        self._process: Any = None

    def _serve(self, pipe: Any) -> None:
        while True:
            path, where = pipe.recv()
            try:
                pipe.send((self._load(path, where), ""))
            except BaseException as error:  # whatever a damaged file may raise
                pipe.send((None, f"{type(error).__name__}: {error}"))

    def read(self, path: Path, where: str) -> tuple[Any, str]:
        """The value, or None and why not."""
        if self._process is None:
            context = multiprocessing.get_context("fork")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=self._serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        try:
            self._pipe.send((str(path), where))
            if self._pipe.poll(SECONDS):
                value, reason = self._pipe.recv()
                return value, reason
            reason = "took too long"
        except (EOFError, OSError, MemoryError) as error:
            reason = f"crashed: {error}"
        self.close()
        return None, reason

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


class Batch:
    """read_files, one file after another; started again when it ends."""

    def __init__(self) -> None:
        self._process: Any = None

    def read(self, path: Path, seed: Seed) -> tuple[Any, str]:
        """Cells; or None and the message, which begins with "finding: " for a defect."""
        if self._process is None:
            self._process = subprocess.Popen(
                [BUILD / "tests" / "read_files"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        ends = self._process
        ends.stdin.write(f"{seed.family}\t{seed.layout}\t{path}\t{seed.where}\n".encode())
        ends.stdin.flush()
        if not select.select([ends.stdout], [], [], SECONDS + 10)[0]:
            return self._ended(f"took more than {SECONDS} s")
        head, _, rest = ends.stdout.readline().decode(errors="replace").strip().partition(" ")
        if head == "ok":
            extents = [int(word) for word in rest.split()]
            data = ends.stdout.read(math.prod(extents))
            return np.frombuffer(data, np.bool_).reshape(extents), ""
        if head == "large":
            return None, f"too large: {rest}"
        if head == "error":
            is_late = "took longer than" in rest or "made no progress" in rest
            return None, f"finding: {rest}" if is_late or len(rest.split()) < 2 else rest
        if head == "invalid":
            return None, f"finding: an invalid mask: {rest}"
        return self._ended(f"status {ends.wait()}")

    def _ended(self, how: str) -> tuple[Any, str]:
        self.close()
        return None, f"finding: the reader ended: {how}"

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def cells_of(values: Any) -> Any:
    """What a dense dataset means as a mask, or None."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return array == 1 if np.isin(array, (0, 1)).all() else None
    if array.dtype.kind == "f":
        keeps, drops = array == 0, array <= -32752
        return keeps if (keeps | drops).all() else None
    return None


KEYS = "chunk keys"


@dataclass
class Case:
    seed: Seed
    mutation: str
    data: bytes
    edit: KeyEdit | None = None


def make_case(number: int, seed: int, seeds: list[Seed]) -> Case:
    rng = random.Random(f"{seed} {number}")
    names = [*MUTATIONS, KEYS]
    mutation = names[number % len(names)]
    chosen = rng.choice([each for each in seeds if mutation != KEYS or each.has_chunk_keys])
    data = bytearray(chosen.data)
    if mutation == KEYS:
        edit = rng.choice(CHUNK_EDITS)(rng, data)
        return Case(chosen, mutation, bytes(data), edit)
    for _ in range(rng.randint(1, 3)):
        if data:
            MUTATIONS[mutation](rng, data, rng.choice(seeds).data)
    return Case(chosen, mutation, bytes(data))


class CaseRunner:
    """Files through the tool, and what each of them came to."""

    def __init__(self, folder: Path, keep: Path | None) -> None:
        self._folder = folder
        self._keep = keep
        self._readers = {
            "own": Reader(load_own),
            "dense": Reader(load_dense),
            "interop": Reader(load_group),
        }
        self._results = Reader(load_own)
        self._batch = Batch()
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.reports: list[str] = []
        self.slowest = 0.0

    def close(self) -> None:
        self._batch.close()
        for reader in (*self._readers.values(), self._results):
            reader.close()

    def run(self, number: int, case: Case) -> None:
        (self._folder / "m.h5").write_bytes(case.data)
        outcome, why = self._outcome(case)
        if number % TOOL_EVERY == 0 and outcome != "finding":
            cells, message = self._convert("m.h5", case.seed)
            if message.startswith("finding: "):
                outcome, why = "finding", message
            elif (cells is not None) != (outcome in ("equal", "original", "no reading")):
                outcome, why = "finding", f"{outcome}, but not by the tool: {message}"
        if outcome in ("finding", "no reading"):
            self.reports.append(
                f"{outcome}: file {number}, {case.seed.family} {case.seed.name}, "
                f"{case.mutation}: {why}"
            )
            if self._keep:
                (self._keep / f"{number}.h5").write_bytes(case.data)
        self.counts[case.seed.family, case.mutation, outcome] += 1
        for each in self._folder.iterdir():
            each.unlink()

    def _convert(self, name: str, seed: Seed) -> tuple[Any, str]:
        """Cells of the converted mask; or None and the message, after "finding: " a defect."""
        words = [f"{name}:/{seed.where}" if seed.where else name, "-o", "out.h5", "--quiet"]
        if seed.layout:
            words += ["--from", seed.layout]
        begin = time.monotonic()
        try:
            done = tool(self._folder, "convert", *words)
        except subprocess.TimeoutExpired:
            return None, f"finding: took more than {SECONDS} s"
        self.slowest = max(self.slowest, time.monotonic() - begin)
        out = self._folder / "out.h5"
        if done.returncode != 0:
            if done.returncode not in (1, 2, 3, 4):
                return None, f"finding: status {done.returncode}: {done.stderr[-300:]}"
            if not done.stderr.startswith("fdma-maskc convert: error: "):
                return None, f"finding: status without words: {done.stderr[-300:]}"
            if {each.name for each in self._folder.iterdir()} - {"m.h5", "clean.h5"}:
                return None, "finding: a file is left behind"
            return None, done.stderr.strip()
        cells, reason = self._results.read(out, "")
        out.unlink()
        return cells, f"finding: the result cannot be read: {reason}" if cells is None else ""

    def _outcome(self, case: Case) -> tuple[str, str]:
        seed = case.seed
        cells, message = self._batch.read(self._folder / "m.h5", seed)
        if cells is None:
            for start in ("finding", "too large"):
                if message.startswith(start + ": "):
                    return start, message
            return ("reader crashed" if "crashed the HDF5" in message else "refused"), message
        is_original = same(cells, seed.cells)
        if seed.family == "own" or (case.edit and case.edit.keeps_mask):
            # Hashes cover every cell of a mask file; a chunk that moved is none of the mask.
            own_differs = False
            if seed.family == "own":
                others, _ = self._readers["own"].read(self._folder / "m.h5", "")
                own_differs = others is not None and not same(others, seed.cells)
            if is_original and not own_differs:
                return "original", ""
            return "finding", "another mask than before the mutation"
        values, reason = self._readers[seed.family].read(self._folder / "m.h5", seed.where)
        if values is None:
            return ("original", "") if is_original else ("no reading", f"h5py refuses it: {reason}")
        if seed.family == "dense":
            expected = cells_of(values)
            if expected is not None and same(cells, expected[None, None]):
                return "equal", ""
            return "finding", "not what h5py reads"
        if all(name in values and same(values[name][0], v) for name, (v, _) in seed.fields.items()):
            return ("equal", "") if is_original else ("finding", "another mask of the same arrays")
        return self._compare_arrays(seed, cells, values)

    def _compare_arrays(self, seed: Seed, cells: Any, values: Any) -> tuple[str, str]:
        with h5py.File(self._folder / "clean.h5", "w") as file:
            group = file.create_group(seed.where)
            for name, (value, dtype) in values.items():
                if dtype is None:
                    group.attrs[name] = value
                else:
                    group.create_dataset(name, data=value, dtype=dtype)
        again, message = self._batch.read(self._folder / "clean.h5", seed)
        if again is not None and same(cells, again):
            return "equal", ""
        return "finding", f"not what the arrays that h5py reads convert to: {message}"


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return bool(a.shape == b.shape and (a == b).all())


def work(numbers: range, seed: int, seeds: list[Seed], keep: Path | None, queue: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory(prefix="fdma_mutated_") as folder:
        runner = CaseRunner(Path(folder), keep)
        for done, number in enumerate(numbers, 1):
            runner.run(number, make_case(number, seed, seeds))
            if done % 50 == 0:
                queue.put(50)
        runner.close()
    queue.put((runner.counts, runner.reports, runner.slowest))


def print_table(counts: Counter[tuple[str, str, str]]) -> None:
    print(f"{'':18}{'files':>8}" + "".join(f"{name:>16}" for name in OUTCOMES))
    rows = [(family, 0) for family in ("own", "dense", "interop")]
    rows += [(name, 1) for name in (*MUTATIONS, KEYS)]
    for name, part in [*rows, ("all", -1)]:
        chosen = Counter[str]()
        for key, number in counts.items():
            if part < 0 or key[part] == name:
                chosen[key[2]] += number
        line = f"{name:18}{chosen.total():8}"
        print(line + "".join(f"{chosen[outcome]:16}" for outcome in OUTCOMES))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="this file alone")
    parser.add_argument("--keep", type=Path, help="where files of findings are kept")
    options = parser.parse_args()
    if not MASKC:
        parser.error("FDMA_MASKC does not name the built tool")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fdma_seeds_") as name:
        folder = Path(name)
        seeds = own_seeds(folder) + dense_seeds(folder) + interop_seeds(folder)
    begin = time.monotonic()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    numbers = range(options.files)
    if options.only is not None:
        numbers = range(options.only, options.only + 1)
    jobs = min(options.jobs, len(numbers))
    workers = [
        context.Process(
            target=work, args=(numbers[j::jobs], options.seed, seeds, options.keep, queue)
        )
        for j in range(jobs)
    ]
    for worker in workers:
        worker.start()
    counts: Counter[tuple[str, str, str]] = Counter()
    reports: list[str] = []
    slowest = 0.0
    num_done = num_ended = 0
    while num_ended < jobs:
        news = queue.get()
        if isinstance(news, int):
            num_done += news
            if num_done % 1000 == 0:
                print(f"{num_done} files, {time.monotonic() - begin:.0f} s", file=sys.stderr)
            continue
        num_ended += 1
        counts += news[0]
        reports += news[1]
        slowest = max(slowest, news[2])
    for worker in workers:
        worker.join()
    print_table(counts)
    num_findings = sum(number for key, number in counts.items() if key[2] == "finding")
    print(
        f"{len(seeds)} seeds, seed {options.seed}, {time.monotonic() - begin:.0f} s, slowest "
        f"{slowest:.1f} s, {num_findings} findings"
    )
    print("\n".join(reports))
    return 1 if num_findings or counts.total() != len(numbers) else 0


if __name__ == "__main__":
    sys.exit(main())
