"""python .ci/kernel_record.py chosen|check|write BUILD_FOLDER

The record of the kernels, kernels/instances.json: for each instance of the sm_90a kernels a digest
of its source, for each kernel of the library the registers, spilled bytes, stack and static shared
memory that ptxas reported. BUILD_FOLDER is configured with CUDA.

chosen  prints the instances that a change must compile, as -DFDMA_SM90_INSTANCES takes them: those
        whose digest is not that of the record, those whose rows of the record changed within a day
        of the last commit, and an eighth of the others, another one for every commit.
check   compares what the build folder compiled with the record. The exit code is 0 iff nothing
        differs; otherwise the lines say what does and how the record is made anew.
write   compiles every kernel of the library (FDMA_SM90_INSTANCES=all) and makes the record anew.

The digest covers the text of the instance and of every file of the repository that it includes,
directly or not, without comments, spaces and #include lines: edits of comments and moves of files
keep it. It needs no compiler. The version and the options of nvcc stand for what lies outside the
repository; they are in the record as well. Numbers of another version are not compared.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "kernels" / "instances.json"
SAMPLE = 8

TOKEN = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*"
    | \b\d[\w']* | '(?:\\.|[^'\\\n])*' | \s+""",
    re.VERBOSE | re.DOTALL,
)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)".*$', re.MULTILINE)


def meaning(text: str) -> str:
    """The text without comments, #include lines and spaces beside the single ones between words."""

    def kept(token: re.Match[str]) -> str:
        found = token.group()
        return " " if found.startswith(("//", "/*")) or found.isspace() else found

    return " ".join(TOKEN.sub(kept, INCLUDE.sub("", text)).split())


@cache
def headers() -> dict[str, list[Path]]:
    """The files of the repository that can be included, by their last name."""
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in ("formats", "kernels", "masks", "tests/gpu"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".hpp", ".cuh", ".h", ".def"):
                found[path.name].append(path)
    return found


@cache
def digest_and_includes(path: Path) -> tuple[str, tuple[Path, ...]]:
    text = path.read_text(encoding="utf-8")
    # An include that two files answer to counts as both.
    reached = [
        file
        for name in INCLUDE.findall(text)
        for file in headers()[Path(name).name]
        if file.as_posix().endswith("/" + name)
    ]
    return hashlib.sha256(meaning(text).encode()).hexdigest(), tuple(reached)


def digest(source: Path) -> str:
    """That of the source and of all that it includes, whatever their names and their order."""
    seen, waiting = {source}, [source]
    while waiting:
        for file in digest_and_includes(waiting.pop())[1]:
            if file not in seen:
                seen.add(file)
                waiting.append(file)
    parts = sorted({digest_and_includes(file)[0] for file in seen})
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


