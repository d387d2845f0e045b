"""Tables and pictures about training steps: training_gpu.json (bench_training_gpu.py).

Without matplotlib the pictures stay as they are.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import columns
from report_text import Run, goal_text, table, tokens_text

GOAL_US, GOAL_GRADIENTS_US = 20, 30
TITLES = {
    "fdma": "FDMA",
    "flex": "flex_attention, compiled",
    "varlen": "torch.nn.attention.varlen",
    "sdpa": "SDPA, dense mask",
    "sdpa_causal": "SDPA, causal (cuDNN)",
}
OVERHEADS = {
    "mask": "`fdma.attention`, a BlockMask",
    "text": "the same, a text",
    "lengths first": 'the same, `layout="bshd"`',
    "with gradients": "`fdma.attention`, recording for gradients",
    "step": "the same, and backward",
    "sdpa": "SDPA",
    "sdpa with gradients": "SDPA, recording for gradients",
    "sdpa step": "the same, and backward",
}
COLORS = {"fdma": "#0b6e4f", "sdpa_causal": "#8a8a8a"}


def measured(result: Run, part: str) -> dict[tuple[int, str], Run]:
    """Rows of a part that were measured, by (size, contender)."""
    found = {}
    for row, run in result["rows"].items():
        name, size, *rest = row.split("/")
        if name == part and "step_ms" in run:
            found[int(size), rest[0]] = run
    return found


def gib(run: Run) -> str:
    return f"{(run['peak_bytes'] + run.get('plan_bytes', 0)) / 2**30:.2f} GiB"


def overhead_table(result: Run) -> str:
    times = result["rows"].get("overhead/cuda", {}).get("time_us", {})
    rows = [
        [OVERHEADS[name], f"{us:.1f} us", f"{us / times[reference_of(name)]:.2f}"]
        for name, us in times.items()
        if name in OVERHEADS
    ]
    return table(["call", "host time", "of SDPA's"], rows)


def reference_of(name: str) -> str:
    """SDPA's counterpart of a call."""
    if name.endswith("gradients"):
        return "sdpa with gradients"
    return "sdpa step" if name.endswith("step") else "sdpa"


BY: columns.Column = ("attention by", lambda run: TITLES[run["name"]])
STEP_MS: columns.Column = ("step", lambda run: f"{run['step_ms']:.2f} ms")
SPEED: columns.Column = ("tokens a second", lambda run: f"{run['tokens_per_s'] / 1e6:.2f} M")
MEMORY: columns.Column = ("memory", gib)


def steps_table(result: Run, part: str) -> str:
    runs = measured(result, part)

    def ratio(run: Run) -> str:
        ours = runs.get((run["tokens"], "fdma"))
        if ours is None or run["name"] == "fdma":
            return "-"
        return f"{run['step_ms'] / ours['step_ms']:.2f}"

    order = list(TITLES)
    rows = [
        runs[size, name] | {"tokens": size, "name": name}
        for size, name in sorted(runs, key=lambda key: (key[0], order.index(key[1])))
    ]
    mask: columns.Column = (
        "of which mask, on the host",
        lambda run: f"{run['mask_host_ms']:.2f} ms",
    )
    shown = (columns.TOKENS, BY, STEP_MS, mask, SPEED, MEMORY, ("times FDMA's", ratio))
    return columns.table(shown, rows)


def curve_table(result: Run, part: str) -> str:
    runs = measured(result, part)
    rows = [runs[size, name] | {"size": size, "name": name} for size, name in sorted(runs)]
    window: columns.Column = (
        "window",
        lambda run: f"{run['size']:,}" if run["name"] == "fdma" else "-",
    )
    cells: columns.Column = ("cells", lambda run: f"{100 * run['density']:.2f} %")
    rate = columns.value("TFLOP/s", "tflops", ".0f")
    first = columns.TOKENS if part == "length" else window
    return columns.table([first, BY, cells, STEP_MS, SPEED, rate, MEMORY], rows)


