"""Sends signals that stop the tool, once it listens to them."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def default_signals() -> None:
    """Sets the child's signals as a shell in the foreground does, whatever the tests' are."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)


def wait_until_listening(tool: subprocess.Popen[str]) -> None:
    """Waits until the tool blocks or catches SIGINT. No signal can then meet the default."""
    bit = 1 << (signal.SIGINT - 1)
    for _ in range(3000):
        status = Path(f"/proc/{tool.pid}/status").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        if (int(fields["SigBlk"], 16) | int(fields["SigCgt"], 16)) & bit:
            return
        time.sleep(0.01)
    raise AssertionError("the tool never looked at signals")
