"""The processes of one launch seen from the control side: its supervisor, the port asked for, its logs."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from bench_runner.errors import LaunchError
from bench_runner.processes import descendants, open_handle, processes_of_launch, rank_processes, send_signal
from bench_runner.supervisor import DONE, GIVE_UP_SECONDS, INTERRUPTS

TAIL_BYTES: Final = 1 << 16
STACKS_SECONDS: Final = 2.0
"""The longest that hanging workers are given to write their stacks before they are ended."""


def require_free_port(port: int) -> None:
    """Raise LaunchError, naming who has it, unless a server could listen on this port of the loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server will: a port just left is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            owner = _owner_of(port) if error.errno == errno.EADDRINUSE else ""
            remedy = "choose another, or leave it out for a free one"
            raise LaunchError(f"port = {port}: {error.strerror}{owner}; {remedy}") from error


def _owner_of(port: int) -> str:
    """`` by NAME (pid N)`` for the process that listens there, or nothing where the kernel does not tell us."""
    import psutil

    try:
        found = (
            c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.status == "LISTEN"
        )
        pid = next((pid for pid in found if pid is not None), None)
        return "" if pid is None else f" by {psutil.Process(pid).name()} (pid {pid})"
    except psutil.Error:
        return ""


class Supervised:
    """The supervisor of one launch as a context: when it is left, however it is left, no process of it remains."""

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        directory: Path,
        deadline_seconds: float,
        launch_id: str,
    ) -> None:
        self.result: dict[str, Any] | None = None
        self._launch_id = launch_id
        self._result_path = directory / "supervisor.json"
        self._arguments = [
            sys.executable,
            "-SP",  # neither site-packages nor the working directory: quick, and nothing of the user's in the way
            "-m",
            "bench_runner.supervisor",
            *("--parent", str(os.getpid())),
            *("--deadline", str(deadline_seconds)),
            *("--output", str(directory / "agent.log")),
            *("--result", str(self._result_path)),
            "--",
            *command,
        ]
        self._environment = dict(environment)
        self.log_path = directory / "supervisor.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._handle: int | None = None
        self._ended = False

    def __enter__(self) -> Supervised:
        # An interrupt between the fork and the assignment would lose the process.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        try:
            with self.log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    self._arguments,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._handle = open_handle(self._process.pid)
        except OSError as error:
            raise LaunchError(f"the supervisor could not be started: {error.strerror or error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        return self

    def wait(self, seconds: float) -> bool:
        """Sleep until the supervisor ends, at most ``seconds``; True when it has ended."""
        assert self._process is not None
        if self._handle is not None:
            return bool(select.select([self._handle], [], [], seconds)[0])
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def dump_stacks(self, *, has_agent: bool) -> None:
        """Ask every worker for the stacks of its threads, which it writes to its log (faulthandler on SIGUSR1)."""
        assert self._process is not None
        workers = rank_processes(self._launch_id).values() if has_agent else descendants(self._process.pid)[:1]
        sizes = {worker.pid: _log_bytes(worker.pid) for worker in workers}
        for worker in workers:
            send_signal(worker, signal.SIGUSR1)
        ends = time.monotonic() + STACKS_SECONDS
        while any(_log_bytes(pid) == size for pid, size in sizes.items()) and time.monotonic() < ends:
            time.sleep(0.02)
        time.sleep(0.05)  # the first line is there: the others are being written

    def end(self, *, done: bool = False) -> None:
        """End the supervisor and with it everything below; with ``done`` without any grace.

        Interrupts wait until this is over: a second Ctrl-C must not leave half of the processes behind.
        """
        if self._process is None or self._ended:
            return
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        try:
            if self._process.poll() is None:
                self._process.send_signal(DONE if done else signal.SIGTERM)
                self.wait(GIVE_UP_SECONDS + 5)
            self._sweep()
            self._process.wait()
            self.result = self._read_result()
            self._ended = True
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def _sweep(self) -> None:
        """Kill what carries the launch's id and is still there: only after somebody has killed the supervisor."""
        ends = time.monotonic() + GIVE_UP_SECONDS
        while (left := processes_of_launch(self._launch_id)) and time.monotonic() < ends:
            for process in left:
                send_signal(process, signal.SIGKILL)
            time.sleep(0.02)

    def _read_result(self) -> dict[str, Any] | None:
        try:
            document = json.loads(self._result_path.read_bytes())
        except (OSError, ValueError):  # it was killed, or its log says why it could not write
            return None
        return document if isinstance(document, dict) else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _log_bytes(pid: int) -> int:
    """The size of what this process writes its errors to; -1 once it has gone."""
    try:
        return Path(f"/proc/{pid}/fd/2").stat().st_size
    except OSError:
        return -1


def read_log_tails(directory: Path, ranks: Iterable[int]) -> tuple[str, dict[int, str]]:
    """The ends of the agent's log and of each rank's standard error, as torchrun lays them out."""
    agent = read_tail(directory / "agent.log")
    logs: dict[int, str] = {}
    for local_rank, rank in enumerate(ranks):
        for path in sorted(directory.glob(f"logs/*/attempt_0/{local_rank}/stderr.log")):
            logs[rank] = read_tail(path)
    return agent, logs


def read_tail(path: Path) -> str:
    """The end of a log that may be huge, or may not be there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
