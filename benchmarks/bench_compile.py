"""Time of the whole process of `fdma-maskc compile`, by mask and length.

    python3 bench_compile.py <fdma-maskc> <result.json> [--pattern TEXT ..] [--max-seconds S]

Each process is cold and runs on one core. It reads the specification, compiles it, counts, hashes
and writes the mask file. The least time of a few processes counts. A mask is measured at growing
lengths until a process takes longer than --max-seconds. Masks: those of issue 33's table, masks of
attn-gym as fdma.trace_mask_mod writes them, a random selection of blocks (its table is a file)
and intervals to compare with.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from process_usage import usage_of
from provenance import machine_of_today, origin
from report_store import write_result
from report_text import Run

KIB = 2**10
MIB = 2**20
LENGTHS = tuple(8 * KIB * 2**i for i in range(12))  # 8K to 16M
ROUNDS = 3
ENOUGH = 2.0  # seconds of one process from which on it is not repeated
BLOCKS = "random blocks"
LONGEST_OF_BLOCKS = 256 * KIB  # with a table of 16 MiB


def _fixed(text: str) -> Callable[[int], str]:
    return lambda tokens: text


def _canvas(tokens: int) -> tuple[int, int]:
    """Height and width of a canvas of this many tokens, a power of two."""
    width = 2 ** ((tokens.bit_length() - 1) // 2)
    return tokens // width, width


def _video(tokens: int) -> str:
    """5 x 9 x 9 neighbours of frames of 64 x 64, by digits of q and k."""
    return (
        "let t = abs(q // 4096 - k // 4096); let y = abs(q // 64 % 64 - k // 64 % 64); "
        "let x = abs(q % 64 - k % 64); t <= 2 & y <= 4 & x <= 4"
    )


def _tiled(tokens: int) -> str:
    """attn-gym's generate_tiled_natten: 13 x 13 neighbours of a canvas stored in 8 x 8 tiles."""
    height, width = _canvas(tokens)
    across = width // 8
    last_y, last_x = height - 7, width - 7
    return (
        f"let x1 = clamp(q // 64 % {across} * 8 + q % 64 % 8, 6, {last_x}); "
        f"let x2 = clamp(q // 64 // {across} * 8 + q % 64 // 8, 6, {last_y}); "
        f"x1 - 6 <= k // 64 % {across} * 8 + k % 64 % 8 <= x1 + 6 & "
        f"x2 - 6 <= k // 64 // {across} * 8 + k % 64 // 8 <= x2 + 6"
    )


def _tiles_2d(tokens: int) -> str:
    """attn-gym's sliding tile attention: 3 x 3 tiles of 8 x 8."""
    height, width = _canvas(tokens)
    down, across = height // 8, width // 8
    return (
        f"let x1 = k // 64 // {across}; let x2 = clamp(q // 64 // {across}, 1, {down - 2}); "
        f"let x3 = k // 64 % {across}; let x4 = clamp(q // 64 % {across}, 1, {across - 2}); "
        "x1 >= x2 - 1 & x1 <= x2 + 1 & x3 >= x4 - 1 & x3 <= x4 + 1"
    )


def _morton(tokens: int) -> str:
    """5 x 5 neighbours in Morton order."""
    lets = []
    for axis, shift in (("x", 0), ("y", 1)):
        for name in ("q", "k"):
            at = f"{axis}{name}"
            lets.append(f"let {at}0 = bitand(shr({name}, {shift}), 1431655765)")
            masks = (858993459, 252645135, 16711935, 65535)
            for i, mask in enumerate(masks):
                before = f"{at}{i}"
                lets.append(
                    f"let {at}{i + 1} = bitand(bitor({before}, shr({before}, {2**i})), {mask})"
                )
    height, width = _canvas(tokens)
    lets.append(f"let x = clamp(xq4, 2, {width - 3})")
    lets.append(f"let y = clamp(yq4, 2, {height - 3})")
    return "; ".join(lets) + "; abs(x - xk4) <= 2 & abs(y - yk4) <= 2"


