"""Time and peak memory of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# The peak that the system gives for a process begins with that of the one that started it: a small
# one stands between.
STARTER = """
import json, os, sys, time
place = (os.POSIX_SPAWN_OPEN, 1, sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
begin = time.monotonic()
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ, file_actions=[place])
_, status, usage = os.wait4(child, 0)
elapsed = time.monotonic() - begin
print(json.dumps([os.waitstatus_to_exitcode(status),
                  {"elapsed_s": elapsed, "cpu_s": usage.ru_utime + usage.ru_stime,
                   "peak_resident_bytes": usage.ru_maxrss * 1024}]))
"""


def usage_of(
    words: list[str], good: tuple[int, ...] = (0,), printed: Path = Path(os.devnull)
) -> tuple[int, dict[str, Any]]:
    """Exit status, and elapsed_s, cpu_s and peak_resident_bytes, of the process and of its own.

    What it prints goes to a file; another status than a good one ends the program.
    """
    starter = [sys.executable, "-I", "-S", "-c", STARTER, str(printed), *words]
    done = subprocess.run(starter, check=True, capture_output=True, text=True)
    status, usage = json.loads(done.stdout)
    if status not in good:
        raise SystemExit(f"{' '.join(words)}: status {status}, {done.stderr}")
    return status, usage
