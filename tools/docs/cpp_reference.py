"""The C++ reference of the site: Doxygen over the public headers, one section a header.

On a page docs/api/cpp/<library>.rst the directive `public-headers` becomes a section for each
header `fdma/<library>/*.hpp`, with what Doxygen found there, shown by breathe. Every public
entity must be in the site (`check_complete`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]

# Patterns of the include folders; a public header is <folder>/fdma/<library>/**/*.hpp.
INCLUDE_ROOTS = (
    "*/include",
    "formats/io/include",
    "kernels/src/*/include",
    "formats/include_io",
    "kernels/select/include",
)

DOXYFILE = """
PROJECT_NAME = FDMA
OUTPUT_DIRECTORY = {output}
INPUT = {folders}
FILE_PATTERNS = *.hpp
RECURSIVE = YES
STRIP_FROM_PATH = {folders}
STRIP_FROM_INC_PATH = {folders}
INPUT_FILTER = "{python} {filter}"
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
INCLUDE_GRAPH = NO
INCLUDED_BY_GRAPH = NO
EXTRACT_ALL = YES
JAVADOC_AUTOBRIEF = YES
AUTOLINK_SUPPORT = NO
MARKDOWN_SUPPORT = NO
SORT_MEMBER_DOCS = NO
ENABLE_PREPROCESSING = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = FDMA_HOST_DEVICE=
INCLUDE_PATH = {folders}
EXPAND_AS_DEFINED = {rows}
QUIET = YES
WARNINGS = YES
WARN_IF_UNDOCUMENTED = NO
"""

# The macros of the rows (*.def) from which enumerators and members are made.
ROW_MACROS = (
    "FDMA_ARITHMETIC",
    "FDMA_OPERATOR",
    "FDMA_LANGUAGE_OPERATOR",
    "FDMA_PROGRAM_OPERATOR",
    "FDMA_NAMED_MASK",
    "FDMA_SCORE_PART",
)

DOXYGEN = ROOT / "build" / "docs" / "doxygen"

logger = logging.getLogger(__name__)


def include_folders() -> list[Path]:
    return sorted(folder for pattern in INCLUDE_ROOTS for folder in ROOT.glob(pattern))


def public_headers() -> dict[str, list[Path]]:
    """Of each library its public headers, sorted by name."""
    found: dict[str, list[Path]] = {}
    for folder in include_folders():
        for header in sorted(folder.rglob("*.hpp")):
            found.setdefault(header.relative_to(folder).parts[1], []).append(header)
    return found


def include_name(header: Path) -> str:
    """How a program includes the header: fdma/base/result.hpp."""
    return next(
        header.relative_to(folder).as_posix()
        for folder in include_folders()
        if header.is_relative_to(folder)
    )


def head_comment(header: Path) -> list[str]:
    """The `//` comment that opens a header."""
    lines: list[str] = []
    for line in header.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" "))
    return lines


def run_doxygen(output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    folders = " ".join(map(str, include_folders()))
    filter_program = Path(__file__).with_name("doxygen_filter.py")
    doxyfile = output / "Doxyfile"
    doxyfile.write_text(
        DOXYFILE.format(
            output=output,
            folders=folders,
            python=sys.executable,
            filter=filter_program,
            rows=" ".join(ROW_MACROS),
        ),
        encoding="utf-8",
    )
    done = subprocess.run(["doxygen", doxyfile], capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(f"doxygen:\n{done.stderr}")
    name_files_by_path(output / "xml")
    drop_row_macros(output / "xml")


def name_files_by_path(xml: Path) -> None:
    """Doxygen's index names files without folders, where breathe looks for the whole path."""
    index = ElementTree.parse(xml / "index.xml")
    for compound in index.iterfind("compound[@kind='file']"):
        location = ElementTree.parse(xml / f"{compound.get('refid')}.xml").find("*/location")
        name = compound.find("name")
        assert location is not None and name is not None
        name.text = location.get("file")
    index.write(xml / "index.xml", encoding="utf-8")


