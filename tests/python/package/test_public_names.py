"""What is public needs nothing of the private module fdma._fdma: signatures, pages, errors."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from fdma_module import FOLDER

# isort: split
import fdma
import flash_dmattn

assert FOLDER
ROOT = Path(__file__).parents[3]

# Pages and folders for who changes FDMA.
OF_DEVELOPERS = (
    "docs/architecture.md",
    "docs/developing",
    "docs/fuzzing.md",
    "docs/notes",
    "python_bindings/README.md",
)


def public_objects() -> dict[str, Any]:
    names = [(fdma, name) for name in fdma.__all__]
    names += [(flash_dmattn, name) for name in flash_dmattn.__all__]
    return {f"{module.__name__}.{name}": getattr(module, name) for module, name in names}


@pytest.mark.parametrize("name", public_objects())
def test_no_signature_names_the_core(name: str) -> None:
    value = public_objects()[name]
    members = {"": value}
    if inspect.isclass(value):
        assert value.__module__ != "fdma._fdma"
        members.update({k: v for k, v in vars(value).items() if not k.startswith("_")})
    for member, function in members.items():
        call = function.fget if isinstance(function, property) else function
        if callable(call) and not inspect.isclass(call):
            assert "_fdma" not in str(inspect.signature(call)), f"{name}.{member}"


def test_errors_are_those_of_the_package() -> None:
    with pytest.raises(fdma.MaskSyntaxError) as caught:
        fdma.compile("causal &", 4)
    assert type(caught.value).__module__ == "fdma"
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is fdma.MaskSyntaxError and str(again) == str(caught.value)


def test_pages_and_examples_use_the_package_alone() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.rst")]
    pages += [*ROOT.glob("*/README.md"), *ROOT.glob("examples/*.py")]
    for page in pages:
        name = page.relative_to(ROOT).as_posix()
        if not name.startswith(OF_DEVELOPERS):
            found = re.findall(r"\b_fdma\b(?!\.pyi)", page.read_text(encoding="utf-8"))
            assert not found, f"{name} names the private module"
