import random

import numpy as np
import pytest
from scipy import stats

from bench_runner.analysis.intervals import Summaries, summarise
from bench_runner.analysis.metrics import MetricValue, Statistic, mean, median


def value(series: list[float], statistic: Statistic = "median", numerator: float | None = None) -> MetricValue:
    return MetricValue(metric="step_time", value=1.0, statistic=statistic, series=tuple(series), numerator=numerator)


def one(series: list[float], statistic: Statistic = "median", numerator: float | None = None) -> dict[str, float]:
    summary: Summaries = summarise([value(series, statistic, numerator)])
    return {name: float(getattr(summary, name)[0]) for name in ("q25", "q75", "ci_low", "ci_high")}


def test_mean_has_students_interval() -> None:
    series = [1.0, 2.0, 4.0, 7.0]
    expected = stats.t.interval(0.99, 3, loc=mean(series), scale=stats.sem(series))
    found = one(series, "mean")
    assert (found["ci_low"], found["ci_high"]) == pytest.approx(expected)
    assert (found["q25"], found["q75"]) == pytest.approx((1.75, 4.75))


def test_median_has_the_interval_of_order_statistics() -> None:
    # For 10 samples X(1) … X(10) covers with 1 − 2/1024 and X(2) … X(9) with 1 − 22/1024, which is below 99 %.
    assert one([float(i) for i in range(1, 11)])["ci_low"] == 1.0
    # For 30 samples the textbook table gives X(8) … X(23).
    found = one([float(i) for i in range(1, 31)])
    assert (found["ci_low"], found["ci_high"]) == (8.0, 23.0)


def test_too_few_samples_have_no_interval() -> None:
    assert np.isnan(one([1.0, 2.0, 3.0])["ci_low"])
    assert np.isnan(one([1.0], "mean")["ci_high"])
    seven, eight = one([1.0] * 7), one([1.0] * 8)
    assert np.isnan(seven["ci_low"])
    assert eight["ci_low"] == 1.0
    assert np.isnan(one([float(i) for i in range(50)], "p99")["ci_high"])


def test_rates_turn_the_ends_round() -> None:
    times = one([0.1, 0.2, 0.2, 0.4], "mean")
    rates = one([0.1, 0.2, 0.2, 0.4], "mean", numerator=16.0)
    assert rates["q25"] == pytest.approx(16 / times["q75"])
    assert rates["ci_low"] == pytest.approx(16 / times["ci_high"])
    assert times["ci_low"] < 0
    assert np.isnan(rates["ci_high"])


def test_values_of_different_lengths_and_kinds_keep_their_places() -> None:
    values = [
        value([1.0, 3.0], "mean"),
        MetricValue(metric="peak_rss", value=5.0),
        value([2.0] * 9),
        value([5.0, 7.0], "mean"),
    ]
    summary = summarise(values)
    assert summary.samples.tolist() == [2, 0, 9, 2]
    assert summary.q25[[0, 2, 3]].tolist() == [1.5, 2.0, 5.5]
    assert np.isnan(summary.q25[1])
    assert summarise([]).q25.shape == (0,)


@pytest.mark.parametrize(("statistic", "truth"), [("mean", 1.0), ("median", float(np.log(2)))])
def test_interval_covers_in_99_of_100_cases(statistic: Statistic, truth: float) -> None:
    rng = random.Random(5)
    values = [value([rng.expovariate(1) for _ in range(40)], statistic) for _ in range(2000)]
    summary = summarise(values)
    covered = np.mean((summary.ci_low <= truth) & (truth <= summary.ci_high))
    # Student's t on a skewed distribution covers a little less than it says.
    assert 0.97 <= covered <= 1.0


def test_median_agrees_with_the_pure_one() -> None:
    series = [3.0, 1.0, 2.0, 5.0]
    assert one(series)["q25"] <= median(series) <= one(series)["q75"]
