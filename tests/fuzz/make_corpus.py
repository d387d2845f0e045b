"""Writes the specifications of docs/spec-language.md as files, a corpus for fuzz_parse.

python3 tests/fuzz/make_corpus.py corpus/
"""

import pathlib
import re
import sys


def main() -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    page = (root / "docs" / "spec-language.md").read_text(encoding="utf-8")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    blocks = re.findall(r"```mask\n(.*?)\n```", page, re.DOTALL)
    specs = [block.split("\n\n")[0] for block in blocks]
    for golden in sorted((root / "tests" / "golden" / "diagnostics").glob("*.txt")):
        cases = re.findall(r"==== .*\n((?s:.*?))\n----\n", golden.read_text(encoding="utf-8"))
        specs.extend(cases)
    for number, spec in enumerate(specs):
        (folder / f"spec_{number:03d}").write_text(spec, encoding="utf-8")


if __name__ == "__main__":
    main()
