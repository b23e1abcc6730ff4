"""The noise of one machine: how far launches of an unchanged thing differ, within a session and from one to the next.

A profile lets later comparisons say more with fewer launches (``statistics`` pools its degrees of freedom) and says
how far two sessions may differ by themselves.  One-way analysis of variance on the logs, session by session:
Searle, Casella, McCulloch, Variance Components (1992), chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench_runner.analysis.statistics import Noise
from bench_runner.errors import UnreadableError

NOISE_SCHEMA: Final = "bench-runner/noise/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """The launches of one session: how many, the mean of their logarithms, the sum of squares around it."""

    session: str
    launches: int
    mean: float
    squares: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseProfile:
    """The noise of every metric of one machine, by the metric's key (see ``cases.noise_key``), session by session."""

    machine: str
    fingerprint: str
    metrics: Mapping[str, tuple[SessionSummary, ...]]
    sessions: int
    launches: int

    def noise(self, key: str, *, without: Collection[str] = ()) -> Noise | None:
        """What is known of one metric.  ``without``: sessions that are compared themselves, whose launches would
        otherwise count twice."""
        return estimate([summary for summary in self.metrics.get(key, ()) if summary.session not in without])

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": NOISE_SCHEMA,
            "machine": self.machine,
            "fingerprint": self.fingerprint,
            "sessions": self.sessions,
            "launches": self.launches,
            "metrics": {key: [asdict(one) for one in summaries] for key, summaries in sorted(self.metrics.items())},
        }


def summarise(session: str, values: Sequence[float]) -> SessionSummary | None:
    """One session; ``None`` without values, or if one of them is not positive."""
    if not values or min(values) <= 0:
        return None
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    squares = math.fsum((x - mean) ** 2 for x in logs)
    return SessionSummary(session=session, launches=len(logs), mean=mean, squares=squares)


def measure(sessions: Sequence[Sequence[float]]) -> Noise | None:
    """The noise in values of launches, one inner sequence a session."""
    found = [summarise(str(number), values) for number, values in enumerate(sessions)]
    return estimate([summary for summary in found if summary is not None])


def estimate(sessions: Sequence[SessionSummary]) -> Noise | None:
    """The noise over sessions; ``None`` if none of them has two launches.

    The spread of session means is kept as it is seen, with the launches' own part in it: a difference of the two
    would often be zero by chance, and would then promise that sessions never differ.
    """
    total = sum(one.launches for one in sessions)
    degrees = total - len(sessions)
    if degrees < 1:
        return None
    within = math.fsum(one.squares for one in sessions) / degrees
    between_degrees = len(sessions) - 1
    if between_degrees < 1:
        return Noise(spread=math.sqrt(within), degrees=degrees)
    grand = math.fsum(one.launches * one.mean for one in sessions) / total
    between = math.fsum(one.launches * (one.mean - grand) ** 2 for one in sessions) / between_degrees
    size = (total - sum(one.launches**2 for one in sessions) / total) / between_degrees
    return Noise(
        spread=math.sqrt(within),
        degrees=degrees,
        session_spread=math.sqrt(between / size),
        session_launches=size,
        session_degrees=between_degrees,
    )


def from_json(document: object, source: str) -> NoiseProfile:
    """Read what ``NoiseProfile.to_json`` wrote; ``UnreadableError`` names ``source`` for anything else."""
    if not isinstance(document, dict) or document.get("schema") != NOISE_SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise UnreadableError(f"{source}: schema {found!r} is not {NOISE_SCHEMA}; run bench-runner profile-noise again")
    try:
        return NoiseProfile(
            machine=str(document["machine"]),
            fingerprint=str(document["fingerprint"]),
            metrics={str(key): tuple(map(_summary, value)) for key, value in dict(document["metrics"]).items()},
            sessions=int(document["sessions"]),
            launches=int(document["launches"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UnreadableError(
            f"{source}: damaged noise profile ({error}); run bench-runner profile-noise again"
        ) from error


def _summary(value: Mapping[str, Any]) -> SessionSummary:
    one = SessionSummary(
        session=str(value["session"]),
        launches=int(value["launches"]),
        mean=float(value["mean"]),
        squares=float(value["squares"]),
    )
    if one.launches < 1 or not math.isfinite(one.mean) or not (math.isfinite(one.squares) and one.squares >= 0):
        raise ValueError(f"session {one.session}: impossible numbers")
    return one
