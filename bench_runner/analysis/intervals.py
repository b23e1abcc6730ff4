"""Quartiles and 99 % intervals of many metric values at once.

The interval is that of the statistic within one launch: of a mean by Student's t, of a median or another quantile by
order statistics (binomial, without assuming a distribution).  Where the samples are too few for 99 % it is missing:
below 2 for a mean, below 8 for a median.  Steps of one launch are correlated, and launches differ among themselves, so
that it says nothing about the next launch; that is what repeated launches are for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench_runner.analysis.metrics import MetricValue, Statistic

CONFIDENCE: Final = 0.99
_TAIL: Final = (1 - CONFIDENCE) / 2
_FRACTIONS: Final[dict[Statistic, float]] = {"p10": 0.1, "median": 0.5, "p90": 0.9, "p99": 0.99}

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summaries:
    """Arrays with one entry a value, in the metric's unit; NaN where there is nothing to say."""

    q25: Floats
    q75: Floats
    ci_low: Floats
    ci_high: Floats
    samples: NDArray[np.int64]


def summarise(values: Sequence[MetricValue]) -> Summaries:
    """Summaries of ``values``; those with equally many samples of one statistic are computed together."""
    table = np.full((4, len(values)), np.nan)
    counts = np.array([len(value.series) for value in values], dtype=np.int64)
    alike: dict[tuple[int, Statistic], list[int]] = defaultdict(list)
    for place, value in enumerate(values):
        if value.series:
            alike[len(value.series), value.statistic].append(place)
    for (_, statistic), places in alike.items():
        series = np.sort(np.array([values[place].series for place in places], dtype=np.float64), axis=1)
        low, high = _interval(series, statistic)
        table[:, places] = [*np.quantile(series, (0.25, 0.75), axis=1), low, high]
    _invert_rates(table, values)
    return Summaries(q25=table[0], q75=table[1], ci_low=table[2], ci_high=table[3], samples=counts)


def _interval(ordered: Floats, statistic: Statistic) -> tuple[Floats, Floats]:
    """Ends of the interval for each row of ``ordered`` (values × samples, ascending)."""
    rows, count = ordered.shape
    missing = np.full(rows, np.nan)
    if statistic == "mean":
        if count < 2:
            return missing, missing
        center = ordered.mean(axis=1)
        half = special.stdtrit(count - 1, 1 - _TAIL) * ordered.std(axis=1, ddof=1) / np.sqrt(count)
        return center - half, center + half
    # X(r) … X(s), counted from 1, covers the quantile with probability P(r ≤ B ≤ s − 1), B ~ Binomial(count, fraction).
    fraction = _FRACTIONS[statistic]
    # (scipy.special and not scipy.stats, whose import takes longer than a whole report.)
    below = special.bdtr(np.arange(count + 1), count, fraction)
    first, last = int(np.searchsorted(below, _TAIL)), int(np.searchsorted(below, 1 - _TAIL)) + 1
    return (
        ordered[:, first - 1] if first >= 1 else missing,
        ordered[:, last - 1] if last <= count else missing,
    )


def _invert_rates(table: Floats, values: Sequence[MetricValue]) -> None:
    """Turn summaries of times into summaries of rates: ends change places; no rate follows from a time of 0 or less."""
    places = [place for place, value in enumerate(values) if value.numerator is not None]
    if not places:
        return
    numerators = np.array([values[place].numerator for place in places], dtype=np.float64)
    times = table[:, places]
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.where(times > 0, numerators / times, np.nan)
    table[:, places] = rates[[1, 0, 3, 2]]
