"""Doxygen's input filter: prints a header whose `///` comments are plain text to Doxygen.

The comments of FDMA are written to be read in the header. Words that Doxygen would take for its
commands or for HTML (`@name`, `<`, `#`) are escaped, and tables of a contract keep their columns:

    /// Shapes      row_offsets [num_tile_rows + 1] int64
    /// Cost        8 B a tile row

Used as INPUT_FILTER by tools/docs.sh: python doxygen_filter.py HEADER.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

COMMENT = re.compile(r"^(\s*)///(?!<)(?: (.*)|)$")
BESIDE = re.compile(r"^(.*?///<)(.*)$")
CONTINUED = re.compile(r"^\s*///(?!<)")
SPECIAL = re.compile(r"([\\@<>#%&])")
CONTRACT = re.compile(r"^[A-Z][A-Za-z ]{1,14}?\s{2,}\S")


def escaped(text: str) -> str:
    """`text` with nothing in it that Doxygen reads as a command, HTML or Markdown."""
    # Every other part is the inside of a pair of backquotes.
    parts = [SPECIAL.sub(r"\\\1", part) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def is_preformatted(line: str) -> bool:
    return line.startswith("  ") or CONTRACT.match(line) is not None


def paragraph_lines(lines: list[str]) -> Iterator[str]:
    """A paragraph of a comment; from its first preformatted line on it is printed as it stands."""
    first = next((i for i, line in enumerate(lines) if is_preformatted(line)), len(lines))
    yield from (escaped(line) for line in lines[:first])
    if first < len(lines):
        yield ""
        yield "@verbatim"
        yield from lines[first:]
        yield "@endverbatim"


def comment_lines(lines: list[str]) -> Iterator[str]:
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line)
            continue
        yield from paragraph_lines(paragraph)
        yield ""
        paragraph = []


def filtered(text: str) -> Iterator[str]:
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        beside = BESIDE.match(line)
        match = COMMENT.match(line)
        if beside:
            yield beside[1] + escaped(beside[2])
            # A comment beside a member may go on below it.
            while (
                index + 1 < len(lines)
                and CONTINUED.match(lines[index + 1])
                and (
                    len(lines[index + 1]) - len(lines[index + 1].lstrip())
                    > len(line) - len(line.lstrip())
                )
            ):
                index += 1
                yield "///<" + escaped(lines[index].strip()[3:])
        elif match:
            block = []
            while index < len(lines) and (found := COMMENT.match(lines[index])):
                block.append(found[2] or "")
                index += 1
            # As one block: inside verbatim text Doxygen would print the slashes of every line.
            yield f"{match[1]}/**"
            yield from (text.replace("*/", "* /") for text in comment_lines(block))
            yield f"{match[1]}*/"
            continue
        else:
            yield line
        index += 1


if __name__ == "__main__":
    print("\n".join(filtered(Path(sys.argv[1]).read_text(encoding="utf-8"))))
