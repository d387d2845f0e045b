"""Signals that stop the tool, and when it listens to them."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def default_signals() -> None:
    """In the child: as from a shell in the foreground, whatever the tests themselves run under."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)


def wait_until_listening(tool: subprocess.Popen[str]) -> None:
    """Until the tool blocks or catches SIGINT: from then on no signal can meet the default."""
    bit = 1 << (signal.SIGINT - 1)
    for _ in range(3000):
        status = Path(f"/proc/{tool.pid}/status").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        if (int(fields["SigBlk"], 16) | int(fields["SigCgt"], 16)) & bit:
            return
        time.sleep(0.01)
    raise AssertionError("the tool never looked at signals")
