"""Tables about predicted times: estimate.json (bench_estimate), estimate_gpu*.json
(bench_estimate_gpu)."""

from __future__ import annotations

import columns
from report_text import NOT_MEASURED, Run, commit_text, goal_text, quantile, table

GOAL_MEDIAN = 0.05
GOAL_P95 = 0.15
PLACES = (columns.MASK, columns.TOKENS)


def error(row: Run) -> float:
    return float(row["predicted_us"] / row["measured_us"] - 1)


def errors_of(rows: list[Run]) -> list[float]:
    return [abs(error(row)) for row in rows]


def goals_text(errors: list[float]) -> str:
    median, p95 = quantile(errors, 0.5), quantile(errors, 0.95)
    return (
        f"median {100 * median:.1f} % (goal: 5 % or less, {goal_text(median <= GOAL_MEDIAN)}), "
        f"95th percentile {100 * p95:.1f} % (goal: 15 % or less, {goal_text(p95 <= GOAL_P95)})"
    )


def default_rows(result: Run) -> list[Run]:
    return [row for row in result["rows"] if row["default"]]


def summary(result: Run) -> str:
    errors = errors_of(default_rows(result))
    lines = [f"- Error over {len(errors)} cases: {goals_text(errors)}."]
    if result["order_pairs"] > 0:
        lines.append(
            f"- Ways to run a mask (tile shapes, column modes): of {result['order_pairs']} pairs "
            f"that differ by more than 5 %, {result['order_right_pairs']} are predicted in the "
            f"right order; the way predicted best is slower than the best by "
            f"{100 * result['median_regret']:.1f} % (median), "
            f"{100 * result['worst_regret']:.1f} % (worst)."
        )
    return "\n".join(lines)


def machine(result: Run) -> str:
    time = "CPU time" if result["time"] == "cpu" else "elapsed time"
    return (
        f"{result['machine']['cpu']}, {result['num_workers']} of {result['machine']['cores']} "
        f"cores ({result['target']}), {result['machine']['os']}; {result['compiler']}; "
        f"{result['heads']} heads, {time}; {commit_text(result)}. Load average "
        f"{result['machine']['load_avg'][0]:.1f} after."
    )


def time_and_error_text(row: Run) -> str:
    ms = float(row["measured_us"]) / 1e3
    text = f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"
    return f"{text} ms, {100 * error(row):+.1f} %"


def errors_table(rows: list[Run], places: tuple[columns.Column, ...], kernel: str) -> str:
    """One column a kernel, which `kernel` names, a format of a row."""
    return columns.pivot(rows, places, lambda row: kernel.format(**row), time_and_error_text)


def tables(result: Run) -> dict[str, str]:
    return {
        "estimate-summary": summary(result),
        "estimate-machine": machine(result),
        "estimate": errors_table(
            default_rows(result), (columns.MASK, columns.TOKENS), "{dtype} {head_dim}"
        ),
    }


def rows_of(result: Run, direction: str) -> list[Run]:
    return [row for row in result["rows"] if row.get("direction", "forward") == direction]


def gpu_summary(rows: list[Run]) -> str:
    if not rows:
        return NOT_MEASURED
    groups = {f"All {len(rows)}": errors_of(rows)}
    for head_dim in sorted({row["head_dim"] for row in rows}):
        errors = errors_of([row for row in rows if row["head_dim"] == head_dim])
        groups[f"Head size {head_dim}, {len(errors)}"] = errors
    return "\n".join(
        f"- {group} rows: {goals_text(errors)}, worst {100 * max(errors):.1f} %."
        for group, errors in groups.items()
    )


def gpu_fixture(result: Run) -> str:
    how = (
        f"calibrated just before in {result['calibration_seconds']:.0f} s"
        if result["calibrated_here"]
        else f"by profile {result['profile']['name']}"
    )
    return f"{result['device']}, {how}; bfloat16; {commit_text(result)}."


def gpu_tables(result: Run, suffix: str = "") -> dict[str, str]:
    """`suffix`: -backward for the document of backward rows."""
    rows = rows_of(result, "backward" if suffix else "forward")
    rows.sort(key=lambda row: int(row["head_dim"]))
    places = (*PLACES, columns.value("heads", "heads"))
    return {
        f"estimate-gpu{suffix}-summary": gpu_summary(rows),
        f"estimate-gpu{suffix}-machine": gpu_fixture(result),
        f"estimate-gpu{suffix}": errors_table(rows, places, "head size {head_dim}"),
    }


def accuracy_rows(what: str, rows: list[Run]) -> list[list[str]]:
    errors = errors_of(rows)
    if not errors:
        return []
    shares = (quantile(errors, 0.5), quantile(errors, 0.95), max(errors))
    return [[what, str(len(errors)), *(f"{100 * share:.1f} %" for share in shares)]]


def accuracy_table(cpu: Run, forward: Run, backward: Run) -> str:
    rows = accuracy_rows("CPU, forward", default_rows(cpu))
    for direction, result in (("forward", forward), ("backward", backward)):
        for head_dim in (64, 128):
            of_size = [row for row in rows_of(result, direction) if row["head_dim"] == head_dim]
            rows += accuracy_rows(f"GPU, {direction}, head_dim {head_dim}", of_size)
    return table(["what", "rows", "median error", "95th percentile", "worst"], rows)
