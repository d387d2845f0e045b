"""Runs the examples of docs/peer-formats.md: the code and commands of each section, in order.

A section starts at `## name:`. Its blocks of Python share their variables, and a folder with its
commands. The assertions of the page must hold, and the mask of a section is compared with the cells
that its prose describes. A section is skipped if its packages are not installed.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from maskc_tool import maskc, needs_tool

pytestmark = needs_tool

PAGE = Path(__file__).resolve().parents[3] / "docs" / "peer-formats.md"
SECTION = re.compile(r"^## (\w+): .*\n((?:(?!^## ).*\n)*)", re.MULTILINE)
BLOCK = re.compile(r"^```(python|console)\n((?:(?!```).*\n)*)```$", re.MULTILINE)
IMPORT = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)


def padded_causal() -> Any:
    tokens = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool)
    return (np.tri(5, dtype=bool) & tokens[:, None, :])[:, None]


def windowed_documents() -> Any:
    i, document = np.arange(300), np.repeat([0, 1, 2], [70, 200, 30])
    distance = i[:, None] - i[None, :]
    cells = (distance >= 0) & (distance <= 127) & (document[:, None] == document[None, :])
    return cells[None, None]


def masked_documents() -> Any:
    return np.array(
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]], bool
    )[None, None]


def both_paddings() -> Any:
    tokens = np.array([[1, 1, 1, 0], [0, 1, 1, 1]], bool)
    return (np.tri(4, dtype=bool) & tokens[:, None, :])[:, None]


EXPECTED: dict[str, Callable[[], Any]] = {
    "bsr": lambda: np.kron(np.tri(4, 6, 2, dtype=bool), np.ones((20, 20), bool))[None, None],
    "cu_seqlens": windowed_documents,
    "dense": lambda: np.tri(50, 70, 20, dtype=bool)[None, None],
    "flash_mask": masked_documents,
    "flex": lambda: np.tri(1000, dtype=bool)[None, None],
    "hf_mask": both_paddings,
    "hf_padding": padded_causal,
}


def sections() -> dict[str, str]:
    return {match[1]: match[2] for match in SECTION.finditer(PAGE.read_text(encoding="utf-8"))}


def test_page_has_every_layout(tmp_path: Path) -> None:
    assert list(sections()) == list(EXPECTED)
    text = " ".join(maskc(tmp_path, "convert", "--help").split())
    choices = re.search(r"--from LAYOUT .*? One of ([\w, ]+)\.", text)
    assert choices is not None
    assert set(choices[1].split(", ")) - {"hf_mask_additive"} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = list(BLOCK.finditer(sections()[name]))
    assert [block[1] for block in blocks].count("python") >= 2
    for package in IMPORT.findall("".join(block[2] for block in blocks if block[1] == "python")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {}
    for kind, text in (block.groups() for block in blocks):
        if kind == "python":
            exec(compile(text, f"{PAGE.name}, {name}", "exec"), variables)
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line.removeprefix("$ "))
            assert program == "fdma-maskc"
            maskc(tmp_path, *words)
    with h5py.File("expected.h5", "w") as file:
        file["mask"] = EXPECTED[name]()
    maskc(tmp_path, "convert", "expected.h5:/mask", "-o", "cells.h5")
    maskc(tmp_path, "diff", "mask.h5", "cells.h5")
