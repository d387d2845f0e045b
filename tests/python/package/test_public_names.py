"""What is public needs nothing of the private module fdma._fdma: signatures, pages, errors."""

from __future__ import annotations

import inspect
import pickle
import pydoc
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


def test_dir_shows_the_public_names() -> None:
    assert set(dir(fdma)) == {*fdma.__all__, "abs", "all", "any", "max", "min"}
    assert all(hasattr(fdma, name) for name in dir(fdma))
    with pytest.raises(AttributeError, match=r"no attribute 'windw'; did you mean window\?$"):
        fdma.windw  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", ["q", "k", "b", "h", "q_len", "kv_len", "pos"])
def test_help_says_what_a_variable_is(name: str) -> None:
    variable = getattr(fdma, name)
    text = pydoc.render_doc(variable, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert f"<IntExpr '{name}'>\n    The " in text and "class IntExpr" not in text
    assert (variable + 1).__doc__ == fdma.IntExpr.__doc__ != variable.__doc__


def test_type_checkers_find_misspelt_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    program = tmp_path / "program.py"
    program.write_text(
        "import fdma\n"
        "fdma.windw(3)\n"
        "fdma.compile('causal', 4, num_thread=1, w=3)\n"
        "fdma.plan('causal', q=(1, 1, 4, 8), k=(1, 1, 4, 8), key_bais=True)\n"
        "fdma.compile('causal', 64).draw(head=1)\n"
        "def attend(x: str, with_lse: bool) -> None: fdma.attention(x, x, x, return_lse=with_lse)\n"
        "fdma.attention(1, 2, 3, is_causal=True)\n"
        "fdma.window(3), fdma.TraceError, fdma.trace_mask_mod, fdma.max(fdma.q, 3)\n"
    )
    monkeypatch.setenv("MYPYPATH", str(ROOT / "python_bindings"))
    options = ["--config-file=", f"--cache-dir={tmp_path}", "--follow-imports=silent"]
    found, _, _ = api.run([*options, str(program)])
    lines = [int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line]
    assert sorted(set(lines)) == [2, 4, 5, 7], found


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
