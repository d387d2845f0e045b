"""python .ci/lint.py BUILD_FOLDER FILE..: clang-tidy over C++ sources, several at once.

Most of the time of clang-tidy goes into the headers of the system, which every source of a folder
includes again. So up to sixteen sources with the same flags are joined into one unity source and
checked together; the header filter names the sources too. Sources are joined by the rules of
cmake/united_sources.py. If there is a finding, the batch is halved down to single sources, so that
every reported finding is one of a single source; a batch that cannot be joined after all is found
out this way. Two checks of clang-tidy look at the main file only, so this script itself looks for
unused using-declarations and namespace aliases.

BUILD_FOLDER has compile_commands.json, and gets the folder lint/. The exit code is 0 iff nothing
was found.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cmake"))
from united_sources import batches, united

BATCH = 16
# Findings in these files are shown: those of .clang-tidy, and the sources.
SHOWN = r"((formats|masks|tools|benchmarks)/.*\.hpp|(formats|kernels|masks|tools)/.*\.cpp)$"
CHATTER = re.compile(
    r"^\d+ warnings? .*generated|^Suppressed |^Use -header-filter|^\d+ errors? generated"
)


class Linter:
    def __init__(self, build: Path, sources: list[Path]) -> None:
        self.folder = build / "lint"
        self.folder.mkdir(exist_ok=True)
        self.commands: dict[Path, tuple[str, list[str]]] = {}
        of_folder: dict[Path, tuple[str, list[str]]] = {}
        for entry in json.loads((build / "compile_commands.json").read_text()):
            source = Path(entry["file"])
            words = shlex.split(entry["command"])
            for option in ("-o", "-c"):
                at = words.index(option)
                del words[at : at + 2]
            # clang-tidy does not know the compiler launcher, so it is removed from the command.
            first = next(i for i, word in enumerate(words) if Path(word).name != "ccache")
            command = (entry["directory"], words[first + 1 :])
            of_folder.setdefault(source.parent, command)
            if source in sources:
                self.commands.setdefault(source, command)
        # A source that this build leaves out is read like its neighbours.
        for source in sources:
            if source.parent in of_folder:
                self.commands.setdefault(source, of_folder[source.parent])

    def batches(self) -> list[list[Path]]:
        """Sources of one folder with the same flags, at most BATCH together."""
        alike: dict[tuple[Any, ...], list[Path]] = {}
        for source, (directory, flags) in sorted(self.commands.items()):
            alike.setdefault((source.parent, directory, *flags), []).append(source)
        return [batch for sources in alike.values() for batch in batches(sources, BATCH)]

    def lint(self, batch: list[Path]) -> list[str]:
        """What clang-tidy says of the sources; nothing where all is well."""
        name = united(self.folder / re.sub(r"\W", "_", str(batch[0].parent)), batch)
        directory, flags = self.commands[batch[0]]
        run = subprocess.run(
            [
                "clang-tidy-14",
                "--quiet",
                f"--header-filter={SHOWN}",
                f"--config-file={Path('.clang-tidy').resolve()}",
                str(name),
                "--",
                *flags,
                "-Wno-unknown-warning-option",
            ],
            cwd=directory,
            capture_output=True,
            text=True,
        )
        if run.returncode == 0:
            return []
        if len(batch) > 1:
            half = len(batch) // 2
            return self.lint(batch[:half]) + self.lint(batch[half:])
        lines = (run.stdout + run.stderr).splitlines()
        return [line for line in lines if not CHATTER.search(line)]


def unused_names(source: Path) -> list[str]:
    """Names that `using a::b;` or `namespace b = a;` declares and the source never says again."""
    text = re.sub(r"//[^\n]*", "", source.read_text())
    declared = re.findall(r"^\s*using\s+[\w:]*::(\w+);", text, re.M)
    declared += re.findall(r"^\s*namespace\s+(\w+)\s*=", text, re.M)
    found = [name for name in declared if len(re.findall(rf"\b{name}\b", text)) == 1]
    return [f"{source}: error: '{name}' is declared and never used" for name in found]


def main() -> int:
    sources = [Path(name).resolve() for name in sys.argv[2:]]
    linter = Linter(Path(sys.argv[1]).resolve(), sources)
    findings = [
        f"{source}: error: no compile command"
        for source in sources
        if source not in linter.commands
    ]
    findings += [line for source in sources for line in unused_names(source)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for lines in pool.map(linter.lint, linter.batches()):
            findings += lines
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
