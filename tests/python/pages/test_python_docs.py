"""Runs docs/python.md and docs/coming-from.md: the ```python blocks of a section as one program.

A block whose first line is `# needs: torch, h5py` is skipped if one of these packages is missing.
The blocks after it in its section are then skipped, too.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import pytest
from fdma_module import FOLDER  # this import skips the file where the build has no package

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (DOCS / "python.md", DOCS / "coming-from.md")


def sections(text: str) -> dict[str, list[tuple[int, str]]]:
    """Returns the ```python blocks of each `## heading`, with the numbers of their first lines."""
    found: dict[str, list[tuple[int, str]]] = {}
    for section in re.finditer(r"^## (.+)\n((?:(?!## ).*\n)*)", text, re.MULTILINE):
        for block in re.finditer(r"^```python\n(.*?)^```", section.group(2), re.DOTALL | re.M):
            line = text.count("\n", 0, section.start(2) + block.start(1)) + 1
            found.setdefault(section.group(1), []).append((line, block.group(1)))
    return found


SECTIONS = {page: sections(page.read_text(encoding="utf-8")) for page in PAGES}
NAMES = [(page, name) for page, found in SECTIONS.items() for name in found]


@pytest.mark.parametrize(("page", "name"), NAMES, ids=lambda part: getattr(part, "stem", part))
def test_section_runs(
    page: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = SECTIONS[page][name]
    for num_run, (line, block) in enumerate(blocks):
        needs = re.match(r"# needs: (.+)\n", block)
        packages = re.split(r",\s*", needs.group(1).strip()) if needs else []
        missing = [p for p in packages if importlib.util.find_spec(p) is None]
        if missing:
            left = len(blocks) - num_run
            pytest.skip(f"{left} of {len(blocks)} blocks: no {', '.join(missing)}")
        # Tracebacks show the lines of the page.
        exec(compile("\n" * (line - 1) + block, os.fspath(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_belongs_to_a_section(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert (FOLDER / "fdma" / "__init__.py").exists()
    assert text.count("\n```python\n") == sum(map(len, SECTIONS[page].values()))
