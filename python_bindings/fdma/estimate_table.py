"""An estimate as lines of text, in the words and digits of `fdma-maskc estimate`."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

__all__ = ["bytes_text", "report_html", "report_lines", "time_text"]

Line = tuple[str, str]


def bytes_text(num_bytes: int) -> str:
    """A number of bytes in binary units, with three digits.

    >>> bytes_text(4 * 4096**2)
    '64.0 MiB'
    """
    if num_bytes < 1024:
        return f"{num_bytes} B"
    value, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def time_text(time_us: float) -> str:
    """A time, given in microseconds, in the unit that fits.

    >>> time_text(1530.0)
    '1.53 ms'
    """
    seconds = time_us * 1e-6
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.{2 if seconds < 0.01 else 1}f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole // 60 % 60:02} min"


def _flops_text(flops: float) -> str:
    unit = "FLOP"
    for larger in ("KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"):
        if flops < 1000:
            break
        flops, unit = flops / 1000, larger
    return f"{flops:.3g} {unit}"


def _rate_text(flops: float, time_us: float) -> str:
    return f"{_flops_text(flops / time_us * 1e6)}/s" if time_us > 0 else "-"


def _percent_text(part: int, whole: int) -> str:
    if whole == 0 or part == 0:
        return "0 %"
    if part == whole:
        return "100 %"
    percent = 100 * part / whole
    return f"{percent:.4f} %" if percent >= 0.01 else f"{percent:.3g} %"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _tile_text(tile: Mapping[str, int]) -> str:
    return f"{tile['q']} x {tile['kv']}"


def _head_lines(report: Mapping[str, Any]) -> list[Line]:
    shape, device = report["shape"], report["device"]
    sizes = [shape["head_dim"], shape["head_dim_v"]]
    head_size = "/".join(str(size) for size in dict.fromkeys(sizes))
    rough = "; a provisional profile: times are rough" if device["provisional"] else ""
    rough += "; what plans add to work tiles is assumed" if device["assumed"] else ""
    return [
        (
            "attention",
            f"{report['direction']}, batch {shape['batch']}, {shape['heads_q']} query and "
            f"{shape['heads_kv']} key heads, head size {head_size}, {shape['dtype']}",
        ),
        *([("score", "+".join(report["score"]))] if report["score"] else []),
        ("device", f"{device['name']}, {_plural(device['num_workers'], 'worker')}{rough}"),
    ]


def _time_lines(report: Mapping[str, Any]) -> list[Line]:
    masked, full = report["masked"], report["full"]
    bound = ", bound by memory" if masked["memory_bound"] else ""
    return [
        (
            "time",
            f"{time_text(masked['time_us'])}, {_rate_text(report['flops'], masked['time_us'])}"
            f"{bound}",
        ),
        (
            "full attention",
            f"{time_text(full['time_us'])}, {_rate_text(report['full_flops'], full['time_us'])}",
        ),
        ("speed-up", f"{report['speedup']:.2f}x"),
        ("operations", f"{_flops_text(report['flops'])} of {_flops_text(report['full_flops'])}"),
        (
            "load balance",
            f"{100 * masked['load_balance']:.1f} %; {_plural(masked['num_items'], 'work tile')} on "
            f"{_plural(report['device']['num_workers'], 'worker')}, the longest "
            f"{time_text(masked['longest_item_us'])}",
        ),
        ("memory traffic", bytes_text(masked["memory_bytes"])),
    ]


def _count_lines(report: Mapping[str, Any]) -> list[Line]:
    allowed, total, tiles = report["allowed_pairs"], report["total_pairs"], report["tiles"]
    return [
        ("allowed pairs", f"{allowed:,} of {total:,} ({_percent_text(allowed, total)})"),
        (
            "tiles",
            f"{tiles['full']:,} full, {tiles['partial']:,} partial, {tiles['empty']:,} empty of "
            f"{_tile_text(report['tile'])}",
        ),
        ("masked in tiles", f"{report['partial_dead_cells']:,} cells of partial tiles"),
        ("wasted work", f"{100 * report['wasted_share']:.1f} % of the cells computed"),
        ("plan", bytes_text(report["plan"]["bytes"])),
    ]


def _alternative_text(alternative: Mapping[str, Any]) -> str:
    cost = "" if alternative["cost_us"] is None else f" {time_text(alternative['cost_us'])}"
    reason = "" if alternative["reason"] is None else f" ({alternative['reason']})"
    return f"{alternative['name']}{cost}{reason}"


def _choice_lines(report: Mapping[str, Any]) -> list[Line]:
    lines: list[Line] = []
    for choice in report["choices"]:
        texts = {each["name"]: _alternative_text(each) for each in choice["alternatives"]}
        value = f"{choice['subject']}: {texts.pop(choice['taken'])}"
        if texts:
            value += f"; not {', '.join(texts.values())}"
        lines.append(("" if lines else "choices", value))
    return lines


def _format_lines(report: Mapping[str, Any]) -> list[Line]:
    lines: list[Line] = []
    dense = report["dense_bytes"]
    for size in report["formats"]:
        num_bytes = size["bytes"]
        if num_bytes is None:
            value = f"{'-':>10}  {size['reason']}"
        else:
            saved = f"{100 * (1 - num_bytes / dense['float']):.4f} %" if dense["float"] else "-"
            value = f"{bytes_text(num_bytes):>10}  saves {saved} of the float mask"
        stored = " (stored)" if size["format"] == report["mask"]["format"] else ""
        lines.append(("" if lines else "bytes as", f"{size['format']:<11}{value}{stored}"))
    return [
        *lines,
        (
            "dense mask",
            f"{bytes_text(dense['bit'])} bits, {bytes_text(dense['bool'])} bool, "
            f"{bytes_text(dense['float'])} float",
        ),
        ("best format", report["best_format"]),
    ]


def _candidate_lines(report: Mapping[str, Any]) -> list[Line]:
    lines: list[Line] = []
    shows_columns = any(each["columns"] != "automatic" for each in report["candidates"])
    for each in report["candidates"]:
        columns = f"{each['columns']:<10}" if shows_columns else ""
        time = "- " + each["reason"] if each["time_us"] is None else time_text(each["time_us"])
        lines.append(
            ("" if lines else "best tiles", f"{_tile_text(each['tile']):<10}{columns}{time}")
        )
    return lines


def report_lines(report: Mapping[str, Any]) -> list[Line]:
    """The name and value of each line; the name is empty if the line continues the one above."""
    return [
        *_head_lines(report),
        *_time_lines(report),
        *_count_lines(report),
        *_choice_lines(report),
        *_format_lines(report),
        *_candidate_lines(report),
    ]


def report_html(report: Mapping[str, Any]) -> str:
    """The lines of `report_lines` as one HTML table."""
    rows = "".join(
        f'<tr><th style="text-align:left;white-space:nowrap">{escape(name)}</th>'
        f'<td style="text-align:left;white-space:pre">{escape(value)}</td></tr>'
        for name, value in report_lines(report)
    )
    return f"<table>{rows}</table>"
