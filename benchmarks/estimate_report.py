"""Tables about predicted times: estimate.json (bench_estimate), estimate_gpu*.json
(bench_estimate_gpu)."""

from __future__ import annotations

from report_text import NOT_MEASURED, Run, goal_text, quantile, table

GOAL_MEDIAN = 0.05
GOAL_P95 = 0.15


def error(row: Run) -> float:
    return float(row["predicted_us"] / row["measured_us"] - 1)


def summary(result: Run) -> str:
    errors = [abs(error(row)) for row in result["rows"] if row["default"]]
    median, p95 = quantile(errors, 0.5), quantile(errors, 0.95)
    lines = [
        f"- Error over {len(errors)} cases: median {100 * median:.1f} % (goal: 5 % or less, "
        f"{goal_text(median <= GOAL_MEDIAN)}), 95th percentile {100 * p95:.1f} % "
        f"(goal: 15 % or less, {goal_text(p95 <= GOAL_P95)})."
    ]
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
        f"{result['heads']} heads, {time}; commit {result['commit']}, {result['date']}. Load "
        f"average {result['machine']['load_avg'][0]:.1f} after."
    )


def milliseconds(row: Run, name: str) -> str:
    value = float(row[name]) / 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def errors_table(result: Run) -> str:
    """One row a mask and length, one column a kernel: measured time and error."""
    kernels: list[tuple[str, int]] = []
    cells: dict[tuple[str, int], dict[tuple[str, int], str]] = {}
    for row in result["rows"]:
        if not row["default"]:
            continue
        kernel = (row["dtype"], row["head_dim"])
        if kernel not in kernels:
            kernels.append(kernel)
        text = f"{milliseconds(row, 'measured_us')} ms, {100 * error(row):+.1f} %"
        cells.setdefault((row["mask"], row["tokens"]), {})[kernel] = text
    header = ["mask", "tokens", *(f"{dtype} {head_dim}" for dtype, head_dim in kernels)]
    rows = [
        [mask, f"{tokens // 1024}K", *(found.get(kernel, "-") for kernel in kernels)]
        for (mask, tokens), found in cells.items()
    ]
    return table(header, rows)


def tables(result: Run) -> dict[str, str]:
    return {
        "estimate-summary": summary(result),
        "estimate-machine": machine(result),
        "estimate": errors_table(result),
    }


def goals_text(errors: list[float]) -> str:
    median, p95 = quantile(errors, 0.5), quantile(errors, 0.95)
    return (
        f"median {100 * median:.1f} % (goal: 5 % or less, "
        f"{goal_text(median <= GOAL_MEDIAN)}), 95th percentile {100 * p95:.1f} % "
        f"(goal: 15 % or less, {goal_text(p95 <= GOAL_P95)}), worst "
        f"{100 * max(errors, default=0.0):.1f} %"
    )


def rows_of(result: Run, direction: str) -> list[Run]:
    return [row for row in result["rows"] if row.get("direction", "forward") == direction]


def gpu_summary(rows: list[Run]) -> str:
    if not rows:
        return NOT_MEASURED
    lines = [f"- All {len(rows)} rows: {goals_text([abs(error(row)) for row in rows])}."]
    for head_dim in sorted({row["head_dim"] for row in rows}):
        errors = [abs(error(row)) for row in rows if row["head_dim"] == head_dim]
        lines.append(f"- Head size {head_dim}, {len(errors)} rows: {goals_text(errors)}.")
    return "\n".join(lines)


def gpu_fixture(result: Run) -> str:
    how = (
        f"calibrated just before in {result['calibration_seconds']:.0f} s"
        if result["calibrated_here"]
        else f"by profile {result['profile']['name']}"
    )
    return f"{result['device']}, {how}; bfloat16; commit {result['commit']}, {result['date']}."


def gpu_table(rows: list[Run]) -> str:
    """One row a mask and shape, one column a head size: measured time and error."""
    head_dims = sorted({row["head_dim"] for row in rows})
    cells: dict[tuple[str, int, int], dict[int, str]] = {}
    for row in rows:
        place = (row["mask"], row["tokens"], row["heads"])
        text = f"{milliseconds(row, 'measured_us')} ms, {100 * error(row):+.1f} %"
        cells.setdefault(place, {})[row["head_dim"]] = text
    header = ["mask", "tokens", "heads", *(f"head size {head_dim}" for head_dim in head_dims)]
    lines = [
        [mask, f"{tokens // 1024}K", str(heads), *(found.get(d, "-") for d in head_dims)]
        for (mask, tokens, heads), found in cells.items()
    ]
    return table(header, lines)


def gpu_tables(result: Run, suffix: str = "") -> dict[str, str]:
    """`suffix`: -backward for the document of backward rows."""
    rows = rows_of(result, "backward" if suffix else "forward")
    return {
        f"estimate-gpu{suffix}-summary": gpu_summary(rows),
        f"estimate-gpu{suffix}-machine": gpu_fixture(result),
        f"estimate-gpu{suffix}": gpu_table(rows),
    }


def accuracy_rows(what: str, rows: list[Run]) -> list[list[str]]:
    errors = [abs(error(row)) for row in rows]
    if not errors:
        return []
    shares = (quantile(errors, 0.5), quantile(errors, 0.95), max(errors))
    return [[what, str(len(errors)), *(f"{100 * share:.1f} %" for share in shares)]]


def accuracy_table(cpu: Run, forward: Run, backward: Run) -> str:
    rows = accuracy_rows("CPU, forward", [row for row in cpu["rows"] if row["default"]])
    for direction, result in (("forward", forward), ("backward", backward)):
        for head_dim in (64, 128):
            of_size = [row for row in rows_of(result, direction) if row["head_dim"] == head_dim]
            rows += accuracy_rows(f"GPU, {direction}, head_dim {head_dim}", of_size)
    return table(["what", "rows", "median error", "95th percentile", "worst"], rows)
