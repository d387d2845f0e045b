"""Tests fdma-maskc with hostile input.

The tests cover memory of compiling, loops without end, --timeout and small files.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from maskc_inputs import huge
from maskc_tool import MASKC, maskc, needs_tool

pytestmark = needs_tool

MIB = 1 << 20
ENDLESS = "any(i in 4611686018427387904 : i * k == q + 7)"


def limited(mib: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))

    return limit


def run(
    folder: Path, *words: str, mib: int = 0, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MASKC, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        preexec_fn=limited(mib) if mib else None,
    )


def keep_table(folder: Path, length: int) -> None:
    with h5py.File(folder / "t.h5", "w") as file:
        file["t"] = np.random.default_rng(1).random(length) < 0.5


@pytest.mark.parametrize(
    ("spec", "length"),
    [
        ("causal & k % 2 == 0", 16384),
        ("causal & k % 3 == 0", 32768),
        ("k % 2 == 0 & q % 2 == 0", 16384),
        ("k % 3 == 0 & q % 5 == 0", 32768),
        ("causal & @t[k]", 32768),
        (" ^ ".join(f"k < {i}" for i in range(8000)), 8000),
        ("any(i in 128 : i * k % 4001 <= q & q < i * k % 3989)", 16384),
    ],
    ids=["period", "period_3", "both_axes", "two_periods", "keep_table", "xor_chain", "loop"],
)
def test_compiling_stays_within_its_memory(tmp_path: Path, spec: str, length: int) -> None:
    """The limit is 640 MiB of addresses, most of them libraries and stacks.

    Without it these masks took 0.7 to 15 GB.
    """
    keep_table(tmp_path, length)
    (tmp_path / "spec.txt").write_text(spec)
    words = ["compile", "--spec", "spec.txt", "--q-len", str(length), "--threads", "1"]
    words += ["--table", "t=t.h5:/t", "--no-isolate"] if "@t" in spec else []
    done = run(tmp_path, *words, "-o", "m.h5", mib=640)
    assert done.returncode == 0, done.stderr
    for verb in ("inspect", "check"):
        done = run(tmp_path, verb, "m.h5", mib=640)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "spec", ["causal & k % 2 == 0", "k % 3 == 0 & q % 5 == 0", "causal & @t[k]", "@t[k] ^ @t[q]"]
)
def test_what_is_over_the_budget_is_as_exact(tmp_path: Path, spec: str) -> None:
    keep_table(tmp_path, 3000)
    table = ["--table", "t=t.h5:/t"] if "@t" in spec else []
    maskc(tmp_path, "compile", "--spec", spec, "--q-len", "3000", "-o", "m.h5", *table)
    assert "exact: all" in maskc(tmp_path, "check", "m.h5", "--exact", *table)


@pytest.mark.parametrize(
    "spec",
    [
        ENDLESS,
        "any(i in 4611686018427387904 : i * i == 3) & causal",
        "any(i in 3000 : any(j in 3000 : any(l in 3000 : i * j * l == q + k + 7)))",
    ],
)
def test_loops_without_end_are_refused_by_name(tmp_path: Path, spec: str) -> None:
    done = run(tmp_path, "compile", "--spec", spec, "--q-len", "1000", "-o", "m.h5")
    assert done.returncode == 4
    assert done.stderr.startswith("fdma-maskc compile: error: any / all: a loop of ")
    assert "turns" in done.stderr
    assert "--max-work" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_max_work_bounds_loops(tmp_path: Path) -> None:
    words = ["compile", "--spec", "any(i in 100000 : i * k % 100003 == q)", "--q-len", "16"]
    words += ["-o", "m.h5", "--block", "16x16", "--max-work"]
    assert run(tmp_path, *words, "1000000").returncode == 4
    assert run(tmp_path, *words, "0").returncode == 0
    assert run(tmp_path, *words, "-1").returncode == 2
    # The specification in a file is untrusted text, too.
    done = run(tmp_path, "check", "m.h5", "--exact", "--max-work", "1000000")
    assert done.returncode == 4
    assert "max_work" in done.stderr


def test_timeout_ends_any_verb_and_leaves_files(tmp_path: Path) -> None:
    huge(tmp_path)
    (tmp_path / "out.h5").write_bytes(b"what was there before")
    endless = ["--spec", ENDLESS, "--q-len", "1000", "--max-work", "0"]
    calls = {
        "compiling": ["compile", *endless, "-o", "out.h5", "--force"],
        "reading huge.h5:/mask": [
            *("convert", "huge.h5:/mask", "--format", "dense", "-o", "out.h5", "--force")
        ],
    }
    before = sorted(path.name for path in tmp_path.iterdir())
    for step, words in calls.items():
        start = time.monotonic()
        done = run(tmp_path, *words, "--timeout", "0.5")
        assert done.returncode == 4
        expected = f"fdma-maskc {words[0]}: error: stopped after 0.5 s (--timeout) while {step}\n"
        assert done.stderr == expected
        assert 0.5 <= time.monotonic() - start < 60
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        assert (tmp_path / "out.h5").read_bytes() == b"what was there before"
    done = run(tmp_path, "inspect", "huge.h5:/mask", "--timeout", "0.5")
    assert done.returncode == 4
    assert "(--timeout)" in done.stderr


def test_timeout_changes_nothing_before_it_ends(tmp_path: Path) -> None:
    maskc(
        tmp_path, "compile", "--spec", "causal", "--q-len", "300", "-o", "m.h5", "--timeout", "60"
    )
    maskc(tmp_path, "check", "m.h5", "--exact", "--timeout", "1e3")
    for wrong in ("0", "-1", "soon", "inf", "nan"):
        done = run(tmp_path, "check", "m.h5", "--timeout", wrong)
        assert done.returncode == 2, wrong
        assert "--timeout: expected" in done.stderr


def test_small_files_of_long_masks_are_read_by_what_they_store(tmp_path: Path) -> None:
    """The files have 8 KiB for a million tokens; tile by tile each took minutes."""
    length = "1000000"
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", length, "-o", "causal.h5")
    maskc(tmp_path, "compile", "--spec", "k % 2 == 0", "--q-len", length, "-o", "even.h5")
    maskc(tmp_path, "combine", "and", "causal.h5", "even.h5", "-o", "m.h5", "--timeout", "30")
    assert (tmp_path / "m.h5").stat().st_size < 20000
    for words in (["inspect", "m.h5"], ["check", "m.h5"], ["convert", "m.h5", "-o", "n.h5"]):
        maskc(tmp_path, *words, "--timeout", "30")
    text = maskc(tmp_path, "inspect", "m.h5", "--no-draw")
    assert "250,000,500,000 of 1,000,000,000,000" in text
