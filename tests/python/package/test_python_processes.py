"""Tests the package with many threads, fork and spawn, its memory, and its import time.

A child of fork() that entered oneTBB's scheduler hung about once in a thousand times before
formats/threads kept it out. The tests here fork often enough to notice that.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdma_module import FOLDER, fdma

SPEC = "documents(ids=@t) & (q // 5) % 7 == (k // 5) % 7"
TABLES = {"t": np.sort(np.random.default_rng(3).integers(0, 60, 1500))}
TOKENS = np.ones((1, 300, 2, 16), np.float32)


def work(num_threads: int = 4) -> int:
    """Uses threads for lowering, to_dense, plans, attention and conversions."""
    mask = fdma.compile(SPEC, 1500, tables=TABLES, num_threads=num_threads)
    several = fdma.compile("k <= pos - h", 300, heads=4, format="bcsr", num_threads=num_threads)
    dense = fdma.to_dense(several)
    out, _ = fdma.attention(TOKENS, TOKENS, TOKENS, fdma.compile("causal", 300))
    return int(mask.counts["allowed_pairs"]) + int(dense.sum()) + int(np.asarray(out).sum())


def in_child(function: Callable[[], Any]) -> int:
    """Returns the exit status of a forked child that runs `function`; ends a child that hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forking with threads
        pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def test_many_threads_compile_at_once() -> None:
    expected = work()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, [0, 1, 2, 3] * 10)) == [expected] * 40


def test_forked_children_compute() -> None:
    expected = work()

    def check() -> None:
        assert work() == expected

    for _ in range(40):
        work()
        assert in_child(check) == 0


def test_children_forked_while_other_threads_compute() -> None:
    expected = work()
    over = threading.Event()

    def check() -> None:
        assert work() == expected

    def compute() -> None:
        while not over.is_set():
            work()

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        statuses = [in_child(check) for _ in range(20)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert statuses == [0] * 20


def test_children_of_forked_children_compute() -> None:
    expected = work()

    def check() -> None:
        assert work() == expected
        assert in_child(lambda: work() == expected or os._exit(1)) == 0

    assert in_child(check) == 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.fspath(FOLDER), *sys.path[:1]]))
    expected = work()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map_async(work, [0, 2, 4]).get(timeout=120) == [expected] * 3


def test_masks_travel_between_processes() -> None:
    import fdma as package

    mask = package.compile(package.causal() & package.window(100), 700)
    again = pickle.loads(pickle.dumps(mask))
    assert again == mask
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply_async(_same, (mask,)).get(timeout=120)
    assert there == mask


def _same(mask: Any) -> Any:
    return mask


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def grown_bytes(function: Callable[[], Any], rounds: int) -> int:
    """Returns the bytes by which this process grows in `rounds` further calls."""
    for _ in range(rounds // 4):
        function()
    before = resident_bytes()
    for _ in range(rounds):
        function()
    return resident_bytes() - before


def test_compiling_a_thousand_times_leaks_nothing() -> None:
    import fdma as package

    lengths = np.array([100, 150, 50], np.int32)

    def compile_once() -> None:
        mask = package.compile(
            package.causal() & package.documents(lengths=lengths) & (package.q % 3 != 1), 300
        )
        mask.to_dense()
        assert mask.counts.allowed_pairs > 0
        fdma.to_dense(fdma.compile("documents(ids=@t)", 50, tables={"t": np.zeros(50, int)}))
        with pytest.raises(ValueError, match="expected"):
            fdma.compile("causal &", 50)

    assert grown_bytes(compile_once, 1000) < 4 << 20


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": os.fspath(FOLDER), "PATH": os.defpath, "FDMA_LEAK_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_nothing_outlives_the_interpreter() -> None:
    """nanobind reports objects that outlive the interpreter on standard error."""
    done = run_python(
        "import fdma\n"
        "kept = fdma.causal() & fdma.documents(lengths=[3, 4])\n"
        "mask = fdma.compile(kept, 7)\n"
        "text = repr(mask), str(kept), mask.to_dense().sum(), hash(mask)\n"
        "try: fdma.compile('causal &', 7)\n"
        "except ValueError as error: pass\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_import_takes_numpy_alone_and_little_time() -> None:
    program = (
        "import sys, time, numpy\n"
        "begin = time.process_time()\n"
        "import fdma\n"
        "took = time.process_time() - begin\n"
        "heavy = 'torch scipy h5py matplotlib pandas transformers'.split()\n"
        "print(took, *[name for name in heavy if name in sys.modules])\n"
    )
    outputs = [run_python(program).stdout.split() for _ in range(5)]
    assert [output[1:] for output in outputs] == [[]] * 5
    # benchmarks/bench_python.py measures the time as well. The best of five counts, in CPU seconds.
    assert min(float(output[0]) for output in outputs) < 0.3


def test_forked_children_that_exit_as_usual() -> None:
    begin = time.perf_counter()
    done = run_python(
        "import os, sys\n"
        "from fdma import _fdma\n"
        "_fdma.compile('q % 3 == k % 5', 500)\n"
        "pid = os.fork()\n"
        "_fdma.compile('q % 3 == k % 5', 500)\n"
        "if pid == 0: sys.exit(0)\n"
        "sys.exit(os.waitpid(pid, 0)[1])\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.perf_counter() - begin < 60
