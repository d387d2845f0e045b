"""Pages of the repository: links, anchors, code blocks and paths (tools/docs.sh --check).

The whole site, with every public name of C++ and Python, is built by tools/docs.sh.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = next(
    path for path in Path(__file__).resolve().parents if (path / "CMakePresets.json").exists()
)
sys.path.insert(0, str(ROOT / "tools" / "docs"))

import page_check  # noqa: E402


@pytest.mark.parametrize("name", [str(page.relative_to(ROOT)) for page in page_check.pages()])
def test_page(name: str) -> None:
    found = [f"{name}:{line}: {text}" for line, text in page_check.page_problems(ROOT / name)]
    assert not found, "\n" + "\n".join(found)


def test_rejects_what_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_check, "ROOT", tmp_path)
    monkeypatch.setattr(page_check, "PATHS", ("*.md",))
    (tmp_path / "src").mkdir()
    (tmp_path / "other.md").write_text("# A *heading* of `two` words\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#a-heading-of-two-words) [c](other.md#twice-1) [d](src)\n"
        "[e](nowhere.md) [f](other.md#nowhere) `[not](a link)` `src/nothing.cpp` `a/b`\n"
        "```shell\n[in](code)\n```\n[g](https://example.org/never/fetched)\n"
    )
    found = sorted(page_check.page_problems(page))
    assert [line for line, _ in found] == [2, 2, 2, 3]
    text = "\n".join(problem for _, problem in found)
    for part in ("nowhere.md: no such file", "#nowhere: no such heading", "`src/nothing.cpp`: no"):
        assert part in text
    assert "code block in 'shell'" in text


def test_every_library_has_a_page_of_its_headers() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "api" / "cpp").glob("*.rst")}
    headers = [*ROOT.glob("*/include*/fdma/*/"), *ROOT.glob("*/*/include/fdma/*/")]
    libraries = {folder.name for folder in [*headers, *ROOT.glob("kernels/src/*/include/fdma/*/")]}
    assert libraries - {"threads"} <= pages
