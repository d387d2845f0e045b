"""Tests the page of `fdma-maskc render -o FILE.html` in a headless browser against NumPy.

Screenshots are compared pixel by pixel with the dense mask.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from browser import Browser, missing_browser
from maskc_inputs import causal_documents, document_lengths
from maskc_inputs import docs as write_docs
from maskc_tool import DROPPED, EMPTY, FULL, KEPT, maskc, maskc_json, needs_tool, read_png
from pattern_masks import BLOCK, pattern_cells, pattern_state
from picture_masks import Mask, random_mask, tile_classes

pytestmark = needs_tool
needs_browser = pytest.mark.skipif(bool(missing_browser()), reason=missing_browser() or "-")

OUTSIDE = (255, 255, 255)
Picture = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(width=900, height=560) as opened:
        yield opened


@dataclass
class View:
    """A pixel is cells x cells, or a cell pixels x pixels; the picture begins at (left, top)."""

    cells: int
    pixels: int
    left: int
    top: int
    picture: Picture

    def positions(self) -> tuple[Any, Any]:
        """Returns the first cell of every pixel: q of each row, k of each column."""
        height, width, _ = self.picture.shape
        q = (self.top + np.arange(height)) * self.cells // self.pixels
        k = (self.left + np.arange(width)) * self.cells // self.pixels
        return q, k


def look(browser: Browser, folder: Path, clip: bool = True) -> View:
    """Returns the current view once it is painted, with a screenshot of the canvas."""
    browser.wait("document.documentElement.dataset.painted === 'yes'")
    cells, pixels, left, top = map(
        int, browser.evaluate("document.getElementById('picture').dataset.view").split()
    )
    box = browser.evaluate(
        "(({left, top, width, height}) => [left, top, width, height])"
        "(document.getElementById('picture').getBoundingClientRect())"
    )
    browser.screenshot(folder / "shot.png", tuple(box) if clip else None)
    assert browser.complaints == []
    return View(cells, pixels, left, top, read_png(folder / "shot.png"))


def show(browser: Browser, path: Path, fragment: str = "", grid: bool = False) -> View:
    browser.open(path, fragment)
    browser.wait("document.documentElement.dataset.painted === 'yes'")
    assert browser.requests == [path.resolve().as_uri()]
    if not grid:
        browser.evaluate("document.getElementById('grid').click()")
    return look(browser, path.parent)


def expected_cells(view: View, mask: Mask, block: tuple[int, int]) -> Picture:
    """Returns the picture of a view in which each pixel shows one cell."""
    assert view.cells == 1
    q, k = view.positions()
    inside = ((q >= 0) & (q < mask.shape[0]))[:, None] & ((k >= 0) & (k < mask.shape[1]))[None, :]
    q, k = np.clip(q, 0, mask.shape[0] - 1)[:, None], np.clip(k, 0, mask.shape[1] - 1)[None, :]
    classes = tile_classes(mask, *block)[q // block[0], k // block[1]]
    picture = np.where(mask[q, k][..., None], np.array(KEPT, np.uint8), np.array(DROPPED, np.uint8))
    picture[classes == 2] = FULL
    picture[classes == 0] = EMPTY
    picture[~inside] = OUTSIDE
    return np.asarray(picture)


def overlaps(length: int, size: int, block: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns [pixels, tiles]: the cells of one side that a pixel and a tile share."""
    pixels, tiles = np.arange(0, length, size)[:, None], np.arange(0, length, block)[None, :]
    end = np.minimum(np.minimum(pixels + size, tiles + block), length)
    return np.asarray(np.maximum(end - np.maximum(pixels, tiles), 0))


