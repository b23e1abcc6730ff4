"""A machine's noise profile: variance components by hand, and what is not a profile."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner.analysis.noise import NoiseProfile, from_json, measure
from bench_runner.analysis.statistics import Noise
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


def test_a_profile_survives_json() -> None:
    metrics = {
        "a": Noise(spread=0.01, degrees=15),
        "b": Noise(spread=0.1, degrees=3, session_spread=0.0, session_launches=3.0, session_degrees=2),
    }
    profile = NoiseProfile(machine="box", fingerprint="f", metrics=metrics, sessions=3, launches=9)
    assert from_json(json.loads(json.dumps(profile.to_json())), "noise.json") == profile


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "bench-runner/noise/2"},
        {
            "metrics": {
                "a": {"spread": -1, "degrees": 1, "session_spread": None, "session_launches": 1, "session_degrees": 0}
            }
        },
        {
            "metrics": {
                "a": {
                    "spread": float("inf"),
                    "degrees": 1,
                    "session_spread": None,
                    "session_launches": 1,
                    "session_degrees": 0,
                }
            }
        },
        {
            "metrics": {
                "a": {"spread": 1, "degrees": 1, "session_spread": 1, "session_launches": 0, "session_degrees": 1}
            }
        },
        {"metrics": {"a": {}}},
        {"metrics": 3},
        {"sessions": None},
    ],
)
def test_damaged_profiles_are_named(change: dict[str, object]) -> None:
    profile = NoiseProfile(machine="box", fingerprint="f", metrics={}, sessions=1, launches=2).to_json()
    with pytest.raises(UnreadableError, match=r"^box/noise\.json: .*profile-noise"):
        from_json({**profile, **change}, "box/noise.json")


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
    profile = NoiseProfile(machine="box", fingerprint="f", metrics={}, sessions=1, launches=2).to_json()
    assert (read(whole) or "").startswith("x.json: ")
    assert "\n" not in (read({**profile, **changes}) or "")
