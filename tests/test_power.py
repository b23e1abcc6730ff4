"""What a comparison could have seen, held against textbook values and a simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bench_runner.analysis.power import LARGEST_PLAN, launches_needed, power, smallest_visible
from bench_runner.analysis.statistics import Rule


@pytest.mark.parametrize("degrees", [4, 8, 30])
def test_power_with_a_known_error_is_that_of_the_noncentral_t(degrees: int) -> None:
    error, change = 0.01, 0.04
    found = float(power(change, error, degrees, level=0.02, least=0.0, exact=True))
    textbook = stats.nct.sf(stats.t.ppf(0.99, degrees), degrees, change / error)
    assert found == pytest.approx(textbook, abs=0.01)


def test_doubt_about_the_spread_lowers_the_power() -> None:
    known = float(power(0.05, 0.01, 4, level=0.02, least=0.0, exact=True))
    doubtful = float(power(0.05, 0.01, 4, level=0.02, least=0.0))
    assert known > 0.8
    assert doubtful < known - 0.05


def test_the_smallest_visible_change_is_found_nine_times_in_ten() -> None:
    # Two comparisons in a row: the first states what it could see, the second meets just that change.
    random, rule = np.random.default_rng(7), Rule(threshold=0.001)
    launches, trials, spread = 4, 20_000, 0.02

    def means_and_spread() -> tuple[np.ndarray, np.ndarray]:
        sides = random.normal(0, spread, (2, trials, launches))
        pooled = np.sqrt(sides.var(axis=-1, ddof=1).mean(axis=0))
        return sides[1].mean(axis=-1) - sides[0].mean(axis=-1), pooled

    error = np.sqrt(2 / launches)
    stated = smallest_visible(means_and_spread()[1][:500] * error, 2 * launches - 2.0, rule)
    difference, pooled = means_and_spread()
    statistic = (difference[:500] + stated) / (pooled[:500] * error)
    found = float((statistic > stats.t.ppf(0.99, 2 * launches - 2)).mean())
    assert found == pytest.approx(0.9, abs=0.04)


def test_nothing_is_visible_without_degrees_of_freedom() -> None:
    seen = smallest_visible([0.01, 0.01], [0.0, 4.0], Rule())
    assert np.isinf(seen[0])
    assert 0.02 < seen[1] < 0.1


def test_what_is_never_flagged_is_never_visible() -> None:
    # However little noise: half of the asked change is the least that is flagged.
    assert float(smallest_visible(1e-6, 8.0, Rule(threshold=0.05))) == pytest.approx(np.log(1.05) / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("spread", "threshold", "single", "among_fifty", "with_profile"),
    [
        (0.01, 0.05, 3, 6, 3),
        (0.01, 0.10, 3, 4, 3),
        (0.03, 0.05, 12, 21, 20),
        (0.03, 0.10, 5, 8, 7),
        (0.20, 0.25, 23, 41, 41),
    ],
)
def test_launches_needed(spread: float, threshold: float, single: int, among_fifty: int, with_profile: int) -> None:
    rule = Rule(threshold=threshold)
    assert launches_needed(spread, rule) == single
    assert launches_needed(spread, rule, metrics=50) == among_fifty
    assert launches_needed(spread, rule, metrics=50, profile_degrees=15) == pytest.approx(with_profile, abs=1)


def test_no_number_of_launches_beats_the_shift_between_sessions() -> None:
    assert launches_needed(0.01, Rule(), between=2 * 0.05**2) == LARGEST_PLAN + 1


@pytest.mark.parametrize("metrics", [1, 50])
def test_the_plan_is_the_least_that_is_enough(metrics: int) -> None:
    rule = Rule()
    planned = launches_needed(0.03, rule, metrics=metrics)

    def found(launches: int) -> float:
        error = 0.03 * np.sqrt(2 / launches)
        level, least = rule.suite_level / metrics, rule.asked / 2
        return float(power(rule.asked, error, 2.0 * launches - 2, level=level, least=least, exact=True))

    assert found(planned - 1) < rule.power <= found(planned)