def expected_areas(view: View, mask: Mask, block: tuple[int, int]) -> Picture:
    """Returns the picture of a view from afar, by the areas that pixels share with tiles."""
    rows = overlaps(mask.shape[0], view.cells, block[0])
    cols = overlaps(mask.shape[1], view.cells, block[1])
    classes = tile_classes(mask, *block)
    empty, partial, full = (rows @ (classes == each) @ cols.T for each in range(3))
    area = empty + partial + full
    step = np.floor((full + partial / 2) / area * 255 + 0.5)[..., None] / 255
    low, high = np.array(DROPPED, float), np.array(KEPT, float)
    small = np.floor(low + (high - low) * step + 0.5).astype(np.uint8)
    small[empty == area] = EMPTY
    small[full == area] = FULL
    height, width, _ = view.picture.shape
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = OUTSIDE
    assert view.left <= 0 and view.top <= 0
    high_px, wide_px = area.shape
    picture[-view.top : high_px - view.top, -view.left : wide_px - view.left] = small
    return picture


def same(actual: Picture, expected: Picture) -> bool:
    """True if colours are equal up to one step of rounding in a shade."""
    assert actual.shape == expected.shape
    return bool(np.abs(actual.astype(int) - expected.astype(int)).max() <= 1)


def write(folder: Path, **tables: Any) -> None:
    with h5py.File(folder / "in.h5", "w") as file:
        for name, values in tables.items():
            file[name] = values


def segment_kinds(folder: Path) -> set[str]:
    """Returns the kinds in which m.h5 stores partial tiles, by their names in the page."""
    page = (folder / "m.html").read_text()
    sizes = {
        name: len(re.findall(rf'id="{name}">([^<]*)<', page)[0])
        for name in ("bitmaps", "row_intervals", "column_intervals")
    }
    return {name for name, size in sizes.items() if size > 0}


def masks_by_kind(folder: Path, kind: str) -> tuple[Mask, tuple[int, int]]:
    """Writes m.h5 and m.html of a mask that stores all partial tiles in one kind.

    Returns its cells and block.
    """
    random = np.random.default_rng(17)
    q_len, kv_len, block = 333, 409, (64, 48)
    q, k = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    if kind == "bitmaps":
        mask = random_mask(2, q_len, kv_len) ^ (random.random((q_len, kv_len)) < 0.3)
        write(folder, mask=mask)
        maskc(folder, "convert", "in.h5:/mask", "--block", "64x48", "-o", "m.h5")
    else:
        length = q_len if kind == "row_intervals" else kv_len
        limit = kv_len if kind == "row_intervals" else q_len
        begin = random.integers(0, limit, length)
        end = np.minimum(begin + random.integers(1, limit, length), limit)
        write(folder, b=begin, e=end)
        name = "rows" if kind == "row_intervals" else "intervals"
        mask = (k >= begin[:, None]) & (k < end[:, None])
        if name == "intervals":
            mask = (q >= begin) & (q < end)
        words = ["--spec", f"{name}(begin=@b, end=@e)", "--table", "b=in.h5:/b"]
        words += ["--table", "e=in.h5:/e", "--q-len", str(q_len), "--kv-len", str(kv_len)]
        maskc(folder, "compile", *words, "--block", "64x48", "-o", "m.h5")
    maskc(folder, "render", "m.h5", "-o", "m.html")
    assert segment_kinds(folder) == {kind}
    return np.asarray(mask), block


KINDS = ("bitmaps", "row_intervals", "column_intervals")


@needs_browser
@pytest.mark.parametrize("kind", KINDS)
def test_every_pixel_is_the_mask_s_in_every_partial_kind(
    tmp_path: Path, browser: Browser, kind: str
) -> None:
    mask, block = masks_by_kind(tmp_path, kind)
    scales = set()
    for fragment in ("", "#0:333,0:409", "#100:180,200:330", "#320:333,390:409", "#63:66,47:49"):
        view = show(browser, tmp_path / "m.html", fragment)
        assert same(view.picture, expected_cells(view, mask, block)), (fragment, view.pixels)
        scales.add(view.pixels)
    assert {1, 48} <= scales and len(scales) >= 3
    for _ in range(4):
        browser.evaluate("document.getElementById('fit').click()")
    while browser.evaluate("maskViewer.view.cells") < 64:
        browser.evaluate("document.getElementById('zoom-out').click()")
        view = look(browser, tmp_path)
        assert same(view.picture, expected_areas(view, mask, block)), view.cells


