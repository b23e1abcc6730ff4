"""Messages between nodes: one line of JSON each over TCP, bounded, with a sign of life every few seconds.

Everything read here comes from another machine and is data: a line that is no JSON object ends the connection.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from bench_runner.supervisor import INTERRUPTS

LARGEST_LINE_BYTES: Final = 1 << 26
ALIVE_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 60.0
"""A peer that has said nothing for so long is taken for dead: a machine that loses its power closes no connection."""

Message = dict[str, Any]


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread that takes no signals: the main thread blocks them while it sees processes out."""

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        target()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class Gone:
    """The peer has gone; ``reason`` says how that showed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Wire:
    """One connection.  What comes in is put into ``inbox`` with the wire it came over; after Gone nothing comes."""

    def __init__(self, connection: socket.socket, inbox: queue.SimpleQueue[tuple[Wire, Message | Gone]]) -> None:
        self.peer = str(connection.getpeername()[0])
        self._socket = connection
        self._inbox = inbox
        self._sending = threading.Lock()
        self._closed = threading.Event()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(SILENCE_SECONDS)
        self._file = connection.makefile("rb")

    def start(self) -> Wire:
        """Begin to read and to give signs of life."""
        start_thread(self._read, f"from {self.peer}")
        start_thread(self._tell_alive, f"alive to {self.peer}")
        return self

    def send(self, kind: str, **fields: Any) -> bool:
        """Send one message; False if the peer has gone, which the inbox tells as well."""
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(line)
        except OSError:
            # A line may have been cut: nothing that follows could be read.
            self.close()
            return False
        return True

    def close(self) -> None:
        """End the connection; the peer sees it at once."""
        self._closed.set()
        with contextlib.suppress(OSError):  # the peer may have been quicker
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _tell_alive(self) -> None:
        while not self._closed.wait(ALIVE_SECONDS):
            self.send("alive")

    def _read(self) -> None:
        reason = "it closed the connection"
        try:
            with self._file:  # the socket is closed when this is, too
                while line := self._file.readline(LARGEST_LINE_BYTES):
                    message = _message(line)
                    if message is None:
                        reason = "it sent what is no message of bench-runner"
                        break
                    if message["kind"] != "alive":
                        self._inbox.put((self, message))
        except TimeoutError:
            reason = f"nothing was heard of it for {SILENCE_SECONDS:.0f} s"
        except (OSError, ValueError) as error:  # ValueError: this side has closed the file
            reason = str(error.strerror or error) if isinstance(error, OSError) else "the connection was closed"
        self.close()
        self._inbox.put((self, Gone(reason)))


def _message(line: bytes) -> Message | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(document, dict) and isinstance(document.get("kind"), str)
    return document if whole else None


Inbox = queue.SimpleQueue[tuple[Wire, Message | Gone]]
