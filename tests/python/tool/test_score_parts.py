"""Tests what fdma-maskc run and bench add to logits and weights against NumPy in float64."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from attention_oracle import (
    Array,
    Tensors,
    loaded,
    random_tensors,
    read_tensor,
    stored,
    write_tensor,
)
from maskc_tool import MASKC, maskc, maskc_json, needs_tool

pytestmark = needs_tool

TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2}
LEFT = 9


@dataclass
class Score:
    """The datasets of a score, by name, as they are stored, and its numbers."""

    datasets: dict[str, Array] = field(default_factory=dict)
    softcap: float = 0
    rate: float = 0
    seed: int = 0
    offset: int = 0

    def write(self, path: Path, dtype: str) -> None:
        with h5py.File(path, "a") as file:
            for name, values in self.datasets.items():
                kind = dtype if name == "bias" else "float32"
                write_tensor(file, name, values, kind)
                self.datasets[name] = loaded(stored(values, kind), kind)

    def words(self) -> list[str]:
        words = ["--relative-left", str(LEFT)] if "relative" in self.datasets else []
        words += ["--softcap", str(self.softcap)] if self.softcap else []
        if self.rate:
            words += ["--dropout", str(self.rate), "--dropout-seed", str(self.seed)]
            words += ["--dropout-offset", str(self.offset)]
        return words


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Returns the four words of Philox4x32 with 7 rounds."""
    c, (k0, k1) = list(counter), key
    for _ in range(7):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        mask = 2**32 - 1
        c = [(second >> 32) ^ c[1] ^ k0, second & mask, (first >> 32) ^ c[3] ^ k1, first & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c


def kept(score: Score, batch: int, heads: int, q_len: int, kv_len: int) -> Array:
    """Returns the factors by which dropout multiplies weights, [batch, heads, q_len, kv_len]."""
    factors = np.ones((batch, heads, q_len, kv_len))
    if score.rate == 0:
        return factors
    key = [score.seed & 0xFFFFFFFF, score.seed >> 32 ^ score.offset >> 32]
    for b, h, q, k in np.ndindex(*factors.shape):
        place = [q // 16 * 8 + q % 8, k // 16 * 8 + k % 8]
        words = philox([score.offset & 0xFFFFFFFF, b * heads + h, *place], key)
        is_kept = words[2 * (q // 8 % 2) + k // 8 % 2] >= round(score.rate * 2**32)
        factors[b, h, q, k] = is_kept / (1 - score.rate)
    return factors


def expected(
    tensors: Tensors,
    mask: Array,
    score: Score,
    dout: Array,
    lengths: list[tuple[int, int]] | None = None,
) -> dict[str, Array]:
    """Returns out, lse and every gradient in float64, by definition."""
    batch, q_len, heads, dim = tensors.q.shape
    kv_len, heads_kv = tensors.k.shape[1:3]
    of = score.datasets
    results = {
        "out": np.zeros((batch, q_len, heads, tensors.v.shape[3])),
        "lse": np.full((batch, heads, q_len), -np.inf),
        **{f"d{name}": np.zeros(getattr(tensors, name).shape) for name in "qkv"},
        **{f"d{name}": np.zeros(values.shape) for name, values in of.items()},
    }
    results.pop("dalibi_slopes", None)
    factors = kept(score, batch, heads, q_len, kv_len)
    for b, h, i in np.ndindex(batch, heads, q_len):
        rows, keys = (q_len, kv_len) if lengths is None else lengths[b]
        seen = np.flatnonzero(mask[b % mask.shape[0], h % mask.shape[1], i, :keys])
        if i >= rows or not seen.size:
            continue
        kv = h // (heads // heads_kv)
        q, k, v = tensors.q[b, i, h], tensors.k[b, seen, kv], tensors.v[b, seen, kv]
        logits = dim**-0.5 * k @ q
        slopes = np.ones(seen.size)
        if score.softcap:
            tanh = np.tanh(logits / score.softcap)
            logits, slopes = score.softcap * tanh, 1 - tanh**2
        distance = seen - (i + keys - rows)
        places: dict[str, Any] = {}
        if "key_bias" in of:
            places["key_bias"] = (b, kv, seen)
        if "bias" in of:
            bias = of["bias"]
            head = h if bias.shape[1] == heads else kv if bias.shape[1] == heads_kv else 0
            places["bias"] = (b % bias.shape[0], head, i % bias.shape[2], seen)
        if "relative" in of:
            table = of["relative"]
            index = np.clip(distance, -LEFT, table.shape[1] - 1 - LEFT) + LEFT
            places["relative"] = (h % table.shape[0], index)
        logits = logits + sum(of[name][place] for name, place in places.items())
        if "alibi_slopes" in of:
            slope = of["alibi_slopes"]
            logits = logits - (slope[h] if slope.ndim == 1 else slope[b, h]) * np.abs(distance)
        greatest = logits.max()
        lse = np.log(np.exp(logits - greatest).sum()) + greatest
        weights = np.exp(logits - lse)
        of_sink = 0.0
        at: tuple[int, ...] = ()
        if "sinks" in of:
            at = (h,) if of["sinks"].ndim == 1 else (b, h, i)
            of_sink = 1 / (1 + np.exp(lse - of["sinks"][at]))
            weights = weights * (1 - of_sink)
        factor = factors[b, h, i, seen]
        out = (weights * factor) @ v
        results["out"][b, i, h], results["lse"][b, h, i] = out, lse
        shift = dout[b, i, h] @ out
        ds = weights * (factor * (v @ dout[b, i, h]) - shift)
        results["dv"][b, seen, kv] += np.outer(weights * factor, dout[b, i, h])
        results["dq"][b, i, h] = dim**-0.5 * (ds * slopes) @ k
        results["dk"][b, seen, kv] += dim**-0.5 * np.outer(ds * slopes, q)
        for name, place in places.items():
            np.add.at(results[f"d{name}"], place, ds)
        if "sinks" in of:
            results["dsinks"][at] -= of_sink * shift
    return results


B, Q, K, H, H_KV = 2, 37, 50, 4, 2
EXTENTS: dict[str, dict[str, tuple[int, ...]]] = {
    "key_bias": {"key_bias": (B, H_KV, K)},
    "bias": {"bias": (B, H, Q, K)},
    "bias for all elements and rows": {"bias": (1, H_KV, 1, K)},
    "bias for all heads": {"bias": (B, 1, Q, K)},
    "slopes": {"alibi_slopes": (H,)},
    "slopes of elements": {"alibi_slopes": (B, H)},
    "table": {"relative": (H, 2 * LEFT + 1)},
    "table for all heads": {"relative": (1, LEFT + 3)},
    "sinks": {"sinks": (H,)},
    "sinks of rows": {"sinks": (B, H, Q)},
    "dropout": {},
    "all": {
        "key_bias": (B, H_KV, K),
        "bias": (1, H, Q, K),
        "alibi_slopes": (H,),
        "relative": (H, 2 * LEFT + 1),
        "sinks": (H,),
    },
}


def problem(folder: Path, which: str, dtype: str) -> tuple[Tensors, Array, Score, Array]:
    """Writes m.h5 and qkv.h5, and returns what they hold."""
    random = np.random.default_rng(len(which))
    tensors = random_tensors(
        3, batch=B, q_len=Q, kv_len=K, heads=H, heads_kv=H_KV, dim=24, dim_v=16,
        dtypes=(dtype, dtype, dtype),
    )  # fmt: skip
    score = Score({name: random.standard_normal(of) for name, of in EXTENTS[which].items()})
    if "alibi_slopes" in score.datasets:
        score.datasets["alibi_slopes"] = np.abs(score.datasets["alibi_slopes"]) / 8
    if which in ("dropout", "all"):
        score.rate, score.seed, score.offset = 0.25, 2**40 + 5, 2**33 + 12
    if which == "all":
        score.softcap = 2.5
    mask = random.random((1, H, Q, K)) < 0.5
    mask[..., 5, :] = False
    mask[..., :, 9] = False
    with h5py.File(folder / "dense.h5", "w") as file:
        file["mask"] = mask
    maskc(folder, "convert", "dense.h5:/mask", "-o", "m.h5")
    tensors.write(folder / "qkv.h5")
    score.write(folder / "qkv.h5", dtype)
    dout = random.standard_normal((B, Q, H, 16))
    with h5py.File(folder / "qkv.h5", "a") as file:
        write_tensor(file, "dout", dout, dtype)
    return tensors, mask, score, loaded(stored(dout, dtype), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("which", EXTENTS)
def test_results_and_gradients_equal_their_definition(
    tmp_path: Path, which: str, dtype: str
) -> None:
    tensors, mask, score, dout = problem(tmp_path, which, dtype)
    said = maskc_json(
        tmp_path, "run", "m.h5", "--tensors", "qkv.h5", "--backend", "cpu", "--backward", "--check",
        "-o", "r.h5", *score.words(),
    )  # fmt: skip
    reference = expected(tensors, mask, score, dout)
    with h5py.File(tmp_path / "r.h5") as file:
        assert set(file) == set(reference)
        assert file.attrs.get("dropout", 0) == score.rate
        assert file.attrs.get("relative_left") == (LEFT if "relative" in score.datasets else None)
    seen = np.isfinite(reference["lse"])
    for name, values in reference.items():
        got = read_tensor(tmp_path / "r.h5", name)
        assert got.shape == values.shape
        if name == "lse":
            assert (got[~seen] == -np.inf).all()
            got, values = got[seen], values[seen]
        assert np.abs(got - values).max() <= TOLERANCE[dtype] * np.abs(values).max(), name
        assert not got[(values == 0) & (got != 0)].any(), name
    assert said["check"]["right"] and said["gradient_check"]["right"]
    for name in ("dkey_bias", "dbias", "drelative", "dsinks"):
        assert (said["gradient_check"][name] is not None) == (name in reference)
    parts = {"alibi_slopes": "alibi", "relative": "relative_table", "sinks": "sink"}
    named = {parts.get(name, name) for name in score.datasets}
    named |= {"softcap"} if score.softcap else set()
    assert set(said["score"]["parts"]) == named | ({"dropout"} if score.rate else set())
    numbers = {"rate": score.rate, "seed": score.seed, "offset": score.offset}
    assert said["score"]["dropout"] == (numbers if score.rate else None)


def test_lengths_of_batch_elements(tmp_path: Path) -> None:
    lengths = [(20, 50), (37, 30)]
    tensors, _, score, dout = problem(tmp_path, "all", "float32")
    maskc(
        tmp_path, "compile", "--spec", "causal", "--batch", "2", "--q-len", "20,37", "--kv-len",
        "50,30", "--block", "16x16", "--force", "-o", "m.h5",
    )  # fmt: skip
    mask = np.zeros((B, 1, Q, K), bool)
    for b, (rows, keys) in enumerate(lengths):
        mask[b, 0, :rows, :keys] = np.tri(rows, keys, keys - rows)
    score.rate = 0  # random words count q and k alike, whatever the lengths
    words = ["--backend", "cpu", "--backward", "--check", "-o", "r.h5", *score.words()]
    said = maskc_json(tmp_path, "run", "m.h5", "--tensors", "qkv.h5", *words)
    assert said["check"]["right"] and said["gradient_check"]["right"]
    reference = expected(tensors, mask, score, dout, lengths)
    for name in ("out", "dq", "dk", "dkey_bias", "dbias", "drelative", "dsinks"):
        got = read_tensor(tmp_path / "r.h5", name)
        limit = TOLERANCE["float32"] * np.abs(reference[name]).max()
        assert np.abs(got - reference[name]).max() <= limit, name


def test_random_tensors_have_the_parts_that_are_named(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "70", "-o", "m.h5")
    words = ["--heads", "6", "--heads-kv", "2", "--head-dim", "16", "--relative-left", "20"]
    words += ["--score", "sink,bias,relative_table,key_bias,alibi", "--dropout", "0.2"]
    words += ["--backend", "cpu"]
    parts = ["key_bias", "bias", "alibi", "relative_table", "sink", "dropout"]
    run = ["run", "m.h5", "--random", *words]
    for dtype in ("float32", "bfloat16"):
        said = maskc_json(tmp_path, *run, "--dtype", dtype, "--backward", "--check")
        assert said["score"]["parts"] == parts
        assert said["score"]["relative_left"] == 20
        assert said["check"]["right"] and said["gradient_check"]["right"]
    text = maskc(tmp_path, *run)
    assert (
        ", key_bias, bias float32 [1, 6, 70, 70], alibi_slopes float32 [6], relative float32 "
        "[6, 41] (left 20), sinks float32 [6], dropout 0.2 (seed 0, offset 0)\n"
    ) in text
    bench = maskc_json(tmp_path, "bench", "m.h5", *words, "--repeat", "1", "--softcap", "5")
    assert bench["score"]["parts"] == ["softcap", *parts]
    assert bench["masked"]["check"]["right"] and bench["full"]["check"]["right"]
    bench = maskc_json(
        tmp_path, "bench", "m.h5", *words, "--repeat", "1", "--direction", "backward"
    )
    assert bench["masked"]["gradient_check"]["dbias"]["right"]
    estimate = maskc_json(tmp_path, "estimate", "m.h5", "--score", ",".join(parts[::-1]))
    assert estimate["score"] == parts


def test_slopes_of_random_tensors_are_those_of_alibi(tmp_path: Path) -> None:
    """With a tiny scale the logits are the slopes alone, so that lse tells them."""
    maskc(tmp_path, "compile", "--spec", "true", "--q-len", "1", "--kv-len", "2", "-o", "m.h5")
    words = ["--random", "--heads", "6", "--score", "alibi", "--backend", "cpu"]
    maskc(tmp_path, "run", "m.h5", *words, "--softmax-scale", "1e-30", "-o", "r.h5")
    slopes = -np.log(np.exp(read_tensor(tmp_path / "r.h5", "lse")[0, :, 0]) - 1)
    np.testing.assert_allclose(slopes, [0.25, 0.0625, 2**-6, 2**-8, 0.5, 0.125], rtol=1e-3)


def test_seeds_choose_what_is_dropped(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "300", "-o", "m.h5")
    results = set()
    for words in ([], ["--dropout-seed", "1"], ["--dropout-offset", "4"], ["--tile", "64x64"]):
        run = ["run", "m.h5", "--random", "--backend", "cpu", "--dropout", "0.5", *words]
        maskc(tmp_path, *run, "--check", "-o", "r.h5")
        results.add(np.round(read_tensor(tmp_path / "r.h5", "out"), 4).tobytes())
    assert 3 <= len(results) <= 4  # the tile changes rounding alone


def error_of(folder: Path, *words: str, status: int = 2) -> str:
    done = subprocess.run(
        [MASKC, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


WRONG_DATASETS = {
    "bias heads": (
        ("bias", (1, 3, Q, K)),
        "qkv.h5:/bias: expected float32 [2 or 1, 4 or 2 or 1, 37 or 1, 50], that is [batch, heads "
        "of q or of k, len of q, len of k], each but the last perhaps 1, got float32 [1, 3, 37, ",
    ),
    "bias keys": (("bias", (1, 1, Q, 1)), "got float32 [1, 1, 37, 1]"),
    "bias rank": (("bias", (Q, K)), "got float32 [37, 50]"),
    "slopes": (
        ("alibi_slopes", (H_KV,)),
        "alibi_slopes: expected float32 [4] or [2, 4], that is [heads of q], or with the batch in "
        "front, got float32 [2]",
    ),
    "table": (("relative", (2, 5)), "relative: expected float32 [4 or 1, n], that is [heads of q"),
    "empty table": (("relative", (4, 0)), "got float32 [4, 0]"),
    "sinks": (("sinks", (B, H)), "sinks: expected float32 [4] or [2, 4, 37], that is [heads of q]"),
}


@pytest.mark.parametrize("which", WRONG_DATASETS)
def test_wrong_datasets_are_named(tmp_path: Path, which: str) -> None:
    problem(tmp_path, "dropout", "float32")
    (name, extents), message = WRONG_DATASETS[which]
    with h5py.File(tmp_path / "qkv.h5", "a") as file:
        file[name] = np.zeros(extents, np.float32)
    words = ["--relative-left", "2"] if name == "relative" else []
    assert message in error_of(tmp_path, "run", "m.h5", "--tensors", "qkv.h5", *words)
    with h5py.File(tmp_path / "qkv.h5", "a") as file:
        del file[name]
        file[name] = np.zeros(extents, np.float64)
    assert "type float64" in error_of(tmp_path, "run", "m.h5", "--tensors", "qkv.h5", *words)


def test_a_bias_has_the_type_of_q(tmp_path: Path) -> None:
    problem(tmp_path, "dropout", "bfloat16")
    with h5py.File(tmp_path / "qkv.h5", "a") as file:
        file["bias"] = np.zeros((1, 1, 1, K), np.float16)
    message = error_of(tmp_path, "run", "m.h5", "--tensors", "qkv.h5")
    assert "expected float32 or bfloat16 [2 or 1, " in message


USAGE = {
    ("--random", "--score", "slopes"): "--score: expected parts of softcap, key_bias, bias, alibi,",
    ("--random", "--score", "softcap"): "--score: softcap has no tensor; give --softcap and a num",
    ("--random", "--score", "dropout"): "--score: dropout has no tensor; give --dropout and a num",
    ("--random", "--score", "relative_table"): "--relative-left: is missing",
    ("--random", "--relative-left", "3"): "--relative-left: expected a table relative beside q",
    ("--random", "--dropout", "1"): "--dropout: expected a number above 0 and below 1, got '1'",
    ("--random", "--dropout", "0"): "--dropout: expected a number above 0 and below 1, got '0'",
    ("--random", "--dropout-seed", "1"): "--dropout-seed: expected --dropout beside it",
    (
        "--random",
        "--dropout",
        "0.1",
        "--dropout-offset",
        "-1",
    ): "--dropout-offset: expected a whole",
    ("--tensors", "qkv.h5", "--score", "bias"): "--score: is for random tensors (--random)",
    ("--tensors", "qkv.h5"): "--relative-left: is missing; it is the element of each row of rel",
    (
        "--tensors",
        "qkv.h5",
        "--relative-left",
        "7",
    ): "--relative-left: expected an index into the 7",
    ("--random", "--dropout", "0.1", "--keep-window", "4"): "--dropout: not together with --keep-w",
    ("--random", "--score", "sink", "--keep-window", "4"): "but the tensors have sinks; leave it o",
    ("--random", "--score", "key_bias", "--keep-window", "4"): "the tensors have a key_bias, whose",
}


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_wrong_use_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "16", "-o", "m.h5")
    random_tensors(0, q_len=16, kv_len=16).write(tmp_path / "qkv.h5")
    with h5py.File(tmp_path / "qkv.h5", "a") as file:
        file["relative"] = np.zeros((1, 7), np.float32)
    assert USAGE[words] in error_of(tmp_path, "run", "m.h5", *words)


def test_memory_of_a_bias_is_counted(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "window(8)", "--q-len", "1000000", "-o", "m.h5")
    words = ["--random", "--head-dim", "8", "--score", "bias", "--backend", "cpu"]
    message = error_of(tmp_path, "run", "m.h5", *words, status=4)
    assert "q, k, v, out, lse and bias: not enough memory" in message