class Build:
    """What a configured build folder says of the kernels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        cached = (folder / "CMakeCache.txt").read_text(encoding="utf-8")
        compiler = re.search(r"^FDMA_NVCC:FILEPATH=(.+)$", cached, re.MULTILINE)
        if not compiler or compiler[1].endswith("NOTFOUND"):
            raise SystemExit(f"kernel_record: {folder} is configured without nvcc")
        said = subprocess.run(
            [compiler[1], "--version"], capture_output=True, text=True, check=True
        )
        version = re.search(r"\bV(\d[\d.]*)", said.stdout)
        if not version:
            raise SystemExit(f"kernel_record: {compiler[1]} --version names no version")
        self.nvcc = version[1]
        self.instances = {
            path.stem: path
            for path in sorted((folder / "kernels" / "sm90").glob("*.cu"))
            if path.stem != "left_out"
        }
        chosen = re.search(r"^FDMA_SM90_INSTANCES:\w+=(.*)$", cached, re.MULTILINE)
        names = chosen[1].split(";") if chosen else ["all"]
        self.compiled = [name for name in self.instances if name in names or names == ["all"]]
        self.sources = [path.stem for path in (ROOT / "kernels").rglob("*.cu")]

    def digests(self) -> dict[str, str]:
        return {name: digest(path) for name, path in self.instances.items()}

    def options(self) -> str:
        """Those of nvcc that decide about machine code."""
        rule = (ROOT / "cmake" / "cuda.cmake").read_text(encoding="utf-8")
        found = re.search(r"-std=\S+\s+-gencode \S+ -O\d", rule)
        return " ".join(found[0].split()) if found else ""

    def kernels(self) -> list[dict[str, Any]]:
        """A row for each kernel that was compiled, from the logs of cmake/nvcc_checked.sh."""
        rows = []
        for name in sorted([*self.compiled, *self.sources]):
            log = self.folder / "kernels" / "fdma_kernels.cuda" / f"{name}.cu.o.ptxas.log"
            if log.exists():  # the cuSPARSE path may be left out
                rows += kernels_of(name, log.read_text(encoding="utf-8"))
        return rows


ENTRY = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def kernels_of(source: str, log: str) -> list[dict[str, Any]]:
    entries = list(ENTRY.finditer(log))
    demangled = subprocess.run(
        ["c++filt"],
        input="\n".join(entry["kernel"] for entry in entries),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    rows = []
    for entry, name in zip(entries, demangled, strict=True):
        shared = re.search(r"(\d+) bytes smem", entry["rest"])
        # nvcc gives an anonymous namespace a name that depends on the folder.
        name = re.sub(r"_GLOBAL__N__\w+", "(anonymous namespace)", name)
        rows.append(
            {
                "source": source,
                "kernel": re.sub(r"\b(fdma|sm90|gpu)::|\(\w+\)(?=-?\w)|^void ", "", name),
                "registers": int(entry["registers"]),
                "spilled_bytes": int(entry["stores"]) + int(entry["loads"]),
                "stack_bytes": int(entry["stack"]),
                "shared_bytes": int(shared[1]) if shared else 0,
            }
        )
    return sorted(rows, key=lambda row: json.dumps(row))


def read_record(text: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(text)
    return record


def by_source(record: dict[str, Any]) -> dict[str, list[Any]]:
    """What the record says of each source."""
    said: dict[str, list[Any]] = defaultdict(list)
    for row in [*record["instances"], *record["kernels"]]:
        said[row.get("source") or row["instance"]].append(row)
    return said


def git(*arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip()


def record_of_yesterday() -> dict[str, list[Any]] | None:
    """What the record said a day before the last commit; None where there was none."""
    newest = int(git("log", "-1", "--format=%ct") or 0)
    base = git("rev-list", "-1", f"--before={newest - 86400}", "HEAD")
    text = git("show", f"{base}:{RECORD.relative_to(ROOT).as_posix()}") if base else ""
    return by_source(read_record(text)) if text else None


def chosen(build: Build) -> int:
    digests = build.digests()
    record = read_record(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else None
    if not record or (record["nvcc"], record["options"]) != (build.nvcc, build.options()):
        print("all")
        print("kernel_record: no record of this nvcc and its options", file=sys.stderr)
        return 0
    known = {row["instance"]: row["digest"] for row in record["instances"]}
    before, now = record_of_yesterday(), by_source(record)
    part = int(git("rev-parse", "--short=4", "HEAD") or "0", 16) % SAMPLE
    changed, sample = [], []
    for number, (name, found) in enumerate(digests.items()):
        if known.get(name) != found or before is None or before.get(name) != now[name]:
            changed.append(name)
        elif number % SAMPLE == part:
            sample.append(name)
    print(";".join([*changed, *sample]))
    print(
        f"-- kernel instances: {len(changed)} changed and a sample of {len(sample)} are compiled, "
        f"of {len(digests)}",
        file=sys.stderr,
    )
    return 0


def check(build: Build) -> int:
    renew = f"renew it: .venv/bin/python .ci/kernel_record.py write {build.folder}"
    if not RECORD.exists():
        print(f"kernel_record: {RECORD} is missing; {renew}")
        return 1
    record = read_record(RECORD.read_text(encoding="utf-8"))
    found = []
    known = {row["instance"]: row["digest"] for row in record["instances"]}
    digests = build.digests()
    for name in sorted({*known, *digests}):
        if known.get(name) != digests.get(name):
            was, is_now = known.get(name, "no instance"), digests.get(name, "no instance")
            found.append(f"{name}: source {was} is now {is_now}")
    gone = {row["source"] for row in record["kernels"]} - {*build.instances, *build.sources}
    found += [f"{name}: recorded kernels of a source that is gone" for name in sorted(gone)]
    rows = build.kernels()
    if record["options"] != build.options():
        found.append(f"nvcc's options: {record['options']!r} are now {build.options()!r}")
    if record["nvcc"] != build.nvcc:
        versions = f"the record is of nvcc {record['nvcc']}, this is {build.nvcc}"
        print(f"-- kernels: {versions}; no numbers compared")
    else:
        compiled = {row["source"] for row in rows}
        lines = {json.dumps(row) for row in rows}
        recorded = {json.dumps(row) for row in record["kernels"] if row["source"] in compiled}
        found += [f"recorded, not so compiled: {line}" for line in sorted(recorded - lines)]
        found += [f"compiled, not so recorded: {line}" for line in sorted(lines - recorded)]
        print(f"-- kernels: {len(rows)} compiled ones compared with the record")
    for line in found:
        print(line)
    if found:
        print(f"kernel_record: {RECORD.relative_to(ROOT)} is not that of these sources; {renew}")
    return 1 if found else 0


def write(build: Build) -> int:
    folder = str(build.folder)
    configure = ["cmake", "-S", str(ROOT), "-B", folder, "-DFDMA_SM90_INSTANCES=all"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--target", "fdma_kernels"], check=True)
    build = Build(build.folder)
    instances = [{"instance": name, "digest": found} for name, found in build.digests().items()]
    rows = {"instances": instances, "kernels": build.kernels()}
    text = f'{{\n"nvcc": {json.dumps(build.nvcc)},\n"options": {json.dumps(build.options())},\n'
    text += ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in found) + "\n]"
        for name, found in rows.items()
    )
    RECORD.write_text(text + "\n}\n", encoding="utf-8")
    print(
        f"-- {RECORD.relative_to(ROOT)}: {len(instances)} instances, {len(rows['kernels'])} kernels"
    )
    return 0


COMMANDS = {"chosen": chosen, "check": check, "write": write}


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in COMMANDS:
        print("usage: kernel_record.py chosen|check|write BUILD_FOLDER", file=sys.stderr)
        return 2
    return COMMANDS[sys.argv[1]](Build(Path(sys.argv[2])))


if __name__ == "__main__":
    sys.exit(main())
