"""A headless Chromium, spoken to over a pipe: what a page shows, logs and asks for."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]
TIMEOUT = 60.0


def find() -> str | None:
    """Return this machine's Chromium, or None."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome", "chrome"))
    return next((path for path in found if path), None)


class Browser:
    """One page; `events` is all that the browser told about it."""

    def __init__(self, program: str) -> None:
        to_us, from_browser = os.pipe()
        from_us, to_browser = os.pipe()
        self._profile = tempfile.TemporaryDirectory()
        # Chromium reads its commands from descriptor 3 and answers on 4.
        script = f'exec "$0" "$@" 3<&{from_us} 4>&{from_browser}'
        argv = [
            "/bin/bash",
            "-c",
            script,
            program,
            *FLAGS,
            f"--user-data-dir={self._profile.name}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        self._process = subprocess.Popen(argv, pass_fds=(from_us, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(from_us)
        os.close(from_browser)
        self._in, self._out, self._rest, self._number, self._session = to_us, to_browser, b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = next(info for info in self._ask("Target.getTargets")["targetInfos"] if info["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> Browser:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile.name, ignore_errors=True)
        self._profile.cleanup()

    def open(self, path: Path) -> None:
        """Load a file and wait until it is complete."""
        self._ask("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + TIMEOUT
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive(deadline)

    def text(self) -> str:
        """Return what is visible, as text."""
        return str(self._ask("Runtime.evaluate", expression="document.body.innerText")["result"]["value"])

    def screenshot(self, path: Path) -> None:
        """Write what is visible as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def _ask(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser did not answer in time"
            block = os.read(self._in, 1 << 16)
            assert block, "the browser ended"
            self._rest += block
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        if "method" in found:
            self.events.append(found)
        return found
