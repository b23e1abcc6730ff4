"""A machine's noise profile: variance components by hand, and what is not a profile."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner.analysis.noise import NoiseProfile, SessionSummary, from_json, measure, summarise
from bench_runner.errors import UnreadableError


def test_one_session_gives_its_standard_deviation_and_no_word_on_sessions() -> None:
    noise = measure([[math.exp(x) for x in (0.00, 0.02, 0.04)]])
    assert noise is not None
    assert (noise.spread, noise.degrees) == (pytest.approx(0.02), 2)
    assert (noise.session_spread, noise.session_degrees) == (None, 0)


def test_two_sessions_by_hand() -> None:
    # Means 0.01 and 0.11 of two launches each: their variance is 0.005; within 0.0002 (2 degrees).
    noise = measure([[1.0, math.exp(0.02)], [math.exp(0.10), math.exp(0.12)]])
    assert noise is not None
    assert noise.spread == pytest.approx(math.sqrt(0.0002))
    assert noise.session_spread == pytest.approx(math.sqrt(0.005))
    assert noise.session_launches == 2
    assert (noise.degrees, noise.session_degrees) == (2, 1)


def test_sessions_of_unlike_size_by_hand() -> None:
    # k0 = (5 - (4 + 9) / 5) / 1 = 2.4; means 0 and 0.1: between = 2 · 0.06² + 3 · 0.04² = 0.012; M = 0.012 / 2.4.
    noise = measure([[1.0, 1.0], [math.exp(0.1)] * 3])
    assert noise is not None
    assert noise.session_launches == pytest.approx(2.4)
    assert noise.session_spread == pytest.approx(math.sqrt(0.005))


@pytest.mark.parametrize("sessions", [[], [[1.0]], [[1.0], [2.0]], [[0.0, 1.0]]])
def test_without_two_launches_in_a_session_there_is_no_noise_to_measure(sessions: list[list[float]]) -> None:
    assert measure(sessions) is None


def test_known_components_are_recovered() -> None:
    random = np.random.default_rng(3)
    shifts = random.normal(0, 0.05, (400, 1))
    noise = measure(np.exp(shifts + random.normal(0, 0.02, (400, 5))).tolist())
    assert noise is not None
    assert noise.spread == pytest.approx(0.02, rel=0.1)
    assert noise.session_spread == pytest.approx(math.sqrt(0.05**2 + 0.02**2 / 5), rel=0.1)


def summary(session: str, values: list[float]) -> SessionSummary:
    made = summarise(session, values)
    assert made is not None
    return made


PROFILE = NoiseProfile(
    machine="box",
    fingerprint="f",
    metrics={"a": (summary("s1", [1.0, 1.1]), summary("s2", [1.2, 1.3, 1.1])), "b": (summary("s1", [5.0]),)},
    sessions=2,
    launches=5,
)


def test_a_profile_survives_json() -> None:
    assert from_json(json.loads(json.dumps(PROFILE.to_json())), "noise.profile") == PROFILE


def test_sessions_that_are_compared_do_not_count_twice() -> None:
    whole, other = PROFILE.noise("a"), PROFILE.noise("a", without={"s2"})
    assert whole == measure([[1.0, 1.1], [1.2, 1.3, 1.1]])
    assert other == measure([[1.0, 1.1]])
    assert PROFILE.noise("a", without={"s1", "s2"}) is None
    assert PROFILE.noise("b") is None
    assert PROFILE.noise("c") is None


SESSION = {"session": "s", "launches": 2, "mean": 0.0, "squares": 0.1}


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "bench-runner/noise/2"},
        {"metrics": {"a": [{**SESSION, "launches": 0}]}},
        {"metrics": {"a": [{**SESSION, "mean": float("nan")}]}},
        {"metrics": {"a": [{**SESSION, "squares": -1}]}},
        {"metrics": {"a": [{**SESSION, "squares": float("inf")}]}},
        {"metrics": {"a": [{}]}},
        {"metrics": {"a": 5}},
        {"metrics": 3},
        {"sessions": None},
    ],
)
def test_damaged_profiles_are_named(change: dict[str, object]) -> None:
    with pytest.raises(UnreadableError, match=r"^box/noise\.profile: .*profile-noise"):
        from_json({**PROFILE.to_json(), **change}, "box/noise.profile")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(["schema", "machine", "fingerprint", "metrics", "sessions", "launches"])


def read(document: object) -> str | None:
    try:
        from_json(document, "x.json")
    except UnreadableError as error:
        return str(error)
    return None


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(fields, json_values), json_values)
def test_anything_else_is_refused_in_one_line(changes: dict[str, object], whole: object) -> None:
    assert (read(whole) or "").startswith("x.json: ")
    assert "\n" not in (read({**PROFILE.to_json(), **changes}) or "")
