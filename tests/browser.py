"""A headless Chromium driven through its own debugging protocol over a pipe: no port, no network, no extra package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
WHY_NOT = "needs Chromium (Debian: apt-get install chromium)"
DEADLINE_SECONDS = 120.0


class Page:
    """One tab.  ``messages`` collects everything the page writes to the console or throws."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.messages: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "Chromium has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        kind, values = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(values["exceptionDetails"])[:2000])
        elif kind == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.messages.append(json.dumps(values["args"])[:2000])
        elif kind == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.messages.append(json.dumps(values["entry"])[:2000])
        elif kind == "Page.javascriptDialogOpening":
            self.messages.append(f"dialog: {values['message']}")
        return message

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Until the expression is true."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}; console: {self.messages}"
            time.sleep(0.05)

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> None:
        """The window's size, the colour scheme, and ``print`` or the screen."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=scheme)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A fresh Chromium with a page; gone at the end, with everything it wrote."""
    assert CHROMIUM is not None
    to_read, to_child_write = os.pipe()
    child_read, to_write = os.pipe()

    def connect() -> None:
        # Chromium reads commands from descriptor 3 and answers on 4.  Out of their way first: one may be the other.
        spare_read, spare_write = os.dup(child_read), os.dup(to_child_write)
        while min(spare_read, spare_write) < 5:
            spare_read, spare_write = os.dup(spare_read), os.dup(spare_write)
        os.dup2(spare_read, 3)
        os.dup2(spare_write, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--user-data-dir={home}",
                "--remote-debugging-pipe",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=connect,
            pass_fds=(3, 4, child_read, to_child_write),
            start_new_session=True,
            env={**os.environ, "HOME": home, "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
        )
        os.close(child_read)
        os.close(to_child_write)
        try:
            yield Page(to_read, to_write)
        finally:
            os.killpg(process.pid, 9)
            process.wait()
            os.close(to_read)
            os.close(to_write)
