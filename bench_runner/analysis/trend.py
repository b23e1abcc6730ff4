"""Is a series of step times still settling, or drifting, after the warm-up?

Steps on a shared machine jump between a fast and a slow mode and come in short runs of either.  A warning needs an
effect that matters *and* evidence that such noise does not give: at most two series in a hundred raise a false
alarm (tests/test_trend.py holds the rates on generated series).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, sqrt
from typing import Final

from bench_runner.analysis.metrics import median, quantile

FEWEST_STEPS: Final = 20
"""Fewer steps cannot tell settling from noise and raise no warning."""
LEAST_CHANGE: Final = 0.05
"""Changes over the series below this fraction of the median step are not worth a warning."""
LARGEST_Z: Final = 3.9
"""Two-sided p of about 0.0001 for the Mann-Kendall statistic."""
MOST_BLOCKS: Final = 100
HEAD: Final = 3
"""Steps at the beginning that are looked at together for a warm-up that was too short."""
LEAST_HEAD_CHANGE: Final = 0.10


def trend_warning(step_seconds: Sequence[float]) -> str | None:
    """A sentence when the steps were still changing, else None.  ``step_seconds``: one rank's, in order."""
    if len(step_seconds) < FEWEST_STEPS or min(step_seconds) <= 0:
        return None
    return _settling(step_seconds) or _drift(step_seconds)


def _settling(series: Sequence[float]) -> str | None:
    """The first steps stand above everything that follows: the warm-up was too short."""
    head, rest = series[:HEAD], sorted(series[HEAD:])
    typical = median(rest)
    above = min(head) > quantile(rest, 0.95) and median(head) > typical * (1 + LEAST_HEAD_CHANGE)
    # A second, slow mode that also occurs later is noise.  A settling series falls from step to step.
    falling = all(later <= earlier for earlier, later in pairwise(head))
    lasting = rest[-1] < min(head)
    if not (above and (falling or lasting)):
        return None
    return (
        f"still settling after the warm-up: the first {HEAD} steps took {median(head) / typical:.2f} × the median of "
        "the rest; raise warmup_steps"
    )


def _drift(series: Sequence[float]) -> str | None:
    """Mann-Kendall's test with Sen's slope, the variance widened by the lag-1 correlation of the residuals."""
    blocks = _blocks(series)
    count = len(blocks)
    slopes: list[float] = []
    score = 0
    for i, first in enumerate(blocks):
        for j in range(i + 1, count):
            difference = blocks[j] - first
            score += (difference > 0) - (difference < 0)
            slopes.append(difference / (j - i))
    change = median(slopes) * (count - 1) / median(blocks)
    if abs(change) < LEAST_CHANGE:
        return None
    residuals = [value - median(slopes) * index for index, value in enumerate(blocks)]
    variance = count * (count - 1) * (2 * count + 5) / 18 * _inflation(residuals)
    if abs(score) - 1 < LARGEST_Z * sqrt(variance):
        return None
    way = "slower" if change > 0 else "faster"
    return (
        f"still trending after the warm-up: steps became {abs(change):.0%} {way} over the run; "
        "raise warmup_steps, or look for heat, a power cap or a neighbour on the machine"
    )


def _blocks(series: Sequence[float]) -> list[float]:
    """At most ``MOST_BLOCKS`` medians of neighbouring steps: the test compares all pairs."""
    size = ceil(len(series) / MOST_BLOCKS)
    return [median(series[start : start + size]) for start in range(0, len(series) - size + 1, size)]


def _inflation(residuals: Sequence[float]) -> float:
    """(1 + r) / (1 − r) with the lag-1 rank correlation r: how much correlated noise widens the statistic."""
    order = sorted(range(len(residuals)), key=residuals.__getitem__)
    ranks = [0.0] * len(residuals)
    for place, index in enumerate(order):
        ranks[index] = place - (len(residuals) - 1) / 2
    total = sum(rank * rank for rank in ranks)
    r = sum(a * b for a, b in pairwise(ranks)) / total
    r = min(max(r, 0.0), 0.9)
    return (1 + r) / (1 - r)
