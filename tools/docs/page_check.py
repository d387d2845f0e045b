"""Checks the pages of the repository: links, anchors, code blocks and paths of files.

    python3 tools/docs/page_check.py        prints what is wrong, one line each

- A link goes to a file or folder of the repository, and its anchor to a heading of that page.
  Links to other sites are not followed.
- A fenced code block names its language, one of LANGUAGES.
- Paths in backquotes on the pages of PATHS are there: `masks/src/` or `tests/run.sh`.

tests/python runs it, and so does the build of the site (tools/docs.sh), which knows more.
"""

from __future__ import annotations

import re
import sys
import urllib.parse
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The pages, by the patterns of Sphinx: `**` stands for folders and a name.
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "docs/**.md",
    "formats/README.md",
    "masks/README.md",
    "kernels/README.md",
    "python_bindings/README.md",
    "examples/README.md",
)
# Pages that name files in backquotes, which have to be there.
PATHS = ("docs/developing/*.md", "docs/glossary.md")
LANGUAGES = {"console", "cmake", "cpp", "json", "mask", "python", "sh", "text"}

FENCE = re.compile(r"^\s*(```+|~~~+)\s*(\S*)")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^()\s]+)\)")
IMAGE = re.compile(r"<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"")
CODE = re.compile(r"(`+)(.+?)\1")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")


def pages() -> list[Path]:
    found: list[Path] = []
    for pattern in PAGES:
        found += sorted(ROOT.glob(pattern.replace("**.", "**/*.")))
    return found


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside fenced code blocks, with their numbers."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if match and (not fence or (match[1].startswith(fence) and not match[2])):
            fence = "" if fence else match[1]
        elif not fence:
            yield number, line


def opened_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Of each fenced code block the number of its first line and its language."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if not match:
            continue
        if not fence:
            fence = match[1]
            yield number, match[2]
        elif match[1].startswith(fence) and not match[2]:
            fence = ""
    if fence:
        yield number, "(never closed)"


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    seen: dict[str, int] = {}
    found: set[str] = set()
    for _, line in prose_lines(page.read_text(encoding="utf-8")):
        if match := HEADING.match(line):
            name = anchor(match[1])
            count = seen.get(name, 0)
            found.add(f"{name}-{count}" if count else name)
            seen[name] = count + 1
    return frozenset(found)


def link_problem(page: Path, target: str) -> str | None:
    parts = urllib.parse.urlsplit(target)
    if parts.scheme in ("http", "https", "mailto"):
        return None
    path = page
    if parts.path:
        path = (page.parent / urllib.parse.unquote(parts.path)).resolve()
        if not path.is_relative_to(ROOT) or not path.exists():
            return f"link to {target}: no such file"
    if path.is_dir():
        path = path / "README.md"
    if parts.fragment and path.suffix == ".md" and parts.fragment not in anchors(path):
        return f"link to {target}: no such heading"
    return None


def path_problem(text: str) -> str | None:
    """What is wrong with the code span `text`, if it is a path of the repository."""
    if not re.fullmatch(r"[\w.*-]+(/[\w.*-]*)+", text) or not (ROOT / text.split("/")[0]).is_dir():
        return None
    return None if any(ROOT.glob(text.rstrip("/"))) else f"`{text}`: no such file"


def page_problems(page: Path) -> Iterator[tuple[int, str]]:
    text = page.read_text(encoding="utf-8")
    for number, language in opened_blocks(text):
        if language not in LANGUAGES:
            known = ", ".join(sorted(LANGUAGES))
            yield number, f"code block in '{language}': expected one of {known}"
    has_paths = any(page.match(pattern) for pattern in PATHS)
    for number, line in prose_lines(text):
        bare = CODE.sub("``", line)
        for target in [*LINK.findall(bare), *IMAGE.findall(bare)]:
            if problem := link_problem(page, target):
                yield number, problem
        for match in CODE.finditer(line) if has_paths else ():
            if problem := path_problem(match[2]):
                yield number, problem


def problems() -> list[str]:
    return [
        f"{page.relative_to(ROOT)}:{number}: {problem}"
        for page in pages()
        for number, problem in page_problems(page)
    ]


if __name__ == "__main__":
    found = problems()
    print("\n".join([*found, f"{len(pages())} pages, {len(found)} problems"]))
    sys.exit(bool(found))
