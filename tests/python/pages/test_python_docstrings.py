"""Tests docstrings of fdma and flash_dmattn: examples run, and public names have a docstring.

doctest runs the examples with `fdma` and `np` at hand, each in an empty folder. An example is
skipped if it imports a package that is not installed (PyTorch, h5py, ..).
"""

from __future__ import annotations

import builtins
import contextlib
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdma_module import FOLDER

PACKAGES = ("fdma", "flash_dmattn")
EXTRAS = ("torch", "scipy", "h5py", "matplotlib", "transformers")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names() -> list[str]:
    found = list(PACKAGES)
    for package in PACKAGES:
        folder = importlib.import_module(package).__path__
        found += [info.name for info in pkgutil.walk_packages(folder, f"{package}.")]
    return [name for name in found if name != "fdma._fdma"]


def examples() -> dict[str, doctest.DocTest]:
    found = {}
    for name in module_names():
        with contextlib.suppress(Exception):  # test_modules_import_alone reports this module
            for test in doctest.DocTestFinder().find(importlib.import_module(name)):
                if test.examples:
                    found[test.name] = test
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", module_names())
def test_modules_import_alone(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        pytest.skip(f"no {error.name}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = EXAMPLES[name]
    source = "".join(example.source for example in test.examples)
    for package in EXTRAS:
        imported = re.search(rf"^\s*(?:import|from) {package}\b", source, re.MULTILINE)
        if imported and importlib.util.find_spec(package) is None:
            pytest.skip(f"no {package}")
    monkeypatch.chdir(tmp_path)
    test.globs.update(fdma=importlib.import_module("fdma"), np=np)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)
    assert not report, "\n" + "".join(report)


def public_objects() -> dict[str, Any]:
    """Returns the functions and classes that a package offers, and the methods of these classes."""
    found: dict[str, Any] = {}
    for package_name in PACKAGES:
        package = importlib.import_module(package_name)
        for name, value in vars(package).items():
            home = str(getattr(value, "__module__", None))
            if name.startswith("_") or home.split(".")[0] not in PACKAGES:
                continue
            if inspect.isfunction(value) or inspect.isclass(value):
                found[f"{package_name}.{name}"] = value
            if inspect.isclass(value):
                for member_name, member in vars(value).items():
                    if not member_name.startswith("_"):
                        found[f"{package_name}.{name}.{member_name}"] = member
    return found


PUBLIC = public_objects()


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_a_docstring_with_an_example(name: str) -> None:
    """Properties and exceptions need a docstring; the other public names need an example, too."""
    value = PUBLIC[name]
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    is_data = not (inspect.isfunction(value) or inspect.isclass(value) or _is_accessor(value))
    if is_data:
        return
    text = inspect.getdoc(value) or ""
    assert text, f"{name} has no docstring"
    assert _is_accessor(value) or is_error or ">>> " in text, f"{name}: no example"


def _is_accessor(value: Any) -> bool:
    return isinstance(value, property) or hasattr(value, "func")  # this case is a cached_property


@pytest.mark.parametrize("package_name", PACKAGES)
def test_star_import_takes_what_exists_and_no_builtin(package_name: str) -> None:
    package = importlib.import_module(package_name)
    assert Path(str(package.__file__)).is_relative_to(FOLDER)
    names = list(package.__all__)
    assert names == sorted(set(names), key=names.index), "twice in __all__"
    assert [name for name in names if not hasattr(package, name)] == []
    assert [n for n in names if hasattr(builtins, n) and n != "compile"] == []
