"""A job's logs read as values: signatures, tracebacks, NCCL's watchdog, what the launcher reports.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from bench_runner.doctor.log_times import Stamp, stamp_before, stamp_in
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
_WORLD_SIZE: Final = re.compile(r"(?:world[ _-]?size|WORLD_SIZE|\bnranks)\W{0,3}[= :]\W{0,2}(\d{1,6})\b", re.IGNORECASE)
_REPORT_TIME: Final = re.compile(r"^\s+time\s+: (\S{19})")
_REPORT_RANK: Final = re.compile(r"^\s+rank\s+: (\d{1,6}) \(local_rank")
_REPORT_EXIT: Final = re.compile(r"^\s+exitcode\s+: (-?\d{1,6}) ")
_SPAWN_SIGNAL: Final = re.compile(r"process (\d{1,6}) terminated with signal (SIG\w+)")
_LAUNCHER: Final = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "SignalException")
_CONSEQUENCE: Final = re.compile(
    r"Connection (?:closed|reset) by peer|Timed out waiting|[Ww]atchdog caught|timed out after|wait timeout after"
    r"|Broken pipe|ncclRemoteError|NCCL communicator was aborted|peer has closed|KeyboardInterrupt"
)
_CHUNK_LINES: Final = 256
_LAST_LINES: Final = 10
_MOST_FRAMES: Final = 200
_MOST_KEPT: Final = 4096
"""Tracebacks, matches a signature: a job that fails for hours says the same again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A signature found; ``rank`` if the line or the file names one, ``count`` how many lines bore it, ``at`` when."""

    signature: Signature
    where: str
    text: str
    rank: int | None
    count: int = 1
    at: Stamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedError:
    """One traceback; ``frames`` outermost first, as Python prints them; ``at`` when, as far as the log says it."""

    where: str
    rank: int | None
    error: str
    frames: tuple[Frame, ...]
    at: Stamp | None = None

    @property
    def file(self) -> str:
        """The log that it stands in."""
        return self.where.rpartition(":")[0]

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
class LogSource:
    """One file.  ``rank``: the one its name gives; ``spoken``: those that its lines name in front; ``blank``: why there
    is nothing in it to judge, None where there is.  ``world_size``: the largest that it names (groups have smaller
    ones)."""

    name: str
    rank: int | None = None
    spoken: frozenset[int] = frozenset()
    blank: str | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """All that the logs of one job say.  ``exits``: rank to the exit code the launcher reports (negative: a signal);
    ``joined`` is (came, expected) of a rendezvous that waited in vain; ``failed_at``: rank to the time that the
    launcher gives its failure; ``last_lines`` of the last log that has any."""

    matches: tuple[Match, ...]
    errors: tuple[LoggedError, ...]
    timeouts: tuple[NcclTimeout, ...]
    exits: dict[int, int]
    joined: tuple[int, int] | None
    sources: tuple[LogSource, ...]
    skipped_bytes: int
    failed_at: Mapping[int, Stamp] = field(default_factory=dict)
    last_lines: tuple[str, ...] = ()


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
    open: dict[int | None, tuple[int, list[Frame]]] = field(default_factory=dict)
    spawned: int | None = None
    reported: int | None = None
    reported_at: Stamp | None = None
    spoken: set[int] = field(default_factory=set)
    world_size: int | None = None
    failed_at: dict[int, Stamp] = field(default_factory=dict)


def summarise(logs: Sequence[LogText]) -> LogSummary:
    """Read all logs of one job together."""
    reading = _Reading()
    sources: list[LogSource] = []
    for log in logs:
        reading.open.clear()
        reading.spoken = set()
        reading.spawned = reading.reported = reading.reported_at = reading.world_size = None
        for start in range(0, len(log.lines), _CHUNK_LINES):
            chunk = log.lines[start : start + _CHUNK_LINES]
            # Most lines of a long log bear no signature: what none of many lines holds need not be sought in each.
            text = "\n".join(line for _, line in chunk)
            needles = needles_in(text)
            sizes = [int(size) for size in _WORLD_SIZE.findall(text)]
            reading.world_size = max([*sizes, reading.world_size or 0]) or None
            for number, line in chunk:
                _read_line(reading, log, number, line, needles)
        sources.append(
            LogSource(
                name=log.name,
                rank=log.rank,
                spoken=frozenset(reading.spoken),
                blank=_blank_reason(log),
                world_size=reading.world_size,
            )
        )
    matches = tuple(
        replace(match, count=reading.counts[name]) for name, kept in reading.found.items() for match in kept
    )
    return LogSummary(
        matches=matches,
        errors=tuple(reading.errors),
        timeouts=tuple(_with_enqueued(reading.timeouts.values(), reading.enqueued)),
        exits=reading.exits,
        joined=reading.joined,
        sources=tuple(sources),
        skipped_bytes=sum(log.skipped_bytes for log in logs),
        failed_at=reading.failed_at,
        last_lines=next((lines for log in reversed(logs) if (lines := _last_lines(log))), ()),
    )


def _blank_reason(log: LogText) -> str | None:
    if log.binary:
        return "is binary, no text"
    return None if any(line.strip() for _, line in log.lines) else "is empty"


def _last_lines(log: LogText) -> tuple[str, ...]:
    if log.binary:
        return ()
    lines = (line.rstrip()[:300] for _, line in reversed(log.lines) if line.strip())
    return tuple(reversed(list(islice(lines, _LAST_LINES))))


def _with_enqueued(timeouts: Iterable[NcclTimeout], enqueued: dict[int, int]) -> list[NcclTimeout]:
    ordered = sorted(timeouts, key=lambda timeout: timeout.rank)
    return [replace(timeout, last_enqueued=enqueued.get(timeout.rank)) for timeout in ordered]


def _read_line(reading: _Reading, log: LogText, number: int, line: str, needles: Needles) -> None:
    rank = log.rank
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    prefix = _PREFIX.match(line)
    if prefix:
        rank = int(prefix[1] or prefix[2])
        reading.spoken.add(rank)
        line = line[prefix.end() :]
    _read_traceback(reading, log, number, line, rank)
    _read_launcher(reading, line)
    if "Rank " in line:
        _read_watchdog(reading, line)
    for signature in matching(line, needles) if needles else ():
        kept = reading.found.setdefault(signature.name, [])
        reading.counts[signature.name] = reading.counts.get(signature.name, 0) + 1
        if all(match.rank != rank for match in kept) and len(kept) < _MOST_KEPT:
            where, at = f"{log.name}:{number}", stamp_before(log.lines, number)
            kept.append(Match(signature=signature, where=where, text=line.strip()[:500], rank=rank, at=at))


def _read_traceback(reading: _Reading, log: LogText, number: int, line: str, rank: int | None) -> None:
    if line.startswith(_START):
        reading.open[rank] = (number, [])
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
        where, at = f"{log.name}:{began}", stamp_before(log.lines, began)
        reading.errors.append(
            LoggedError(where=where, rank=owner, error=line.strip()[:500], frames=tuple(frames), at=at)
        )


def _read_launcher(reading: _Reading, line: str) -> None:
    """torchrun's table of failures, and what torch.multiprocessing.spawn says of the rank that failed."""
    if line.startswith(" "):
        if began := _REPORT_TIME.match(line):
            reading.reported_at = stamp_in(began[1])
        elif reported := _REPORT_RANK.match(line):
            reading.reported = int(reported[1])
            if reading.reported_at is not None:
                reading.failed_at.setdefault(reading.reported, reading.reported_at)
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
