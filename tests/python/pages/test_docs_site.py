"""Tests the pages of the repository: links, anchors, code blocks and paths.

tools/docs.sh --check does the same. tools/docs.sh builds the whole site, with every public name of
C++ and Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
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


# The test that runs the examples of each page. Blocks of these languages run, whatever else a page
# holds.
EXAMPLES = {
    "README.md": "pages/test_readme.py",
    "docs/coming-from.md": "pages/test_python_docs.py",
    "docs/file-format.md": "tool/test_mask_file.py",
    "docs/maskc.md": "pages/test_readme.py",
    "docs/peer-formats.md": "pages/test_interop_docs.py",
    "docs/python.md": "pages/test_python_docs.py",
    "docs/developing/python-core.md": "core/test_module.py",
    "docs/spec-language.md": "../unit/masks/language/test_spec_language_doc.cpp",
    "masks/README.md": "pages/test_docs_site.py",
    "python_bindings/README.md": "core/test_module.py",
}


def test_examples_of_every_page_run_somewhere() -> None:
    runs = {"console", "cpp", "mask", "python"}
    found = set()
    for page in page_check.pages():
        languages = page_check.opened_blocks(page.read_text(encoding="utf-8"))
        if runs & {language for _, language in languages}:
            found.add(page.relative_to(ROOT).as_posix())
    assert found == set(EXAMPLES)
    for page_name, test_name in EXAMPLES.items():
        test = (ROOT / "tests" / "python" / test_name).read_text(encoding="utf-8")
        assert Path(page_name).name in test, f"{test_name} does not read {page_name}"


def test_cpp_example_compiles(tmp_path: Path) -> None:
    """The C++ of masks/README.md compiles as the body of a function behind its includes."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    page = (ROOT / "masks" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```cpp\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = block.splitlines()
    includes = [line for line in lines if line.startswith("#include")]
    body = [line for line in lines if not line.startswith("#include")]
    source = tmp_path / "example.cpp"
    equal = "return a.has_value() && b.has_value() && *a == *b;"
    source.write_text("\n".join([*includes, "bool example() {", *body, equal, "}\n"]))
    folders = [f"-I{ROOT / folder / 'include'}" for folder in ("formats", "masks")]
    command = [compiler, "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", *folders, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
