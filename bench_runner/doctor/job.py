"""A running job as the kernel shows it: which processes are its ranks, their helpers, their states and CPU time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from bench_runner.processes import Process, descendants, process_table, read_process

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LARGEST_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """One rank; ``helpers`` are its descendants, such as a data loader's workers.  ``state``: proc(5)'s letter."""

    rank: int
    pid: int
    state: str
    helpers: tuple[int, ...] = ()
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All processes at one moment.  ``world_size`` is the local one, None if no process says it; ``all_here`` whether
    the job has no other nodes."""

    ranks: tuple[RankProcess, ...]
    pids: tuple[int, ...]
    world_size: int | None
    all_here: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What ``find_ranks`` goes by, of one process: made-up ones in tests."""

    process: Process
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def look(root: int) -> Job:
    """The job below (and with) ``root`` as it is now."""
    table = process_table()
    own = [process for process in table if process.pid == root]
    family = [*own, *descendants(root, table)]
    return find_ranks([Seen(process=p, environment=_environment(p.pid), arguments=_arguments(p.pid)) for p in family])


def find_ranks(family: list[Seen]) -> Job:
    """Tell the ranks from launchers and helpers.

    A rank has RANK in its environment and no parent with it; failing that, the processes that multiprocessing spawned
    are taken for ranks in the order of their start; failing that, the command's own process is the only rank.
    """
    children: dict[int, list[int]] = {}
    for seen in family:
        children.setdefault(seen.process.parent, []).append(seen.process.pid)
    ranked = {s.process.pid: int(s.environment["RANK"]) for s in family if s.environment.get("RANK", "").isdigit()}
    top = [s for s in family if s.process.pid in ranked and s.process.parent not in ranked]
    if top:
        numbered = [(ranked[s.process.pid], s) for s in top]
    else:
        spawned = [s for s in family if any("multiprocessing.spawn" in a for a in s.arguments)]
        outer = [s for s in spawned if s.process.parent not in {o.process.pid for o in spawned}]
        numbered = list(enumerate(sorted(outer, key=lambda s: s.process.started_ticks))) or [(0, s) for s in family[:1]]
    ranks = tuple(
        RankProcess(
            rank=rank,
            pid=seen.process.pid,
            state=seen.process.state,
            helpers=tuple(_below(seen.process.pid, children)),
        )
        for rank, seen in sorted(numbered, key=lambda pair: pair[0])
    )
    sizes = {s.environment.get("WORLD_SIZE", "") for s in top}
    local = {s.environment.get("LOCAL_WORLD_SIZE", s.environment.get("WORLD_SIZE", "")) for s in top}
    size = next(iter(local)) if len(local) == 1 else ""
    return Job(
        ranks=ranks,
        pids=tuple(seen.process.pid for seen in family if not seen.process.gone),
        world_size=int(size) if size.isdigit() else None,
        all_here=sizes == local,
    )


def _below(pid: int, children: Mapping[int, list[int]]) -> Iterable[int]:
    for child in children.get(pid, ()):
        yield child
        yield from _below(child, children)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of these processes so far, user and system; those that have gone count nothing."""
    return sum(_ticks(pid) for pid in pids) / _TICKS


def _ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12])


def exit_code_of(pid: int) -> int | None:
    """The exit code of a zombie (negative: a signal), where the kernel shows it; None for any other process."""
    process = read_process(pid)
    if process is None or process.state != "Z":
        return None
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            status = int(file.read().rpartition(")")[2].split()[49])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None
    return os.waitstatus_to_exitcode(status)


def _environment(pid: int) -> dict[str, str]:
    entries = (entry.partition("=") for entry in _strings(pid, "environ"))
    return {name: value for name, _, value in entries if name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}


def _arguments(pid: int) -> tuple[str, ...]:
    return tuple(_strings(pid, "cmdline"))


def _strings(pid: int, name: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
            return file.read(_LARGEST_BYTES).decode("utf-8", "replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # gone, or another user's: nothing to learn from it
