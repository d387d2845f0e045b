"""Tables and the picture about whole processes of `fdma-maskc compile`: compile.json."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from report_text import Run, bytes_text, commit_text, host_text, table, time_text, tokens_text

SHOWN = (2**13, 2**17, 2**18, 2**20, 2**24)
LONGEST_WITH_GOAL = 2**20
GOALS_AT = {"Morton": 2**18, "video": 2**18}  # other lengths of which a goal is stated
GOAL_BYTES = 2**20
GOAL_US = 50e3
GOALS_US = {"digits modulo 7": 100e3}


def by_mask(result: Run) -> dict[str, dict[int, Run]]:
    masks: dict[str, dict[int, Run]] = {}
    for run in result["runs"]:
        masks.setdefault(run["mask"], {})[run["tokens"]] = run
    return masks


def goal(name: str, runs: dict[int, Run]) -> str:
    """Whether the process met its goal, which files below 1 MiB have."""
    tokens = GOALS_AT.get(name, LONGEST_WITH_GOAL)
    run = runs.get(tokens)
    limit = GOALS_US.get(name, GOAL_US)
    if run is None or (run["file_bytes"] >= GOAL_BYTES and name not in GOALS_US):
        return "-"
    met = "met" if 1e6 * run["elapsed_s"] < limit else "**missed**"
    where = f" at {tokens_text(tokens)}" if name in GOALS_AT else ""
    return f"< {time_text(limit)}{where}: {met}"


def times_table(result: Run) -> str:
    header = ["mask", *(tokens_text(tokens) for tokens in SHOWN), "file, 1M", "goal"]
    rows = []
    for name, runs in by_mask(result).items():
        times = [
            time_text(1e6 * runs[tokens]["elapsed_s"]) if tokens in runs else "-"
            for tokens in SHOWN
        ]
        longest = runs.get(LONGEST_WITH_GOAL)
        size = "-" if longest is None else bytes_text(longest["file_bytes"])
        rows.append([name, *times, size, goal(name, runs)])
    return table(header, rows)


def specs_table(result: Run) -> str:
    rows = []
    for name, runs in by_mask(result).items():
        longest = runs[max(tokens for tokens in runs if tokens <= LONGEST_WITH_GOAL)]
        rows.append([name, tokens_text(longest["tokens"]), f"`{longest['spec']}`"])
    return table(["mask", "tokens", "specification"], rows)


def tables(result: Run) -> dict[str, str]:
    return {
        "compile-machine": f"{host_text(result)}; one core; {commit_text(result)}.",
        "compile-times": times_table(result),
        "compile-specs": specs_table(result),
    }


def draw_if_possible(result: Run, folder: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("no matplotlib: the picture of compile.json is not drawn anew")
    else:
        draw(result, folder)


def draw(result: Run, folder: Path) -> None:
    """Time of the process against length, both in powers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), dpi=110)
    markers = "os^vD"
    for i, (name, runs) in enumerate(by_mask(result).items()):
        tokens = sorted(runs)
        times = [1e3 * runs[each]["elapsed_s"] for each in tokens]
        axes.plot(tokens, times, marker=markers[i % 5], markersize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([2**at for at in range(13, 25)], [tokens_text(2**at) for at in range(13, 25)])
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_title("fdma-maskc compile, whole process, one core, milliseconds", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncol=2)
    figure.tight_layout()
    figure.savefig(folder / "compile_length.png", metadata={"Software": None})
    pyplot.close(figure)
