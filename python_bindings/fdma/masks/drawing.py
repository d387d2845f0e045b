"""Pictures of a mask: text for a terminal, matplotlib axes, and HTML for notebooks.

All of them show one (batch, head) pair, query rows downwards and keys to the right, in the classes
of its tiles: full blue, empty light grey, partial from light to dark orange by the share of live
cells. Their size has a bound, whatever the lengths: small masks are drawn cell by cell, larger
ones so that a pixel is a whole number of cells.
"""

from __future__ import annotations

import base64
import importlib
import struct
import sys
import zlib
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .. import _fdma
from ..estimate_table import bytes_text
from .core_mask import core_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .block_mask import BlockMask

__all__ = ["draw", "html", "plot"]

Colour = tuple[int, int, int]

_EMPTY: Colour = (244, 244, 240)
_FULL: Colour = (24, 78, 119)
_PARTIAL_LOW: Colour = (255, 236, 204)
_PARTIAL_HIGH: Colour = (214, 96, 14)


def _palette() -> NDArray[np.uint8]:
    """uint8 [256, 3]: the colour of each shade of `_fdma.picture`."""
    share = np.linspace(0, 1, 254)[:, None]
    partial = np.array(_PARTIAL_LOW) * (1 - share) + np.array(_PARTIAL_HIGH) * share
    colours: NDArray[np.float64] = np.vstack([_EMPTY, partial, _FULL])
    return np.rint(colours).astype(np.uint8)


def draw(
    mask: BlockMask,
    *,
    batch: int = 0,
    heads: int = 0,
    max_width: int = 80,
    max_height: int = 40,
    unicode: bool | None = None,
    **others: NoReturn,
) -> str:
    """One (batch, head) pair as lines of characters and a legend, as `print(mask)` shows it.

    batch, heads: the pair; the legend names it if the mask has several.

    A character stands for a tile, or for a rectangle of tiles if the tiles do not fit into
    `max_width` columns and `max_height` lines. A rectangle is drawn as full or empty only if all
    its tiles are. unicode: True draws shades instead of `#`, `+` and `.`; None draws shades if
    standard output can show them.

    Raises ValueError for a pair that the mask does not have, and for sides outside 1 to 1024.

    >>> import fdma
    >>> from fdma.masks.drawing import draw
    >>> print(draw(fdma.compile("causal", 512), unicode=False))
    +...
    #+..
    ##+.
    ###+
    # full 6, + partial 4, . empty 6; 512 x 512 cells, blocks 128 x 128, 131328 allowed pairs
    """
    _refuse_others("draw", others)
    core = core_of("mask", mask)
    _check_pair(core, batch, heads)
    if unicode is None:
        unicode = _shows_shades(getattr(sys.stdout, "encoding", None))
    text = _fdma.draw(
        core, batch=batch, head=heads, max_width=max_width, max_height=max_height, unicode=unicode
    )
    pair = _pair_text(core, batch, heads)
    return text.removesuffix("\n") + (f"; {pair}" if pair else "")


def _refuse_others(function: str, names: Iterable[str]) -> None:
    """TypeError for a keyword that a function does not have."""
    for name in names:
        instead = "; write heads=, as in BlockMask.to_dense" if name == "head" else ""
        raise TypeError(f"{name}: no argument of {function}{instead}")


def _check_pair(core: _fdma.BlockMask, batch: int, heads: int) -> None:
    for name, at, count in (("batch", batch, core.num_batches), ("heads", heads, core.num_heads)):
        if not 0 <= at < count:
            raise ValueError(f"{name}: expected 0 to {count - 1}, got {at}")


def _shows_shades(encoding: str | None) -> bool:
    try:
        "█▒·".encode(encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def pyplot(who: str) -> Any:
    """matplotlib.pyplot, or an ImportError that names the function `who` that needs it."""
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            f"{who}: needs the package matplotlib, which cannot be imported here ({error}); "
            "pip install matplotlib",
            name="matplotlib",
        ) from error


