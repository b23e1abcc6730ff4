"""α-β fits, algorithms, buckets and the predicted step, against values computed by hand or generated from the model."""

from __future__ import annotations

import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.analysis.model import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    MIB,
    Curve,
    Regime,
    bucket_bytes,
    evenly,
    fit_curve,
    fit_regime,
    link_of_ring,
    predict_ddp_step,
    ring_seconds,
    tree_seconds,
)
from bench_runner.analysis.step_gap import StepTimes, comparable, explain, gap_line, gaps, step_times
from tests import builders

SIZES = [1 << k for k in range(10, 27)]


@given(alpha=st.floats(1e-7, 1e-2), beta=st.floats(1e-12, 1e-7))
def test_a_fit_finds_what_made_the_points(alpha: float, beta: float) -> None:
    regime = fit_regime(SIZES, [alpha + beta * size for size in SIZES])
    assert regime.alpha_seconds == pytest.approx(alpha, rel=1e-5)
    assert regime.beta_seconds_per_byte == pytest.approx(beta, rel=1e-5)
    assert regime.alpha_error_seconds == pytest.approx(0, abs=1e-6 * alpha)


def test_errors_cover_the_truth_as_often_as_they_should() -> None:
    # 400 fits to points with 5 % noise: the truth lies within two standard errors in about 95 % of them.
    generator = random.Random(1)
    alpha, beta = 2e-5, 1e-9
    inside = 0
    for _ in range(400):
        times = [(alpha + beta * size) * (1 + generator.gauss(0, 0.05)) for size in SIZES]
        regime = fit_regime(SIZES, times)
        assert regime.beta_error_seconds_per_byte is not None
        inside += abs(regime.beta_seconds_per_byte - beta) < 2 * regime.beta_error_seconds_per_byte
    assert 0.89 < inside / 400 < 0.99


def test_two_points_leave_no_error_and_a_constant_time_no_beta() -> None:
    exact = fit_regime([100, 200], [3.0, 5.0])
    assert (exact.alpha_seconds, exact.beta_seconds_per_byte) == (pytest.approx(1.0), pytest.approx(0.02))
    assert exact.alpha_error_seconds is None
    flat = fit_regime([1, 10, 100], [2.0, 2.0, 2.0])
    assert flat.alpha_seconds == pytest.approx(2.0)
    assert flat.bandwidth_bytes_per_second > 1e9
    assert Regime(
        low_bytes=1, high_bytes=2, points=2, alpha_seconds=1, beta_seconds_per_byte=0,
        alpha_error_seconds=None, beta_error_seconds_per_byte=None,
    ).bandwidth_bytes_per_second == inf  # fmt: skip


def test_neither_alpha_nor_beta_is_ever_negative() -> None:
    falling = fit_regime([1000, 2000, 4000], [3.0, 2.0, 1.0])
    assert falling.alpha_seconds > 0
    assert falling.beta_seconds_per_byte == 0
    steep = fit_regime([1000, 2000, 4000], [1.0, 4.0, 16.0])
    assert steep.alpha_seconds == 0
    assert steep.beta_seconds_per_byte > 0


