"""What a comparison could have seen, and how many launches it would take: the power of the rule in ``statistics``.

The textbook's sum of two t values takes the estimated spread for the true one and promises too much after a few
launches (it claimed a power of 0.9 where 0.64 was found); here the doubt about the spread is averaged over.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from bench_runner.analysis.statistics import Floats, Rule

LARGEST_PLAN: Final = 1000
_NODES: Final = (np.arange(32) + 0.5) / 32


def _relative_spreads(degrees: Floats) -> Floats:
    """Equally likely values of estimated / true spread on a new last axis: nodes to average over."""
    return np.stack([_root_chi_square(float(d)) for d in degrees.ravel()]).reshape(*degrees.shape, _NODES.size)


@lru_cache(maxsize=4096)
def _root_chi_square(degrees: float) -> Floats:
    return np.asarray(np.sqrt(special.chdtri(degrees, 1 - _NODES) / degrees))


def power(
    change: ArrayLike, error: ArrayLike, degrees: ArrayLike, *, level: float, least: float, exact: bool = False
) -> Floats:
    """Probability that a further comparison of this kind flags a true ``change`` (logs) in its direction.

    The further comparison has a spread of its own (chi²).  The true error is not known either: ``error`` was
    estimated with ``degrees``, and the average goes over what it may be.  ``exact=True``: ``error`` is the true one.
    ``least`` is the smallest difference that is flagged at all.
    """
    change, error, degrees = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (change, error, degrees)))
    quantile = special.stdtrit(degrees, 1 - level / 2)[..., None, None]
    seen = _relative_spreads(degrees)
    doubt = np.ones_like(seen[..., :1]) if exact else seen
    # In units of the true error: mean of the estimate, and what it has to exceed.
    scale = (doubt / error[..., None])[..., :, None]
    limit = np.maximum(least * scale, quantile * seen[..., None, :])
    return np.asarray(special.ndtr(change[..., None, None] * scale - limit).mean(axis=(-1, -2)))


def smallest_visible(error: ArrayLike, degrees: ArrayLike, rule: Rule) -> Floats:
    """The change (logs) found with probability ``rule.power`` by this metric alone; infinite without degrees."""
    error, degrees = np.broadcast_arrays(np.asarray(error, dtype=float), np.asarray(degrees, dtype=float))
    known = degrees > 0
    usable = np.where(known, degrees, 1.0)
    low = np.zeros(error.shape)
    high = error * 4 + rule.asked
    options: dict[str, Any] = {"level": rule.suite_level, "least": rule.asked / 2}
    for _ in range(40):
        short = power(high, error, usable, **options) < rule.power
        if not short.any():
            break
        high = np.where(short, high * 2, high)
    for _ in range(26):
        middle = (low + high) / 2
        short = power(middle, error, usable, **options) < rule.power
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.where(known, high, np.inf)


def launches_needed(
    spread: float,
    rule: Rule,
    *,
    metrics: int = 1,
    profile_degrees: float = 0,
    between: float = 0.0,
    baseline_launches: int | None = None,
) -> int:
    """Launches a side to find the asked change with ``rule.power`` as the only one among ``metrics``.

    ``spread`` is taken as true, ``between`` is the variance of the shift between the two sessions.  Where the baseline
    is what it is, ``baseline_launches`` says so, and the launches are those of the candidate.  Returns
    ``LARGEST_PLAN`` + 1 when no such number of launches is enough.
    """
    counts = np.arange(rule.least_launches, LARGEST_PLAN + 1)
    others = counts if baseline_launches is None else np.full_like(counts, baseline_launches)
    error = np.sqrt(spread**2 * (1 / counts + 1 / others) + between)
    level = rule.suite_level / metrics
    low, high = 0, len(counts)
    while low < high:
        middle = (low + high) // 2
        degrees = float(counts[middle] + others[middle] - 2) + profile_degrees
        found = power(rule.asked, error[middle], degrees, level=level, least=rule.asked / 2, exact=True)
        low, high = (low, middle) if float(found) >= rule.power else (middle + 1, high)
    return int(counts[low]) if low < len(counts) else LARGEST_PLAN + 1
