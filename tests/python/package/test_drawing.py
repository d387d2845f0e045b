"""Tests drawings of masks as text, pixels, HTML and matplotlib figures against the cells."""

from __future__ import annotations

import base64
import inspect
import io
import os
import re
import struct
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdma_module import fdma as core

# isort: split
import fdma
from fdma.masks import drawing

RANDOM = np.random.default_rng(7)
FULL, EMPTY, DROPPED, KEPT = (24, 78, 119), (244, 244, 240), (255, 236, 204), (214, 96, 14)


def random_mask(q_len: int, kv_len: int, density: float) -> fdma.BlockMask:
    cells = RANDOM.random((q_len, kv_len)) < density
    cells[: q_len // 2, : kv_len // 2] = RANDOM.random() < 0.5
    return fdma.BlockMask.from_dense(cells, block=(32, 16))


def classes(cells: Any, side_q: int, side_k: int) -> Any:
    """Returns the class of each rectangle of cells and its share of live cells.

    The class is 0 for empty, 1 for partial and 2 for full.
    """
    q_len, kv_len = cells.shape
    found = np.zeros((-(-q_len // side_q), -(-kv_len // side_k)), int)
    shares = np.zeros(found.shape)
    for y, x in np.ndindex(found.shape):
        part = cells[y * side_q : (y + 1) * side_q, x * side_k : (x + 1) * side_k]
        found[y, x] = 2 if part.all() else int(part.any())
        shares[y, x] = part.mean()
    return found, shares


@pytest.mark.parametrize("seed", range(6))
def test_characters_are_the_classes_of_tiles(seed: int) -> None:
    q_len, kv_len = RANDOM.integers(1, 200, 2)
    mask = random_mask(int(q_len), int(kv_len), [0, 0.1, 1][seed % 3])
    kinds, _ = classes(mask.to_dense(batch=0, heads=0), 32, 16)
    *lines, legend = drawing.draw(mask, unicode=False).split("\n")
    assert lines == ["".join(".+#"[kind] for kind in row) for row in kinds]
    assert legend.startswith(f"# full {(kinds == 2).sum()}, + partial {(kinds == 1).sum()}, ")


@pytest.mark.parametrize("q_len", [1, 1000, 1 << 20])
def test_drawings_stay_within_their_bounds(q_len: int) -> None:
    mask = fdma.compile("causal & (window(5000) | sink(1000))", q_len, 2 * q_len)
    for width, height in ((80, 40), (7, 3), (1, 1), (1024, 1024)):
        *lines, _ = drawing.draw(mask, max_width=width, max_height=height).split("\n")
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    *lines, _ = str(mask).split("\n")
    assert len(lines) <= 40
    text = drawing.html(mask)
    assert len(text) < 100 * 1024
    assert len(text) < 20_000 or q_len < 1 << 20


def test_each_pair_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    mask = fdma.compile("k < 64 * (b + 2 * h + 1)", 64, 512, batch=2, heads=2, block=(64, 64))
    for b in range(2):
        for h in range(2):
            live = b + 2 * h + 1
            *lines, legend = drawing.draw(mask, batch=b, heads=h, unicode=False).split("\n")
            assert lines == ["#" * live + "." * (8 - live)]
            assert legend.endswith(f" allowed pairs; batch {b} of 2, head {h} of 2")
            assert mask.draw(batch=b, heads=h) == drawing.draw(mask, batch=b, heads=h)
            assert f"batch {b} of 2, head {h} of 2" in drawing.html(mask, batch=b, heads=h)
    print(mask)
    assert capsys.readouterr().out == drawing.draw(mask) + "\n"


def test_a_pair_is_named_by_the_words_of_to_dense() -> None:
    mask = fdma.compile("window(h + 1)", 64, heads=4)
    f: Any = drawing
    for draw in (f.draw, f.html, f.plot):
        with pytest.raises(TypeError, match=r"^head: no argument of \w+; write heads=, as in"):
            draw(mask, head=1)
    m: Any = mask
    with pytest.raises(TypeError, match=r"^head: no argument of draw; write heads="):
        m.draw(head=1)
    with pytest.raises(TypeError, match=r"^head: no argument of plot; write heads="):
        m.plot(head=1)
    options = inspect.signature(fdma.BlockMask.plot).parameters
    assert {"ax", "batch", "heads", "max_side", "legend"} <= options.keys()


@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (fdma.causal(), (64, 64)),
        (fdma.causal() & fdma.window(100), (256, 256)),
        (fdma.causal() & fdma.documents(lengths=[700, 1300, 48]), (2048, 2048)),
        (fdma.documents(ids=np.repeat([0, 1], [40, 60])), (100, 100)),
        (fdma.padding(lengths=[30, 64]), (94, 94)),
        (fdma.table(np.ones((20, 30), bool))[fdma.q, fdma.k], (20, 30)),
        (fdma.q - fdma.k < 16 << fdma.h, (64, 64)),
    ],
    ids=str,
)
def test_expressions_are_drawn(mask: fdma.MaskExpr, shape: tuple[int, int]) -> None:
    text, page = mask.draw(unicode=False), mask._repr_html_()
    assert f"{shape[0]} x {shape[1]} cells" in text
    assert page is not None and f"{shape[0]} x {shape[1]}" in Page(page).text
    same = fdma.compile(mask, 64, 80, 4, 4, block=16) if shape == (64, 64) else None
    if same is not None:
        drawn = mask.draw(64, 80, batch=3, heads=3, unicode=False).split("\n")
        assert drawn[:-1] == same.draw(heads=same.heads - 1, unicode=False).split("\n")[:-1]


def test_expressions_that_lack_arrays_are_drawn_with_them() -> None:
    mask: Any = fdma.causal() & fdma.window("@w")
    assert mask._repr_html_() is None
    with pytest.raises(ValueError, match="no array for table @w"):
        mask.draw()
    assert mask.draw(w=100) == (fdma.causal() & fdma.window(100)).draw()
    with pytest.raises(TypeError, match=r"^head: no argument of draw and plot; write heads="):
        mask.draw(w=100, head=1)
    with pytest.raises(ValueError, match="table @v"):
        mask.draw(w=100, v=1)


def test_shades_are_replaced_where_output_cannot_show_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mask = fdma.compile("causal", 512)
    assert "█" in drawing.draw(mask)
    for encoding, is_plain in (("ascii", True), ("utf-8", False), ("latin-1", True)):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        assert drawing.draw(mask).isascii() == is_plain
    monkeypatch.setattr(sys, "stdout", None)
    assert not drawing.draw(mask).isascii()


@pytest.mark.parametrize("max_side", [1, 5, 40, 200])
def test_pixels_are_their_cells(max_side: int) -> None:
    for density in (0, 0.03, 1):
        mask = random_mask(150, 90, density)
        cells = mask.to_dense(batch=0, heads=0)
        shades, (rows, keys) = core.picture(mask._core, max_side=max_side)
        assert shades.shape == (-(-150 // rows), -(-90 // keys))
        assert max(shades.shape) <= max_side
        _, shares = classes(cells, rows, keys)
        is_inside = rows <= 32 and keys <= 16
        kinds, _ = classes(cells, *((32, 16) if is_inside else (rows, keys)))
        if is_inside:  # a pixel inside a tile has the class of that tile
            kinds = kinds.repeat(32 // rows, 0).repeat(16 // keys, 1)
            kinds = kinds[: shades.shape[0], : shades.shape[1]]
        assert ((shades == 0) == (kinds == 0)).all()
        assert ((shades == 255) == (kinds == 2)).all()
        partial = kinds == 1
        assert np.abs((shades[partial] - 1.0) / 253 - shares[partial]).max(initial=0) < 0.003


class Page(HTMLParser):
    """Collects the tags and the text of a page. All tags must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.images.append(dict(attrs))
        elif tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_holds_the_picture(tmp_path: Path) -> None:
    cells = np.zeros((40, 60), bool)
    cells[:32, :16] = True
    cells[5, 40] = True
    mask = fdma.BlockMask.from_dense(cells, block=(32, 16))
    page = Page(drawing.html(mask))
    (image,) = page.images
    assert (image["width"], image["height"]) == ("320", "213")
    source = str(image["src"])
    assert source.startswith("data:image/png;base64,")
    data = base64.b64decode(source.partition(",")[2])
    assert struct.unpack(">II", data[16:24]) == (60, 40)
    pixels = palette_png(data, tmp_path)
    assert tuple(pixels[0, 0]) == FULL
    assert tuple(pixels[5, 40]) == KEPT
    assert tuple(pixels[5, 41]) == DROPPED
    assert tuple(pixels[39, 59]) == EMPTY
    assert "40 x 60" in page.text
    assert mask._repr_html_() == drawing.html(mask)


def palette_png(data: bytes, folder: Path) -> Any:
    """Returns the pixels [height, width, 3] of an 8-bit palette PNG, by the reader of RGB files."""
    chunks = {}
    at = 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        chunks[data[at + 4 : at + 8]] = data[at + 8 : at + 8 + size]
        at += 12 + size
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 3)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert (rows[:, 0] == 0).all()
    return np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(256, 3)[rows[:, 1:]]


def test_html_is_bounded_even_for_noise() -> None:
    cells = RANDOM.random((2048, 2048)) < 0.5
    noise = fdma.BlockMask.from_dense(cells, block=(16, 16))
    assert len(drawing.html(noise)) < 100 * 1024


def test_html_escapes_the_text_of_a_mask() -> None:
    mask = fdma.compile("k < 5 & q > 3", 20)
    page = Page(mask._repr_html_())
    assert page.text.startswith("k < 5 & q > 3; 20 x 20; segment in blocks of 128 x 128")


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 0), (0, 7), (7, 0), (1, 1), (1, 100000)])
def test_masks_of_any_length_are_drawn(q_len: int, kv_len: int) -> None:
    mask = fdma.compile("k >= 0", q_len, kv_len)
    assert f"{q_len} x {kv_len} cells" in drawing.draw(mask)
    assert len(Page(drawing.html(mask)).images) == (q_len * kv_len > 0)
    if plots():
        axes = drawing.plot(mask)
        axes.figure.canvas.draw()
        close_all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 1}, "batch: expected 0 to 0, got 1"),
        ({"heads": -1}, "heads: expected 0 to 1, got -1"),
        ({"max_width": 0}, "max_width: expected 1 to 1024, got 0"),
        ({"max_height": 2000}, "max_height: expected 1 to 1024, got 2000"),
    ],
)
def test_errors_name_the_argument(options: dict[str, int], message: str) -> None:
    mask = fdma.compile("k < h", 20, heads=2)
    with pytest.raises(ValueError, match=re.escape(message)):
        drawing.draw(mask, **options)  # type: ignore[arg-type]


def test_what_is_no_mask_is_refused() -> None:
    anything: Any = fdma.causal()
    for function in (drawing.draw, drawing.html, drawing.plot):
        with pytest.raises(TypeError, match=r"mask: expected a BlockMask .* got MaskExpr"):
            function(anything)
    with pytest.raises(ValueError, match="max_side: expected 1 to 1024, got 0"):
        drawing.html(fdma.compile("causal", 5), max_side=0)


def plots() -> bool:
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("agg")
    return True


def close_all() -> None:
    from matplotlib import pyplot

    pyplot.close("all")


def test_plot_draws_cells_in_cells(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plots()
    from matplotlib import pyplot

    mask = fdma.compile("causal & window(700)", 1500, 3000, heads=2)
    axes = mask.plot(heads=1, max_side=200, legend=False)
    (image,) = axes.images
    shades, (rows, keys) = core.picture(mask._core, max_side=200)
    assert image.get_array().shape[:2] == shades.shape
    assert image.get_extent() == [0, shades.shape[1] * keys, shades.shape[0] * rows, 0]
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 3000), (1500, 0))
    assert axes.get_title() == "causal & window(700)\nbatch 0 of 1, head 1 of 2"
    assert axes.get_legend() is None
    figure, own = pyplot.subplots()
    assert drawing.plot(mask, own) is own
    legend: Any = own.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["full", "partial", "empty"]
    figure.savefig(tmp_path / "mask.png")
    close_all()


def test_plot_without_matplotlib_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"plot: needs the package matplotlib.*pip install"):
        fdma.compile("causal", 256).plot()


def test_drawing_does_not_import_matplotlib() -> None:
    program = (
        "import fdma, sys; m = fdma.compile('causal', 300); str(m); m._repr_html_();"
        "fdma.estimate(m)._repr_html_();"
        "assert not {'matplotlib', 'torch', 'scipy', 'h5py'} & set(sys.modules)"
    )
    folder = Path(fdma.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.fspath(folder)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
