"""Tests fdma.estimate: numbers and lines as the tool prints them, devices, errors, pictures."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import fdma_module  # noqa: F401
import numpy as np
import pytest
from maskc_tool import maskc, maskc_json, needs_tool

# isort: split
import fdma

# The masks are made on request, because objects that a module holds at exit count as leaked.
CASES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "causal": (lambda: fdma.compile("causal", 4096), {}, []),
    "closed form": (
        lambda: fdma.compile("causal & window(500)", 5000, format="parametric"),
        {"heads": 8, "heads_kv": 2, "head_dim": 64, "dtype": "fp16"},
        ["--heads", "8", "--heads-kv", "2", "--head-dim", "64", "--dtype", "fp16"],
    ),
    "backward": (
        lambda: fdma.compile("documents(lengths=@n)", 1000, n=[300, 500, 100]),
        {"direction": "backward", "batch": 3, "head_dim": 60, "head_dim_v": 68},
        ["--direction", "backward", "--batch", "3", "--head-dim", "60", "--head-dim-v", "68"],
    ),
    "heads and batch": (
        lambda: fdma.compile(
            "k <= pos & pos - k < 64 * shl(1, h) + b", [700, 300], heads=4, batch=2
        ),
        {"workers": 7, "count_all": True},
        ["--workers", "7", "--all"],
    ),
    "selection": (
        lambda: fdma.compile(
            "causal & topk(@s, 50)",
            1000,
            s=np.random.default_rng(0).random(1000, np.float32),
            format="columns",
        ),
        {"device": "cpu", "dtype": "float32", "head_dim": 64, "columns": "gather"},
        ["--device", "cpu", "--dtype", "float32", "--head-dim", "64", "--columns", "gather"],
    ),
    "tile": (
        lambda: fdma.compile("q % 7 < k % 5", 300),
        {"tile": (128, 64), "device": "cpu"},
        ["--tile", "128x64", "--device", "cpu"],
    ),
    "score": (
        lambda: fdma.compile("causal", 700),
        {"score": ("dropout", "bias", "softcap"), "direction": "backward", "device": "cpu"},
        ["--score", "softcap,bias,dropout", "--direction", "backward", "--device", "cpu"],
    ),
    "no cells": (lambda: fdma.compile("causal", 0), {}, []),
}


@needs_tool
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_lines_are_those_of_the_tool(name: str, tmp_path: Path) -> None:
    make, options, words = CASES[name]
    mask = make()
    mask.save(tmp_path / "m.h5")
    said = fdma.estimate(mask, **options)
    by_tool = maskc_json(tmp_path, "estimate", "m.h5", *words)
    known = said.to_dict()
    described, by_tool_described = known.pop("mask"), by_tool.pop("mask")
    assert json.loads(json.dumps(known)) == by_tool
    described.pop("name")
    assert described == {member: by_tool_described[member] for member in described}
    lines = maskc(tmp_path, "estimate", "m.h5", *words).splitlines()
    assert [line.rstrip() for line in str(said).splitlines()[1:]] == [
        line.rstrip() for line in lines[1:]
    ]


def test_properties_are_the_members() -> None:
    mask = fdma.compile("causal & window(300)", 3000)
    said = fdma.estimate(mask, heads=4, heads_kv=2, head_dim=64)
    all_of_it = said.to_dict()
    pairs = 4 * mask.counts.allowed_pairs
    assert (all_of_it["allowed_pairs"], said.flops) == (pairs, 4 * 64 * pairs)
    assert said.dense_flops == 4 * 64 * 4 * 3000**2
    assert said.time_ms == all_of_it["masked"]["time_us"] / 1000
    assert said.dense_time_ms == all_of_it["full"]["time_us"] / 1000
    assert said.speedup == pytest.approx(said.dense_time_ms / said.time_ms)
    assert said.bytes == mask.nbytes == said.format_bytes["segment"]
    assert said.memory_savings == 100 * (1 - mask.nbytes / (4 * 3000**2))
    assert said.traffic_bytes == all_of_it["masked"]["memory_bytes"]
    assert said.waste == all_of_it["wasted_share"]
    assert 0 < said.waste < 1
    assert 0 < said.load_balance <= 1
    sizes = {name: size for name, size in said.format_bytes.items() if size is not None}
    assert sizes[said.best_format] == min(sizes.values())
    for name, size in sizes.items():
        assert mask.to_format(name).nbytes == size  # type: ignore[arg-type]
    fastest = min(each["time_us"] for each in all_of_it["candidates"])
    rows, keys = said.best_block
    assert {"tile": {"q": rows, "kv": keys}, "time_us": fastest} in [
        {"tile": each["tile"], "time_us": each["time_us"]} for each in all_of_it["candidates"]
    ]
    provisional = fdma.device_profile("h200")["provisional"]
    assert (said.device, said.is_provisional) == ("h200", provisional)
    assert said.is_memory_bound == all_of_it["masked"]["memory_bound"]


def test_what_to_dict_gives_is_a_copy() -> None:
    said = fdma.estimate(fdma.compile("causal", 256))
    said.to_dict()["masked"]["time_us"] = 0
    assert said.time_ms > 0
    assert pickle.loads(pickle.dumps(said)) == said
    assert said != fdma.estimate(fdma.compile("causal", 257))


def test_a_mask_with_heads_says_how_many() -> None:
    mask = fdma.compile("k <= q & q - k < 16 * shl(1, h)", 500, heads=4)
    assert fdma.estimate(mask).to_dict()["shape"]["heads_q"] == 4
    assert fdma.estimate(fdma.compile("causal", 500)).to_dict()["shape"]["heads_q"] == 32
    with pytest.raises(ValueError, match="heads: the mask has 4 of its own, got 8"):
        fdma.estimate(mask, heads=8)


def test_devices_by_name_dict_and_file(tmp_path: Path) -> None:
    mask = fdma.compile("causal", 8192)
    profile = fdma.device_profile("h200")
    (tmp_path / "here.json").write_text(json.dumps(profile))
    by_name = fdma.estimate(mask)
    for device in (profile, tmp_path / "here.json", str(tmp_path / "here.json")):
        assert fdma.estimate(mask, device=device) == by_name
        assert fdma.device_profile(device) == profile
    slow = fdma.estimate(mask, device=profile | {"name": "one", "num_workers": 1})
    assert slow.device == "one"
    assert slow.time_ms > 100 * by_name.time_ms
    assert fdma.estimate(mask, device="cpu", dtype="fp32").time_ms > by_name.time_ms


def test_a_softcap_is_a_part_of_the_score() -> None:
    mask = fdma.compile("causal", 4096)
    capped = fdma.estimate(mask, score=("softcap",))
    assert capped == fdma.estimate(mask, softcap=True)
    assert capped.time_ms > fdma.estimate(mask).time_ms
    assert "  score            softcap\n" in str(capped)


def test_numpy_integers_serve() -> None:
    mask = fdma.compile("causal", 256)
    few = fdma.estimate(mask, heads=np.int64(2), head_dim=np.uint8(64))  # type: ignore[arg-type]
    assert few == fdma.estimate(mask, heads=2, head_dim=64)


PROFILE = fdma.device_profile("h200")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"heads": 2.5}, TypeError, "heads: expected an integer, got float"),
        ({"heads": 0}, ValueError, "heads: expected 1 to 65536, got 0"),
        ({"batch": 0}, ValueError, "batch: expected 1 to 65536, got 0"),
        ({"heads_kv": 3}, ValueError, "heads_kv: expected a divisor of heads 32, got 3"),
        ({"heads_kv": 64}, ValueError, "heads_kv: expected 1 to 32, got 64"),
        ({"head_dim": 257}, ValueError, "head_dim: expected 1 to 256, got 257"),
        ({"head_dim_v": 0}, ValueError, "head_dim_v: expected 1 to 256, got 0"),
        ({"dtype": "int8"}, ValueError, "dtype: expected float32, float16, bfloat16"),
        ({"direction": "both"}, ValueError, "direction: expected forward or backward, got 'both'"),
        ({"tile": (100, 100)}, ValueError, "tile: expected two multiples of 16"),
        ({"tile": (32, 32)}, NotImplementedError, "tile: device profile 'h200' has costs for"),
        ({"columns": "all"}, ValueError, "columns: expected automatic, scan, gather"),
        ({"workers": 0}, ValueError, "workers: expected 1 or more, got 0"),
        ({"score": ("slopes",)}, ValueError, "score: expected parts of softcap, key_bias, bias,"),
        ({"score": "softcap"}, TypeError, "score: expected a sequence of names, as ('softcap',)"),
        ({"device": "h201"}, ValueError, "got 'h201'; did you mean h200?"),
        ({"device": "nowhere"}, ValueError, "device: expected h200, h100, cpu, a profile (dict)"),
        ({"device": 200}, TypeError, "device: expected a name, a profile (dict) or its file, got"),
        ({"device": "absent.json"}, OSError, "device: absent.json: cannot read"),
        ({"device": {}}, ValueError, "device: fdma_device_profile: expected a whole number"),
        ({"device": PROFILE | {"more": 1}}, ValueError, "device: more: unknown member"),
        (
            {"device": PROFILE | {"name": object()}},
            TypeError,
            "device: Object of type object is not",
        ),
        (
            {"device": PROFILE | {"kernels": PROFILE["kernels"][:1]}, "direction": "backward"},
            NotImplementedError,
            "no costs for backward",
        ),
    ],
)
def test_errors_name_the_argument(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        fdma.estimate(fdma.compile("causal", 256), **options)
    assert message in str(raised.value)


@pytest.mark.parametrize("mask", [fdma.causal, "causal", None, np.ones((3, 3), bool)])
def test_only_compiled_masks_are_estimated(mask: Any) -> None:
    with pytest.raises(
        TypeError, match=r"mask: expected a BlockMask \(fdma.compile makes them\), got"
    ):
        fdma.estimate(mask() if callable(mask) else mask)


def test_a_million_tokens_take_no_time() -> None:
    said = fdma.estimate(fdma.compile("causal & window(4096)", 1 << 20))
    assert said.speedup > 100
    assert said.memory_savings > 99.999


def test_notebooks_show_a_table_of_plain_text() -> None:
    said = fdma.estimate(fdma.compile("causal", 256), device=PROFILE | {"name": "<b>mine</b>"})
    text = said._repr_html_()
    assert text.count("<tr>") == len(str(said).splitlines()) - 1
    assert "<b>" not in text
    assert "&lt;b&gt;mine" in text
    assert repr(said).startswith("<Estimate on <b>mine</b>: ")


def test_plot_shows_times_and_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    said = fdma.estimate(fdma.compile("causal & window(100)", 2000))
    figure = said.plot()
    times: Any
    sizes: Any
    times, sizes = figure.axes
    assert [bar.get_width() for bar in times.patches] == [said.dense_time_ms, said.time_ms]
    assert len(sizes.patches) == 1 + len([s for s in said.format_bytes.values() if s is not None])
    figure.savefig(tmp_path / "estimate.png")
    assert said.plot(matplotlib.pyplot.figure()).axes
    matplotlib.pyplot.close("all")
    fdma.estimate(fdma.compile("causal", 0)).plot().savefig(tmp_path / "empty.png")
    matplotlib.pyplot.close("all")


def test_plot_without_matplotlib_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"Estimate\.plot: needs the package matplotlib"):
        fdma.estimate(fdma.compile("causal", 256)).plot()
