"""A channel over http on loopback that fails on purpose, once or always, for files whose name contains a word.

    with serve_faulty(channel.path.parent, {"libtool": Fault(drop_after=1000, times=1)}) as (url, log): ...

``log`` lists (method, file name, Range header) of every request, in order.
"""

from __future__ import annotations

import functools
import http.server
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Log = list[tuple[str, str, str]]


@dataclass(slots=True)
class Fault:
    """``drop_after``: bytes after which the connection ends; ``status``: answer with it instead; ``ranges``: whether
    Range is honoured; ``delay_seconds``: sleep before each piece; ``times``: how often, then all is well."""

    drop_after: int | None = None
    status: int | None = None
    ranges: bool = True
    delay_seconds: float = 0.0
    wrong_range: bool = False
    times: int = 1 << 30


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, folder: Path, faults: Mapping[str, Fault], log: Log, lock: Any) -> None:
        self._folder, self._faults, self._log, self._lock = folder, faults, log, lock
        super().__init__(*arguments)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _fault(self, name: str) -> Fault:
        with self._lock:
            for word, fault in self._faults.items():
                if word in name and fault.times > 0:
                    fault.times -= 1
                    return fault
        return Fault()

    def _answer(self, *, body: bool) -> None:
        path = self._folder / self.path.lstrip("/")
        with self._lock:
            self._log.append((self.command, path.name, self.headers.get("Range", "")))
        fault = self._fault(path.name) if body else Fault()
        if not path.is_file() or fault.status is not None:
            self.send_response(fault.status or 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = path.read_bytes()
        start = 0
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes=") and fault.ranges:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            shown = 0 if fault.wrong_range else start
            self.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if body:
            self._send(content[start:], fault)

    def _send(self, content: bytes, fault: Fault) -> None:
        end = len(content) if fault.drop_after is None else fault.drop_after
        for place in range(0, end, 16384):
            time.sleep(fault.delay_seconds)
            try:
                self.wfile.write(content[place : min(place + 16384, end)])
            except OSError:  # the client has gone, as some tests have it
                self.close_connection = True
                return
        if fault.drop_after is not None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


@contextmanager
def serve_faulty(folder: Path, faults: Mapping[str, Fault]) -> Iterator[tuple[str, Log]]:
    log: Log = []
    handler = functools.partial(_Handler, folder=folder, faults=faults, log=log, lock=threading.Lock())
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", log
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