@needs_browser
@pytest.mark.parametrize("kind", KINDS)
def test_names_every_cell(tmp_path: Path, browser: Browser, kind: str) -> None:
    mask, block = masks_by_kind(tmp_path, kind)
    show(browser, tmp_path / "m.html")
    classes = tile_classes(mask, *block)
    seen = browser.evaluate(
        """(() => {
          const { arrays } = maskViewer;
          const rows = [];
          for (let q = 0; q < arrays.qLen; ++q) {
            const row = [];
            for (let k = 0; k < arrays.kvLen; ++k) {
              const { name, isLive } = arrays.cell(q, k);
              row.push((isLive ? 1 : 0) + 2 * ["empty", "partial", "full"].indexOf(name));
            }
            rows.push(row);
          }
          return rows;
        })()"""
    )
    q, k = np.arange(mask.shape[0])[:, None], np.arange(mask.shape[1])
    assert (np.array(seen) == mask + 2 * classes[q // block[0], k // block[1]]).all()


@needs_browser
def test_draws_patterns(tmp_path: Path, browser: Browser) -> None:
    pytest.importorskip("fdma_module")  # it knows where the package is
    fdma = pytest.importorskip("fdma")
    fdma.BlockMask.from_arrays(pattern_state()).save(tmp_path / "m.h5")
    maskc(tmp_path, "render", "m.h5", "--pair", "0,0", "-o", "m.html")
    mask = pattern_cells()[0, 0]
    for fragment in ("#0:150,0:100", "#40:60,30:70", "#120:150,60:100"):
        view = show(browser, tmp_path / "m.html", fragment)
        assert same(view.picture, expected_cells(view, mask, BLOCK)), fragment
    browser.evaluate("document.getElementById('fit').click()")
    for cells in (2, 8, 32):
        while browser.evaluate("maskViewer.view.cells") < cells:
            browser.evaluate("document.getElementById('zoom-out').click()")
        view = look(browser, tmp_path)
        assert same(view.picture, expected_areas(view, mask, BLOCK)), view.cells


@needs_browser
def test_causal_over_a_million_tokens(tmp_path: Path, browser: Browser) -> None:
    length = 1_000_000
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", str(length), "-o", "m.h5")
    said = maskc_json(tmp_path, "render", "m.h5", "-o", "m.html")
    assert said["bytes"] == (tmp_path / "m.html").stat().st_size < 64 << 10
    view = show(browser, tmp_path / "m.html")
    # Every pixel is checked: full below the tiles of the diagonal, empty above, a shade on it.
    size = view.cells
    assert size % 128 == 0
    side = -(-length // size)
    picture = view.picture[-view.top : side - view.top, -view.left : side - view.left]
    assert picture.shape[:2] == (side, side)
    y, x = np.arange(side)[:, None], np.arange(side)[None, :]
    assert (picture[np.broadcast_to(x < y, (side, side))] == FULL).all()
    assert (picture[np.broadcast_to(x > y, (side, side))] == EMPTY).all()
    diagonal = picture[np.arange(side), np.arange(side)].astype(int)
    shade = np.array(DROPPED) + (np.array(KEPT) - np.array(DROPPED)) / 2
    assert np.abs(diagonal[:-1] - shade).max() <= 1
    # The cells lie in the middle and at the ragged end.
    for start in (524_200, length - 100):
        view = show(browser, tmp_path / "m.html", f"#{start}:{start + 100},{start}:{start + 100}")
        assert view.pixels >= 4
        q, k = view.positions()
        inside = (q < length)[:, None] & (k < length)[None, :]
        tile = np.sign((q // 128)[:, None] - (k // 128)[None, :])
        expected = np.where(
            (k[None, :] <= q[:, None])[..., None],
            np.array(KEPT, np.uint8),
            np.array(DROPPED, np.uint8),
        )
        expected[tile > 0] = FULL
        expected[tile < 0] = EMPTY
        expected[~inside] = OUTSIDE
        assert same(view.picture, expected)


@needs_browser
def test_packed_documents(tmp_path: Path, browser: Browser) -> None:
    write_docs(tmp_path)
    spec = ["--spec", "causal & documents(lengths=@len)", "--table", "len=docs.h5:/lengths"]
    maskc(tmp_path, "compile", *spec, "--q-len", "8192", "-o", "m.h5")
    maskc(tmp_path, "render", "m.h5", "-o", "m.html")
    mask = causal_documents(document_lengths())
    view = show(browser, tmp_path / "m.html")
    assert view.cells == 32
    assert same(view.picture, expected_areas(view, mask, (128, 128)))
    while browser.evaluate("maskViewer.view.cells") < 128:
        browser.evaluate("document.getElementById('zoom-out').click()")
    view = look(browser, tmp_path)
    assert view.cells == 128
    assert same(view.picture, expected_areas(view, mask, (128, 128)))
    border = document_lengths()[0]
    near = f"{border - 60}:{border + 60}"
    view = show(browser, tmp_path / "m.html", f"#{near},{near}")
    assert view.pixels >= 2
    assert same(view.picture, expected_cells(view, mask, (128, 128)))


@needs_browser
@pytest.mark.parametrize("block", ["128x64", "16x16", "48x80"])
def test_crops_and_other_blocks(tmp_path: Path, browser: Browser, block: str) -> None:
    mask = random_mask(9, 700, 900)
    write(tmp_path, mask=mask)
    maskc(tmp_path, "convert", "in.h5:/mask", "--block", block, "-o", "m.h5")
    maskc(tmp_path, "render", "m.h5", "--crop", "37:337,100:411", "-o", "m.html")
    sides = tuple(map(int, block.split("x")))
    cut = mask[37:337, 100:411]
    view = show(browser, tmp_path / "m.html")
    assert same(view.picture, expected_cells(view, cut, (sides[0], sides[1])))
    facts = browser.evaluate("document.querySelector('dl').innerText")
    assert "row 37, key 100" in facts
    browser.evaluate("document.getElementById('zoom-out').click()")
    view = look(browser, tmp_path)
    assert same(view.picture, expected_areas(view, cut, (sides[0], sides[1])))


@needs_browser
def test_draws_the_pair_that_was_chosen(tmp_path: Path, browser: Browser) -> None:
    words = ["--spec", "k <= q + 9 * h + 5 * b", "--heads", "3", "--batch", "2", "--q-len", "64"]
    maskc(tmp_path, "compile", *words, "-o", "m.h5")
    maskc(tmp_path, "render", "m.h5", "--pair", "1,2", "-o", "m.html")
    view = show(browser, tmp_path / "m.html")
    q, k = np.arange(64)[:, None], np.arange(64)[None, :]
    assert same(view.picture, expected_cells(view, np.asarray(k <= q + 23), (128, 128)))
    text = browser.evaluate("document.body.innerText")
    assert re.search(r"Batch element\s+1 of 2\s+Head\s+2 of 3", text)


@needs_browser
def test_fields_choose_another_head(tmp_path: Path, browser: Browser) -> None:
    """The page of four heads and two batch elements shows each of them, with its facts."""
    words = ["compile", "--spec", "k <= q + 3 * h - b", "--q-len", "100", "--kv-len", "90"]
    maskc(tmp_path, *words, "--heads", "4", "--batch", "2", "-o", "m.h5")
    maskc(tmp_path, "render", "m.h5", "--pair", "0,1", "-o", "m.html")
    q, k = np.indices((100, 90))
    view = show(browser, tmp_path / "m.html")
    assert (view.cells, same(view.picture, expected_cells(view, k <= q + 3, (128, 128)))) == (
        1,
        True,
    )
    for b, h in ((1, 3), (0, 0), (1, 3)):
        browser.evaluate(
            f"document.getElementById('batch').value = {b};"
            f"document.getElementById('head').value = {h};"
            "document.getElementById('head').dispatchEvent(new Event('change'))"
        )
        mask = k <= q + 3 * h - b
        view = look(browser, tmp_path)
        assert same(view.picture, expected_cells(view, mask, (128, 128)))
        facts = browser.evaluate("document.getElementById('facts').textContent")
        assert f"{int(mask.sum()):,} of 9,000" in facts
        assert "".join(facts.split()).endswith(f"Batchelement{b}Head{h}")
        heading = browser.evaluate("document.querySelector('h1').textContent")
        assert heading == f"m.h5:/masks/mask, batch element {b}, head {h}"


@needs_browser
def test_pointer_and_keys_move_the_view(tmp_path: Path, browser: Browser) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "100000", "-o", "m.h5")
    maskc(tmp_path, "render", "m.h5", "-o", "m.html")
    show(browser, tmp_path / "m.html", "#5000:5100,5000:5100")
    box = browser.evaluate("document.getElementById('picture').getBoundingClientRect().toJSON()")
    at = (box["left"] + 200.5, box["top"] + 100.5)

    def state() -> dict[str, int]:
        return dict(browser.evaluate("({...maskViewer.view})"))

    def cell() -> list[int]:
        return list(browser.evaluate("maskViewer.cellAt(200, 100)"))

    def said() -> str:
        return str(browser.evaluate("document.getElementById('cell').textContent"))

    browser.mouse("mouseMoved", *at)
    q, k = cell()
    assert said().startswith(f"q {q:,}, k {k:,}: {'true' if k <= q else 'false'}; tile (39, ")
    before, seen = state(), cell()
    browser.mouse("mouseWheel", *at, deltaX=0, deltaY=-100)
    assert state()["pixels"] > before["pixels"]
    assert cell() == seen
    browser.mouse("mouseWheel", *at, deltaX=0, deltaY=100)
    assert state()["pixels"] == before["pixels"]
    assert cell() == seen

    before = state()
    browser.mouse("mousePressed", *at, button="left", clickCount=1)
    browser.mouse("mouseMoved", at[0] + 30, at[1] - 17, button="left")
    browser.mouse("mouseReleased", at[0] + 30, at[1] - 17, button="left", clickCount=1)
    after = state()
    assert (after["left"], after["top"]) == (before["left"] - 30, before["top"] + 17)
    browser.mouse("mouseMoved", *at)
    assert (state()["left"], state()["top"]) == (after["left"], after["top"])

    browser.evaluate("document.getElementById('picture').focus()")
    tile = 128 * after["pixels"]
    browser.press("ArrowRight", shift=True)
    browser.press("ArrowDown", shift=True)
    moved = state()
    assert (moved["left"], moved["top"]) == (after["left"] + tile, after["top"] + tile)
    browser.press("ArrowLeft")
    assert state()["left"] < moved["left"]
    browser.press("+")
    assert state()["pixels"] > moved["pixels"]
    browser.press("-")
    assert state()["pixels"] == moved["pixels"]
    browser.press("0")
    assert state()["cells"] > 128
    assert "rows 0 to 100,000, keys 0 to 100,000" in browser.evaluate("document.body.innerText")
    browser.press("1")
    assert state()["pixels"] == 8
    assert browser.evaluate("document.getElementById('cell').getAttribute('aria-live')") == "polite"

    go = "maskViewer.field.value = '{}'; document.getElementById('go').requestSubmit()"
    browser.evaluate(go.format("70000:70010,100:110"))
    assert state()["pixels"] == 32
    assert browser.evaluate("maskViewer.cellAt(...maskViewer.centre())") == [70005, 105]
    browser.evaluate(go.format("9:8,7"))
    assert browser.evaluate("maskViewer.field.validationMessage") != ""
    assert state()["pixels"] == 32
    assert browser.complaints == []


@needs_browser
def test_follows_the_dark_scheme_and_the_window(tmp_path: Path, browser: Browser) -> None:
    maskc(tmp_path, "compile", "--spec", "causal", "--q-len", "300", "-o", "m.h5")
    maskc(tmp_path, "render", "m.h5", "-o", "m.html")
    light = show(browser, tmp_path / "m.html")
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", features=[scheme])
    dark = look(browser, tmp_path)
    browser.call("Emulation.setEmulatedMedia", features=[])
    style = browser.evaluate("document.querySelector('style').textContent").split("@media")[1]
    for name, colour in (("empty", EMPTY), ("full", FULL), ("partial-low", DROPPED)):
        written = re.findall(rf"--{name}: #(\w+);", style)[0]
        where = (light.picture == colour).all(axis=2)
        assert where.any()
        assert (dark.picture[where] == list(bytes.fromhex(written))).all()
    size = {"deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", width=1500, height=1300, **size)
    browser.wait("maskViewer.view.pixels === 3")
    browser.call("Emulation.setDeviceMetricsOverride", width=900, height=560, **size)
    browser.wait("maskViewer.view.pixels === 1")


@needs_browser
def test_tile_borders_leave_the_cells_to_be_seen(tmp_path: Path, browser: Browser) -> None:
    maskc(
        tmp_path,
        "compile",
        "--spec",
        "window(40)",
        "--q-len",
        "96",
        "--block",
        "32x16",
        "-o",
        "m.h5",
    )
    maskc(tmp_path, "render", "m.h5", "-o", "m.html")
    plain = show(browser, tmp_path / "m.html").picture
    view = show(browser, tmp_path / "m.html", grid=True)
    q, k = view.positions()
    first_q = (q % 32 == 0) & (np.roll(q, 1) != q)
    first_k = (k % 16 == 0) & (np.roll(k, 1) != k)
    line = first_q[:, None] | first_k[None, :]
    inside = ((q >= 0) & (q < 96))[:, None] & ((k >= 0) & (k < 96))[None, :]
    differs = (view.picture != plain).any(axis=2)
    assert (differs[inside] == line[inside]).all()


@needs_browser
def test_svg_and_page_show_the_same(tmp_path: Path, browser: Browser) -> None:
    mask = random_mask(21, 120, 160)
    write(tmp_path, mask=mask)
    words = ["in.h5:/mask", "--block", "32x16", "--size", "640", "-o", "m.svg"]
    said = maskc_json(tmp_path, "render", *words)
    assert (said["width"], said["height"]) == (640, 480)
    browser.open(tmp_path / "m.svg")
    browser.screenshot(tmp_path / "shot.png", (0, 0, 640, 480))
    view = View(1, 4, 0, 0, read_png(tmp_path / "shot.png"))
    assert same(view.picture, expected_cells(view, mask, (32, 16)))


def test_the_page_needs_no_network_and_names_what_it_shows(tmp_path: Path) -> None:
    maskc(tmp_path, "compile", "--spec", "causal & window(300)", "--q-len", "4000", "-o", "m.h5")
    maskc(tmp_path, "render", "m.h5", "-o", "m.html")
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    for reference in (
        "http:",
        "https:",
        "//cdn",
        "src=",
        "href=",
        "url(",
        "@import",
        "import(",
        "fetch(",
    ):
        assert reference not in page, reference
    assert not re.search(r"XMLHttpRequest|WebSocket|EventSource|sendBeacon|navigator\.", page)
    assert "default-src 'none'" in page
    counts = maskc_json(tmp_path, "inspect", "m.h5")["masks"][0]
    for name in ("full", "partial", "empty"):
        assert f"<dt>{name.capitalize()} tiles</dt><dd>{counts['tiles'][name]:,}</dd>" in page
    assert f"<dd>{counts['allowed_pairs']:,} of {4000 * 4000:,} (" in page
    assert "<dt>Specification</dt><dd>causal &amp; window(300)</dd>" in page
    assert f"Full tiles: {counts['tiles']['full']:,}." in page
    # The light colours are those of the other pictures.
    for name, colour in (
        ("empty", EMPTY),
        ("full", FULL),
        ("partial-low", DROPPED),
        ("partial-high", KEPT),
    ):
        assert f"--{name}: #{bytes(colour).hex()};" in page


def test_what_a_page_cannot_hold_is_refused(tmp_path: Path) -> None:
    # Hardly two of the 35,344 tiles are equal.
    spec = "(q * k // 1009) % 5 < 2"
    maskc(tmp_path, "compile", "--spec", spec, "--q-len", "24000", "-o", "m.h5")
    maskc(tmp_path, "render", "m.h5", "-o", "m.html", status=4)
    assert not (tmp_path / "m.html").exists()
    maskc(tmp_path, "render", "m.h5", "--crop", ":,0:1000", "-o", "m.html")
    maskc(tmp_path, "render", "m.h5", "-o", "m.svg")
