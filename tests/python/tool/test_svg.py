"""Tests that the filled outlines of SVG pictures are the cells and the classes of tiles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
from maskc_tool import DROPPED, EMPTY, FULL, KEPT, maskc, maskc_json, needs_tool, read_png
from picture_masks import Mask, causal_window, random_mask, tile_classes

pytestmark = needs_tool

SVG = "{http://www.w3.org/2000/svg}"


def shade(share: float) -> tuple[int, ...]:
    """Returns the colour of a partial area, rounded as the tool does it."""
    return tuple(
        int(low + (high - low) * share + 0.5) for low, high in zip(DROPPED, KEPT, strict=True)
    )


def filled(path: str, q_len: int, kv_len: int, unit: int = 1) -> Mask:
    """Returns the cells inside the outlines of M, h, v and z (nonzero winding), in `unit`s."""
    edges = np.zeros((q_len, kv_len + 1), np.int32)
    x = y = 0
    for command, words in re.findall(r"([Mhvz])([-\d ]*)", path):
        numbers = [int(word) // unit for word in words.split()]
        assert all(int(word) % unit == 0 for word in words.split())
        if command == "M":
            x, y = numbers
        elif command == "h":
            x += numbers[0]
        elif command == "v":
            end = y + numbers[0]
            edges[min(y, end) : max(y, end), x] += 1 if end > y else -1
            y = end
    return np.asarray(np.cumsum(edges, axis=1)[:, :kv_len] != 0)


def colour(text: str) -> tuple[int, ...]:
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def painted(
    svg: ElementTree.Element, q_len: int, kv_len: int, unit: int = 1
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns [q_len, kv_len, 3]: the colour of each cell, or square of unit x unit cells."""
    inner = svg.find(f"{SVG}svg")
    assert inner is not None
    assert inner.get("viewBox") == f"0 0 {kv_len * unit} {q_len * unit}"
    picture = np.zeros((q_len, kv_len, 3), np.uint8)
    background, *paths = inner
    picture[:] = colour(background.get("fill", ""))
    for path in paths:
        picture[filled(path.get("d", ""), q_len, kv_len, unit)] = colour(path.get("fill", ""))
    return picture


def parse(path: Path) -> ElementTree.Element:
    """Returns the drawing, after a check of the parts that every drawing has."""
    svg = ElementTree.parse(path).getroot()
    assert svg.tag == f"{SVG}svg"
    assert svg.get("role") == "img"
    assert svg.get("aria-labelledby") == "title desc"
    assert svg.findtext(f"{SVG}title")
    assert "Allowed pairs:" in svg.findtext(f"{SVG}desc", "")
    assert len(list(svg.iter())) < 60
    assert path.stat().st_size < 2 << 20
    return svg


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block", [(16, 16), (32, 48), (128, 64)])
def test_draws_small_masks_cell_by_cell(tmp_path: Path, seed: int, block: tuple[int, int]) -> None:
    mask = random_mask(seed, 173, 220)
    with h5py.File(tmp_path / "dense.h5", "w") as file:
        file["mask"] = mask
    words = ["--block", f"{block[0]}x{block[1]}", "-o", "m.svg"]
    said = maskc_json(tmp_path, "render", "dense.h5:/mask", *words)
    assert said["detail"] == "cells"
    picture = painted(parse(tmp_path / "m.svg"), *mask.shape)
    classes = tile_classes(mask, *block)[
        np.arange(mask.shape[0])[:, None] // block[0], np.arange(mask.shape[1]) // block[1]
    ]
    expected = np.where(mask[..., None], np.array(KEPT, np.uint8), np.array(DROPPED, np.uint8))
    expected[classes == 2] = FULL
    expected[classes == 0] = EMPTY
    assert (picture == expected).all()


@pytest.mark.parametrize("block", [(64, 64), (16, 48)])
def test_draws_larger_masks_by_classes_of_tiles(tmp_path: Path, block: tuple[int, int]) -> None:
    mask = random_mask(11, 800, 1111)
    with h5py.File(tmp_path / "dense.h5", "w") as file:
        file["mask"] = mask
    words = ["--block", f"{block[0]}x{block[1]}", "-o", "m.svg"]
    said = maskc_json(tmp_path, "render", "dense.h5:/mask", *words)
    assert (said["detail"], said["cells_per_square"]) == ("tiles", {"q": block[0], "kv": block[1]})
    picture = painted(parse(tmp_path / "m.svg"), *mask.shape)
    classes = tile_classes(mask, *block)[
        np.arange(mask.shape[0])[:, None] // block[0], np.arange(mask.shape[1]) // block[1]
    ]
    assert (picture == np.array([EMPTY, shade(0.5), FULL], np.uint8)[classes]).all()


