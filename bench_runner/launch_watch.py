"""When a launch that is still running has to be ended: pure rules over what its ranks have said.

A launch passes through: starting (until every rank has joined), its cases one after the other, leaving.  Each has a
deadline of its own, so that a hang is named by where it happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from bench_runner.rank_files import RankProgress

ERROR_GRACE_SECONDS: Final = 5.0
"""After one rank's error the agent ends the others; what is not over by then is ended from here."""

StopKind = Literal["missing-rank", "deadline", "between-cases", "teardown", "error", "done", "lost-node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that a launch may take to start, for each case, and to leave after the last result."""

    startup_seconds: float
    case_seconds: tuple[float, ...]
    teardown_seconds: float

    def total(self, first_case: int) -> float:
        """The most a launch can take by these limits, for the supervisor's own deadline."""
        cases = self.case_seconds[first_case:]
        between = self.startup_seconds * len(cases)
        return self.startup_seconds + sum(cases) + between + self.teardown_seconds + ERROR_GRACE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a launch was ended from outside: at which case, and how long that stage had taken."""

    kind: StopKind
    case: int | None = None
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Stages:
    """When each stage was first seen to begin, on the control side's monotonic clock."""

    launched: float
    case_began: dict[int, float] = field(default_factory=dict)
    case_settled: dict[int, float] = field(default_factory=dict)
    error_seen: float | None = None

    def note(self, ranks: Sequence[RankProgress], first_case: int, cases: int, now: float) -> None:
        """Bring the stages up to date with what the ranks have said by ``now``."""
        for case in range(first_case, cases):
            if any(rank.has_begun(case) for rank in ranks):
                self.case_began.setdefault(case, now)
            if all(rank.has_settled(case) for rank in ranks):
                self.case_settled.setdefault(case, now)
        if any(rank.error for rank in ranks) and self.error_seen is None:
            self.error_seen = now


def find_stop(
    ranks: Sequence[RankProgress], stages: Stages, limits: Limits, first_case: int, now: float
) -> Stop | None:
    """The reason to end the launch now, or None to let it go on."""
    cases = len(limits.case_seconds)
    if stages.error_seen is not None:
        waited = now - stages.error_seen
        return Stop(kind="error", seconds=waited) if waited > ERROR_GRACE_SECONDS else None
    waited = now - stages.launched
    if not all(rank.joined for rank in ranks) and waited > limits.startup_seconds:
        return Stop(kind="missing-rank", case=first_case, seconds=waited)
    case = next((i for i in range(first_case, cases) if i not in stages.case_settled), None)
    if case is None:
        waited = now - max(stages.case_settled.values(), default=stages.launched)
        return Stop(kind="teardown", seconds=waited) if waited > limits.teardown_seconds else None
    if case in stages.case_began:
        waited = now - stages.case_began[case]
        return Stop(kind="deadline", case=case, seconds=waited) if waited > limits.case_seconds[case] else None
    waited = now - stages.case_settled.get(case - 1, stages.launched)
    return Stop(kind="between-cases", case=case, seconds=waited) if waited > limits.startup_seconds else None
