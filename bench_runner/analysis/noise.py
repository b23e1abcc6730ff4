"""The noise of one machine: how far launches of an unchanged thing differ, within a session and from one to the next.

A profile lets later comparisons say more with fewer launches (``statistics`` pools its degrees of freedom) and says
how far two sessions may differ by themselves.  One-way analysis of variance on the logs, session by session:
Searle, Casella, McCulloch, Variance Components (1992), chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench_runner.analysis.statistics import Noise
from bench_runner.errors import UnreadableError

NOISE_SCHEMA: Final = "bench-runner/noise/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseProfile:
    """The noise of every metric of one machine, by the metric's key (see ``compare.noise_key``)."""

    machine: str
    fingerprint: str
    metrics: Mapping[str, Noise]
    sessions: int
    launches: int

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": NOISE_SCHEMA,
            "machine": self.machine,
            "fingerprint": self.fingerprint,
            "sessions": self.sessions,
            "launches": self.launches,
            "metrics": {key: asdict(noise) for key, noise in sorted(self.metrics.items())},
        }


def measure(sessions: Sequence[Sequence[float]]) -> Noise | None:
    """The noise in values of launches, one inner sequence a session; ``None`` if no session has two positive values.

    The spread of session means is kept as it is seen, with the launches' own part in it: a difference of the two
    would often be zero by chance, and would then promise that sessions never differ.
    """
    logs = [[math.log(value) for value in values] for values in sessions if values and min(values) > 0]
    counts = [len(values) for values in logs]
    total = sum(counts)
    degrees = total - len(logs)
    if degrees < 1:
        return None
    means = [sum(values) / len(values) for values in logs]
    squares = sum((x - mean) ** 2 for values, mean in zip(logs, means, strict=True) for x in values)
    within = squares / degrees
    between_degrees = len(logs) - 1
    if between_degrees < 1:
        return Noise(spread=math.sqrt(within), degrees=degrees)
    grand = sum(n * mean for n, mean in zip(counts, means, strict=True)) / total
    between = sum(n * (mean - grand) ** 2 for n, mean in zip(counts, means, strict=True)) / between_degrees
    size = (total - sum(n * n for n in counts) / total) / between_degrees
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
        metrics = {str(key): _noise(value) for key, value in dict(document["metrics"]).items()}
        return NoiseProfile(
            machine=str(document["machine"]),
            fingerprint=str(document["fingerprint"]),
            metrics=metrics,
            sessions=int(document["sessions"]),
            launches=int(document["launches"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UnreadableError(
            f"{source}: damaged noise profile ({error}); run bench-runner profile-noise again"
        ) from error


def _noise(value: dict[str, Any]) -> Noise:
    session_spread = value["session_spread"]
    noise = Noise(
        spread=float(value["spread"]),
        degrees=int(value["degrees"]),
        session_spread=None if session_spread is None else float(session_spread),
        session_launches=float(value["session_launches"]),
        session_degrees=int(value["session_degrees"]),
    )
    if not noise.session_launches >= 1:
        raise ValueError(f"{noise.session_launches!r} launches a session")
    for number in (noise.spread, noise.degrees, noise.session_spread or 0.0, noise.session_degrees):
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"{number!r} is not a finite number of at least 0")
    return noise
