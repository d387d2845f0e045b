"""What a result says of its origin: machine, commit and date.

What identifies a person's computer (host name, paths) is left out.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from report_text import Run

REPOSITORY = Path(__file__).resolve().parents[1]
# Everything that attention through the Python package is made of.
PACKAGE_SOURCES = ("formats", "masks", "kernels", "python_bindings", "benchmarks/*.py", "cmake")


def git(*arguments: str) -> str:
    """What git prints; nothing where the sources are a copy without history."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def head_commit() -> str:
    """FDMA_COMMIT names the commit where the sources are a copy without history."""
    return os.environ.get("FDMA_COMMIT") or git("rev-parse", "--short=12", "HEAD") or "unknown"


def has_changes(sources: Iterable[str]) -> bool:
    return bool(git("status", "--porcelain", "--", *sources))


def today() -> str:
    return datetime.now(tz=UTC).date().isoformat()


def origin(sources: Iterable[str]) -> Run:
    """Commit, whether `sources` differ from it, and date."""
    return {
        "commit": head_commit(),
        "uncommitted_changes": has_changes(sources),
        "date": today(),
    }


def cpu_facts(name: str) -> str:
    """What the system says of the first core under a name; empty where it says nothing."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return ""


def cpu_model() -> str:
    return cpu_facts("model name") or platform.machine()


def os_name() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())


def machine_of_today() -> Run:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_avg": os.getloadavg(),
        "os": os_name(),
    }


def gpu_state() -> Run:
    """What nvidia-smi says; empty without it."""
    fields = (
        *("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem"),
        *("power.draw", "power.limit", "temperature.gpu"),
    )
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = done.stdout.splitlines()[0].split(", ")
    return dict(zip(fields, values, strict=False))
