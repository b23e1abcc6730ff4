"""Runs one command and answers for every process that comes of it.

``python -m bench_runner.supervisor --parent PID --deadline S --output FILE --result FILE -- COMMAND...``

The command runs in a session of its own, reads nothing and writes to FILE, never to a pipe of the caller.  When it
ends, when the deadline has passed, when a signal comes or when the caller dies, everything that descends from it is
ended: SIGTERM, a grace, SIGKILL, until the kernel says that no child is left.  As a child subreaper this process
inherits whatever forked twice or started a session of its own, so "no child" is proof.  What happened stands in the
result file as JSON.  Signals: SIGUSR1 says that the work is done and the rest may go at once; SIGTERM, SIGINT and
SIGHUP interrupt.

Standard library only, one thread, and asleep while nothing happens: the command is being measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from bench_runner.processes import Process, adopt_orphans, descendants, die_with_parent, send_signal

RESULT_SCHEMA: Final = "bench-runner/supervised/1"
DONE: Final = signal.SIGUSR1
INTERRUPTS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WATCHED: Final = frozenset((*INTERRUPTS, DONE, signal.SIGCHLD))
GRACE_SECONDS: Final = 1.0
GIVE_UP_SECONDS: Final = 20.0
"""A process in uninterruptible sleep (a wedged driver) does not die; it is named in the result instead."""

_LONGEST_WAIT_SECONDS: Final = 3600.0
_TICK_SECONDS: Final = 0.02


def main(arguments: list[str]) -> int:
    """Supervise as told by the command line; 0 whenever the result file was written."""
    options, command = _parse(arguments)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an inherited SIG_IGN would throw exit statuses away
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    adopt_orphans()
    die_with_parent(signal.SIGTERM, int(options["--parent"]))
    document = supervise(command, options["--output"], float(options["--deadline"]))
    _write_atomically(options["--result"], document)
    return 0


def _parse(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    end = arguments.index("--")
    options = dict(zip(arguments[:end:2], arguments[1:end:2], strict=True))
    missing = {"--parent", "--deadline", "--output", "--result"} - set(options)
    if missing or not arguments[end + 1 :]:
        raise SystemExit(f"bench_runner.supervisor: missing {', '.join(sorted(missing)) or 'command'}")
    return options, arguments[end + 1 :]


def supervise(command: list[str], output: str, deadline_seconds: float) -> dict[str, Any]:
    """Run ``command`` to its end, or to ours, and leave nothing of it running; what happened as plain values.

    ``reason`` is one of ended, done, deadline, interrupted, not-started; ``killed`` the processes that this had to
    signal; ``left`` those that even SIGKILL did not end.
    """
    began = time.monotonic()
    document: dict[str, Any] = {
        "schema": RESULT_SCHEMA, "reason": "ended", "pid": None, "exit_code": None, "signal": None,
        "interrupted_by": None, "error": None, "killed": [], "left": [],
    }  # fmt: skip
    statuses: dict[int, int] = {}
    child, error = _start(command, output)
    if error is not None:
        os.waitpid(child, 0)
        return {**document, "reason": "not-started", "error": error, "seconds": time.monotonic() - began}
    document["pid"] = child
    document["reason"], document["interrupted_by"] = _wait(child, began + deadline_seconds, statuses)
    document["killed"], document["left"] = end_all(child, statuses, at_once=document["reason"] == "done")
    if child in statuses:
        code = os.waitstatus_to_exitcode(statuses[child])
        document["exit_code" if code >= 0 else "signal"] = abs(code)
    document["seconds"] = time.monotonic() - began
    return document


def _start(command: list[str], output: str) -> tuple[int, str | None]:
    """Fork and execute; the child's number, and why it could not be executed.

    The pipe closes by itself when the execution succeeds, and carries the error when it does not.
    """
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    reading, writing = os.pipe()
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            die_with_parent(signal.SIGKILL, supervisor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
            os.execvp(command[0], command)  # noqa: S606 - a list, no shell
        except OSError as error:
            os.write(writing, f"{command[0]}: {error.strerror}".encode())
        finally:
            os._exit(127)
    os.close(writing)
    os.close(log)
    with os.fdopen(reading, "rb") as pipe:
        message = pipe.read().decode("utf-8", "replace")
    return child, message or None


def _wait(child: int, ends: float, statuses: dict[int, int]) -> tuple[str, str | None]:
    """Sleep until the child ends, the deadline passes or a signal comes; the reason, and the signal's name."""
    while child not in statuses:
        left = ends - time.monotonic()
        if left <= 0:
            return "deadline", None
        received = signal.sigtimedwait(WATCHED, min(left, _LONGEST_WAIT_SECONDS))
        if received is None or received.si_signo == signal.SIGCHLD:
            _reap(statuses)
        elif received.si_signo == DONE:
            return "done", None
        else:
            return "interrupted", signal.Signals(received.si_signo).name
    return "ended", None


def _reap(statuses: dict[int, int]) -> bool:
    """Collect the exit statuses of all children that have ended; False when there is no child at all."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        statuses[pid] = status


def end_all(
    child: int,
    statuses: dict[int, int],
    *,
    at_once: bool,
    grace_seconds: float = GRACE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """End every descendant of this process: (those that were signalled, those that would not die).

    ``child`` goes last: it is the agent that would take a dying worker for a failure, or leave one behind.
    """
    began = clock()
    signalled: dict[tuple[int, int], dict[str, Any]] = {}
    while _reap(statuses):
        running = [process for process in descendants(os.getpid()) if not process.gone]
        if clock() - began > GIVE_UP_SECONDS:
            return list(signalled.values()), [{"pid": p.pid, "name": p.name, "state": p.state} for p in running]
        workers = [process for process in running if process.pid != child]
        hard = at_once or clock() - began > grace_seconds
        for process in workers or running:
            _end(process, signal.SIGKILL if hard else signal.SIGTERM, signalled)
        signal.sigtimedwait({signal.SIGCHLD}, _TICK_SECONDS)
    return list(signalled.values()), []


def _end(process: Process, number: signal.Signals, signalled: dict[tuple[int, int], dict[str, Any]]) -> None:
    """Signal ``process`` unless it has had this signal before; a stopped one is woken so that it can obey."""
    key = (process.pid, process.started_ticks)
    if signalled.get(key, {}).get("signal") in (number.name, signal.SIGKILL.name):
        return
    if send_signal(process, number):
        signalled[key] = {"pid": process.pid, "name": process.name, "signal": number.name}
        if process.state == "T":
            send_signal(process, signal.SIGCONT)


def _write_atomically(path: str, document: dict[str, Any]) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        json.dump(document, file)
    os.replace(temporary, path)  # noqa: PTH105


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
