"""Tests that fdma/_fdma.pyi is the stub that nanobind makes of the module.

FDMA_REBASE_GOLDEN=1 writes it again. python_bindings/stub_patterns.txt replaces some entries; their
parameters are compared with the module. A signature in C++ (nb::sig) is compared with the arguments
beside it. Neither can therefore change alone.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fdma_module import FOLDER, fdma

ROOT = Path(__file__).parents[3]
STUB = ROOT / "python_bindings" / "fdma" / "_fdma.pyi"
PATTERNS = ROOT / "python_bindings" / "stub_patterns.txt"
BINDINGS = ROOT / "python_bindings" / "src"


def generated_stub(path: Path) -> str:
    """Returns the stub of the built module, formatted as the repository is."""
    pytest.importorskip("nanobind")
    pytest.importorskip("ruff")
    stubgen = [sys.executable, "-m", "nanobind.stubgen", "--quiet", "--module=fdma._fdma"]
    environment = {**os.environ, "PYTHONPATH": os.fspath(FOLDER)}
    arguments = [*stubgen, f"--pattern-file={PATTERNS}", f"--output-file={path}"]
    subprocess.run(arguments, env=environment, check=True)
    # stubgen imports the modules that signatures name, in addition to the imports of the patterns.
    for action in (["check", "--fix-only", "--select=I,F811"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *action, "--quiet", "--no-cache"]
        subprocess.run([*ruff, "--config", ROOT / "pyproject.toml", path], check=True)
    return path.read_text(encoding="utf-8")


def test_stub_is_what_the_module_gives(tmp_path: Path) -> None:
    text = generated_stub(tmp_path / "_fdma.pyi")
    if os.environ.get("FDMA_REBASE_GOLDEN") == "1":
        STUB.write_text(text, encoding="utf-8")
    assert STUB.read_text(encoding="utf-8") == text, (
        "the module and fdma/_fdma.pyi differ: build _fdma, then run "
        "FDMA_REBASE_GOLDEN=1 pytest tests/python/package/test_python_stub.py"
    )


def functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields functions and methods, except properties and what the module itself does not hold."""
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name[0] != "_" and node.name != "NewArray":
            yield from functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
            if "property" not in decorators:
                yield prefix + node.name, node


def parameters(function: ast.FunctionDef, with_defaults: bool) -> list[str]:
    """Returns the names, with `*` before keyword-only ones and `=` after those with a default."""
    arguments = function.args
    positional = arguments.posonlyargs + arguments.args
    num_required = len(positional) - len(arguments.defaults)
    names = [a.arg + "=" * (i >= num_required) for i, a in enumerate(positional)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    names += [f"*{a.arg}" + "=" * (default is not None) for a, default in keywords]
    return names if with_defaults else [name.rstrip("=") for name in names]


def signatures_of_module(name: str) -> list[ast.FunctionDef]:
    value: Any = fdma
    for part in name.split("."):
        value = getattr(value, part)
    found = []
    for signature, *_ in getattr(value, "__nb_signature__", ()):
        # A default is a reference into a tuple: \0, \1, ..
        node = ast.parse(re.sub(r"\\\d+", "0", signature) + ": ...").body[0]
        assert isinstance(node, ast.FunctionDef)
        found.append(node)
    return found


def test_parameters_of_the_stub_are_those_of_the_module() -> None:
    """An overload of the stub may leave out that a parameter has a default, and nothing else."""
    checked = 0
    for name, function in functions(ast.parse(STUB.read_text(encoding="utf-8")).body):
        exact = not function.decorator_list
        known = [parameters(f, exact) for f in signatures_of_module(name)]
        assert parameters(function, exact) in known, name
        checked += 1
    assert checked > 30


def calls_with_a_signature(text: str) -> Iterator[str]:
    """Yields the arguments of each .def.. in C++ that has nb::sig, with literals joined."""
    # Comments are removed, and adjacent string literals become one.
    text = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r'"\s*\n\s*"', "", text)
    calls = re.split(r"\.def\w*\(", text)[1:]
    yield from (call for call in calls if re.search(r"nb::sig\(\s*\"", call))


def test_signatures_in_cpp_are_those_of_their_arguments() -> None:
    checked = 0
    for path in sorted(BINDINGS.rglob("*.cpp")):
        for call in calls_with_a_signature(path.read_text(encoding="utf-8")):
            found = re.search(r'nb::sig\(\s*"([^"]*)"', call)
            assert found is not None
            function = ast.parse(found[1] + ": ...").body[0]
            assert isinstance(function, ast.FunctionDef)
            given = re.findall(
                r'nb::arg\("(\w+)"\)(?:\.\w+\(\))?( =)?|(nb::kw_only)', call[: found.start()]
            )
            expected, star = [], ""
            for name, default, keywords_only in given:
                if keywords_only:
                    star = "*"
                else:
                    expected.append(star + name + "=" * bool(default))
            assert [p for p in parameters(function, True) if p != "self"] == expected, found[1]
            checked += 1
    assert checked > 40
