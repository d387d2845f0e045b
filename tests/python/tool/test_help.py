"""Tests the help of fdma-maskc: examples run, and manual and completion know every option."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from maskc_inputs import dense, docs, qkv
from maskc_tool import MASKC, maskc, needs_tool

pytestmark = needs_tool

VERBS = (
    "compile",
    "convert",
    "combine",
    "pack",
    "rm",
    "ls",
    "inspect",
    "check",
    "diff",
    "render",
    "run",
    "bench",
    "estimate",
    "calibrate",
    "completion",
)


def examples(text: str, heading: str) -> list[str]:
    """Returns the command lines below a heading of a help text; a backslash continues a line."""
    lines = text.split(f"\n{heading}\n")[1].replace("\\\n      ", "").split("\n")
    return [line.strip() for line in lines if line.startswith("    ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes the files that the examples mention."""
    path = tmp_path_factory.mktemp("examples")
    docs(path)
    dense(path)
    qkv(path)
    causal = np.tril(np.ones((1, 48, 48), bool))
    with h5py.File(path / "keep.h5", "w") as file:
        file["attention_mask"] = np.ones((2, 48), np.int64)
    with h5py.File(path / "bias.h5", "w") as file:
        file["bias"] = np.where(causal, 0, -1e4).astype(np.float32)
    random = np.random.default_rng(0)
    with h5py.File(path / "kv.h5", "w") as file:
        file["values"] = random.standard_normal((1, 131072, 4, 16), np.float32).astype(np.float16)
        file["dt_proj"] = random.standard_normal((4, 64), np.float32) / 8
        file["a_coef"] = np.full(4, -1, np.float32)
    for name in ("out", "mask"):
        maskc(path, "convert", "dense.h5:/mask", "--name", "packed", "-o", f"{name}.h5")
    packed = ["--spec", "causal & documents(lengths=@len)", "--table", "len=docs.h5:/lengths"]
    maskc(path, "compile", *packed, "--q-len", "8192", "-o", "packed.h5")
    maskc(path, "convert", "packed.h5", "--to", "cu_seqlens", "-o", "varlen.h5")
    maskc(
        path, "compile", "--spec", "k <= q + h", "--heads", "8", "--q-len", "64", "-o", "heads.h5"
    )
    with h5py.File(path / "all.h5", "w") as everything:
        everything.create_group("masks")
        for file, name, spec in (("a", "local", "window(8)"), ("b", "global", "causal")):
            words = ["--spec", spec, "--q-len", "64", "--name", name]
            maskc(path, "compile", *words, "-o", f"{file}.h5")
            with h5py.File(path / f"{file}.h5") as one:
                everything.attrs.update(one.attrs)
                one.copy(f"masks/{name}", everything["masks"])
    return path


@pytest.mark.parametrize("verb", ["", *VERBS[:-1]])
def test_examples_run_as_written(folder: Path, tmp_path: Path, verb: str) -> None:
    work = shutil.copytree(folder, tmp_path / "work")
    text = maskc(work, *([verb] if verb else []), "--help")
    lines = examples(text, "examples" if verb else "first steps")
    assert len(lines) >= 3
    for line in lines:
        # Each example writes to a free place; it may read what an earlier example wrote.
        output = re.search(r" -o (\S+)", line)
        if output and verb != "pack":
            (work / output[1]).unlink(missing_ok=True)
        command = line.replace("fdma-maskc", MASKC)
        done = subprocess.run(
            ["bash", "-c", command], cwd=work, capture_output=True, text=True, check=False
        )
        differs = verb == "diff" and done.returncode == 1
        assert done.returncode == 0 or differs, f"{line}\n{done.stderr}"
        assert done.stderr == ""


def long_options(folder: Path, verb: str) -> list[str]:
    return re.findall(r"^  (?:-\w, |    )--([a-z-]+)", maskc(folder, verb, "--help"), re.MULTILINE)


def test_the_manual_has_every_verb_and_option(tmp_path: Path) -> None:
    page = maskc(tmp_path, "man-page").replace("\\-", "-")
    for verb in VERBS:
        assert f".SS fdma-maskc {verb} " in page
        for option in long_options(tmp_path, verb):
            assert f"\\fB--{option}\\fR" in page
    if shutil.which("groff") is None:
        pytest.skip("groff, which formats the page, is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww"],
        input=maskc(tmp_path, "man-page"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_has_every_option_and_parses(tmp_path: Path, shell: str) -> None:
    script = maskc(tmp_path, "completion", shell)
    dashes = "-l " if shell == "fish" else "--"
    for verb in VERBS:
        for option in long_options(tmp_path, verb):
            assert f"{dashes}{option}" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_version_names_libraries_and_backends(tmp_path: Path) -> None:
    text = maskc(tmp_path, "--version")
    first, *lines = text.splitlines()
    assert re.fullmatch(r"fdma-maskc \d+\.\d+\.\d+", first)
    named = {line.split()[0]: line for line in lines}
    assert list(named) == ["libraries", "filters", "simd", "cpu", "sm90"]
    for library in ("HDF5", "libdeflate", "oneTBB", "libpng", "Boost", "fmt"):
        assert re.search(rf"{library} \d+\.\d+", named["libraries"])
    for name in ("gzip", "lzf", "shuffle", "fletcher32"):
        assert name in named["filters"]
    assert named["cpu"].endswith("runs here")
    assert maskc(tmp_path, "-V") == maskc(tmp_path, "version") == text


def test_every_verb_has_a_manual_page(tmp_path: Path) -> None:
    for verb in VERBS:
        page = maskc(tmp_path, "man-page", verb).replace("\\-", "-")
        assert page.startswith(f".TH FDMA-MASKC-{verb.upper()} 1 ")
        for option in long_options(tmp_path, verb):
            assert f"\\fB--{option}\\fR" in page


def test_pages_of_help_are_those_of_docs(tmp_path: Path) -> None:
    docs_folder = Path(__file__).resolve().parents[3] / "docs"
    for topic, name in {
        "language": "spec-language.md",
        "tool": "maskc.md",
        "json": "json-schema.md",
        "files": "file-format.md",
        "peers": "peer-formats.md",
        "estimates": "estimates.md",
    }.items():
        assert maskc(tmp_path, "help", topic) == (docs_folder / name).read_text()
        assert f"  {topic} " in maskc(tmp_path, "--help")


def test_every_named_mask_has_a_section_of_help(tmp_path: Path) -> None:
    for name in ("causal", "window", "documents", "tree", "natten2d", "topk"):
        assert maskc(tmp_path, "help", "language", name).startswith(f"### {name}\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fdma-maskc combine x", {"xor"}),
        ("fdma-maskc convert --format=b", {"bitset", "bcsr"}),
        ("fdma-maskc convert --format b", {"bitset", "bcsr"}),
        ("fdma-maskc estimate --device h", {"h100", "h200", "heads.h5"}),
        ("fdma-maskc inspect all.h5:", {"local", "global"}),
        ("fdma-maskc inspect all.h5:lo", {"local"}),
        ("fdma-maskc convert dense.h5:/", {"/mask"}),
        ("fdma-maskc help lan", {"language"}),
        ("fdma-maskc insp", {"inspect"}),
    ],
)
def test_bash_completes(folder: Path, line: str, expected: set[str]) -> None:
    script = maskc(folder, "completion", "bash")
    command = f"""{script}
fdma-maskc() {{ "{MASKC}" "$@"; }}
COMP_LINE={line!r}
COMP_POINT=${{#COMP_LINE}}
_fdma_maskc
printf '%s\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert set(done.stdout.split()) == expected