def drop_row_macros(xml: Path) -> None:
    """Headers define the macros of rows for a few lines, several of them alike; none is public."""
    for path in xml.glob("*.xml"):
        tree = ElementTree.parse(path)
        found = [
            (parent, member)
            for parent in tree.iter()
            for member in [*parent.findall("memberdef"), *parent.findall("member")]
            if member.get("kind") == "define" and member.findtext("name") in ROW_MACROS
        ]
        for parent, member in found:
            parent.remove(member)
        if found:
            for compound in tree.iter("compounddef"):
                for section in compound.findall("sectiondef"):
                    if section.find("memberdef") is None:
                        compound.remove(section)
            tree.write(path, encoding="utf-8")


class PublicHeaders(Directive):  # type: ignore[misc]
    """.. public-headers:: LIBRARY"""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        library = self.arguments[0]
        env = self.state.document.settings.env
        lines: list[str] = []
        for header in public_headers()[library]:
            name = include_name(header)
            env.note_dependency(str(header))
            lines += [name, "-" * len(name), ""]
            comment = head_comment(header)
            if any(line.startswith("  ") for line in comment):
                lines += ["::", "", *(f"    {line}".rstrip() for line in comment), ""]
            else:
                lines += [*(re.sub(r"([\\*_|`])", r"\\\1", line) for line in comment), ""]
            lines += [f".. doxygenfile:: {name}", "   :project: fdma", ""]
        node = nodes.section()
        node.document = self.state.document
        source = f"public headers of {library}"
        self.state.nested_parse(StringList(lines, source), 0, node, match_titles=1)
        return list(node.children)


def without_spaces(name: str) -> str:
    return name.replace(" ", "") if "<" in name else name


def public_entities(xml: Path) -> set[str]:
    """Qualified names of what the public headers declare, macros and public members included."""
    found: set[str] = set()
    for compound in ElementTree.parse(xml / "index.xml").iterfind("compound"):
        kind, name = compound.get("kind"), compound.findtext("name", "")
        definition = ElementTree.parse(xml / f"{compound.get('refid')}.xml").find("compounddef")
        assert definition is not None
        if kind == "file":
            macros = definition.iterfind("sectiondef/memberdef[@kind='define']")
            found.update(macro.findtext("name", "") for macro in macros)
            continue
        if kind not in ("class", "struct", "union", "namespace", "concept"):
            continue
        if kind != "namespace" and definition.get("prot") == "public":
            found.add(without_spaces(name))
        for member in definition.iterfind("sectiondef/memberdef[@prot='public']"):
            if member.get("kind") != "friend":
                found.add(without_spaces(f"{name}::{member.findtext('name', '')}"))
    return {name for name in found if "@" not in name}


def is_no_reopened_namespace(record: logging.logging.LogRecord) -> bool:
    """A namespace may be declared in many headers; everything else is declared once."""
    message = record.getMessage()
    return not re.search(r"Declaration is '\.\. cpp:type:: fdma(::[a-z_]+)?'", message)


def check_complete(app: Any, env: Any) -> None:
    """Warns of each public entity that has no place in the site."""
    objects = [*env.get_domain("cpp").get_objects(), *env.get_domain("c").get_objects()]
    shown = {without_spaces(found[0]) for found in objects}
    for name in sorted(public_entities(DOXYGEN / "xml") - shown):
        logger.warning("C++: %s is public and nowhere in the site", name)


def setup(app: Any) -> dict[str, bool]:
    for handler in logging.logging.getLogger("sphinx").handlers:
        # Before the filter that counts warnings.
        handler.filters.insert(0, is_no_reopened_namespace)
    app.add_directive("public-headers", PublicHeaders)
    app.connect("builder-inited", lambda app: run_doxygen(DOXYGEN))
    app.connect("env-check-consistency", check_complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
