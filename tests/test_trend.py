"""False alarms and finds of the trend warning on generated series; the rates asserted are those the docs state."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.analysis.trend import FEWEST_STEPS, trend_warning

Series = list[float]


def two_modes(rng: random.Random, steps: int, *, slow: float, staying: float, factor: float) -> Series:
    """A fast and a slow mode, each kept with probability ``staying`` from step to step."""
    series, is_slow = [], rng.random() < slow
    for _ in range(steps):
        if rng.random() > staying:
            is_slow = rng.random() < slow
        series.append((factor if is_slow else 1.0) * rng.lognormvariate(0, 0.03))
    return series


def correlated(rng: random.Random, steps: int, *, correlation: float) -> Series:
    series, state = [], rng.gauss(0, 0.1)
    for _ in range(steps):
        state = correlation * state + rng.gauss(0, 0.1 * (1 - correlation**2) ** 0.5)
        series.append(1.0 + 0.5 * state)
    return series


def spiky(rng: random.Random, steps: int) -> Series:
    return [rng.lognormvariate(0, 0.03) * (10 if rng.random() < 0.03 else 1) for _ in range(steps)]


NOISE: dict[str, Callable[[random.Random, int], Series]] = {
    "even": lambda rng, steps: [rng.lognormvariate(0, 0.05) for _ in range(steps)],
    "two modes": lambda rng, steps: two_modes(rng, steps, slow=0.2, staying=0.35, factor=1.6),
    "two far modes": lambda rng, steps: two_modes(rng, steps, slow=0.1, staying=0.35, factor=10),
    "half and half": lambda rng, steps: two_modes(rng, steps, slow=0.5, staying=0.0, factor=4),
    "correlated": lambda rng, steps: correlated(rng, steps, correlation=0.35),
    "spikes": spiky,
}


@pytest.mark.parametrize("steps", [20, 30, 100])
@pytest.mark.parametrize("name", NOISE)
def test_noise_without_a_trend_raises_a_warning_in_at_most_two_series_of_a_hundred(name: str, steps: int) -> None:
    rng = random.Random(f"{name}-{steps}")
    alarms = sum(trend_warning(NOISE[name](rng, steps)) is not None for _ in range(300))
    assert alarms <= 6


@pytest.mark.parametrize("steps", [30, 100])
def test_slow_first_steps_are_found(steps: int) -> None:
    rng = random.Random(1)
    for _ in range(50):
        noise = [rng.lognormvariate(0, 0.05) for _ in range(steps)]
        warning = trend_warning([3 * step if i < 3 else step for i, step in enumerate(noise)])
        assert warning is not None
        assert "raise warmup_steps" in warning


def test_settling_and_drifting_series_are_found() -> None:
    rng = random.Random(2)
    settling = [1 + 1.5 * 0.7**i + rng.gauss(0, 0.03) for i in range(40)]
    slower = [(1 + 0.25 * i / 60) * rng.lognormvariate(0, 0.03) for i in range(60)]
    assert "still settling" in (trend_warning(settling) or "")
    assert "slower over the run" in (trend_warning(slower) or "")
    assert "faster over the run" in (trend_warning(slower[::-1]) or "")


def test_a_trend_too_small_to_matter_is_none() -> None:
    assert trend_warning([1 + 0.03 * i / 100 for i in range(100)]) is None


def test_long_series_are_judged_in_blocks() -> None:
    rng = random.Random(3)
    assert trend_warning([rng.lognormvariate(0, 0.05) for _ in range(20_000)]) is None
    assert trend_warning([(1 + 0.2 * i / 20_000) * rng.lognormvariate(0, 0.05) for i in range(20_000)]) is not None


def test_short_constant_and_unmeasured_series_raise_none() -> None:
    assert trend_warning([9.0, 5.0] + [1.0] * (FEWEST_STEPS - 3)) is None
    assert trend_warning([1.0] * 50) is None
    assert trend_warning([0.0] * 50) is None
    assert trend_warning([]) is None


@given(st.lists(st.floats(1e-6, 1e3), max_size=60), st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(series: Series, scale: float) -> None:
    # Only exact scalings keep all comparisons exact, so scale by a power of two.
    power = 2.0 ** round(scale % 10)
    assert (trend_warning(series) is None) == (trend_warning([power * step for step in series]) is None)
