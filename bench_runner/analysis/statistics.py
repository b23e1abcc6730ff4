"""Whether two sets of launches differ: pure functions on arrays; nothing here knows what a metric is.

The unit is the launch, one number each, because the steps inside one launch are correlated and share whatever made
that launch fast or slow: a test on steps raises false alarms at once.  All work is done on natural logarithms, so a
spread is a relative one (0.03 is about 3 %) and exchanging the two sides changes signs and nothing else.

The rule, for a suite of metrics compared together:

1. ``difference`` = mean of the candidate's logs - mean of the baseline's; ``spread`` = pooled standard deviation
   between launches, at least ``Rule.least_spread``.
2. A stored noise profile of the machine adds its degrees of freedom to the spread, unless an F test says that today
   is noisier than the profile.
3. Launches of the two sides that were not interleaved also carry the shift from session to session.  A profile knows
   the variance M of session means over k0 launches, so error² = 2 M + spread² (1/kA + 1/kB - 2/k0), never less than
   without a shift, with Satterthwaite's degrees of freedom: few sessions are little knowledge, however many launches.
4. A two-sided t test per metric, Benjamini and Hochberg's adjustment over the suite.
5. ``regression`` or ``improvement``: adjusted p at most ``Rule.suite_level``, at least half the asked change, and at
   least ``Rule.least_launches`` on each side.
6. ``same``: else, if the interval of two one-sided tests lies within the asked change on both sides.
7. ``inconclusive``: everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from bench_runner.errors import SpecError

Direction = Literal["higher", "lower"]
StatisticalVerdict = Literal["same", "improvement", "regression", "inconclusive"]
Floats = NDArray[np.float64]

INCONCLUSIVE: Final = 0
SAME: Final = 1
LARGER: Final = 2
SMALLER: Final = 3
"""Codes of ``decide``: the candidate's value is larger or smaller; what is better, ``Direction`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``threshold`` is the asked change as a fraction (0.05: 5 %).  The levels are probabilities of error."""

    threshold: float = 0.05
    suite_level: float = 0.02
    same_level: float = 0.05
    profile_level: float = 0.01
    least_spread: float = 0.001
    least_launches: int = 3
    power: float = 0.9

    def __post_init__(self) -> None:
        if not 0.001 <= self.threshold <= 10:
            raise SpecError("threshold", self.threshold, "must be a fraction between 0.001 and 10 (0.1 % to 1000 %)")

    @property
    def asked(self) -> float:
        """The asked change as a difference of logs, the same in both directions."""
        return float(np.log1p(self.threshold))


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What is known beforehand of one metric on one machine: standard deviations of logs and their degrees of freedom.

    ``session_spread`` is that of the means of sessions of ``session_launches`` launches each, the launches' own part
    included; ``None`` where only one session was ever seen.
    """

    spread: float
    degrees: int
    session_spread: float | None = None
    session_launches: float = 1.0
    session_degrees: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One metric to compare: one positive value per launch, in any unit, and what is known of the noise.

    ``noise`` holds one entry per machine involved (the same machine on both sides counts once).
    """

    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    direction: Direction
    interleaved: bool = False
    noise: tuple[Noise, ...] = ()

    @property
    def sessions_uncounted(self) -> bool:
        """The sides come from sessions apart, and how far those differ by themselves is not known."""
        return not self.interleaved and session_shift(self.noise) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The outcome for one pair; changes are fractions of the baseline.

    ``ratio`` is candidate / baseline with its ``interval`` (that of ``Rule.same_level``, 90 % by default).
    ``smallest_visible`` is the change that would be found with probability ``Rule.power`` were this the only metric;
    ``launches_needed`` a side, to find the asked change in this metric alone among all that were judged together;
    ``candidate_launches_needed`` the same with the baseline as it is.  Both are given for ``inconclusive``.
    ``None``: cannot be said, ``notes`` says why.
    """

    verdict: StatisticalVerdict
    ratio: float | None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    spread: float | None = None
    degrees: float | None = None
    smallest_visible: float | None = None
    launches_needed: int | None = None
    candidate_launches_needed: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen of many metrics, arrays of one shape.

    ``difference`` of logs, its standard ``error`` with ``degrees`` of freedom, the ``spread`` between launches used
    for it with ``spread_degrees`` (a profile's included), and the launches of each side.
    """

    difference: Floats
    error: Floats
    degrees: Floats
    spread: Floats
    spread_degrees: Floats
    baseline_launches: NDArray[np.int64]
    candidate_launches: NDArray[np.int64]


def benjamini_hochberg(p_values: ArrayLike) -> Floats:
    """Adjusted p values along the last axis (Benjamini and Hochberg 1995, the step-up procedure).

    >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.5]).round(4).tolist()
    [0.04, 0.0533, 0.0533, 0.5]
    """
    values = np.asarray(p_values, dtype=float)
    count = values.shape[-1]
    order = np.argsort(values, axis=-1)
    scaled = np.take_along_axis(values, order, axis=-1) * count / np.arange(1, count + 1)
    rising = np.minimum.accumulate(scaled[..., ::-1], axis=-1)[..., ::-1]
    adjusted = np.empty_like(values)
    np.put_along_axis(adjusted, order, np.minimum(rising, 1.0), axis=-1)
    return adjusted


