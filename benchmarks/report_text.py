"""How the report modules write rows, tables, times and sizes."""

from __future__ import annotations

from typing import Any

Run = dict[str, Any]

NOT_MEASURED = "Not measured yet."


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, or a sentence where there is no row."""
    if not rows:
        return NOT_MEASURED
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def tokens_text(tokens: int | str) -> str:
    count = int(tokens)
    return f"{count // 2**20}M" if count >= 2**20 else f"{count // 1024}K"


def time_text(us: float | None) -> str:
    if us is None:
        return "-"
    for factor, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "us")):
        if us >= factor:
            return f"{us / factor:.3g} {unit}"
    return f"{us * 1e3:.3g} ns"


def bytes_text(count: float) -> str:
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= factor:
            value = count / factor
            return f"{value:.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
    return f"{count:.0f} B"


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def quantile(values: list[float], share: float) -> float:
    if not values:
        return 0.0
    ascending = sorted(values)
    at = share * (len(ascending) - 1)
    low = int(at)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (at - low) * (ascending[high] - ascending[low])


def goal_text(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def commit_text(result: Run) -> str:
    changed = " with uncommitted changes" if result.get("uncommitted_changes") else ""
    return f"commit {result['commit']}{changed}, {result['date']}"


def commits_of(result: Run) -> str:
    """Those that its rows were measured at."""
    return ", ".join(sorted({row["commit"] for row in result["rows"].values()}))


def host_text(result: Run) -> str:
    machine = result["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['os']}"


def machine_text(result: Run) -> str:
    """Processor, system, compiler, commit and date of a result that one thread measured."""
    return f"{host_text(result)}; {result['compiler']}; one thread; {commit_text(result)}."