@pytest.mark.parametrize(
    ("sizes", "seconds", "message"),
    [([1, 2], [1.0], "must be as many"), ([1, 1], [1.0, 2.0], "two different"), ([1, 2], [1.0, 0.0], "positive")],
)
def test_what_cannot_be_fitted(sizes: list[int], seconds: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_regime(sizes, seconds)


def test_a_curve_with_a_change_of_algorithm_is_cut_there() -> None:
    def time(size: int) -> float:
        return 2e-5 + 4e-9 * size if size <= 1 << 16 else 4e-4 + 1e-9 * size

    curve = fit_curve(SIZES, [time(size) for size in SIZES])
    assert len(curve.regimes) == 2
    assert curve.regimes[0].high_bytes == 1 << 16
    assert curve.alpha_seconds == pytest.approx(2e-5)
    assert curve.beta_seconds_per_byte == pytest.approx(1e-9)
    assert curve.seconds(1 << 12) == pytest.approx(time(1 << 12))
    assert curve.seconds(1 << 30) == pytest.approx(time(1 << 30))


def test_a_straight_curve_stays_one_regime_even_with_noise() -> None:
    generator = random.Random(2)
    counts = []
    for _ in range(20):
        times = [(1e-4 + 2e-9 * size) * (1 + generator.gauss(0, 0.03)) for size in SIZES]
        counts.append(len(fit_curve(SIZES, times).regimes))
    assert counts.count(1) >= 17


def test_a_curve_of_few_points() -> None:
    assert len(fit_curve([1, 2], [1.0, 2.0]).regimes) == 1
    with pytest.raises(ValueError, match="two different"):
        fit_curve([4], [1.0])


def test_ring_and_tree_by_hand() -> None:
    # 4 ranks: 6 steps of a quarter each, α = 1, β = 0.01
    assert ring_seconds(4, 400, 1.0, 0.01) == pytest.approx(6 * (1 + 1))
    assert tree_seconds(4, 400, 1.0, 0.01) == pytest.approx(4 * 1 + 8)
    assert ring_seconds(1, 400, 1.0, 0.01) == 0
    assert tree_seconds(1, 400, 1.0, 0.01) == 0


@given(ranks=st.integers(2, 64), alpha=st.floats(1e-7, 1e-3), beta=st.floats(1e-11, 1e-8))
def test_the_link_behind_a_ring_is_found(ranks: int, alpha: float, beta: float) -> None:
    regime = fit_regime(SIZES, [ring_seconds(ranks, size, alpha, beta) for size in SIZES])
    found = link_of_ring(regime, ranks)
    assert found == (pytest.approx(alpha, rel=1e-4), pytest.approx(beta, rel=1e-4))


def test_a_ring_of_one_has_no_link() -> None:
    with pytest.raises(ValueError, match="ranks = 1"):
        link_of_ring(fit_regime([1, 2], [1.0, 2.0]), 1)


def test_buckets_fill_from_the_last_parameter() -> None:
    parameters = [30 * MIB, 10 * MIB, 20 * MIB, MIB // 2, MIB // 2, 100]
    # from the end: 100 B + 2 × ½ MiB reach 1 MiB; 20 + 10 MiB reach 25 MiB; 30 MiB are one bucket
    assert bucket_bytes(parameters) == (MIB + 100, 30 * MIB, 30 * MIB)
    assert bucket_bytes([]) == ()
    assert bucket_bytes([10]) == (10,)


@given(st.integers(0, 1 << 32))
def test_buckets_hold_every_byte(total: int) -> None:
    pieces = evenly(total, 1 << 20)
    buckets = bucket_bytes(pieces)
    assert sum(pieces) == sum(buckets) == total
    assert all(size >= BUCKET_BYTES for size in buckets[1:-1])
    assert not buckets[:-1] or buckets[0] >= FIRST_BUCKET_BYTES


def test_pieces_must_make_sense() -> None:
    with pytest.raises(ValueError, match="piece_bytes = 0"):
        evenly(5, 0)


def test_a_step_whose_communication_hides_and_one_whose_does_not() -> None:
    phases = {"forward_seconds": 1.0, "backward_seconds": 2.0, "optimizer_seconds": 0.5}
    # Two halves are ready at 1 and 2 s.
    hidden = predict_ddp_step(**phases, buckets=[50, 50], all_reduce_seconds=lambda size: 0.1)
    assert hidden.exposed_seconds == pytest.approx(0.1)
    assert hidden.step_seconds == pytest.approx(3.6)
    slow = predict_ddp_step(**phases, buckets=[50, 50], all_reduce_seconds=lambda size: 3.0)
    assert slow.exposed_seconds == pytest.approx(1 + 3 + 3 - 2)
    assert slow.communication_seconds == 6.0
    nothing = predict_ddp_step(**phases, buckets=[], all_reduce_seconds=lambda size: 3.0)
    assert nothing.exposed_seconds == 0


PHASES = {"data": 0.1, "forward": 0.3, "backward": 0.6, "optimizer": 0.1}
SINGLE = StepTimes(step_seconds=1.1, phases=PHASES)


def test_the_parts_of_a_step_add_up_to_it() -> None:
    ddp = StepTimes(step_seconds=1.6, phases={**PHASES, "data": 0.15}, own_seconds=(1.2, 1.2, 1.4), parameters=1000)
    gap = explain(SINGLE, ddp)
    assert gap is not None
    assert gap.parts == {
        "compute": pytest.approx(1.0),
        "exposed communication": pytest.approx(0.2),
        "input": pytest.approx(0.15),
        "stragglers": pytest.approx(0.2),
        "rest": pytest.approx(0.05),
    }
    assert sum(gap.parts.values()) == pytest.approx(1.6)
    assert gap.prediction is None
    assert gap.prediction_error is None


@pytest.mark.parametrize(
    ("ddp", "largest"),
    [
        (StepTimes(step_seconds=2.0, phases=PHASES, own_seconds=(1.1, 1.1)), "exposed communication"),
        (StepTimes(step_seconds=2.0, phases={"data": 0.9}, own_seconds=(1.9, 1.9)), "input"),
        (StepTimes(step_seconds=2.0, phases=PHASES, own_seconds=(1.1, 1.1, 2.0)), "stragglers"),
        (StepTimes(step_seconds=2.0, phases=PHASES, own_seconds=(2.0, 2.0)), "rest"),
    ],
)
def test_the_largest_part_is_named(ddp: StepTimes, largest: str) -> None:
    gap = explain(SINGLE, ddp)
    assert gap is not None
    assert gap.largest == largest


def test_the_step_is_predicted_from_the_curve() -> None:
    curve = Curve(regimes=(fit_regime([4, 8], [0.2, 0.2]),))
    ddp = StepTimes(step_seconds=1.2, phases=PHASES, own_seconds=(1.1, 1.1), parameters=10)
    gap = explain(SINGLE, ddp, curve)
    assert gap is not None
    assert gap.prediction is not None
    # one bucket of 40 bytes, ready at the end of the backward pass: all of its 0.2 s is exposed
    assert gap.prediction.step_seconds == pytest.approx(1.2)
    assert gap.prediction_error == pytest.approx(0)
    assert explain(SINGLE, StepTimes(step_seconds=1.0, phases={})) is None


def test_step_times_of_records() -> None:
    record = builders.training_record(devices=2, step_seconds=[[0.1, 0.2, 0.3], [0.2, 0.3, 0.4]])
    times = step_times(record)
    assert times is not None
    assert times.step_seconds == pytest.approx(0.25)
    assert step_times(builders.collective_record(devices=2, seconds={1024: [[1e-4], [1e-4]]})) is None


def test_records_that_do_not_belong_together() -> None:
    single = builders.training_record(strategy="single", devices=1, step_seconds=[[0.1] * 3])
    ddp = builders.training_record(strategy="ddp", devices=2, step_seconds=[[0.1] * 3] * 2)
    assert comparable(single, ddp) is None
    assert "needs a single and a ddp" in (comparable(ddp, single) or "")
    other = builders.training_record(strategy="ddp", devices=2, step_seconds=[[0.1] * 3] * 2, task={"batch": 99})
    assert "per-device batch differs" in (comparable(single, other) or "")


def test_gaps_of_stored_records() -> None:
    phases = dict.fromkeys(("data", "forward", "backward", "optimizer"), (0.02,) * 5)
    extra = {"phase_seconds": phases, "parameters": 1000}
    single = builders.training_record(strategy="single", devices=1, seconds=0.08, rank_changes=extra)
    ddp = builders.training_record(devices=2, seconds=0.12, rank_changes={**extra, "no_sync_step_seconds": (0.09,) * 5})
    seconds = {size: [[0.03 + 1e-12 * size] * 4] * 2 for size in (1024, 4096, 16384)}
    collective = builders.collective_record(devices=2, seconds=seconds)
    assert gaps([ddp, collective]) == []
    (named,) = gaps([single, ddp, collective])
    assert named.devices == 2
    assert named.gap.measured_seconds == pytest.approx(0.12)
    assert named.gap.parts["compute"] == pytest.approx(0.06)
    assert named.gap.parts["exposed communication"] == pytest.approx(0.03)
    assert named.gap.largest == "exposed communication"
    assert named.gap.prediction is not None
    assert named.gap.prediction.step_seconds == pytest.approx(0.06 + 0.03)
    line = gap_line(named)
    for words in ("on 2 devices: step 120.00 ms", "exposed communication 30.00 ms", "predicted 90.00 ms", "+33%"):
        assert words in line
    (unpredicted,) = gaps([single, ddp])
    assert unpredicted.gap.prediction is None
    assert "predicted" not in gap_line(unpredicted)
