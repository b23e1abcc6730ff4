"""Processes as the kernel shows them: who descends from whom, which belong to a launch, and dying with the parent.

Linux only, standard library only, quick to import: the supervisor and every worker use it before anything else.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final, NamedTuple

LAUNCH_ID_VARIABLE: Final = "BENCH_RUNNER_LAUNCH_ID"
"""Every process of a launch carries it in its environment, whatever session or parent it has found for itself."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LARGEST_ENVIRONMENT_BYTES: Final = 1 << 22


class Process(NamedTuple):
    """One line of the process table.  ``started_ticks`` tells it from a later process that got the same ``pid``."""

    pid: int
    parent: int
    name: str
    state: str
    started_ticks: int

    @property
    def gone(self) -> bool:
        """A zombie runs no more; only its exit status waits to be collected."""
        return self.state in "ZX"


def parse_stat(text: str) -> Process:
    """One ``/proc/PID/stat``, proc(5).  The name stands in brackets and may hold brackets and spaces itself."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition("(")
    fields = tail.split()
    return Process(int(pid), int(fields[1]), name, fields[0], int(fields[19]))


def read_process(pid: int) -> Process | None:
    """The process now, or None when there is none of this number."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib is slow to import
            return parse_stat(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def process_table() -> list[Process]:
    """All processes that this one may see."""
    found = (read_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208
    return [process for process in found if process is not None]


def descendants(ancestor: int, table: list[Process] | None = None) -> list[Process]:
    """Children of ``ancestor``, their children and so on, parents before their children; zombies included."""
    children: dict[int, list[Process]] = {}
    for process in process_table() if table is None else table:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = list(children.get(ancestor, ()))
    while waiting:
        process = waiting.pop(0)
        found.append(process)
        waiting.extend(children.pop(process.pid, ()))
    return found


def processes_of_launch(launch_id: str) -> list[Process]:
    """Every running process that was started by the launch with this id, found by its environment."""
    return [process for process, _ in _launch_environments(launch_id)]


def rank_processes(launch_id: str) -> dict[int, Process]:
    """The running worker processes of the launch by their rank, without the helpers that they have started."""
    of_ranks: dict[int, tuple[int, Process]] = {}
    for process, environment in _launch_environments(launch_id):
        rank = next((entry[5:] for entry in environment if entry.startswith(b"RANK=")), b"")
        if rank.isdigit():
            of_ranks[process.pid] = int(rank), process
    return {rank: process for rank, process in of_ranks.values() if process.parent not in of_ranks}


def _launch_environments(launch_id: str) -> list[tuple[Process, list[bytes]]]:
    mark = f"{LAUNCH_ID_VARIABLE}={launch_id}".encode()
    found = ((process, _environment_of(process.pid)) for process in process_table() if not process.gone)
    return [(process, environment) for process, environment in found if mark in environment]


def _environment_of(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return file.read(_LARGEST_ENVIRONMENT_BYTES).split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # gone, or another user's: neither is one of ours


def send_signal(process: Process, number: int) -> bool:
    """Send ``number`` to exactly this process; False if it has gone.  Never hits a later one with the same number."""
    handle = open_handle(process.pid)
    try:
        now = read_process(process.pid)
        if now is None or now.started_ticks != process.started_ticks or now.gone:
            return False
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def open_handle(pid: int) -> int | None:
    """A descriptor that means this process for good and becomes readable when it ends.

    None where there is no such process, or the kernel or a sandbox has no such descriptors.
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends (a child subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send ``number`` to this process when its parent ends.

    ``parent`` is the expected parent's number.  Without it, a parent that does not belong to the launch this process
    belongs to is taken for a foster parent.  If the parent has gone before the call, this process ends itself.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    launch_id = os.environ.get(LAUNCH_ID_VARIABLE)
    if parent is not None:
        orphaned = os.getppid() != parent
    else:
        mark = f"{LAUNCH_ID_VARIABLE}={launch_id}".encode()
        orphaned = launch_id is not None and mark not in _environment_of(os.getppid())
    if orphaned:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")