def machine_text(result: Run) -> str:
    commits = sorted({row["commit"][:7] for row in result["rows"].values()})
    return (
        f"{result['machine'].get('name', 'a GPU')}, PyTorch {result['torch']}, {result['heads']} "
        f"heads, head_dim {result['head_dim']}, {result['dtype']}; commit "
        f"{', '.join(commits)}, {result['date']}."
    )


def summary(result: Run) -> str:
    lines = []
    times = result["rows"].get("overhead/cuda", {}).get("time_us", {})
    for name, goal, what in (
        ("mask", GOAL_US, "A call without gradients"),
        ("with gradients", GOAL_GRADIENTS_US, "One that records for them"),
    ):
        if name in times:
            lines.append(
                f"- {what} takes {times[name]:.1f} us of the host (goal: {goal}, "
                f"{goal_text(times[name] <= goal)}); SDPA "
                f"on the same machine {times[reference_of(name)]:.1f}."
            )
    for part, what in (("attention", "Attention alone"), ("layer", "The layer")):
        runs = measured(result, part)
        ratios = [
            f"{runs[size, 'flex']['step_ms'] / run['step_ms']:.2f} at {tokens_text(size)}"
            for (size, name), run in sorted(runs.items())
            if name == "fdma" and (size, "flex") in runs
        ]
        if ratios:
            lines.append(
                f"- {what}, documents that change every step: flex_attention takes "
                f"{', '.join(ratios)} times as long as FDMA."
            )
    return "\n".join(lines)


def tables(result: Run) -> dict[str, str]:
    return {
        "training-summary": summary(result),
        "training-machine": machine_text(result),
        "training-overhead": overhead_table(result),
        "training-attention": steps_table(result, "attention"),
        "training-layer": steps_table(result, "layer"),
        "training-length": curve_table(result, "length"),
        "training-sparsity": curve_table(result, "sparsity"),
    }


def draw_if_possible(result: Run, folder: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("no matplotlib: the pictures of training_gpu.json are not drawn anew")
    else:
        draw(result, folder)


def draw(result: Run, folder: Path) -> None:
    """Throughput and memory against length, and against the share of cells that is kept."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for part, label in (("length", "tokens of the sequence"), ("sparsity", "cells kept")):
        runs = measured(result, part)
        if not any(name == "fdma" for _, name in runs):
            continue
        figure, (speed, memory) = pyplot.subplots(1, 2, figsize=(9, 3.4), dpi=110)
        for name in ("fdma", "sdpa_causal"):
            points = sorted(
                (run["tokens"] if part == "length" else run["density"], run)
                for (_, who), run in runs.items()
                if who == name
            )
            if not points:
                continue
            x = [at for at, _ in points]
            kind = {"color": COLORS[name], "label": TITLES[name], "marker": "o", "markersize": 4}
            kind["linestyle"] = "-" if name == "fdma" else "--"
            speed.plot(x, [run["tokens_per_s"] / 1e6 for _, run in points], **kind)
            bytes_of = [run["peak_bytes"] + run["plan_bytes"] for _, run in points]
            memory.plot(x, [count / 2**30 for count in bytes_of], **kind)
        for axes, title in ((speed, "million tokens a second"), (memory, "GiB")):
            axes.set_xscale("log", base=2)
            axes.set_xlabel(label)
            axes.set_title(f"{title}, forward and backward", fontsize=10)
            axes.grid(alpha=0.3)
            if part == "length":
                axes.set_xticks(x, [tokens_text(tokens) for tokens in x])
                axes.minorticks_off()
            else:
                axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
        speed.set_ylim(bottom=0)
        if part == "length":
            memory.set_yscale("log", base=2)
            memory.yaxis.set_major_formatter(lambda count, _: f"{count:g}")
        else:
            memory.set_ylim(bottom=0)
        speed.legend(fontsize=9)
        figure.tight_layout()
        figure.savefig(folder / f"training_{part}.png", metadata={"Software": None})
        pyplot.close(figure)
