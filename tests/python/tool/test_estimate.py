"""Tests fdma-maskc estimate and calibrate: counts against NumPy, profiles, refusals."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from json_schema import violations
from maskc_tool import MASKC, SCHEMA, maskc, maskc_json, needs_tool

pytestmark = needs_tool

TILE = 64


def error_of(folder: Path, *words: str, status: int) -> str:
    """Returns the standard error of one call that must end with `status`."""
    done = subprocess.run(
        [MASKC, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, f"{words}: status {done.returncode}\n{done.stderr}"
    assert done.stdout == ""
    return done.stderr


def profile(**changes: Any) -> dict[str, Any]:
    """Returns a device of two workers; a computed tile costs 10 us and a work tile 1 us."""
    steps = {"tile_us": 0.0, "compute_us": 10.0}
    tile = {
        "tile": {"q": TILE, "kv": TILE},
        **dict.fromkeys(("full", "bitmap", "rows", "columns", "gather"), steps),
        "item_us": 1.0,
        "far_key_us": 0.0,
    }
    kernel = {
        "direction": "forward",
        "dtype": "float32",
        "head_dim": 32,
        "launch_us": 2.0,
        "tiles": [tile],
    }
    return {
        "fdma_device_profile": 1,
        "name": "two workers",
        "source": "made up",
        "provisional": False,
        "num_workers": 2,
        "memory_bytes_per_us": 1e9,
        "near_bytes": 0,
        "far_bytes": 0,
        "stripe_rows": 16,
        "skips_dead_keys": False,
        "kernels": [kernel],
    } | changes


def write_profile(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(profile(**changes)))


def schedule(costs: list[float], num_workers: int) -> float:
    """Returns the time at which the last worker is done that takes `costs` in this order."""
    free_at = [0.0] * num_workers
    for cost in costs:
        free_at[free_at.index(min(free_at))] += cost
    return max(free_at)


@pytest.mark.parametrize("seed", range(4))
def test_counts_and_times_are_those_of_the_cells(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    q_len, kv_len = (int(n) for n in random.integers(1, 300, 2))
    q, k = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    mask = (k <= q + kv_len - q_len) & (q // 40 != random.integers(0, 7))
    mask ^= random.random(mask.shape) < 0.0005
    with h5py.File(tmp_path / "dense.h5", "w") as file:
        file["mask"] = mask
    write_profile(tmp_path / "device.json")
    maskc(tmp_path, "convert", "dense.h5:/mask", "--block", "32x16", "-o", "m.h5")
    said = maskc_json(
        tmp_path, "estimate", "m.h5", "--device", "device.json", "--heads", "2", "--batch", "3",
        "--head-dim", "32", "--dtype", "fp32", "--columns", "scan",
    )  # fmt: skip
    work_tiles: list[float] = []
    live_tiles = 0
    dead = 0
    for row in range(0, q_len, TILE):
        tiles = [mask[row : row + TILE, at : at + TILE] for at in range(0, kv_len, TILE)]
        live = [tile for tile in tiles if tile.any()]
        work_tiles.append(1 + 10 * len(live))
        live_tiles += len(live)
        dead += sum(int((~tile).sum()) for tile in live)
    work_tiles = sorted(work_tiles * 6, reverse=True)
    assert said["allowed_pairs"] == 6 * mask.sum()
    assert said["total_pairs"] == 6 * mask.size
    assert said["tiles"]["full"] + said["tiles"]["partial"] == 6 * live_tiles
    assert said["partial_dead_cells"] == 6 * dead
    assert said["flops"] == 4 * 32 * 6 * mask.sum()
    assert said["masked"]["num_items"] == len(work_tiles)
    assert said["masked"]["busy_us"] == pytest.approx(sum(work_tiles))
    assert said["masked"]["makespan_us"] == pytest.approx(schedule(work_tiles, 2))
    assert said["masked"]["time_us"] == pytest.approx(2 + schedule(work_tiles, 2))
    assert said["masked"]["computed_cells"] == 6 * live_tiles * TILE * TILE
    assert said["dense_bytes"]["float"] == 4 * mask.size
    full = [1.0 + 10 * -(-kv_len // TILE)] * (6 * -(-q_len // TILE))
    assert said["full"]["time_us"] == pytest.approx(2 + schedule(full, 2))
    assert said["speedup"] == pytest.approx(said["full"]["time_us"] / said["masked"]["time_us"])


def test_bytes_of_formats_are_those_of_inspect(tmp_path: Path) -> None:
    for spec in ("causal", "causal & window(100)", "(q // 5) % 7 == (k // 5) % 7"):
        maskc(tmp_path, "compile", "--spec", spec, "--q-len", "700", "--force", "-o", "m.h5")
        inspected = maskc_json(tmp_path, "inspect", "m.h5")["masks"][0]
        said = maskc_json(tmp_path, "estimate", "m.h5")
        sizes = {size["format"]: size["bytes"] for size in said["formats"]}
        assert sizes == inspected["bytes"]
        held = {name: size for name, size in sizes.items() if size is not None}
        assert held[said["best_format"]] == min(held.values())
        for size in said["formats"]:
            assert (size["reason"] is None) == (size["bytes"] is not None)


def test_backward_and_forward_count_the_same_tiles(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal & window(600)", "--q-len", "4096", "-o", "m.h5")
    forward = maskc_json(tmp_path, "estimate", "m.h5", "--heads", "4")
    backward = maskc_json(tmp_path, "estimate", "m.h5", "--heads", "4", "--direction", "backward")
    assert backward["flops"] == forward["flops"] * 2.5
    assert backward["allowed_pairs"] == forward["allowed_pairs"]
    assert backward["masked"]["num_items"] == 4 * 4096 // backward["tile"]["kv"]
    wanted = {"name": "h200", "provisional": False, "assumed": False, "num_workers": 132}
    assert forward["device"] == wanted
    assert backward["device"] == wanted


def test_a_mask_with_heads_says_how_many(tmp_path: Path) -> None:
    maskc(
        tmp_path, "compile", "--spec", "k <= q & q - k < 16 * shl(1, h)", "--q-len", "500",
        "--heads", "4", "-o", "m.h5",
    )  # fmt: skip
    said = maskc_json(tmp_path, "estimate", "m.h5")
    assert said["shape"]["heads_q"] == 4
    error = error_of(tmp_path, "estimate", "m.h5", "--heads", "8", status=2)
    assert "--heads: the mask has 4 of its own, got 8" in error
    error = error_of(tmp_path, "estimate", "m.h5", "--heads-kv", "3", status=2)
    assert "--heads-kv: expected a divisor of --heads 4, got 3" in error


def test_workers_change_the_schedule(tmp_path: Path) -> None:
    write_profile(tmp_path / "device.json")
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "1000", "-o", "m.h5")
    words = ["estimate", "m.h5", "--device", "device.json", "--head-dim", "32", "--dtype", "fp32"]
    one = maskc_json(tmp_path, *words, "--workers", "1")["masked"]
    many = maskc_json(tmp_path, *words, "--workers", "100000")["masked"]
    assert one["makespan_us"] == pytest.approx(one["busy_us"])
    assert one["load_balance"] == pytest.approx(1)
    assert many["makespan_us"] == pytest.approx(many["longest_item_us"])


def test_the_profile_that_prices_a_plan_makes_it(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "k % 32 == 0", "--q-len", "1000", "-o", "m.h5")
    words = ["estimate", "m.h5", "--device", "device.json", "--head-dim", "32", "--dtype", "fp32"]
    for compute_us, taken in ((10.0, "gather"), (1e4, "scan")):
        device = profile()
        gather = {"tile_us": 0.0, "compute_us": compute_us}
        device["kernels"][0]["tiles"][0]["gather"] = gather
        (tmp_path / "device.json").write_text(json.dumps(device))
        document = maskc_json(tmp_path, *words)
        choices = {each["subject"]: each for each in document["choices"]}
        columns = choices["columns"]
        assert columns["taken"] == taken
        cost_us = {each["name"]: each["cost_us"] for each in columns["alternatives"]}
        assert cost_us["gather"] <= cost_us["scan"]
        # All work but the work tiles themselves, on two workers.
        masked = document["masked"]
        items_us = masked["num_items"] * 1.0
        assert cost_us[taken] * 2 == pytest.approx(masked["busy_us"] - items_us)
        assert f"columns: {taken} " in maskc(tmp_path, *words)


def test_text_says_that_a_profile_is_provisional(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "1000", "-o", "m.h5")
    assert "a provisional profile" not in maskc(tmp_path, "estimate", "m.h5")
    text = maskc(tmp_path, "estimate", "m.h5", "--device", "cpu")
    assert "a provisional profile" in text
    write_profile(tmp_path / "device.json")
    words = ["--device", "device.json", "--head-dim", "32", "--dtype", "fp32"]
    text = maskc(tmp_path, "estimate", "m.h5", *words)
    assert "provisional" not in text
    assert "two workers, 2 workers" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a JSON document"),
        ("{}", "fdma_device_profile: expected a whole number of 32 bits, got nothing"),
        (json.dumps(profile(num_workers=0)), "num_workers: expected 1 to 1048576, got 0"),
        (json.dumps(profile(num_workers="many")), 'num_workers: expected a whole number'),
        (json.dumps(profile(kernels=[])), "kernels: expected at least one, got none"),
        (json.dumps(profile(more=1)), "more: unknown member"),
        (json.dumps(profile(memory_bytes_per_us=-1)), "memory_bytes_per_us: expected a finite"),
    ],
)  # fmt: skip
def test_profiles_that_are_wrong_name_the_member(tmp_path: Path, text: str, message: str) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "64", "-o", "m.h5")
    (tmp_path / "device.json").write_text(text)
    error = error_of(tmp_path, "estimate", "m.h5", "--device", "device.json", status=3)
    assert "--device: device.json: " in error
    assert message in error


def test_what_a_profile_lacks_is_refused(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "64", "-o", "m.h5")
    words = ("estimate", "m.h5", "--device", "cpu")
    maskc(tmp_path, *words, "--direction", "backward")
    write_profile(tmp_path / "forward.json")
    only = ("estimate", "m.h5", "--device", "forward.json", "--dtype", "fp32")
    error = error_of(tmp_path, *only, "--direction", "backward", status=4)
    assert "has no costs for backward in float32; it has forward" in error
    error = error_of(tmp_path, *words, "--tile", "32x32", status=4)
    assert "tile: device profile 'cpu' has costs for 128x128" in error
    error = error_of(tmp_path, *words, "--tile", "100x100", status=2)
    assert "--tile: expected QxK, both multiples of 16" in error
    error = error_of(tmp_path, "estimate", "m.h5", "--device", "h201", status=2)
    assert "did you mean h200?" in error
    error_of(tmp_path, "estimate", "m.h5", "--device", "absent.json", status=3)


def test_calibrate_writes_a_profile_that_estimate_takes(tmp_path: Path) -> None:
    words = ["--quick", "--head-dim", "16,32", "--dtype", "fp32", "--threads", "1"]
    said = maskc(tmp_path, "calibrate", *words, "-o", "here.json")
    assert said.startswith("here.json: fdma-maskc calibrate, ")
    made = json.loads((tmp_path / "here.json").read_text())
    assert violations(made, SCHEMA["$defs"]["calibrate"], SCHEMA) == []
    assert (made["num_workers"], made["provisional"]) == (1, False)
    assert [kernel["head_dim"] for kernel in made["kernels"]] == [16, 32]
    assert all(tile["full"]["compute_us"] > 0 for k in made["kernels"] for tile in k["tiles"])
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "512", "-o", "m.h5")
    estimated = maskc_json(
        tmp_path, "estimate", "m.h5", "--device", "here.json", "--dtype", "fp32",
        "--head-dim", "24", "--heads", "2",
    )  # fmt: skip
    assert estimated["device"]["name"] == "calibrated-cpu"
    assert estimated["masked"]["time_us"] > 0


def test_calibrate_measures_backward(tmp_path: Path) -> None:
    words = ["--quick", "--head-dim", "16", "--dtype", "fp32", "--threads", "1"]
    said = maskc(tmp_path, "calibrate", *words, "--direction", "both", "-o", "here.json")
    assert "  backward float32    16  " in said
    made = json.loads((tmp_path / "here.json").read_text())
    assert [kernel["direction"] for kernel in made["kernels"]] == ["forward", "backward"]
    assert all(tile["full"]["compute_us"] > 0 for k in made["kernels"] for tile in k["tiles"])
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "512", "-o", "m.h5")
    words = ["estimate", "m.h5", "--device", "here.json", "--dtype", "fp32", "--head-dim", "16"]
    forward = maskc_json(tmp_path, *words)
    backward = maskc_json(tmp_path, *words, "--direction", "backward")
    assert backward["masked"]["time_us"] > 1.5 * forward["masked"]["time_us"]


def test_calibrate_refuses_before_it_measures(tmp_path: Path) -> None:
    error = error_of(tmp_path, "calibrate", "--dtype", "fp32,int8", status=2)
    assert "--dtype: expected float32, float16, bfloat16, fp32, fp16 or bf16, got 'int8'" in error
    error_of(tmp_path, "calibrate", "--head-dim", "0", status=2)
    error_of(tmp_path, "calibrate", "--head-dim", "64,64", status=2)
    error_of(tmp_path, "calibrate", "-o", "absent/here.json", status=3)
    error_of(tmp_path, "calibrate", "--backend", "sm80", status=2)


def test_calibrate_says_why_there_is_no_gpu(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [MASKC, "calibrate", "--backend", "sm90"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 4
    assert "backend sm90: " in run.stderr
