"""Tests the gradients of fdma-maskc run and bench against their formulas in NumPy."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from attention_oracle import (
    Array,
    Tensors,
    attention,
    loaded,
    random_tensors,
    read_tensor,
    stored,
    write_tensor,
)
from maskc_tool import MASKC, maskc, maskc_json, needs_tool

pytestmark = needs_tool

TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def gradients(tensors: Tensors, mask: Array, dout: Array) -> dict[str, Array]:
    """Returns dq, dk, dv and dkey_bias in float64, with the extents of q, k, v and key_bias."""
    out, lse = attention(tensors, mask)
    dq, dk, dv = (np.zeros(x.shape) for x in (tensors.q, tensors.k, tensors.v))
    batch, _, heads, dim = tensors.q.shape
    heads_kv = tensors.k.shape[2]
    dbias = np.zeros((batch, heads_kv, tensors.k.shape[1]))
    scale = dim**-0.5
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // heads_kv)
            q, k, v = tensors.q[b, :, h], tensors.k[b, :, kv], tensors.v[b, :, kv]
            logits = scale * q @ k.T + (0 if tensors.bias is None else tensors.bias[b, kv])
            rows = np.where(np.isfinite(lse[b, h]), lse[b, h], np.inf)[:, None]
            p = np.where(mask[b % mask.shape[0], h % mask.shape[1]], np.exp(logits - rows), 0)
            shift = (dout[b, :, h] * out[b, :, h]).sum(axis=1, keepdims=True)
            ds = p * (dout[b, :, h] @ v.T - shift)
            dv[b, :, kv] += p.T @ dout[b, :, h]
            dq[b, :, h] = scale * ds @ k
            dk[b, :, kv] += scale * ds.T @ q
            dbias[b, kv] += ds.sum(axis=0)
    return {"dq": dq, "dk": dk, "dv": dv, "dkey_bias": dbias}


def write_problem(folder: Path, tensors: Tensors, mask: Array, dtype: str) -> Array:
    """Writes m.h5 and qkv.h5 with dout, and returns dout."""
    with h5py.File(folder / "dense.h5", "w") as file:
        file["mask"] = mask.astype(np.uint8)
    maskc(folder, "convert", "dense.h5:/mask", "-o", "m.h5")
    tensors.write(folder / "qkv.h5")
    extents = (*tensors.q.shape[:3], tensors.v.shape[3])
    drawn = np.random.default_rng(7).standard_normal(extents)
    with h5py.File(folder / "qkv.h5", "a") as file:
        write_tensor(file, "dout", drawn, dtype)
    return loaded(stored(drawn, dtype), dtype)


SHAPES: list[dict[str, Any]] = [
    {"q_len": 70, "kv_len": 131, "heads": 4, "heads_kv": 2, "dim": 24, "dim_v": 40},
    {"q_len": 200, "kv_len": 150, "heads": 6, "heads_kv": 2, "batch": 2, "has_bias": True},
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "bias"])
def test_gradients_equal_their_formulas(tmp_path: Path, shape: dict[str, Any], dtype: str) -> None:
    tensors = random_tensors(3, dtypes=(dtype, dtype, dtype), **shape)
    random = np.random.default_rng(3)
    mask = random.random((1, shape["heads"], shape["q_len"], shape["kv_len"])) < 0.4
    mask[..., 5, :] = False
    mask[..., :, 9] = False
    dout = write_problem(tmp_path, tensors, mask, dtype)
    words = ["run", "m.h5", "--tensors", "qkv.h5", "--backward", "-o", "result.h5", "--check"]
    said = maskc_json(tmp_path, *words)
    assert said["direction"] == "backward"
    assert said["check"]["right"]
    assert said["gradient_check"]["right"]
    assert said["gradient_check"]["num_keys"] == said["gradient_check"]["total_keys"]
    expected = gradients(tensors, mask, dout)
    if tensors.bias is None:
        assert said["gradient_check"]["dkey_bias"] is None
        del expected["dkey_bias"]
    with h5py.File(tmp_path / "result.h5") as file:
        assert set(file) == {"out", "lse", *expected}
    for name, reference in expected.items():
        got = read_tensor(tmp_path / "result.h5", name)
        assert got.shape == reference.shape
        assert np.abs(got - reference).max() <= TOLERANCE[dtype] * np.abs(reference).max()
    assert not read_tensor(tmp_path / "result.h5", "dk")[:, 9].any()
    assert not read_tensor(tmp_path / "result.h5", "dq")[:, 5].any()


def test_what_is_printed_names_the_gradients(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "150", "-o", "m.h5")
    words = ["run", "m.h5", "--random", "--heads", "2", "--head-dim", "16", "--backward"]
    text = maskc(tmp_path, *words, "--deterministic", "--check", "-o", "r.h5")
    assert "  ran      backward in " in text
    assert "all 300 rows and all 300 keys against float64: max abs error dq " in text
    assert "dk float32 [1, 150, 2, 16]" in text
    shown = maskc(tmp_path, *words, "--dump", "plan")
    assert shown.startswith("plan cpu backward tile 128x128")


def test_bench_times_gradients(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "300", "-o", "m.h5")
    words = ["bench", "m.h5", "--heads", "2", "--head-dim", "16", "--repeat", "2"]
    said = maskc_json(tmp_path, *words, "--direction", "backward")
    assert said["direction"] == "backward"
    assert not said["deterministic"]
    assert said["masked"]["gradient_check"]["right"]
    assert said["full"]["gradient_check"]["right"]
    flops = 10 * 16 * said["full"]["allowed_pairs"]
    assert said["full"]["gflops"] == pytest.approx(flops / said["full"]["median_seconds"] / 1e9)
    assert maskc_json(tmp_path, *words)["masked"]["gradient_check"] is None


def usage_error(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [MASKC, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    return done.stderr


USAGE = {
    ("--deterministic",): "--deterministic: expected --backward beside it",
    ("--backward", "--keep-window", "8"): "--backward: not together with --keep-window",
}


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_wrong_use_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "16", "-o", "m.h5")
    assert USAGE[words] in usage_error(tmp_path, "run", "m.h5", "--random", *words)


def test_a_file_without_dout_is_named(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "16", "-o", "m.h5")
    random_tensors(0, q_len=16, kv_len=16).write(tmp_path / "qkv.h5")
    said = usage_error(tmp_path, "run", "m.h5", "--tensors", "qkv.h5", "--backward")
    assert "qkv.h5:/dout: expected the gradient of out" in said
