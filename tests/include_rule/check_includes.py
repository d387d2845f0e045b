"""Checks the #include lines of every C++ source against the layering.

Link targets refuse wrong includes of FDMA's own headers; libraries in /usr/include are visible to
every target, so the rule for them is checked on the text: who may include which library, and which
libraries public headers may mention.

    python3 check_includes.py <source tree>

Prints one line per violation; exit code 1 if there are any.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FOLDERS = ("formats", "masks", "kernels", "tools", "tests", "benchmarks", "python_bindings")

# Prefix of an include -> folders (or subfolders) whose sources may have it.
ALLOWED: dict[str, tuple[str, ...]] = {
    "fdma/masks/": ("masks", "tools", "tests", "benchmarks", "python_bindings"),
    "fdma/io/": ("formats/src/io", "formats/include_io", "tools", "tests", "benchmarks"),
    "hdf5": ("formats/src", "tests"),
    "H5": ("formats/src", "tests"),
    "boost/program_options": ("tools",),
    "png.h": ("tools",),
    "nlohmann/": ("kernels/src", "tools", "tests", "benchmarks"),
    # Tests run vector code once per instruction set.
    "hwy/": ("kernels/src", "kernels/select/src", "formats/src", "tests/unit"),
    "spdlog/": ("tools",),
    "nanobind/": ("python_bindings",),
    "cuda": ("kernels", "tests/gpu"),
    "cusparse.h": ("kernels/src/cusparse",),
    "cub/": ("kernels",),
    "gtest/": ("tests",),
    "gmock/": ("tests",),
    "rapidcheck": ("tests",),
    "benchmark/": ("benchmarks",),
}

# What public headers leave to source files: their users need not have these libraries' headers.
PRIVATE = ("fmt/", "tbb/", "oneapi/", "hwy/", "xxhash", "H5", "hdf5", "spdlog/", "nlohmann/")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def violations(root: Path) -> list[str]:
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".cpp", ".hpp", ".cu", ".cuh", ".h"):
                continue
            relative = path.relative_to(root).as_posix()
            public = relative.split("/")[1].startswith("include")
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
                if public and header.startswith(PRIVATE):
                    found.append(f"{relative}:{number}: {header} in a public header")
    return found


def main() -> int:
    found = violations(Path(sys.argv[1]))
    print("\n".join(found) if found else "every include is where it may be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
