"""The Python reference of the site: autodoc over the package as it lies, without a build.

The module fdma._fdma is taken from its stub, python_bindings/fdma/_fdma.pyi, which a test holds to
what the module gives (tests/python): signatures and docstrings are the same, and nothing has to be
compiled. PyTorch has to be there, for fdma.nn and fdma.hf import it. Docstrings are plain text, so
that `help()` reads well; `as_rst` marks it up.
"""

from __future__ import annotations
import __future__

import importlib
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.util import logging

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "python_bindings"
STUB = PACKAGES / "fdma" / "_fdma.pyi"

# Modules whose names are public: those of `__all__`.
MODULES = ("fdma", "fdma.hf", "fdma.nn", "flash_dmattn")


def core_from_stub(version: str) -> types.ModuleType:
    """fdma._fdma as its stub describes it; overloads count as one function with all docstrings."""
    overloads: dict[str, Any] = {}

    def overload(function: Any) -> Any:
        first = overloads.setdefault(function.__qualname__, function)
        if first is not function and function.__doc__ and function.__doc__ != first.__doc__:
            first.__doc__ = f"{first.__doc__ or ''}\n\n{function.__doc__}"
        return first

    module = types.ModuleType("fdma._fdma")
    module.__file__ = str(STUB)
    flags = __future__.annotations.compiler_flag
    code = compile(STUB.read_text(encoding="utf-8"), str(STUB), "exec", flags, dont_inherit=True)
    original, typing.overload = typing.overload, overload  # type: ignore[assignment]
    try:
        exec(code, module.__dict__)
    finally:
        typing.overload = original
    module.__dict__["__version__"] = version
    return module


def public_names(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    return [str(name) for name in module.__all__ if not name.startswith("__")]


def marked_up(line: str) -> str:
    """A line of prose with nothing in it that reStructuredText would read, but for code."""
    parts = line.replace("``", "`").split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([\\*`|_])", r"\\\1", line)
    for i, part in enumerate(parts):
        parts[i] = f"``{part}``" if i % 2 else re.sub(r"([\\*|_])", r"\\\1", part)
    return "".join(parts)


def as_rst(lines: list[str]) -> Iterator[str]:
    """Prose marked up, examples as they are, whatever is indented as a literal block."""
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line)
            continue
        if paragraph and paragraph[0].lstrip().startswith(">>>"):
            yield from paragraph
        elif paragraph:
            first = next((i for i, text in enumerate(paragraph) if text.startswith(" ")), None)
            prose = paragraph[:first]
            yield from (marked_up(text) for text in prose)
            if first is not None:
                yield from ("", "::", "")
                yield from (f"    {text}" for text in paragraph[first:])
        yield ""
        paragraph = []


def process_docstring(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    lines[:] = list(as_rst(lines))


def check_complete(app: Any, env: Any) -> None:
    """Warns of each public name that has no place in the site."""
    shown = {found[0] for found in env.get_domain("py").get_objects()}
    wanted = {f"{module}.{name}" for module in MODULES for name in public_names(module)}
    for name in sorted(wanted - shown):
        logger.warning("Python: %s is public and nowhere in the site", name)


def setup(app: Any) -> dict[str, bool]:
    sys.path.insert(0, str(PACKAGES))
    sys.modules.setdefault("fdma._fdma", core_from_stub(app.config.release))
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in public_names(module_name):
            # What a module loads when it is first asked for; autodoc does not ask.
            setattr(module, name, getattr(module, name))
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("env-check-consistency", check_complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