MASKS: dict[str, Callable[[int], str]] = {
    "causal": _fixed("causal"),
    "causal window": _fixed("causal & window(1024)"),
    "strided": _fixed("causal & (window(1000) | k % 64 == 0)"),
    "every second key": _fixed("causal & k % 2 == 0"),
    "digits modulo 7": _fixed("(q // 5) % 7 == (k // 5) % 7 & causal"),
    "fixed": _fixed("k // 128 == q // 128 | (k % 128 == 127 & k <= q)"),
    "natten2d": lambda n: "natten2d({}, {}, 13, 13)".format(*_canvas(n)),
    "dilated": _fixed("dilated(2048, 4) & causal"),
    "video": _video,
    "products modulo 7": _fixed("causal & (q * k) % 7 < 3"),
    "distances modulo 3": _fixed("abs(q - k) % 3 == 0 & causal"),
    "no common bit": _fixed("bitand(q, k) == 0"),
    "Morton": _morton,
    "batchify": _fixed("q // 4096 == k // 4096 & q % 4096 >= k % 4096"),
    "block diffusion": lambda n: f"block_diffusion({n // 2}, 16)",
    "tiled natten": _tiled,
    "sliding tiles": _tiles_2d,
    "temporal head": _fixed("k < 4096 | q < 4096 | abs(q % 4096 - k % 4096) < 32"),
    BLOCKS: _fixed("tiles(@t, 64, 64)"),
    "jetspec": _fixed("k < 4096 | k >= 4096 & q // 7 == (k - 4096) // 7 & (k - 4096) % 7 <= q % 7"),
}


def table_options(name: str, tokens: int, folder: str) -> list[str]:
    """The options of a mask with a table, one block in ten, which is written to a file."""
    if name != BLOCKS:
        return []
    side = tokens // 64
    path = Path(folder) / "table.h5"
    with h5py.File(path, "w") as file:
        file["t"] = np.random.default_rng(7).random((side, side)) < 0.1
    return ["--table", f"t={path}:/t"]


def compile_once(
    tool: Path, spec: str, tokens: int, options: list[str], folder: str
) -> tuple[Run, int]:
    """Usage of one process, and the bytes of the file that it wrote."""
    output = Path(folder) / "mask.h5"
    words = [str(tool), "compile", "--spec", spec, "--q-len", str(tokens), "-o", str(output), "-q"]
    _, usage = usage_of(words + options)
    size = output.stat().st_size
    output.unlink()
    return usage, size


def measure(tool: Path, spec: str, tokens: int, options: list[str], folder: str) -> Run:
    best, size = compile_once(tool, spec, tokens, options, folder)
    for _ in range(ROUNDS - 1):
        if best["elapsed_s"] > ENOUGH:
            break
        usage, size = compile_once(tool, spec, tokens, options, folder)
        best = min(best, usage, key=lambda each: float(each["elapsed_s"]))
    return {"file_bytes": size} | best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--pattern", nargs="*", default=[""], help="masks whose name has it")
    parser.add_argument("--max-seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    load = [os.getloadavg()[0]]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, spec_of in MASKS.items():
            if not any(pattern in name for pattern in arguments.pattern):
                continue
            for tokens in LENGTHS:
                if name == BLOCKS and tokens > LONGEST_OF_BLOCKS:
                    break
                spec = spec_of(tokens)
                options = table_options(name, tokens, folder)
                run = measure(arguments.tool.resolve(), spec, tokens, options, folder)
                runs.append({"mask": name, "tokens": tokens, "spec": spec} | run)
                print(f"{name} {tokens}: {1e3 * run['elapsed_s']:.1f} ms", flush=True)
                if run["elapsed_s"] > arguments.max_seconds:
                    break
    if not runs:
        sys.exit("no mask has such a name")
    load.append(os.getloadavg()[0])
    sources = ("formats", "masks", "tools", "benchmarks/*.py", "cmake", "CMakeLists.txt")
    machine = {"machine": machine_of_today() | {"load_avg": load}}
    write_result(arguments.result, machine | origin(sources) | {"runs": runs})


if __name__ == "__main__":
    main()
