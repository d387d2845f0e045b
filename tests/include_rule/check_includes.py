"""Checks the #include lines of every C++ and CUDA source against the layering.

Link targets refuse wrong includes of FDMA's own headers; libraries in /usr/include are visible to
every target, so the rule for them is checked on the text: who may include which library, and which
libraries public headers may mention. So is the rule for the rooms of a library (rooms.py), whose
sources all see each other's headers.

    python3 check_includes.py <source tree>

The subpackages of the Python package import each other by the same rule.

Prints one line per violation; exit code 1 if there are any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rooms import PYTHON_ROOMS, ROOMS, has_cycle, room_of

FOLDERS = ("formats", "masks", "kernels", "tools", "tests", "benchmarks", "python_bindings")

# Prefix of an include -> folders (or subfolders) whose sources may have it.
ALLOWED: dict[str, tuple[str, ...]] = {
    "fdma/masks/": ("masks", "tools", "tests", "benchmarks", "python_bindings"),
    "fdma/io/": ("formats/io", "tools", "tests", "benchmarks"),
    "hdf5.h": ("formats/io", "tests"),
    "H5": ("formats/io", "tests"),
    "boost/program_options": ("tools",),
    "png.h": ("tools",),
    "nlohmann/": ("formats/io", "kernels/src", "tools", "tests", "benchmarks"),
    # Tests run vector code once per instruction set.
    "hwy/": ("kernels/src", "formats/io", "tests/unit"),
    "spdlog/": ("tools",),
    "nanobind/": ("python_bindings",),
    "cuda.h": ("kernels", "tests/gpu"),
    "cuda_": ("kernels", "tests/gpu"),
    "cusparse.h": ("kernels/src/cusparse",),
    "cub/": ("kernels",),
    "gtest/": ("tests",),
    "gmock/": ("tests",),
    "rapidcheck": ("tests",),
    "benchmark/": ("benchmarks",),
}

# What public headers leave to source files: their users need not have these libraries' headers.
PRIVATE = ("fmt/", "tbb/", "oneapi/", "hwy/", "xxhash", "H5", "hdf5", "spdlog/", "nlohmann/")

# What some folders must not know, though the compiler would find it.
DENIED: dict[str, tuple[str, ...]] = {
    "formats/include/fdma/base": ("fdma/formats/",),
    "formats/src/base": ("fdma/formats/",),
    "formats/private/fdma/base": ("fdma/formats/",),
    "kernels/src/selection": (
        "fdma/kernels/attention",
        "fdma/kernels/plan",
        "fdma/kernels/device_plan",
    ),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def violations(root: Path) -> list[str]:
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".cpp", ".hpp", ".cu", ".cuh", ".h"):
                continue
            relative = path.relative_to(root).as_posix()
            public = "/include/" in relative
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                header = match.group(1)
                for prefix, places in ALLOWED.items():
                    if header.startswith(prefix) and not any(
                        relative.startswith(place + "/") for place in places
                    ):
                        found.append(
                            f"{relative}:{number}: {header} belongs to {', '.join(places)} only"
                        )
                for place, prefixes in DENIED.items():
                    if relative.startswith(place + "/") and header.startswith(prefixes):
                        found.append(f"{relative}:{number}: {place} does not know {header}")
                if public and header.startswith(PRIVATE):
                    found.append(f"{relative}:{number}: {header} in a public header")
    return found


def room_violations(root: Path) -> list[str]:
    """Arrows between rooms that rooms.py does not name, and sources outside of every room."""
    found = []
    for base, rooms in ROOMS.items():
        if has_cycle(rooms):
            found.append(f"tests/include_rule/rooms.py: the rooms of {base} include each other")
        for path in sorted((root / base).rglob("*")):
            if path.suffix not in (".cpp", ".hpp", ".cu", ".cuh"):
                continue
            name = path.relative_to(root / base).as_posix()
            room = room_of(name, rooms)
            if room is None:
                found.append(f"{base}/{name}: lies in no room of tests/include_rule/rooms.py")
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                header = match.group(1)
                if base == "formats/io":
                    header = header.removeprefix("io/")
                if not (root / base / header).is_file():
                    continue
                other = room_of(header, rooms)
                if other is not None and other != room and other not in rooms[room]:
                    found.append(
                        f"{base}/{name}:{number}: room {room or '(top)'} does not know "
                        f"room {other or '(top)'}: {match.group(1)}"
                    )
    return found


def imported_modules(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Line and name, below `package`, of each module of the package that a file imports when it
    runs. The name of a member that is no module stands for itself.
    """
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    folder = path.parent.relative_to(package.parent).parts
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) + 1 - node.level] if node.level else ()
            prefix = ".".join([*base, *filter(None, [node.module])])
            names = [f"{prefix}.{name}" for name in names]
        for name in names:
            if name.startswith(f"{package.name}."):
                yield node.lineno, name.removeprefix(f"{package.name}.")


def import_violations(root: Path) -> list[str]:
    """Imports between the rooms of the Python package that rooms.py does not name."""
    base = "python_bindings/fdma"
    found = []
    if has_cycle(PYTHON_ROOMS):
        found.append("tests/include_rule/rooms.py: the rooms of Python import each other")
    for path in sorted((root / base).rglob("*.py")):
        name = path.relative_to(root / base).as_posix()
        room = name.partition("/")[0].removesuffix(".py")
        if room not in PYTHON_ROOMS:
            found.append(f"{base}/{name}: lies in no room of tests/include_rule/rooms.py")
            continue
        for number, module in imported_modules(path, root / base):
            other = module.partition(".")[0]
            if other in PYTHON_ROOMS and other != room and other not in PYTHON_ROOMS[room]:
                found.append(
                    f"{base}/{name}:{number}: room {room} does not know room {other}: {module}"
                )
    return found


def main() -> int:
    root = Path(sys.argv[1])
    found = violations(root) + room_violations(root) + import_violations(root)
    print("\n".join(found) if found else "every include is where it may be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
