"""Tests fdma-maskc against NumPy: conversions, counts, differences, pictures, JSON."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mask_formats import HOLD_ANY_CELLS
from maskc_tool import DROPPED, EMPTY, FULL, KEPT, maskc, maskc_json, needs_tool, read_png

pytestmark = needs_tool

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def write_dense(path: Path, mask: Mask, **datasets: Any) -> None:
    with h5py.File(path, "w") as file:
        file["mask"] = mask
        for name, values in datasets.items():
            file[name] = values


def random_mask(seed: int, q_len: int, kv_len: int) -> Mask:
    """Returns structure and noise: a window with blocks erased and filled, and scattered cells."""
    random = np.random.default_rng(seed)
    q, k = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    mask = (k <= q + kv_len - q_len) & (q - k < random.integers(8, 200))
    for _ in range(4):
        a, b = sorted(random.integers(0, q_len + 1, 2))
        c, d = sorted(random.integers(0, kv_len + 1, 2))
        mask[a:b, c:d] = random.integers(0, 2)
    mask ^= random.random(mask.shape) < random.choice([0, 0.0005, 0.02])
    return np.asarray(mask)


def tile_classes(mask: Mask, block_q: int, block_kv: int) -> dict[str, int]:
    counts = {"full": 0, "partial": 0, "empty": 0}
    for q in range(0, mask.shape[0], block_q):
        for k in range(0, mask.shape[1], block_kv):
            tile = mask[q : q + block_q, k : k + block_kv]
            counts["full" if tile.all() else "partial" if tile.any() else "empty"] += 1
    return counts


def distinct_bitmaps(mask: Mask, block_q: int, block_kv: int) -> int:
    padded = np.zeros(
        (-(-mask.shape[0] // block_q) * block_q, -(-mask.shape[1] // block_kv) * block_kv), bool
    )
    padded[: mask.shape[0], : mask.shape[1]] = mask
    seen = set()
    for q in range(0, mask.shape[0], block_q):
        for k in range(0, mask.shape[1], block_kv):
            tile = mask[q : q + block_q, k : k + block_kv]
            if tile.any() and not tile.all():
                seen.add(padded[q : q + block_q, k : k + block_kv].tobytes())
    return len(seen)


SHAPES = [(1, 1), (17, 300), (300, 17), (256, 256), (257, 130), (200, 333)]
BLOCKS = [(16, 16), (128, 128), (32, 80), (48, 16)]


@pytest.mark.parametrize(("seed", "shape"), list(enumerate(SHAPES)))
def test_converts_exactly_and_counts_as_numpy_does(
    tmp_path: Path, seed: int, shape: tuple[int, int]
) -> None:
    mask = random_mask(seed, *shape)
    write_dense(tmp_path / "dense.h5", mask)
    for block_q, block_kv in BLOCKS:
        block = f"{block_q}x{block_kv}"
        hashes = set()
        for form in HOLD_ANY_CELLS:
            out = f"as_{form}.h5"
            maskc(
                tmp_path,
                "convert",
                "dense.h5:/mask",
                "--format",
                form,
                "--block",
                block,
                "--force",
                "-o",
                out,
            )
            maskc(tmp_path, "check", out, "--exact", "--against", "dense.h5:/mask")
            seen = maskc_json(tmp_path, "inspect", out)["masks"][0]
            assert seen["format"] == form
            assert seen["allowed_pairs"] == mask.sum()
            assert seen["total_pairs"] == mask.size
            assert seen["tiles"] == tile_classes(mask, block_q, block_kv)
            assert seen["distinct_bitmaps"] == distinct_bitmaps(mask, block_q, block_kv)
            assert seen["bytes"][form] == seen["stored_bytes"]
            hashes.add(seen["mask_hash"])
        assert len(hashes) == 1


def test_bytes_in_a_format_are_those_of_the_conversion(tmp_path: Path) -> None:
    specs = {
        "causal": 1000,
        "causal & window(300)": 1000,
        "(q // 5) % 7 == (k // 5) % 7": 500,
        "causal & documents(lengths=@t)": 900,
        "k <= q & q < 3 * k + 5": 700,
    }
    for (spec, length), block in itertools.product(specs.items(), ("128x128", "16x64")):
        table = ["--table", "t=100,350,7,90"] if "@t" in spec else []
        lengths = ["--q-len", str(length), "--block", block]
        maskc(tmp_path, "compile", "--spec", spec, *table, *lengths, "--force", "-o", "m.h5")
        said = maskc_json(tmp_path, "inspect", "m.h5")["masks"][0]["bytes"]
        for form, size in said.items():
            words = ["convert", "m.h5", "--format", form, "--force", "-o", f"as_{form}.h5"]
            if size is None:
                assert form == "parametric"
                maskc(tmp_path, *words, status=4)
            else:
                assert maskc_json(tmp_path, *words)["mask"]["stored_bytes"] == size, (spec, form)


@pytest.mark.parametrize("seed", range(4))
def test_diff_names_the_cells_that_numpy_finds(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    a = random_mask(seed, 150, 210)
    b = a ^ (random.random(a.shape) < 0.001)
    write_dense(tmp_path / "dense.h5", a, other=b)
    maskc(tmp_path, "convert", "dense.h5:/mask", "--format", "bcsr", "-o", "a.h5")
    said = maskc_json(
        tmp_path, "diff", "a.h5", "dense.h5:/other", "--block", "32x16", "--limit", "1000",
        status=0 if (a == b).all() else 1,
    )  # fmt: skip
    assert said["only_in_a"] == (a & ~b).sum()
    assert said["only_in_b"] == (b & ~a).sum()
    cells = [(cell["q"], cell["k"]) for cell in said["cells"]]
    assert cells == [tuple(cell) for cell in np.argwhere(a != b).tolist()]
    tiles = {(tile["row"], tile["col"]) for tile in said["tiles"]}
    assert tiles == {(q // 32, k // 16) for q, k in cells}
    for tile in said["tiles"]:
        q, k = tile["row"] * 32, tile["col"] * 16
        for side, mask in (("in_a", a), ("in_b", b)):
            cut = mask[q : q + 32, k : k + 16]
            assert tile[side] == ("full" if cut.all() else "partial" if cut.any() else "empty")


def test_check_compares_every_batch_element_and_head(tmp_path: Path) -> None:
    masks = np.stack([[random_mask(7, 64, 80)] * 3, [random_mask(8, 64, 80)] * 3])
    wrong = masks.copy()
    wrong[1, 2, 63, 79] ^= True
    write_dense(tmp_path / "dense.h5", masks, wrong=wrong)
    maskc(tmp_path, "convert", "dense.h5:/mask", "--block", "16x16", "-o", "m.h5")
    seen = maskc_json(tmp_path, "inspect", "m.h5")["masks"][0]
    assert (seen["num_batches"], seen["num_heads"], seen["num_groups"]) == (2, 3, 2)
    assert seen["allowed_pairs"] == masks.sum()
    assert maskc_json(tmp_path, "check", "m.h5", "--against", "dense.h5:/mask")["right"]
    said = maskc_json(tmp_path, "check", "m.h5", "--against", "dense.h5:/wrong", status=1)
    cells = said["masks"][0]["exact"]["cells"]
    assert [(c["batch"], c["head"], c["q"], c["k"]) for c in cells] == [(1, 2, 63, 79)]


def test_compile_does_not_depend_on_threads(tmp_path: Path) -> None:
    spec = ["--spec", "(q * 7 + k * 3) % 11 < 4 & k <= q", "--q-len", "700", "--block", "64x64"]
    outputs = {
        maskc(tmp_path, "compile", *spec, "--dump", "segments", "--threads", threads)
        for threads in ("1", "2", "7")
    }
    assert len(outputs) == 1


def test_renders_small_masks_cell_by_cell(tmp_path: Path) -> None:
    mask = random_mask(3, 100, 150)
    write_dense(tmp_path / "dense.h5", mask)
    maskc(tmp_path, "convert", "dense.h5:/mask", "--block", "32x16", "-o", "m.h5")
    said = maskc_json(tmp_path, "render", "m.h5", "-o", "m.png")
    scale = said["scale"]
    assert scale == 1024 // 150
    picture = read_png(tmp_path / "m.png")
    assert picture.shape == (100 * scale, 150 * scale, 3)
    for q, k in itertools.product(range(100), range(150)):
        tile = mask[q // 32 * 32 : q // 32 * 32 + 32, k // 16 * 16 : k // 16 * 16 + 16]
        partial = KEPT if mask[q, k] else DROPPED
        colour = FULL if tile.all() else partial if tile.any() else EMPTY
        square = picture[q * scale : (q + 1) * scale, k * scale : (k + 1) * scale]
        assert (square == colour).all(), (q, k)


@pytest.mark.parametrize("form", ["segment", "columns"])
def test_renders_large_masks_by_density(tmp_path: Path, form: str) -> None:
    mask = random_mask(5, 333, 500)
    write_dense(tmp_path / "dense.h5", mask)
    for block_q, block_kv in BLOCKS:
        block = f"{block_q}x{block_kv}"
        maskc(
            tmp_path,
            "convert",
            "dense.h5:/mask",
            "--block",
            block,
            "--format",
            form,
            "--force",
            "-o",
            "m.h5",
        )
        for size in ("40", "16", "128"):
            said = maskc_json(tmp_path, "render", "m.h5", "-o", "m.png", "--size", size)
            high, wide = said["cells_per_pixel"]["q"], said["cells_per_pixel"]["kv"]
            assert block_q % high == 0 or high % block_q == 0
            scale = said["scale"]
            picture = read_png(tmp_path / "m.png")[::scale, ::scale]
            for y, x in itertools.product(range(picture.shape[0]), range(picture.shape[1])):
                q, k = y * high, x * wide
                cells = mask[q : q + high, k : k + wide]
                tq, tk = max(high, block_q), max(wide, block_kv)
                tiles = mask[q // tq * tq : q // tq * tq + tq, k // tk * tk : k // tk * tk + tk]
                is_fine = high <= block_q and wide <= block_kv
                judged = tiles if is_fine else cells
                if judged.all():
                    colour = np.array(FULL, float)
                elif not judged.any():
                    colour = np.array(EMPTY, float)
                else:
                    low, top = np.array(DROPPED, float), np.array(KEPT, float)
                    colour = low + (top - low) * cells.mean()
                assert np.abs(picture[y, x] - colour).max() <= 0.51, (y, x)


def test_legend_is_a_strip_below(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "64", "-o", "m.h5")
    maskc(tmp_path, "render", "m.h5", "-o", "plain.png")
    maskc(tmp_path, "render", "m.h5", "--legend", "-o", "legend.png")
    plain, legend = read_png(tmp_path / "plain.png"), read_png(tmp_path / "legend.png")
    assert (legend[: plain.shape[0], : plain.shape[1]] == plain).all()
    strip = legend[plain.shape[0] :].reshape(-1, 3)
    for colour in (FULL, EMPTY, DROPPED, KEPT):
        assert (strip == colour).all(axis=1).any()
