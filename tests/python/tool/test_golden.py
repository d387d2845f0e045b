"""Runs whole command lines of fdma-maskc against tests/golden/maskc/*.test.

A case is a text file: a line that says what it shows, `inputs:` (names of maskc_inputs), `exit:`,
then sections `--- command` (run by bash in a folder that holds only the inputs), `--- stdout`, `---
stderr` and `--- files` (the files that the command left). FDMA_REBASE_GOLDEN=1 rewrites the
expectations with the new output. <time> stands for times and <count> for the number of nodes of a
program, which better simplification may change.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from maskc_inputs import INPUTS

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "maskc"
MASKC = os.environ.get("FDMA_MASKC", "")
REBASE = os.environ.get("FDMA_REBASE_GOLDEN") == "1"

pytestmark = pytest.mark.skipif(not MASKC, reason="FDMA_MASKC does not name the built tool")


@dataclass
class Case:
    head: str
    inputs: list[str]
    exit: int
    sections: dict[str, str]

    def text(self) -> str:
        lines = [self.head, f"inputs: {', '.join(self.inputs)}".rstrip(), f"exit: {self.exit}"]
        for name in ("command", "stdout", "stderr", "files"):
            lines.append(f"--- {name}")
            if self.sections.get(name):
                lines.append(self.sections[name].removesuffix("\n"))
        return "\n".join(lines) + "\n"


def parse_case(path: Path) -> Case:
    preamble, *rest = re.split(r"^--- ", path.read_text(), flags=re.MULTILINE)
    head, *fields = preamble.rstrip("\n").split("\n")
    values = dict(field.split(":", 1) for field in fields)
    sections = {}
    for part in rest:
        name, _, body = part.partition("\n")
        sections[name.strip()] = body
    return Case(
        head,
        [name.strip() for name in values["inputs"].split(",") if name.strip()],
        int(values.get("exit", "0")),
        sections,
    )


def normalise(text: str) -> str:
    text = re.sub(r"\b\d+(\.\d+)? (us|ms|s)\b", "<time>", text)
    text = re.sub(r'("(?:compile_|store_)?seconds": )[-+0-9.e]+', r"\1<time>", text)
    text = re.sub(r'("num_nodes": )\d+|\d+( nodes)', r"\1<count>\2", text)
    return text if not text or text.endswith("\n") else text + "\n"


def run_case(case: Case, folder: Path) -> Case:
    work = folder / "work"
    work.mkdir()
    for name in case.inputs:
        INPUTS[name](work)
    before = {path.name for path in work.iterdir()}
    programs = folder / "bin"
    programs.mkdir()
    (programs / "fdma-maskc").symlink_to(Path(MASKC).resolve())
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LC_ALL": "C.UTF-8",
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LD_LIBRARY_PATH"):
        if name in os.environ:
            environment[name] = os.environ[name]
    done = subprocess.run(
        ["bash", "-c", case.sections["command"]],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    files = sorted(path.name for path in work.iterdir() if path.name not in before)
    sections = {
        "command": case.sections["command"],
        "stdout": normalise(done.stdout),
        "stderr": normalise(done.stderr),
        "files": "".join(f"{name}\n" for name in files),
    }
    shutil.rmtree(work)
    return Case(case.head, case.inputs, done.returncode, sections)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.test")), ids=lambda path: path.stem)
def test_golden(path: Path, tmp_path: Path) -> None:
    expected = parse_case(path)
    actual = run_case(expected, tmp_path)
    if REBASE:
        path.write_text(actual.text())
        return
    assert actual.text() == path.read_text()


def test_every_verb_has_its_help_frozen() -> None:
    frozen = {path.stem for path in GOLDEN.glob("help_*.test")}
    listed = subprocess.run([MASKC, "--help"], capture_output=True, text=True, check=True).stdout
    verbs = re.findall(
        r"^  ([a-z]+)\s", listed.split("\nverbs\n")[1].split("\n\n")[0], flags=re.MULTILINE
    )
    assert frozen == {f"help_{verb}" for verb in verbs} | {"help_tool"}