def test_draws_what_has_too_many_corners_in_areas(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    tiles = random.random((600, 430)) < 0.5
    tiles[:40, :60] = True
    tiles[100:, 100:180] = False
    with h5py.File(tmp_path / "tiles.h5", "w") as file:
        file["t"] = tiles
    spec = ["--spec", "tiles(@t, 16, 16)", "--table", "t=tiles.h5:/t", "--block", "16x16"]
    maskc(tmp_path, "compile", *spec, "--q-len", "9600", "--kv-len", "6880", "-o", "m.h5")
    said = maskc_json(tmp_path, "render", "m.h5", "-o", "m.svg", "--legend")
    assert said["detail"] == "areas"
    svg = parse(tmp_path / "m.svg")
    assert "eight shades" in svg.findtext(f"{SVG}desc", "")
    picture = painted(svg, tiles.shape[0], tiles.shape[1], unit=16)
    high, wide = said["cells_per_square"]["q"] // 16, said["cells_per_square"]["kv"] // 16
    for q in range(0, tiles.shape[0], high):
        for k in range(0, tiles.shape[1], wide):
            cells = tiles[q : q + high, k : k + wide]
            share = cells.mean(dtype=np.float64)
            partial = shade((min(int(share * 8), 7) + 0.5) / 8)
            wanted = FULL if share == 1 else EMPTY if share == 0 else partial
            assert (picture[q : q + high, k : k + wide] == wanted).all(), (q, k, share)


@pytest.mark.parametrize(
    ("spec", "detail"),
    [
        ("causal", "tiles"),
        ("causal & (window(1024) | sink(4))", "tiles"),
        ("window(20000)", "tiles"),
        ("(q // 128 * 7 + k // 128 * 3) % 11 < 4", "areas"),
    ],
)
def test_a_million_tokens_stay_small(tmp_path: Path, spec: str, detail: str) -> None:
    length = 1_000_000 if detail == "tiles" else 130_000
    maskc(tmp_path, "compile", "--spec", spec, "--q-len", str(length), "-o", "m.h5")
    said = maskc_json(tmp_path, "render", "m.h5", "-o", "m.svg", "--legend")
    assert said["detail"] == detail
    assert said["bytes"] == (tmp_path / "m.svg").stat().st_size
    parse(tmp_path / "m.svg")


def test_a_staircase_is_one_outline(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "1000000", "-o", "m.h5")
    assert maskc_json(tmp_path, "render", "m.h5", "-o", "m.svg")["num_outlines"] == 2
    mask = causal_window(60, 60, 9)
    with h5py.File(tmp_path / "dense.h5", "w") as file:
        file["mask"] = mask
    said = maskc_json(tmp_path, "render", "dense.h5:/mask", "--block", "64x64", "-o", "m.svg")
    assert said["num_outlines"] == 2  # the picture has the tile and its live cells


def test_escapes_what_markup_would_read(tmp_path: Path) -> None:
    name = 'a<b>&"c\x01\ufffe.h5'
    maskc(tmp_path, "compile", "--spec", "k <= q & q - k < 7", "--q-len", "64", "-o", name)
    maskc(tmp_path, "render", name, "-o", "m.svg", "--legend")
    svg = parse(tmp_path / "m.svg")
    assert svg.findtext(f"{SVG}title") == 'a<b>&"c\ufffd\ufffd.h5:/masks/mask'
    assert "k <= q & q - k < 7" in svg.findtext(f"{SVG}desc", "")
    maskc(tmp_path, "render", name, "-o", "m.html")
    page = (tmp_path / "m.html").read_text()
    assert "<title>a&lt;b&gt;&amp;&quot;c\ufffd\ufffd.h5:/masks/mask</title>" in page
    assert "k &lt;= q &amp; q - k &lt; 7" in page


@pytest.mark.parametrize("shape", [(1, 70_000), (70_000, 1), (1, 1)])
def test_thin_masks_have_room(tmp_path: Path, shape: tuple[int, int]) -> None:
    words = ["--spec", "k >= 0", "--q-len", str(shape[0]), "--kv-len", str(shape[1])]
    maskc(tmp_path, "compile", *words, "-o", "m.h5")
    said = maskc_json(tmp_path, "render", "m.h5", "-o", "m.svg")
    assert max(said["width"], said["height"]) == 1024
    assert min(said["width"], said["height"]) >= 16
    picture = painted(parse(tmp_path / "m.svg"), *shape)
    assert (picture == FULL).all()


def test_axes_title_and_legend_surround_the_same_picture(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "causal", "--q-len", "2k", "-o", "m.h5")
    for size in ("64", "1024", "2048"):
        maskc(tmp_path, "render", "m.h5", "--size", size, "-o", "plain.png")
        words = ("--axes", "--legend", "--title", "Causal")
        maskc(tmp_path, "render", "m.h5", "--size", size, *words, "-o", "framed.png")
        plain, framed = read_png(tmp_path / "plain.png"), read_png(tmp_path / "framed.png")
        scale = max(1, plain.shape[0] // 512)
        assert framed.shape[0] == plain.shape[0] + (11 + 14 + 15) * scale
        left = (4 * 6 + 2 + 3) * scale  # four digits, a margin and a tick
        top = 25 * scale
        inside = framed[top : top + plain.shape[0], left : left + plain.shape[1]]
        assert (inside == plain).all()
        ticks = framed[top : top + plain.shape[0], left - 1]
        assert (ticks != framed[top + 5 * scale, left - 1]).any(axis=1).sum() // scale >= 2
        assert (framed[: 11 * scale] != 255).any() and (framed[-15 * scale :] != 255).any()


def test_axes_of_a_crop_have_the_numbers_of_the_mask(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "causal", "--q-len", "2k", "-o", "m.h5")
    words = ("--crop", "1024:1280,512:640", "--axes", "--title", "a < b")
    maskc(tmp_path, "render", "m.h5", *words, "-o", "m.svg")
    text = (tmp_path / "m.svg").read_text()
    numbers = [int(number) for number in re.findall(r"<text[^>]*>(\d+)</text>", text)]
    keys = [number for number in numbers if number < 1000]
    rows = [number for number in numbers if number >= 1000]
    assert keys[0] == 512 and rows[0] == 1024
    assert keys == sorted(keys) and keys[-1] < 640
    assert rows == sorted(rows) and rows[-1] < 1280
    assert '<text x="4" y="13">a &lt; b</text>' in text
