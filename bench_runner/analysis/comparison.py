"""What a comparison of two sides is made of: ``Comparison``, ``Unmatched``, and the ``Outcome`` of them all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bench_runner.analysis.cases import Case, CaseKey, Launch
from bench_runner.analysis.statistics import Judgement, Rule

Verdict = Literal["same", "improvement", "regression", "inconclusive", "not-comparable"]
SideName = Literal["baseline", "candidate"]

OUTCOME: Final = "outcome"
"""The metric of a comparison of how launches ended."""

THRESHOLD: Final = 0.05
THRESHOLD_BETWEEN_MACHINES: Final = 0.10
"""Identical GPUs differ by up to 8 % in public studies: less than 10 % between machines says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideValue:
    """One side of a comparison: the geometric mean over its launches, and how many there were of each outcome."""

    value: float | None
    launches: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One metric of one case.  ``judgement`` is there where both sides have numbers that mean the same thing."""

    key: CaseKey
    metric: str
    bytes: int | None = None
    unit: str | None = None
    direction: Literal["higher", "lower"] | None = None
    statistic: str | None = None
    baseline: SideValue
    candidate: SideValue
    verdict: Verdict
    reason: str
    judgement: Judgement | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.judgement is None else self.judgement.ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """A case that one side alone has."""

    key: CaseKey
    side: SideName
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything ``compare`` found, comparisons in the order worst first.

    ``sessions_uncounted``: sides from sessions apart were compared without knowing how far sessions differ.
    """

    rule: Rule
    comparisons: tuple[Comparison, ...]
    unmatched: tuple[Unmatched, ...]
    sessions_uncounted: bool = False

    @property
    def verdict(self) -> Verdict:
        """The worst that was found; ``not-comparable`` if nothing could be judged."""
        told = {comparison.verdict for comparison in self.comparisons}
        order: tuple[Verdict, ...] = ("regression", "inconclusive", "improvement", "same")
        return next((verdict for verdict in order if verdict in told), "not-comparable")


def machines_differ(baseline: Iterable[Case], candidate: Iterable[Case]) -> bool:
    """Whether the two sides come from different hardware."""
    return fingerprints(all_launches(baseline)) != fingerprints(all_launches(candidate))


def all_launches(cases: Iterable[Case]) -> list[Launch]:
    """Every launch of the cases, however it ended."""
    return [
        launch
        for case in cases
        for launch in (*case.broken, *(one for launches in case.measured.values() for one in launches))
    ]


def fingerprints(launches: Iterable[Launch]) -> set[str]:
    """The machines of the launches."""
    return {launch.fingerprint for launch in launches}


def side(launches: Sequence[Launch], values: Sequence[float] = ()) -> SideValue:
    """One side from its launches and the values that those gave (a zero among them has no geometric mean)."""
    positive = bool(values) and min(values) > 0
    middle = math.exp(math.fsum(map(math.log, values)) / len(values)) if positive else (values[0] if values else None)
    return SideValue(value=middle, launches=len(values), outcomes=dict(Counter(launch.outcome for launch in launches)))


def not_comparable(baseline: Case, candidate: Case, reason: str) -> Comparison:
    """A case whose two sides mean different things."""
    left, right = side(all_launches([baseline])), side(all_launches([candidate]))
    return Comparison(
        key=baseline.key, metric="all", baseline=left, candidate=right, verdict="not-comparable", reason=reason
    )
