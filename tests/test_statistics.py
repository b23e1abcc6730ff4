"""The rule for comparing launches: a table worked out by hand, and properties that hold for any values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner.analysis.judge import judge
from bench_runner.analysis.statistics import (
    Noise,
    Pair,
    Rule,
    benjamini_hochberg,
    combine,
    weigh,
    within_profile,
)
from bench_runner.errors import SpecError

# Standard deviations by hand: 100, 101, 102 -> logs differ by about 0.00985, s = 0.0099; t(0.95, 4) = 2.1318.
STEADY = (100.0, 101.0, 102.0)


def pair(baseline: tuple[float, ...], candidate: tuple[float, ...], **changes: object) -> Pair:
    return replace(Pair(baseline=baseline, candidate=candidate, direction="lower", interleaved=True), **changes)


def verdict(
    baseline: tuple[float, ...], candidate: tuple[float, ...], rule: Rule | None = None, **changes: object
) -> str:
    return judge([pair(baseline, candidate, **changes)], rule or Rule())[0].verdict


@pytest.mark.parametrize(
    ("baseline", "candidate", "direction", "expected"),
    [
        # d = ln(1.10) = 0.0953, error = 0.0099 sqrt(2/3) = 0.0081, t = 11.8 with 4 degrees: p = 0.0003.
        (STEADY, tuple(1.10 * x for x in STEADY), "lower", "regression"),
        (STEADY, tuple(1.10 * x for x in STEADY), "higher", "improvement"),
        (STEADY, tuple(x / 1.10 for x in STEADY), "lower", "improvement"),
        (STEADY, tuple(x / 1.10 for x in STEADY), "higher", "regression"),
        # d = 0, half width = 2.1318 · 0.0081 = 0.0172 < ln(1.05) = 0.0488.
        (STEADY, STEADY, "lower", "same"),
        # s = 0.0953, half width 0.166: nothing can be said about 5 %.
        ((100.0, 110.0, 121.0), (100.0, 110.0, 121.0), "lower", "inconclusive"),
        # Two launches never flag, however large the change.
        (STEADY[:2], (200.0, 202.0), "lower", "inconclusive"),
        # Identical values: the floor of 0.1 % gives error 0.00082; 1 % is certain, and less than half of 5 %.
        ((100.0,) * 3, (101.0,) * 3, "lower", "same"),
        ((100.0,) * 3, (103.0,) * 3, "lower", "regression"),
    ],
)
def test_verdicts_worked_out_by_hand(
    baseline: tuple[float, ...], candidate: tuple[float, ...], direction: str, expected: str
) -> None:
    assert verdict(baseline, candidate, direction=direction) == expected


def test_the_numbers_of_a_judgement() -> None:
    judgement = judge([pair((1.0, 1.0 * math.e**0.02), (math.e**0.1, math.e**0.12))], Rule())[0]
    # spread: two pairs 0.02 apart, s² = 2 · 0.0002 / 2; error = s; t(0.95, 2) = 2.91999.
    spread = math.sqrt(0.0002)
    assert judgement.ratio == pytest.approx(math.exp(0.1))
    assert judgement.spread == pytest.approx(spread)
    assert judgement.degrees == 2
    assert judgement.interval == pytest.approx((math.exp(0.1 - 2.919986 * spread), math.exp(0.1 + 2.919986 * spread)))
    # t = 0.1 / 0.014142 = 7.0711 with 2 degrees: p = 1 - t / sqrt(2 + t²) = 0.019419.
    assert judgement.p_value == pytest.approx(1 - 7.0710678 / math.sqrt(52), rel=1e-6)


def test_benjamini_hochberg_by_hand() -> None:
    adjusted = benjamini_hochberg([0.01, 0.02, 0.03, 0.04, 1.0])
    assert adjusted == pytest.approx([0.05, 0.05, 0.05, 0.05, 1.0])
    assert benjamini_hochberg([0.2]) == pytest.approx([0.2])
    assert benjamini_hochberg([[0.01, 0.5], [0.5, 0.01]]) == pytest.approx(np.array([[0.02, 0.5], [0.5, 0.02]]))


def test_one_change_among_many_metrics_needs_more_evidence() -> None:
    changed = pair((100.0, 102.0, 104.0), (108.0, 110.0, 112.0))
    steady = pair((100.0, 102.0, 104.0), (104.0, 102.0, 100.0))
    assert judge([changed], Rule())[0].verdict == "regression"
    assert judge([changed, *[steady] * 49], Rule())[0].verdict == "inconclusive"


def test_metrics_that_can_never_flag_do_not_weaken_the_others() -> None:
    changed = pair((100.0, 102.0, 104.0), (108.0, 110.0, 112.0))
    single = pair((100.0,), (101.0,))
    assert judge([changed, *[single] * 49], Rule())[0].p_adjusted == judge([changed], Rule())[0].p_adjusted


def test_a_profile_lends_its_degrees_of_freedom_unless_today_is_noisier() -> None:
    noise = Noise(spread=0.01, degrees=15)
    spread, degrees = combine(0.012, 4.0, [noise], Rule())
    assert degrees == 19
    assert float(spread) == pytest.approx(math.sqrt((4 * 0.012**2 + 15 * 0.01**2) / 19))
    # F(4, 15) at 1 % is 4.893: today at 2.2 times the profile's spread is within, at 2.3 times it is not.
    assert bool(within_profile(math.sqrt(4.88) * 0.01, 4, noise, 0.01))
    assert not bool(within_profile(math.sqrt(4.90) * 0.01, 4, noise, 0.01))
    spread, degrees = combine(0.05, 4.0, [noise], Rule())
    assert (float(spread), float(degrees)) == (pytest.approx(0.05), 4)


def test_one_launch_with_a_profile_may_say_same_and_never_flags() -> None:
    noise = (Noise(spread=0.005, degrees=15, session_spread=0.0, session_degrees=3),)
    assert verdict((100.0,), (100.1,), noise=noise) == "same"
    judged = judge([pair((100.0,), (150.0,), noise=noise)], Rule())[0]
    assert (judged.verdict, judged.smallest_visible) == ("inconclusive", None)
    assert "3 are needed" in judged.notes[0]


def test_one_launch_without_a_profile_says_nothing() -> None:
    judged = judge([pair((100.0,), (100.0,))], Rule())[0]
    assert (judged.verdict, judged.interval, judged.p_value) == ("inconclusive", None, None)
    assert judged.ratio == 1.0
    assert "spread is not known" in judged.notes[0]


def test_sessions_apart_carry_their_shift() -> None:
    noise = (Noise(spread=0.01, degrees=15, session_spread=0.05, session_launches=4.0, session_degrees=4),)
    slower = tuple(1.06 * x for x in STEADY)
    assert verdict(STEADY, slower, noise=noise, interleaved=True) == "regression"
    assert verdict(STEADY, slower, noise=noise, interleaved=False) == "inconclusive"
    evidence = weigh(np.log(STEADY), np.log(slower), Rule(), noise=noise, interleaved=False)
    squared = (4 * float(np.log(STEADY).var(ddof=1)) + 15 * 0.01**2) / 19
    # 2 M and what three launches a side have more than the four of the profile's sessions.
    assert float(evidence.error) == pytest.approx(math.sqrt(2 * 0.05**2 + squared * (2 / 3 - 2 / 4)))
    # Satterthwaite: the session part dominates, so hardly more degrees than its own 4.
    assert 4 < float(evidence.degrees) < 4.5


def test_a_profile_without_shift_never_makes_the_error_smaller_than_interleaved_launches_have() -> None:
    noise = (Noise(spread=0.01, degrees=15, session_spread=0.0, session_launches=4.0, session_degrees=4),)
    logs = np.log(STEADY)
    apart, alternating = (weigh(logs, logs, Rule(), noise=noise, interleaved=i) for i in (False, True))
    assert float(apart.error) == float(alternating.error)
    assert float(apart.degrees) < 4.1


@pytest.mark.parametrize(
    ("interleaved", "noise", "expected"),
    [
        (True, (), False),
        (False, (), True),
        (False, (Noise(spread=0.01, degrees=4),), True),
        (False, (Noise(spread=0.01, degrees=4, session_spread=0.0, session_degrees=1),), False),
    ],
)
def test_sessions_apart_without_a_profile_are_known_to_be_uncounted(
    interleaved: bool, noise: tuple[Noise, ...], expected: bool
) -> None:
    assert pair(STEADY, STEADY, interleaved=interleaved, noise=noise).sessions_uncounted == expected


@pytest.mark.parametrize(
    ("baseline", "candidate", "expected"),
    [
        ((), STEADY, "no values"),
        ((float("nan"), 1.0, 1.0), STEADY, "not finite"),
        ((0.0, 1.0, 1.0), STEADY, "not positive"),
    ],
)
def test_values_without_a_ratio_are_inconclusive(
    baseline: tuple[float, ...], candidate: tuple[float, ...], expected: str
) -> None:
    judged = judge([pair(baseline, candidate)], Rule())[0]
    assert judged.verdict == "inconclusive"
    assert expected in judged.notes[0]


def test_zero_on_both_sides_is_the_same() -> None:
    assert verdict((0.0,) * 3, (0.0,) * 3) == "same"


def test_a_threshold_that_means_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="threshold = 0"):
        Rule(threshold=0.0)


values = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8).map(tuple)
pairs = st.builds(
    pair,
    values,
    values,
    direction=st.sampled_from(["higher", "lower"]),
    interleaved=st.booleans(),
    noise=st.sampled_from([(), (Noise(spread=0.02, degrees=9, session_spread=0.01, session_degrees=3),)]),
)
suites = st.lists(pairs, min_size=1, max_size=5)
OPPOSITE = {
    "same": "same",
    "inconclusive": "inconclusive",
    "regression": "improvement",
    "improvement": "regression",
}


def clear(suite: list[Pair]) -> bool:
    """No verdict hangs on the last bit of a logarithm: the next threshold on both sides says the same."""
    told = [[j.verdict for j in judge(suite, Rule(threshold=0.05 * factor))] for factor in (1 - 1e-9, 1, 1 + 1e-9)]
    return told[0] == told[1] == told[2]


@settings(max_examples=30, deadline=None)
@given(suites)
def test_swapping_the_sides_inverts_the_verdict(suite: list[Pair]) -> None:
    swapped = [replace(p, baseline=p.candidate, candidate=p.baseline) for p in suite]
    for there, back in zip(judge(suite, Rule()), judge(swapped, Rule()), strict=True):
        assert there.ratio == pytest.approx(1 / back.ratio)
        assert there.smallest_visible == pytest.approx(back.smallest_visible)
        if clear(suite):
            assert back.verdict == OPPOSITE[there.verdict]


@settings(max_examples=30, deadline=None)
@given(suites, st.floats(1e-6, 1e9))
def test_the_unit_does_not_matter(suite: list[Pair], factor: float) -> None:
    scaled = [
        replace(p, baseline=tuple(factor * x for x in p.baseline), candidate=tuple(factor * x for x in p.candidate))
        for p in suite
    ]
    for before, after in zip(judge(suite, Rule()), judge(scaled, Rule()), strict=True):
        assert after.ratio == pytest.approx(before.ratio)
        if clear(suite):
            assert after.verdict == before.verdict


@settings(max_examples=30, deadline=None)
@given(suites, st.randoms(use_true_random=False))
def test_the_order_of_launches_and_of_metrics_does_not_matter(suite: list[Pair], random: object) -> None:
    def shuffled(items: tuple[float, ...]) -> tuple[float, ...]:
        mixed = list(items)
        random.shuffle(mixed)  # type: ignore[attr-defined]
        return tuple(mixed)

    mixed = [replace(p, baseline=shuffled(p.baseline), candidate=shuffled(p.candidate)) for p in suite]
    backwards = judge(mixed[::-1], Rule())[::-1]
    for before, after in zip(judge(suite, Rule()), backwards, strict=True):
        assert after.ratio == pytest.approx(before.ratio)
        if clear(suite):
            assert after.verdict == before.verdict


@settings(max_examples=30, deadline=None)
@given(suites)
def test_a_verdict_agrees_with_its_numbers(suite: list[Pair]) -> None:
    asked = 1 + Rule().threshold
    for p, judged in zip(suite, judge(suite, Rule()), strict=True):
        if judged.verdict in ("regression", "improvement"):
            worse = judged.ratio > 1 if p.direction == "lower" else judged.ratio < 1
            assert worse == (judged.verdict == "regression")
            assert min(len(p.baseline), len(p.candidate)) >= 3
            assert judged.p_adjusted <= 0.02
            assert not 1 / math.sqrt(asked) < judged.ratio < math.sqrt(asked)
        if judged.verdict == "same":
            assert judged.interval is not None
            low, high = judged.interval
            assert 1 / asked - 1e-9 <= low <= high <= asked + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_adjusted_p_values_keep_the_order_and_never_fall(p_values: list[float]) -> None:
    adjusted = benjamini_hochberg(p_values)
    assert (adjusted >= np.asarray(p_values) - 1e-15).all()
    assert (adjusted <= 1).all()
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(adjusted[order]) >= -1e-15).all()