def two_sided_p(evidence: Evidence) -> Floats:
    """Student's t, two-sided; 1 where there are no degrees of freedom."""
    known = evidence.degrees > 0
    statistic = np.abs(evidence.difference) / evidence.error
    p_values = 2 * special.stdtr(np.where(known, evidence.degrees, 1.0), -statistic)
    return np.where(known, p_values, 1.0)


def half_width(evidence: Evidence, level: float) -> Floats:
    """Half the width of the interval of two one-sided tests at ``level``; infinite without degrees of freedom."""
    known = evidence.degrees > 0
    quantile = special.stdtrit(np.where(known, evidence.degrees, 1.0), 1 - level)
    return np.where(known, quantile * evidence.error, np.inf)


def decide(evidence: Evidence, adjusted: Floats, rule: Rule) -> NDArray[np.int64]:
    """``INCONCLUSIVE``, ``SAME``, ``LARGER`` or ``SMALLER`` for each metric, by the rule at the top of this module."""
    enough = np.minimum(evidence.baseline_launches, evidence.candidate_launches) >= rule.least_launches
    size = np.abs(evidence.difference)
    changed = enough & (adjusted <= rule.suite_level) & (size >= rule.asked / 2)
    same = ~changed & (size + half_width(evidence, rule.same_level) <= rule.asked)
    signed = np.where(evidence.difference > 0, LARGER, SMALLER)
    return np.where(changed, signed, np.where(same, SAME, INCONCLUSIVE)).astype(np.int64)


def within_profile(spread: ArrayLike, degrees: ArrayLike, noise: Noise, level: float) -> NDArray[np.bool_]:
    """Whether today's spread may be pooled with the profile's: a one-sided F test at ``level`` does not reject it."""
    today, counted = np.asarray(spread, dtype=float), np.asarray(degrees, dtype=float)
    if noise.degrees <= 0:
        return np.zeros(np.broadcast(today, counted).shape, dtype=bool)
    statistic = (today / max(noise.spread, np.finfo(float).tiny)) ** 2
    survival = special.fdtrc(np.maximum(counted, 1), noise.degrees, statistic)
    return np.asarray((counted <= 0) | (survival > level))


def combine(spread: ArrayLike, degrees: ArrayLike, noise: Sequence[Noise], rule: Rule) -> tuple[Floats, Floats]:
    """Today's spread pooled with each profile that it does not contradict, and the degrees of freedom."""
    variance, counted = np.square(np.asarray(spread, dtype=float)), np.asarray(degrees, dtype=float)
    today = np.sqrt(variance)
    total, weight = variance * counted, counted.copy()
    for profile in noise:
        used = within_profile(today, counted, profile, rule.profile_level)
        total = total + np.where(used, profile.degrees * profile.spread**2, 0.0)
        weight = weight + np.where(used, profile.degrees, 0)
    pooled = np.sqrt(total / np.maximum(weight, 1))
    return np.maximum(pooled, rule.least_spread), weight


def weigh(
    baseline: Floats, candidate: Floats, rule: Rule, *, noise: Sequence[Noise] = (), interleaved: bool = True
) -> Evidence:
    """The evidence of launches on the last axis, logs of shapes ``(..., kA)`` and ``(..., kB)``."""
    launches_a, launches_b = baseline.shape[-1], candidate.shape[-1]
    difference = candidate.mean(axis=-1) - baseline.mean(axis=-1)
    squares = _squares(baseline) + _squares(candidate)
    today_degrees = launches_a + launches_b - 2
    today = np.sqrt(squares / max(today_degrees, 1))
    spread, spread_degrees = combine(today, np.full(difference.shape, float(today_degrees)), noise, rule)
    within = spread**2 * (1 / launches_a + 1 / launches_b)
    error, degrees = np.sqrt(within), spread_degrees
    if not interleaved:
        sessions = session_shift(noise)
        if sessions is not None:
            own = spread**2 * (1 / launches_a + 1 / launches_b - sessions.launches_share)
            variance = np.maximum(sessions.variance + own, within)
            # Satterthwaite; a shift estimated as nothing is no better known than any other.
            known = np.maximum(sessions.variance, within) ** 2 / sessions.degrees
            doubt = known + own**2 / np.maximum(spread_degrees, 1)
            error, degrees = np.sqrt(variance), np.where(spread_degrees > 0, variance**2 / doubt, 0.0)
    return Evidence(
        difference=difference,
        error=error,
        degrees=degrees,
        spread=spread,
        spread_degrees=spread_degrees,
        baseline_launches=np.full(difference.shape, launches_a),
        candidate_launches=np.full(difference.shape, launches_b),
    )


def _squares(logs: Floats) -> Floats:
    return np.asarray(np.square(logs - logs.mean(axis=-1, keepdims=True)).sum(axis=-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The variance of the difference of two session means, the launches' own share of it (1/k0 + 1/k0), degrees."""

    variance: float
    launches_share: float
    degrees: int


def session_shift(noise: Sequence[Noise]) -> Sessions | None:
    """What the profiles know of sessions; one profile stands for both sides, of two each for its own."""
    known = [n for n in noise if n.session_spread is not None and n.session_degrees > 0]
    if not known:
        return None
    return Sessions(
        variance=2 * sum(float(n.session_spread or 0.0) ** 2 for n in known) / len(known),
        launches_share=2 * sum(1 / n.session_launches for n in known) / len(known),
        degrees=min(n.session_degrees for n in known),
    )
