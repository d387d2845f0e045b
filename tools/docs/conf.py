"""The documentation site: every page of the repository, and the C++ and Python reference.

tools/docs.sh builds it with the root of the repository as source folder, so that a link between
pages, or to a file, is the same on the site and where the pages are read as they lie.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from page_check import PAGES

ROOT = Path(__file__).resolve().parents[2]

project = "FDMA"
copyright = "FDMA's authors"
_version = re.search(
    r"project\(fdma VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
)
assert _version is not None
version = release = _version[1]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "breathe",
    "pages",
    "cpp_reference",
    "python_reference",
]

root_doc = "docs/README"
include_patterns = [*PAGES, "docs/api/**.rst"]
# Folders without pages are not walked.
exclude_patterns = [".*", "build*", "tests", "tools", "benchmarks", "**/src", "**/include*"]

myst_heading_anchors = 4
highlight_language = "none"
smartquotes = False

breathe_projects = {"fdma": str(ROOT / "build" / "docs" / "doxygen" / "xml")}
breathe_default_project = "fdma"
breathe_default_members = ("members", "undoc-members")
breathe_show_include = False
cpp_index_common_prefix = ["fdma::"]
cpp_maximum_signature_line_length = 100

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"FDMA {release}"
html_copy_source = False
