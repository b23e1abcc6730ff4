"""What the ranks of a launch report while it runs: one file of JSON lines each, read as it grows.

The files come from processes that may die in the middle of a line, so everything is read tolerantly and bounded: a
line that cannot be read is counted, never raised.  Reading costs one ``stat`` per rank while nothing has happened:
the ranks are being measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from bench_runner.record import Failure

LARGEST_LINE_BYTES: Final = 1 << 25
LARGEST_FILE_BYTES: Final = 1 << 28
LONGEST_TEXT: Final = 20_000
FAILURES: Final[frozenset[str]] = frozenset(get_args(Failure))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """An exception that a rank reported before it left; ``at`` is its own clock, seconds since the epoch."""

    rank: int
    at: float
    case: int | None
    failure: Failure
    message: str
    traceback: str | None


@dataclass(slots=True, kw_only=True)
class CaseProgress:
    """One case on one rank.  ``began`` and ``settled`` are wall-clock seconds of the rank, None before."""

    began: float | None = None
    settled: float | None = None
    samples: dict[str, Any] | None = None
    skipped: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class RankProgress:
    """All that one rank has said so far."""

    rank: int
    state: str | None = None
    joined: bool = False
    leaving: bool = False
    runtime: dict[str, Any] | None = None
    error: RankError | None = None
    cases: dict[int, CaseProgress] = field(default_factory=dict)
    unreadable_lines: int = 0

    def case(self, index: int) -> CaseProgress:
        return self.cases.setdefault(index, CaseProgress())

    def has_begun(self, index: int) -> bool:
        return index in self.cases

    def has_settled(self, index: int) -> bool:
        return index in self.cases and self.cases[index].settled is not None

    def take(self, line: bytes) -> None:
        """Account for one line of the rank's file."""
        try:
            event = json.loads(line)
            kind, at = event["event"], _number(event["at"])
            taker = _TAKERS.get(kind)
            if taker is not None:  # an event this version does not know is none of its business
                taker(self, event, at)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            self.unreadable_lines += 1


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"not a finite number: {value!r}")
    return float(value)


def _case(event: dict[str, Any]) -> int:
    index = event["case"]
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"not a case: {index!r}")
    return index


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"not an object: {value!r}")
    return value


def _text(value: object) -> str:
    return str(value)[:LONGEST_TEXT]


def _take_state(progress: RankProgress, event: dict[str, Any], at: float) -> None:
    state = str(event["state"])
    if state == "case":
        case = progress.case(_case(event))
        case.began = at if case.began is None else case.began
    progress.state = state
    progress.joined = progress.joined or state in ("joined", "case", "leaving")
    progress.leaving = state == "leaving"


def _take_runtime(progress: RankProgress, event: dict[str, Any], _at: float) -> None:
    progress.runtime = _mapping(event["runtime"])


def _take_result(progress: RankProgress, event: dict[str, Any], at: float) -> None:
    samples = _mapping(event["samples"])
    case = progress.case(_case(event))
    case.samples = samples
    case.warnings = tuple(_text(warning) for warning in event.get("warnings", ()))
    case.settled = at
    progress.joined = True


def _take_skipped(progress: RankProgress, event: dict[str, Any], at: float) -> None:
    case = progress.case(_case(event))
    case.skipped = _text(event["reason"])
    case.settled = at


def _take_error(progress: RankProgress, event: dict[str, Any], at: float) -> None:
    if progress.error is not None:
        return  # the first is the cause; whatever follows while leaving is not
    failure = event.get("failure")
    progress.error = RankError(
        rank=progress.rank,
        at=at,
        case=None if event.get("case") is None else _case(event),
        failure=failure if failure in FAILURES else "exception",
        message=_text(event["message"]),
        traceback=None if event.get("traceback") is None else _text(event["traceback"]),
    )


_TAKERS: Final = {
    "state": _take_state,
    "runtime": _take_runtime,
    "result": _take_result,
    "skipped": _take_skipped,
    "error": _take_error,
}


class RankFile:
    """Follows one rank's file; ``progress`` is what it has said so far.  ``hand_on`` gets each whole line as well."""

    def __init__(self, path: Path, rank: int, hand_on: Callable[[int, bytes], object] | None = None) -> None:
        self.path = path
        self._hand_on = hand_on
        self.progress = RankProgress(rank=rank)
        self._offset = 0
        self._rest = b""
        self._too_long = False

    def update(self) -> bool:
        """Read what has been added since the last call; True if there was anything."""
        try:
            size = min(self.path.stat().st_size, LARGEST_FILE_BYTES)
            if size <= self._offset:
                return False
            with self.path.open("rb") as file:
                file.seek(self._offset)
                added = file.read(size - self._offset)
        except FileNotFoundError:
            return False
        self._offset += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > LARGEST_LINE_BYTES:
            self._rest, self._too_long = b"", True
        return True

    def finish(self) -> None:
        """The rank has ended: read the remainder; a last line without its end counts if it is whole."""
        self.update()
        self._take(self._rest)
        self._rest = b""

    def _take(self, line: bytes) -> None:
        if self._too_long:
            self._too_long = False
            self.progress.unreadable_lines += 1
        elif line.strip():
            self.progress.take(line)
            if self._hand_on is not None:
                self._hand_on(self.progress.rank, line)


def rank_path(directory: Path, rank: int) -> Path:
    """Where a rank reports; the worker knows the same rule."""
    return directory / f"rank-{rank}.jsonl"