def plot(
    mask: BlockMask,
    ax: Axes | None = None,
    *,
    batch: int = 0,
    heads: int = 0,
    max_side: int = 1024,
    legend: bool = True,
    **others: NoReturn,
) -> Axes:
    """One (batch, head) pair with matplotlib, on `ax` or new axes; returns the axes.

    Both axes are in cells. max_side: the largest number of pixels on a side, 1 to 16384.

    Raises ImportError if matplotlib is missing, and ValueError for a pair that the mask does not
    have.

    >>> import fdma
    >>> import matplotlib
    >>> from fdma.masks.drawing import plot
    >>> matplotlib.use("agg")
    >>> axes = plot(fdma.compile("causal & window(300)", 1000))
    >>> axes.figure.savefig("mask.png")
    """
    _refuse_others("plot", others)
    core = core_of("mask", mask)
    _check_pair(core, batch, heads)
    library = pyplot("plot")
    shades, (rows, keys) = _fdma.picture(core, batch=batch, head=heads, max_side=max_side)
    axes = library.figure().add_subplot() if ax is None else ax
    height, width = shades.shape
    q_len, kv_len = _lengths(core, batch)
    if shades.size:
        extent = (0, width * keys, height * rows, 0)
        axes.imshow(_palette()[shades], extent=extent, interpolation="nearest")
        axes.set_xlim(0, kv_len)
        axes.set_ylim(q_len, 0)
        # Long and thin masks fill the axes instead.
        axes.set_aspect("equal" if max(q_len, kv_len) <= 4 * min(q_len, kv_len) else "auto")
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    title = core.spec if len(core.spec) <= 60 else core.spec[:57] + "..."
    axes.set_title("\n".join(part for part in (title, _pair_text(core, batch, heads)) if part))
    if legend:
        patches = importlib.import_module("matplotlib.patches")
        entries = {"full": _FULL, "partial": _PARTIAL_HIGH, "empty": _EMPTY}
        axes.legend(
            handles=[
                patches.Patch(
                    facecolor=[part / 255 for part in colour], edgecolor="0.5", label=name
                )
                for name, colour in entries.items()
            ],
            loc="upper right",
        )
    return axes


def _lengths(core: _fdma.BlockMask, batch: int) -> tuple[int, int]:
    q_lens, kv_lens = core.q_lens, core.kv_lens
    return (
        q_lens[batch if len(q_lens) > 1 else 0],
        kv_lens[batch if len(kv_lens) > 1 else 0],
    )


def _pair_text(core: _fdma.BlockMask, batch: int, head: int) -> str:
    """The name of the pair that is drawn, if the mask has several."""
    if core.num_batches == core.num_heads == 1:
        return ""
    return f"batch {batch} of {core.num_batches}, head {head} of {core.num_heads}"


def _png(shades: NDArray[np.uint8]) -> bytes:
    """A PNG file of 8-bit palette colours, a pixel for each shade [height, width]."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    height, width = shades.shape
    # Each row begins with the number of its filter: 0, none.
    rows = np.hstack([np.zeros((height, 1), np.uint8), shades])
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"PLTE", _palette().tobytes()),
            chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            chunk(b"IEND", b""),
        ]
    )


def html(
    mask: BlockMask,
    *,
    batch: int = 0,
    heads: int = 0,
    max_side: int = 256,
    **others: NoReturn,
) -> str:
    """One (batch, head) pair as self-contained HTML, as notebooks show it.

    It has a picture of at most `max_side` pixels a side (1 to 1024) and a caption. With the default
    the HTML is smaller than 100 KiB, whatever the mask's lengths.

    Raises ValueError for a pair that the mask does not have, and for a side outside 1 to 1024.

    >>> import fdma
    >>> from fdma.masks.drawing import html
    >>> text = html(fdma.compile("causal", 1 << 20))
    >>> text.startswith("<figure"), len(text) < 5000
    (True, True)
    """
    _refuse_others("html", others)
    core = core_of("mask", mask)
    _check_pair(core, batch, heads)
    if not 1 <= max_side <= 1024:
        raise ValueError(f"max_side: expected 1 to 1024, got {max_side}")
    shades, (rows, keys) = _fdma.picture(core, batch=batch, head=heads, max_side=max_side)
    q_len, kv_len = _lengths(core, batch)
    name = core.spec if len(core.spec) <= 200 else core.spec[:197] + "..."
    facts = [name, _pair_text(core, batch, heads), f"{q_len} x {kv_len}"]
    facts.append(f"{core.format} in blocks of {core.block[0]} x {core.block[1]}")
    facts.append(bytes_text(core.nbytes))
    if (rows, keys) != (1, 1):
        facts.append(f"a pixel is {rows} x {keys} cells")
    words = escape("; ".join(fact for fact in facts if fact))
    image = _image(shades, words) if shades.size else ""
    entries = {"full": _FULL, "partial": _PARTIAL_HIGH, "empty": _EMPTY}
    legend = " ".join(
        f'<span style="color:rgb{colour}">&#9632;</span>&nbsp;{entry}'
        for entry, colour in entries.items()
    )
    return (
        f'<figure style="margin:0">{image}<figcaption style="font-size:small">{words}<br>{legend}'
        "</figcaption></figure>"
    )


def _image(shades: NDArray[np.uint8], words: str) -> str:
    """An HTML image whose long side is 320 pixels and whose short side is at least 16."""
    height, width = shades.shape
    scale = 320 / max(height, width)
    data = base64.b64encode(_png(shades)).decode("ascii")
    return (
        f'<img alt="Attention mask, query rows downwards, keys to the right: {words}" '
        f'width="{max(16, round(scale * width))}" height="{max(16, round(scale * height))}" '
        f'style="image-rendering:pixelated;border:1px solid #888" '
        f'src="data:image/png;base64,{data}">'
    )
