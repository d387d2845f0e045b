"""What the pages need beyond MyST: navigation, links to folders, the mask language.

Navigation comes from the tables of links that the index pages are anyway: what an index links to
is its table of contents, in that order. A link to a folder goes to the folder's README.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pygments import token
from pygments.lexer import RegexLexer, words

ROOT = Path(__file__).resolve().parents[2]

# Pages whose links to other pages are the navigation, and what more follows, by pattern.
INDEXES: dict[str, list[str]] = {
    "docs/README": ["docs/*.md", "CHANGELOG.md", "docs/notes/*.md"],
    "docs/developing/README": [],
    "docs/api/README": [],
    "docs/notes/README": ["docs/notes/*.md"],
}
# Pages that stand below a page which is no index of its own.
BELOW = {"kernels/README": ["docs/kernels/*.md"]}
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


class MaskLexer(RegexLexer):  # type: ignore[misc]
    """The mask language (docs/spec-language.md), for code blocks marked `mask`."""

    name = "mask"
    aliases = ("mask",)
    tokens = {  # noqa: RUF012
        "root": [
            (r"#[^\n]*", token.Comment),
            (r"@\w+", token.Name.Variable),
            (r"\d+", token.Number),
            (words(("let", "in", "true", "false", "any", "all"), suffix=r"\b"), token.Keyword),
            (r"\w+(?=\s*\()", token.Name.Function),
            (r"\w+", token.Name),
            (r"\s+", token.Text),
            (r".", token.Operator),
        ]
    }


def linked_pages(docname: str, text: str) -> list[str]:
    """The pages that an index links to, as names of documents, each once, in their order."""
    folder = (ROOT / docname).parent
    found: list[str] = []
    for target in LINK.findall(text):
        path = Path(os.path.normpath(folder / target))
        if path.is_dir():
            path = path / "README.md"
        if path.suffix in (".md", ".rst") and path.exists():
            found.append(path.relative_to(ROOT).with_suffix("").as_posix())
    return list(dict.fromkeys(found))


def add_navigation(app: Any, docname: str, content: list[str]) -> None:
    if docname not in INDEXES and docname not in BELOW:
        return
    pages = linked_pages(docname, content[0]) if docname in INDEXES else []
    for pattern in INDEXES.get(docname, []) + BELOW.get(docname, []):
        more = sorted(ROOT.glob(pattern))
        pages += [path.relative_to(ROOT).with_suffix("").as_posix() for path in more]
    # A page has one place in the navigation: that of the most special index.
    if docname == "docs/README":
        pages = [
            page
            for page in pages
            if Path(page).parent.as_posix() not in SUBFOLDERS or page in INDEXES
        ]
    pages = [page for page in dict.fromkeys(pages) if page not in (docname, "docs/README")]
    entries = "\n".join(f"/{page}" for page in pages)
    content[0] += f"\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


# Folders of which an index of their own tells.
SUBFOLDERS = {
    Path(page).parent.as_posix()
    for page in INDEXES
    if page != "docs/README" and (ROOT / f"{page}.md").exists()
}


def link_folders(app: Any, docname: str, content: list[str]) -> None:
    """Links to folders become links to their README.md, where there is one."""
    folder = (ROOT / docname).parent

    def with_page(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / match[1]))
        if path.is_dir() and (path / "README.md").exists():
            return match[0].replace(match[1], f"{match[1].rstrip('/')}/README.md")
        return match[0]

    content[0] = LINK.sub(with_page, content[0])


def write_front_page(app: Any, error: Exception | None) -> None:
    """index.html, for who opens the folder of the site."""
    if error is None and app.builder.format == "html":
        page = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/README.html">\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.add_lexer("mask", MaskLexer)
    app.connect("source-read", add_navigation)
    app.connect("source-read", link_folders)
    app.connect("build-finished", write_front_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
