"""Drives a headless Chromium by its own protocol, JSON over two pipes.

It needs no driver and no package.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = os.environ.get("FDMA_CHROMIUM") or shutil.which("chromium") or ""


@functools.cache
def missing_browser() -> str:
    """Returns the reason why no browser can be run here; it is empty if one can."""
    if not CHROMIUM:
        return "no program 'chromium' (Debian packs it; Ubuntu has a snap only)"
    done = subprocess.run(
        [CHROMIUM, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        return f"{CHROMIUM} --version ends with status {done.returncode}: {done.stderr.strip()}"
    return ""


class Browser:
    """A browser with one page. `requests` records every request of the page."""

    def __init__(self, width: int, height: int) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        # Its processes may write there for a moment after it has ended.
        self._profile = tempfile.TemporaryDirectory(
            prefix="fdma-browser-", ignore_cleanup_errors=True
        )
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile.name}",
            "about:blank",
        ]
        # The browser reads requests from descriptor 3 and answers on 4.
        words = " ".join(f"'{word}'" for word in (CHROMIUM, *flags))
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {words} 3<&{to_read} 4>&{to_write}"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._next = 0
        self._rest = b""
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.terminate()
        self._process.wait(timeout=30)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """Returns the result of one request, and records the events that come before it."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == self._next:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def open(self, path: Path, fragment: str = "") -> None:
        """Loads a file and waits until the viewer has painted."""
        # A change of the fragment alone would not load anything.
        self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait("document.readyState === 'complete'")

    def wait(self, condition: str) -> None:
        """Waits until a condition of the page holds, for at most a minute."""
        held = self.evaluate(
            f"""new Promise((done) => {{
              const end = performance.now() + 60000;
              const look = () => {{
                let holds = false;
                try {{ holds = Boolean({condition}); }} catch {{ }}
                if (holds || performance.now() > end) done(holds);
                else setTimeout(look, 20);
              }};
              look();
            }})"""
        )
        assert held is True, f"never came true: {condition}; {self.complaints}"

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, after its promises."""
        said = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def screenshot(self, path: Path, clip: tuple[float, float, float, float] | None = None) -> None:
        """Returns a PNG file of the page, or of the part (left, top, width, height) of it."""
        words: dict[str, Any] = {"format": "png"}
        if clip is not None:
            words["clip"] = dict(zip(("x", "y", "width", "height"), clip, strict=True), scale=1)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **words)["data"]))

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Sends a mouse event: mouseMoved, mousePressed, mouseReleased or mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str, shift: bool = False) -> None:
        """Presses and releases a key: one letter, or a name such as ArrowLeft."""
        words = {"key": key, "modifiers": 8 if shift else 0}
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **words, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **words)

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])
