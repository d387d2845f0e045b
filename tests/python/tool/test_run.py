"""Tests fdma-maskc run and bench against dense attention in NumPy, and with hostile input."""

from __future__ import annotations

import os
import pty
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from attention_oracle import Array, Tensors, attention, random_tensors, read_tensor, write_tensor
from maskc_tool import MASKC, maskc, maskc_json, needs_tool
from stopping import default_signals

pytestmark = needs_tool

EPSILON = {"float32": 1e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def failure(folder: Path, *words: str, status: int) -> str:
    """Returns the message of a call that must end with `status`, print nothing, leave nothing."""
    before = sorted(path.name for path in folder.iterdir())
    done = subprocess.run(
        [MASKC, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert sorted(path.name for path in folder.iterdir()) == before
    assert done.stderr.count("\n") == 1
    return done.stderr


def write_mask(folder: Path, mask: Array, *words: str) -> None:
    """Writes m.h5 from a dense mask [batch, heads, q, k]."""
    with h5py.File(folder / "dense.h5", "w") as file:
        file["mask"] = mask
    maskc(folder, "convert", "dense.h5:/mask", *words, "-o", "m.h5")


def expect_equal(
    folder: Path, reference: tuple[Array, Array], dtype: str, layout: str = "bshd"
) -> None:
    out = read_tensor(folder / "result.h5", "out")
    lse = read_tensor(folder / "result.h5", "lse")
    if layout == "bhsd":
        out = out.transpose(0, 2, 1, 3)
    assert (out.shape, lse.shape) == (reference[0].shape, reference[1].shape)
    seen = np.isfinite(reference[1])
    assert (out[~seen.transpose(0, 2, 1)] == 0).all()
    assert (lse[~seen] == -np.inf).all()
    limit = EPSILON[dtype] * max(1.0, float(np.abs(reference[0]).max()))
    assert np.abs(out - reference[0]).max() <= limit + 1e-5
    assert np.abs(lse[seen] - reference[1][seen]).max(initial=0) <= 1e-5 * max(
        1.0, float(np.abs(reference[1][seen]).max(initial=0))
    )


def sparse_mask(seed: int, *extents: int) -> Array:
    """Returns scattered cells and runs of cells; some rows have no keys."""
    random = np.random.default_rng(seed)
    mask = random.random(extents) < 0.3
    mask[..., : extents[-1] // 3] |= random.random((*extents[:-1], 1)) < 0.5
    mask[..., random.integers(0, extents[-2], 3), :] = False
    return np.asarray(mask)


SHAPES: list[dict[str, Any]] = [
    {"q_len": 1, "kv_len": 1, "dim": 1, "dim_v": 1},
    {"q_len": 70, "kv_len": 131, "heads": 4, "heads_kv": 2, "dim": 24, "dim_v": 40},
    {"q_len": 131, "kv_len": 70, "heads": 3, "heads_kv": 1, "dim": 80, "dim_v": 7, "batch": 2},
    {"q_len": 200, "kv_len": 300, "heads": 6, "heads_kv": 2, "batch": 2, "has_bias": True},
    {"q_len": 33, "kv_len": 257, "heads": 2, "heads_kv": 2, "dim": 256, "dim_v": 256},
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("which", range(len(SHAPES)))
def test_equals_dense_attention(tmp_path: Path, which: int, dtype: str) -> None:
    shape = SHAPES[which]
    tensors = random_tensors(which, dtypes=(dtype, dtype, dtype), **shape)
    heads = shape.get("heads", 1) if which % 2 else 1
    mask = sparse_mask(which, 1, heads, shape["q_len"], shape["kv_len"])
    write_mask(tmp_path, mask, "--block", "32x48")
    tensors.write(tmp_path / "qkv.h5")
    words = ["--tensors", "qkv.h5", "--backend", "cpu", "-o", "result.h5", "--check"]
    said = maskc_json(tmp_path, "run", "m.h5", *words)
    reference = attention(tensors, mask)
    expect_equal(tmp_path, reference, dtype)
    assert said["check"]["right"]
    assert said["check"]["num_rows"] == said["check"]["total_rows"] == said["rows"]["total"]
    assert said["rows"]["without_keys"] == np.isinf(reference[1]).sum()
    assert said["rows"]["nan"] == 0
    copies = tensors.q.shape[0] * tensors.q.shape[2] // heads
    assert said["allowed_pairs"] == mask.sum() * copies
    with h5py.File(tmp_path / "result.h5") as file:
        assert set(file) == {"out", "lse"}
        assert file.attrs["backend"] == b"cpu"
        assert file.attrs["layout"] == b"bshd"
        inspected = maskc_json(tmp_path, "inspect", "m.h5")["masks"][0]
        assert file.attrs["mask_hash"].decode() == inspected["mask_hash"]
        assert file.attrs["softmax_scale"] == pytest.approx(tensors.q.shape[3] ** -0.5)
        stored = file["out"].attrs.get("dtype", b"").decode() or str(file["out"].dtype)
        assert stored == dtype
        assert file["lse"].dtype == np.float32


def test_heads_before_length_mixed_types_groups_and_scale(tmp_path: Path) -> None:
    tensors = random_tensors(
        5, batch=2, q_len=90, kv_len=75, heads=4, heads_kv=2, dim=32, dim_v=16,
        dtypes=("float16", "bfloat16", "float32"), has_bias=True,
    )  # fmt: skip
    mask = sparse_mask(5, 2, 4, 90, 75)
    write_mask(tmp_path, mask, "--format", "bcsr", "--block", "16x16")
    tensors.write(
        tmp_path / "qkv.h5", "bhsd", "/layers/7/", chunks=True, compression="gzip", shuffle=True
    )
    maskc(
        tmp_path, "run", "m.h5", "--tensors", "qkv.h5:/layers/7", "--layout", "bhsd", "--check",
        "--softmax-scale", "-0.3", "--out-dtype", "float32", "--tile", "64x32", "-o", "result.h5",
    )  # fmt: skip
    # The scale is float32, and so are the logits.
    reference = attention(tensors, mask, float(np.float32(-0.3)))
    expect_equal(tmp_path, reference, "float32", "bhsd")


@pytest.mark.parametrize("has_bias", [False, True])
def test_softcap(tmp_path: Path, has_bias: bool) -> None:
    tensors = random_tensors(
        6, batch=2, q_len=60, kv_len=75, heads=4, heads_kv=2, dim=32, has_bias=has_bias
    )
    mask = sparse_mask(6, 2, 4, 60, 75)
    write_mask(tmp_path, mask, "--block", "16x16")
    tensors.write(tmp_path / "qkv.h5")
    words = ["run", "m.h5", "--tensors", "qkv.h5", "--check", "--softcap", "0.5", "-o", "result.h5"]
    assert maskc_json(tmp_path, *words)["softcap"] == 0.5
    expect_equal(tmp_path, attention(tensors, mask, softcap=0.5), "float32", "bshd")
    with h5py.File(tmp_path / "result.h5") as file:
        assert file.attrs["softcap"] == 0.5
    random = ["run", "m.h5", "--random", "--batch", "2", "--heads", "4", "--backward", "--check"]
    for dtype in ("float32", "bfloat16"):
        said = maskc_json(tmp_path, *random, "--softcap", "2", "--dtype", dtype)
        assert said["gradient_check"]["right"] and said["softcap"] == 2
    assert maskc_json(tmp_path, *random)["softcap"] is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lengths_of_batch_elements(tmp_path: Path, dtype: str) -> None:
    lengths = [(40, 50), (17, 33), (1, 50), (40, 8)]
    q_lens = ",".join(str(q) for q, _ in lengths)
    kv_lens = ",".join(str(k) for _, k in lengths)
    maskc(
        tmp_path, "compile", "--spec", "causal & window(20)", "--batch", "4", "--q-len", q_lens,
        "--kv-len", kv_lens, "--block", "16x16", "-o", "m.h5",
    )  # fmt: skip
    tensors = random_tensors(
        9, batch=4, q_len=40, kv_len=50, heads=2, heads_kv=1, dim=16, dim_v=24,
        dtypes=(dtype, dtype, dtype),
    )  # fmt: skip
    mask = np.zeros((4, 1, 40, 50), bool)
    for b, (q_len, kv_len) in enumerate(lengths):
        pos = np.arange(q_len)[:, None] + kv_len - q_len
        k = np.arange(kv_len)[None, :]
        mask[b, 0, :q_len, :kv_len] = (k <= pos) & (pos - k < 20)
        # Values past the length of a batch element are never read.
        tensors.k[b, kv_len:] = np.nan
        tensors.v[b, kv_len:] = np.inf
        tensors.q[b, q_len:] = np.nan
    tensors.write(tmp_path / "qkv.h5")
    said = maskc_json(tmp_path, "run", "m.h5", "--tensors", "qkv.h5", "-o", "result.h5", "--check")
    expect_equal(tmp_path, attention(tensors, mask, None, lengths), dtype)
    assert said["rows"] == {
        "total": 2 * sum(q for q, _ in lengths),
        "without_keys": 2 * 32,
        "nan": 0,
    }


def test_nan_spreads_to_the_rows_that_see_it(tmp_path: Path) -> None:
    causal = np.tril(np.ones((60, 60), bool))[None, None]
    write_mask(tmp_path, causal & ~np.tril(np.ones((60, 60), bool), -20), "--block", "16x16")
    tensors = random_tensors(1, q_len=60, kv_len=60, heads=2, heads_kv=1)
    tensors.q[0, 3, 1] = np.nan
    tensors.k[0, 30, 0, 5] = np.nan
    tensors.write(tmp_path / "qkv.h5")
    said = maskc_json(tmp_path, "run", "m.h5", "--tensors", "qkv.h5", "-o", "result.h5", "--check")
    hit = np.zeros((60, 2), bool)
    hit[3, 1] = True
    hit[30:50] = True
    out = read_tensor(tmp_path / "result.h5", "out")[0]
    lse = read_tensor(tmp_path / "result.h5", "lse")[0]
    assert (np.isnan(out) == hit[:, :, None]).all()
    assert (np.isnan(lse) == hit.T).all()
    assert said["rows"]["nan"] == hit.sum() == 41
    assert said["check"]["right"]
    text = maskc(tmp_path, "run", "m.h5", "--tensors", "qkv.h5")
    assert "120, 0 without keys, 41 NaN" in text


def test_random_tensors_do_not_depend_on_threads(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "300", "-o", "m.h5")
    words = ["run", "m.h5", "--random", "--heads", "4", "--heads-kv", "2", "--head-dim", "40"]
    contents = set()
    for seed, threads in (("3", "1"), ("3", "2"), ("3", "5"), ("4", "1")):
        maskc(tmp_path, *words, "--seed", seed, "--threads", threads, "-o", "result.h5")
        contents.add((tmp_path / "result.h5").read_bytes())
    assert len(contents) == 2
    out = read_tensor(tmp_path / "result.h5", "out")
    assert abs(out[0, 0].std() - 1) < 0.3  # row 0 sees one key and gets its value


def test_dump_prints_the_plan(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "300", "-o", "m.h5")
    text = maskc(tmp_path, "run", "m.h5", "--random", "--heads", "2", "--dump", "plan")
    assert text.startswith("plan cpu ")
    assert "work tiles 6 " in text
    failure(tmp_path, "run", "m.h5", "--random", "--dump", "plan", "-o", "x.h5", status=2)


def test_device_gives_the_costs_of_the_plan(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "300", "-o", "m.h5")
    words = ["run", "m.h5", "--random", "--heads", "2", "--dump", "plan", "--dtype", "float16"]
    assert "costs by cpu, 8 workers\n" in maskc(tmp_path, *words, "--backend", "cpu")
    assert "costs by h200, 132 workers\n" in maskc(tmp_path, *words, "--backend", "sm90")
    by_h100 = maskc(tmp_path, *words, "--backend", "sm90", "--device", "h100")
    assert "costs by h100, 132 workers\nchoice heads of a tile: 1 head " in by_h100
    message = failure(tmp_path, *words, "--backend", "cpu", "--device", "h100", status=2)
    assert "--device: h100 is a profile for sm90, but cpu computes" in message
    message = failure(tmp_path, *words, "--device", "h300", status=2)
    assert "--device: expected h200, h100, cpu or a profile's file" in message
    words = ["run", "m.h5", "--random", "--keep-window", "9", "--backend", "cpu"]
    assert "9 keys" in maskc(tmp_path, *words, "--device", "cpu")
    message = failure(tmp_path, *words, "--device", "h100", status=2)
    assert "--device: h100 is a profile for sm90, but cpu computes" in message


# Each entry is a change of a good file of tensors, and the message of the tool.
Change = Callable[[Any], None]


def replaced(name: str, values: Array, **attributes: str) -> Change:
    def change(file: Any) -> None:
        if name in file:
            del file[name]
        file[name] = values
        file[name].attrs.update(attributes)

    return change


def removed(name: str) -> Change:
    def change(file: Any) -> None:
        del file[name]

    return change


def zeros(*extents: int, dtype: str = "float32") -> Array:
    return np.zeros(extents, dtype)


WRONG_TENSORS: dict[str, tuple[Change, int, str]] = {
    "absent": (removed("v"), 3, r"'qkv\.h5:/v': no object '/v' in the file; '/' holds k, q$"),
    "float64": (
        replaced("k", zeros(2, 40, 2, 8, dtype="float64")),
        2,
        r"/k': type float64, expected little-endian float32, float16 or bfloat16 \(uint16 with",
    ),
    "big endian": (replaced("q", zeros(2, 30, 4, 8, dtype=">f4")), 2, "type big-endian float32"),
    "plain uint16": (replaced("q", zeros(2, 30, 4, 8, dtype="uint16")), 2, "uint16 without attr"),
    "other uint16": (
        replaced("q", zeros(2, 30, 4, 8, dtype="uint16"), dtype="float16"),
        2,
        "uint16 without attribute dtype",
    ),
    "rank": (
        replaced("q", zeros(30, 4, 8)),
        2,
        r"qkv\.h5:/q: expected 4 dimensions \[batch, len, heads, head_dim\], got float32 \[30, 4",
    ),
    "q_len": (
        replaced("q", zeros(2, 31, 4, 8)),
        2,
        r"/q: len: expected 30 \(the mask's length\), got 31 in float32 \[2, 31, 4, 8\]; --layout",
    ),
    "kv_len": (replaced("k", zeros(2, 39, 2, 8)), 2, r"/k: len: expected 40 \(the mask's length"),
    "v len": (replaced("v", zeros(2, 41, 2, 8)), 2, r"/v: len: expected 40 \(that of k\), got 41"),
    "batch": (replaced("k", zeros(1, 40, 2, 8)), 2, r"/k: batch: expected 2 \(that of q\), got 1"),
    "mask batch": (replaced("q", zeros(3, 30, 4, 8)), 2, r"/q: batch: expected 2 \(the mask's\)"),
    "heads": (replaced("k", zeros(2, 40, 3, 8)), 2, r"/v: heads: expected 3 \(that of k\), got 2"),
    "mask heads": (replaced("q", zeros(2, 30, 8, 8)), 2, r"/q: heads: expected 4 \(the mask's\)"),
    "more kv heads": (replaced("k", zeros(2, 40, 8, 8)), 2, r"/k: heads: expected 1 to 4, got 8"),
    "head_dim": (replaced("k", zeros(2, 40, 2, 9)), 2, r"/k: head_dim: expected 8 \(that of q\)"),
    "large head_dim": (
        replaced("q", zeros(2, 30, 4, 257)),
        2,
        r"/q: head_dim: expected 1 to 256, got 257",
    ),
    "bias": (
        replaced("key_bias", zeros(2, 4, 40)),
        2,
        r"key_bias: expected float32 \[2, 2, 40\], that is \[batch, heads of k, len of k\], got",
    ),
    "bias type": (
        replaced("key_bias", zeros(2, 2, 40, dtype="float16")),
        2,
        r"expected float32 \[2, 2, 40\].* got float16 \[2, 2, 40\]",
    ),
    "group": (lambda file: (removed("q")(file), file.create_group("q"))[0], 3, "not a dataset"),
    "never written": (
        lambda file: (removed("q")(file), file.create_dataset("q", (2, 30, 4, 8), "f4"))[0],
        3,
        r"/q': extents \[2, 30, 4, 8\] of 4 bytes each, but the file holds only 0 bytes",
    ),
    "huge": (
        lambda file: (
            removed("q")(file),
            file.create_dataset("q", (2, 2**40, 4, 8), "f4", chunks=(1, 64, 4, 8)),
        )[0],
        3,
        "the file holds only 0 bytes",
    ),
    "external": (
        lambda file: (removed("q")(file), file.__setitem__("q", h5py.ExternalLink("o.h5", "/q")))[
            0
        ],
        3,
        "link to another file",
    ),
}


@pytest.mark.parametrize("what", WRONG_TENSORS)
def test_wrong_tensors_are_named(tmp_path: Path, what: str) -> None:
    write_mask(tmp_path, sparse_mask(0, 2, 4, 30, 40))
    random_tensors(0, batch=2, q_len=30, kv_len=40, heads=4, heads_kv=2, dim=8, dim_v=8).write(
        tmp_path / "qkv.h5"
    )
    words = ["run", "m.h5", "--tensors", "qkv.h5", "-o", "result.h5"]
    maskc(tmp_path, *words, "-q")
    (tmp_path / "result.h5").unlink()
    change, status, message = WRONG_TENSORS[what]
    with h5py.File(tmp_path / "qkv.h5", "a") as file:
        change(file)
    assert re.search(message, failure(tmp_path, *words, status=status), flags=re.MULTILINE)


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "16", "-o", "m.h5")
    random_tensors(0, q_len=16, kv_len=16).write(tmp_path / "qkv.h5")
    whole = (tmp_path / "qkv.h5").read_bytes()
    words = ["run", "m.h5", "--tensors", "qkv.h5", "-o", "result.h5"]
    for size in range(0, len(whole) - 1, 997):
        (tmp_path / "qkv.h5").write_bytes(whole[:size])
        failure(tmp_path, *words, status=3)
    (tmp_path / "qkv.h5").write_bytes(np.random.default_rng(1).bytes(5000))
    assert "is not an HDF5 file" in failure(tmp_path, *words, status=3)
    (tmp_path / "qkv.h5").unlink()
    assert "No such file" in failure(tmp_path, *words, status=3)


USAGE = {
    (): "expected --tensors FILE.h5 or --random, got neither",
    ("--random", "--tensors", "qkv.h5"): "--random: not together with --tensors",
    ("--tensors", "qkv.h5", "--heads", "4"): "--heads: is for random tensors (--random)",
    ("--tensors", "qkv.h5", "-o", "qkv.h5"): "--output: qkv.h5 is an input of this run",
    ("--tensors", "qkv.h5", "-o", "./m.h5"): "--output: ./m.h5 is an input of this run",
    ("--random", "--softmax-scale", "0"): "--softmax-scale: expected a finite number other than 0",
    ("--random", "--softmax-scale", "1e40"): "--softmax-scale: expected a finite number",
    ("--random", "--softcap", "0"): "--softcap: expected a number from 1e-12 to 1e+12, got '0'",
    ("--random", "--softcap", "-3"): "--softcap: expected a number from 1e-12 to 1e+12, got '-3'",
    ("--random", "--softcap", "3", "--keep-window", "4"): "--softcap: not together with --keep-win",
    ("--random", "--tile", "100x16"): "--tile: expected QxK, both multiples of 16",
    ("--random", "--head-dim", "257"): "--head-dim: expected a whole number from 1 to 256",
    ("--random", "--heads", "6", "--heads-kv", "4"): "--heads-kv: expected a divisor of --heads 6",
    ("--random", "--backend", "cuda"): "--backend: expected auto|cpu|sm90, got 'cuda'",
    ("--random", "--dims", "qk"): "--dims: says how to read a dense dataset",
}


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_wrong_use_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "16", "-o", "m.h5")
    random_tensors(0, q_len=16, kv_len=16).write(tmp_path / "qkv.h5")
    assert USAGE[words] in failure(tmp_path, "run", "m.h5", *words, status=2)


def has_gpu(folder: Path) -> bool:
    """True if --backend sm90 runs here."""
    maskc(folder, "compile", "--spec", "true", "--q-len", "16", "-o", "gpu.h5")
    words = ["run", "gpu.h5", "--random", "--dtype", "float16", "--backend", "sm90", "-q"]
    done = subprocess.run(
        [MASKC, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 or "backend sm90: " in done.stderr
    (folder / "gpu.h5").unlink()
    return done.returncode == 0


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_absent_backends_are_refused_by_name(tmp_path: Path, verb: str) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "16", "-o", "m.h5")
    words = [verb, "m.h5"] + (["--random"] if verb == "run" else [])
    message = failure(tmp_path, *words, "--backend", "sm80", status=2)
    assert "--backend: expected auto|cpu|sm90, got 'sm80'" in message
    if has_gpu(tmp_path):
        pytest.skip("this machine has a GPU of compute capability 9.0")
    message = failure(tmp_path, *words, "--backend", "sm90", status=4)
    assert "backend sm90: " in message and "; available: cpu" in message


def test_plans_for_sm90_are_shown_anywhere(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "300", "-o", "m.h5")
    words = ["run", "m.h5", "--random", "--backend", "sm90", "--dump", "plan"]
    plan = maskc(tmp_path, *words, "--dtype", "float16")
    assert plan.startswith("plan sm90 tile 128x128")
    for more, message in (
        (["--dtype", "float32"], "dtype: sm90 computes q, k, v and out all bfloat16"),
        (["--dtype", "float16", "--head-dim", "84"], "head_dim: sm90 computes"),
        (["--dtype", "float16", "--tile", "64x64"], "tile: sm90 computes tiles of 128 x 128"),
    ):
        assert message in failure(tmp_path, *words, *more, status=4)


def test_run_and_bench_on_a_gpu(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal & window(90)", "--q-len", "700", "-o", "m.h5")
    if not has_gpu(tmp_path):
        pytest.skip("no GPU of compute capability 9.0 on this machine")
    tensors = ["--heads", "4", "--heads-kv", "2", "--dtype", "bfloat16", "--backend", "sm90"]
    run = maskc_json(tmp_path, "run", "m.h5", "--random", *tensors, "--check", "-o", "r.h5")
    assert run["plan"]["backend"] == "sm90" and run["device"] and run["output"] == "r.h5"
    with h5py.File(tmp_path / "r.h5") as file:
        assert file.attrs["backend"] == b"sm90"
    gradients = maskc_json(
        tmp_path, "run", "m.h5", "--random", *tensors, "--backward", "--check", "-o", "g.h5"
    )
    assert gradients["direction"] == "backward" and gradients["gradient_check"]["right"]
    words = ["--repeat", "2", "--direction", "backward", "--deterministic"]
    assert maskc_json(tmp_path, "bench", "m.h5", *tensors, *words)["deterministic"]
    bench = maskc_json(tmp_path, "bench", "m.h5", *tensors, "--repeat", "3")
    assert bench["device"] == run["device"] and len(bench["full"]["seconds"]) == 3
    # Tensors without a kernel on the GPU run on the CPU unless a backend is named.
    wide = maskc_json(tmp_path, "run", "m.h5", "--random", "--dtype", "float32", "--check")
    assert wide["plan"]["backend"] == "cpu" and wide["device"] is None


def test_out_of_memory_is_a_message(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "window(8)", "--q-len", "1000000", "-o", "m.h5")
    words = ["run", "m.h5", "--random", "--heads", "4000", "--heads-kv", "4000", "-o", "x.h5"]
    assert "memory" in failure(tmp_path, *words, status=4)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    done = subprocess.run(
        [MASKC, "run", "m.h5", "--random", "--heads", "1", "--threads", "1", "-o", "x.h5"],
        cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert "memory" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "2000", "-o", "m.h5")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        [MASKC, "run", "m.h5", "--random", "--head-dim", "16", "-o", "result.h5"],
        cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "fdma-maskc run: error: cannot write 'result.h5': File too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


def test_interrupted_run_shows_progress_and_leaves_nothing(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "30000", "-o", "m.h5")
    (tmp_path / "result.h5").write_bytes(b"what was there before")
    ours, theirs = pty.openpty()
    words = [MASKC, "run", "m.h5", "--random", "--heads", "32", "--heads-kv", "1"]
    words += ["--head-dim", "64", "--threads", "1", "--force", "-o", "result.h5"]
    with subprocess.Popen(
        words, cwd=tmp_path, stderr=theirs, stdout=subprocess.DEVNULL, preexec_fn=default_signals
    ) as tool:
        os.close(theirs)
        shown = b""
        start = time.monotonic()
        while b"attention [" not in shown and time.monotonic() - start < 60:
            shown += os.read(ours, 4096)
        tool.send_signal(signal.SIGINT)
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:
                break
            shown += piece
            if not piece:
                break
    os.close(ours)
    assert tool.returncode == 130
    assert b"left" in shown and shown.endswith(b"fdma-maskc run: interrupted\r\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.h5", "result.h5"]
    assert (tmp_path / "result.h5").read_bytes() == b"what was there before"


def test_bench_measures_and_checks(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal & window(100)", "--q-len", "700", "-o", "m.h5")
    words = ["bench", "m.h5", "--heads", "4", "--heads-kv", "2", "--head-dim", "32", "--batch", "2"]
    said = maskc_json(tmp_path, *words, "--repeat", "3", "--threads", "1")
    assert len(said["masked"]["seconds"]) == len(said["full"]["seconds"]) == 3
    assert said["masked"]["median_seconds"] == sorted(said["masked"]["seconds"])[1]
    assert said["full"]["allowed_pairs"] == 700 * 700 * 8
    assert said["tile_ratio"] == said["masked"]["live_tiles"] / said["full"]["live_tiles"]
    assert said["masked"]["check"]["right"] and said["full"]["check"]["right"]
    text = maskc(tmp_path, *words, "--repeat", "1", "--dtype", "bfloat16")
    assert text.startswith("random tensors (seed 0) over m.h5:/masks/mask\n")
    assert "of the time for" in text


def test_a_scalar_type_beside_the_tensors_does_no_harm(tmp_path: Path) -> None:
    """The tool does not read other datasets of the file."""
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "16", "-o", "m.h5")
    tensors: Tensors = random_tensors(0, q_len=16, kv_len=16)
    tensors.write(tmp_path / "qkv.h5")
    with h5py.File(tmp_path / "qkv.h5", "a") as file:
        file["note"] = "text"
        write_tensor(file, "out", np.zeros(3), "bfloat16")
    maskc(tmp_path, "run", "m.h5", "--tensors", "qkv.h5", "-o", "result.h5", "--check")
