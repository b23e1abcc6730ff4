"""A job's logs read as values: signatures, tracebacks, NCCL's watchdog, what the launcher reports.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench_runner.doctor.logfile import LogText
from bench_runner.doctor.signatures import Needles, Signature, matching, needles_in
from bench_runner.doctor.stacks import Frame

_PREFIX: Final = re.compile(r"\[(?:rank|default) ?(\d{1,6})\]:? ?|(\d{1,6}): (?=\S| |$)", re.IGNORECASE)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_START: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'  File "([^"]{1,4096})", line (\d{1,9}), in (.+)')
_SPAWNED: Final = re.compile(r"-- Process (\d{1,6}) terminated with the following error:")
_WATCHDOG: Final = re.compile(
    r"\[Rank (\d{1,6})\].{0,200}?Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}), "
    r"OpType=(\w{1,64})(?:, NumelIn=(\d{1,18}))?"
)
_ENQUEUED: Final = re.compile(r"\[Rank (\d{1,6})\].{0,300}?last enqueued (?:NCCL )?work: (\d{1,18})")
_JOINED: Final = re.compile(r"(\d{1,6})/(\d{1,6}) (?:clients|workers) joined")
_REPORT_RANK: Final = re.compile(r"^\s+rank\s+: (\d{1,6}) \(local_rank")
_REPORT_EXIT: Final = re.compile(r"^\s+exitcode\s+: (-?\d{1,6}) ")
_SPAWN_SIGNAL: Final = re.compile(r"process (\d{1,6}) terminated with signal (SIG\w+)")
_LAUNCHER: Final = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "SignalException")
_CONSEQUENCE: Final = re.compile(
    r"Connection (?:closed|reset) by peer|Timed out waiting|[Ww]atchdog caught|timed out after|wait timeout after"
    r"|Broken pipe|ncclRemoteError|NCCL communicator was aborted|peer has closed|KeyboardInterrupt"
)
_CHUNK_LINES: Final = 256
_MOST_FRAMES: Final = 200
_MOST_KEPT: Final = 4096
"""Tracebacks, matches a signature: a job that fails for hours says the same again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A signature found; ``rank`` if the line or the file names one, ``count`` how many lines bore it."""

    signature: Signature
    where: str
    text: str
    rank: int | None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedError:
    """One traceback; ``frames`` outermost first, as Python prints them."""

    where: str
    rank: int | None
    error: str
    frames: tuple[Frame, ...]

    @property
    def of_launcher(self) -> bool:
        """Whether the launcher speaks of its ranks here, rather than a rank of itself."""
        return any(name in self.error.split(":")[0] for name in _LAUNCHER)

    @property
    def consequence(self) -> bool:
        """Whether it only says that another rank has gone or is late."""
        return _CONSEQUENCE.search(self.error) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTimeout:
    """One rank's collective that NCCL's watchdog gave up on: number in the sequence, operation, elements."""

    rank: int
    sequence: int
    operation: str
    elements: int | None = None
    last_enqueued: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """All that the logs of one job say.  ``exits``: rank to the exit code the launcher reports (negative: a signal);
    ``joined`` is (came, expected) of a rendezvous that waited in vain."""

    matches: tuple[Match, ...]
    errors: tuple[LoggedError, ...]
    timeouts: tuple[NcclTimeout, ...]
    exits: dict[int, int]
    joined: tuple[int, int] | None
    names: tuple[str, ...]
    skipped_bytes: int


@dataclass(slots=True)
class _Reading:
    """What has been found so far; the open traceback of each rank, since ranks write over one another."""

    found: dict[str, list[Match]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    errors: list[LoggedError] = field(default_factory=list)
    timeouts: dict[int, NcclTimeout] = field(default_factory=dict)
    enqueued: dict[int, int] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    joined: tuple[int, int] | None = None
    open: dict[int | None, tuple[str, list[Frame]]] = field(default_factory=dict)
    spawned: int | None = None
    reported: int | None = None


def summarise(logs: Sequence[LogText]) -> LogSummary:
    """Read all logs of one job together."""
    reading = _Reading()
    for log in logs:
        reading.open.clear()
        reading.spawned = reading.reported = None
        for start in range(0, len(log.lines), _CHUNK_LINES):
            chunk = log.lines[start : start + _CHUNK_LINES]
            # Most lines of a long log bear no signature: what none of many lines holds need not be sought in each.
            needles = needles_in("\n".join(line for _, line in chunk))
            for number, line in chunk:
                _read_line(reading, log, number, line, needles)
    matches = tuple(
        Match(signature=m.signature, where=m.where, text=m.text, rank=m.rank, count=reading.counts[name])
        for name, kept in reading.found.items()
        for m in kept
    )
    return LogSummary(
        matches=matches,
        errors=tuple(reading.errors),
        timeouts=tuple(_with_enqueued(reading.timeouts.values(), reading.enqueued)),
        exits=reading.exits,
        joined=reading.joined,
        names=tuple(log.name for log in logs),
        skipped_bytes=sum(log.skipped_bytes for log in logs),
    )


def _with_enqueued(timeouts: Iterable[NcclTimeout], enqueued: dict[int, int]) -> list[NcclTimeout]:
    return [
        NcclTimeout(
            rank=t.rank,
            sequence=t.sequence,
            operation=t.operation,
            elements=t.elements,
            last_enqueued=enqueued.get(t.rank),
        )
        for t in sorted(timeouts, key=lambda timeout: timeout.rank)
    ]


def _read_line(reading: _Reading, log: LogText, number: int, line: str, needles: Needles) -> None:
    rank = log.rank
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    prefix = _PREFIX.match(line)
    if prefix:
        rank = int(prefix[1] or prefix[2])
        line = line[prefix.end() :]
    _read_traceback(reading, log.name, number, line, rank)
    _read_launcher(reading, line)
    if "Rank " in line:
        _read_watchdog(reading, line)
    for signature in matching(line, needles) if needles else ():
        kept = reading.found.setdefault(signature.name, [])
        reading.counts[signature.name] = reading.counts.get(signature.name, 0) + 1
        if all(match.rank != rank for match in kept) and len(kept) < _MOST_KEPT:
            kept.append(Match(signature=signature, where=f"{log.name}:{number}", text=line.strip()[:500], rank=rank))


def _read_traceback(reading: _Reading, name: str, number: int, line: str, rank: int | None) -> None:
    if line.startswith(_START):
        reading.open[rank] = (f"{name}:{number}", [])
        return
    if rank not in reading.open:
        return
    began, frames = reading.open[rank]
    found = _FRAME.match(line)
    if found:
        if len(frames) < _MOST_FRAMES:
            frames.append(Frame(file=found[1], line=int(found[2]), function=found[3].strip()))
        return
    if line.startswith(" ") or not line.strip():
        return
    del reading.open[rank]
    if len(reading.errors) < _MOST_KEPT:
        owner = rank if rank is not None else reading.spawned
        reading.errors.append(LoggedError(where=began, rank=owner, error=line.strip()[:500], frames=tuple(frames)))


def _read_launcher(reading: _Reading, line: str) -> None:
    """torchrun's table of failures, and what torch.multiprocessing.spawn says of the rank that failed."""
    if line.startswith(" "):
        if reported := _REPORT_RANK.match(line):
            reading.reported = int(reported[1])
        elif (code := _REPORT_EXIT.match(line)) and reading.reported is not None:
            reading.exits[reading.reported] = int(code[1])
    if "terminated with" in line:
        if spawned := _SPAWNED.match(line):
            reading.spawned = int(spawned[1])
        elif killed := _SPAWN_SIGNAL.search(line):
            reading.exits[int(killed[1])] = -_SIGNALS.get(killed[2], 9)
    if " joined" in line and (joined := _JOINED.search(line)):
        reading.joined = (int(joined[1]), int(joined[2]))


_SIGNALS: Final = {"SIGKILL": 9, "SIGSEGV": 11, "SIGABRT": 6, "SIGBUS": 7, "SIGTERM": 15, "SIGILL": 4, "SIGFPE": 8}


def _read_watchdog(reading: _Reading, line: str) -> None:
    if found := _WATCHDOG.search(line):
        timeout = NcclTimeout(
            rank=int(found[1]),
            sequence=int(found[2]),
            operation=found[3],
            elements=int(found[4]) if found[4] else None,
        )
        reading.timeouts.setdefault(timeout.rank, timeout)
    if found := _ENQUEUED.search(line):
        reading.enqueued.setdefault(int(found[1]), int(found[2]))
