"""Two sides compared: matching, directions, settings that forbid a comparison, and how launches ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench_runner.analysis import cases
from bench_runner.analysis.cases import from_records, noise_key
from bench_runner.analysis.compare import compare, interleaved
from bench_runner.analysis.comparison import Comparison, Outcome
from bench_runner.analysis.differences import differences, pooled
from bench_runner.analysis.noise import NoiseProfile, SessionSummary
from bench_runner.analysis.statistics import Rule
from bench_runner.machine.sampling import DeviceSampling, SamplingSummary, Spread
from bench_runner.record import RunRecord
from tests import builders


def trainings(factor: float = 1.0, *, count: int = 5, **changes: Any) -> list[RunRecord]:
    """Launches that differ by a few tenths of a percent around 0.1 s times ``factor``."""
    return builders.launches(
        count, lambda i: builders.training_record(seconds=factor * (0.1 + 0.0002 * (i % 3)), launch_index=i, **changes)
    )


def told(baseline: Sequence[RunRecord], candidate: Sequence[RunRecord], **options: Any) -> Outcome:
    return compare(from_records(baseline), from_records(candidate), Rule(), **options)


def of(outcome: Outcome, metric: str) -> Comparison:
    found = [comparison for comparison in outcome.comparisons if comparison.metric == metric]
    assert len(found) == 1, [comparison.metric for comparison in outcome.comparisons]
    return found[0]


def test_slower_steps_are_a_regression_in_time_and_in_throughput() -> None:
    outcome = told(trainings(), trainings(1.1))
    assert of(outcome, "step_time").verdict == "regression"
    assert of(outcome, "step_time").ratio == pytest.approx(1.1)
    assert of(outcome, "throughput").verdict == "regression"
    assert of(outcome, "throughput").ratio == pytest.approx(1 / 1.1)
    assert of(outcome, "peak_rss").verdict == "same"
    assert outcome.verdict == "regression"
    assert [comparison.verdict for comparison in outcome.comparisons][:2] == ["regression", "regression"]


def test_faster_steps_are_an_improvement_in_both() -> None:
    outcome = told(trainings(1.1), trainings())
    assert {of(outcome, name).verdict for name in ("step_time", "throughput")} == {"improvement"}
    assert outcome.verdict == "improvement"


def test_the_same_runs_are_the_same() -> None:
    outcome = told(trainings(), trainings())
    assert {comparison.verdict for comparison in outcome.comparisons} == {"same"}
    assert (outcome.verdict, outcome.unmatched) == ("same", ())


def test_one_launch_a_side_is_inconclusive() -> None:
    outcome = told(trainings(count=1), trainings(1.5, count=1))
    assert outcome.verdict == "inconclusive"
    assert of(outcome, "step_time").ratio == pytest.approx(1.5)


def test_message_sizes_are_compared_one_by_one() -> None:
    def collectives(small: float) -> list[RunRecord]:
        seconds = {1024: [[small] * 5] * 2, 4096: [[1e-3] * 5] * 2}
        return builders.launches(3, lambda i: builders.collective_record(seconds=seconds, launch_index=i))

    outcome = told(collectives(1e-4), collectives(2e-4))
    by_size = {c.bytes: c.verdict for c in outcome.comparisons if c.metric == "latency"}
    assert by_size == {1024: "regression", 4096: "same"}


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ({"batch": 16}, "per device batch 8 against 16, global batch 16 against 32"),
        ({"precision": "bf16"}, "precision fp32 against bf16"),
        ({"data": "loader", "loader_workers": 2}, "data device against loader"),
    ],
)
def test_an_unlike_case_is_named_and_never_compared(task: dict[str, Any], named: str) -> None:
    outcome = told(trainings(), trainings(task=task))
    assert [c.verdict for c in outcome.comparisons] == ["not-comparable"]
    assert named in outcome.comparisons[0].reason
    assert outcome.verdict == "not-comparable"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rank_changes": {"backend": "nccl"}}, "backend gloo against nccl"),
        ({"rank_changes": {"settings": builders.settings(threads=2)}}, "threads 1 against 2"),
        ({"rank_changes": {"settings": builders.settings(scheduler="other")}}, "scheduler batch against other"),
        ({"rank_changes": {"settings": builders.settings(oversubscribed=True)}}, "oversubscribed False against True"),
        ({"measurement_version": 2}, "measurement version 1 against 2"),
    ],
)
def test_unlike_settings_are_named_and_never_compared(changes: dict[str, Any], named: str) -> None:
    outcome = told(trainings(), trainings(**changes))
    assert [c.verdict for c in outcome.comparisons] == ["not-comparable"]
    assert named in outcome.comparisons[0].reason


def test_launches_with_other_settings_are_left_out_and_said_so() -> None:
    mixed = [*trainings(), *trainings(rank_changes={"settings": builders.settings(threads=2)})]
    outcome = told(trainings(), [replace(r, record_id=f"{i}") for i, r in enumerate(mixed)])
    assert of(outcome, "step_time").candidate.launches == 5
    assert "left out" in of(outcome, "all").reason


def test_cases_of_one_side_are_unmatched() -> None:
    outcome = told(trainings(devices=2), [*trainings(devices=2), *trainings(devices=4)])
    assert [(u.side, u.key.devices, u.launches) for u in outcome.unmatched] == [("candidate", 4, 5)]


def failures(outcome: str, reason: str, count: int = 1, **changes: Any) -> list[RunRecord]:
    return [
        builders.failed_record(outcome=outcome, reason=reason, record_id=f"{outcome}-{i}", **changes)
        for i in range(count)
    ]


MACHINE_B = {"machine": builders.machine("other")}


@pytest.mark.parametrize(
    ("baseline", "candidate", "verdict", "named"),
    [
        (trainings(), failures("failed", "boom"), "regression", "the candidate failed in 1 of 1 launches: boom"),
        (trainings(), failures("timeout", "late"), "regression", "timed out in 1 of 1 launches: late"),
        (trainings(), [*trainings(), *failures("failed", "boom")], "regression", "failed in 1 of 6 launches"),
        (failures("failed", "boom"), trainings(), "improvement", "the baseline failed"),
        (failures("failed", "boom"), failures("timeout", "late"), "inconclusive", "the candidate timed out"),
        (trainings(), failures("skipped", "no GPU"), "regression", "was skipped in 1 of 1 launches: no GPU"),
        (trainings(), failures("skipped", "no GPU", **MACHINE_B), "not-comparable", "no GPU"),
        (failures("skipped", "no GPU"), trainings(), "not-comparable", "the baseline was skipped"),
        (failures("skipped", "no GPU"), failures("skipped", "none"), "not-comparable", "skipped on both sides: none"),
    ],
)
def test_how_launches_ended_is_never_no_change(
    baseline: list[RunRecord], candidate: list[RunRecord], verdict: str, named: str
) -> None:
    comparison = of(told(baseline, candidate), "outcome")
    assert comparison.verdict == verdict
    assert named in comparison.reason


def test_a_metric_of_one_side_alone_is_named() -> None:
    without = trainings(rank_changes={"peak_rss_bytes": None})
    comparison = of(told(trainings(), without), "peak_rss")
    assert (comparison.verdict, comparison.reason) == ("not-comparable", "the candidate has no value of it")


def test_two_machines_are_said_to_be_these_two() -> None:
    outcome = told(trainings(), trainings(machine=builders.machine("other")))
    assert "between these two machines" in of(outcome, "step_time").reason


def at(minute: int, index: int) -> RunRecord:
    return builders.training_record(launch_index=index, started_at=f"2026-11-01T10:{minute:02d}:00Z")


@pytest.mark.parametrize(
    ("order", "expected"),
    [("ababab", True), ("abbaab", True), ("aaabbb", False), ("aabbab", True), ("ab", False)],
)
def test_interleaving_is_seen_in_the_order_of_launches(order: str, expected: bool) -> None:
    sides = {
        name: [launch for case in from_records([at(i, i) for i, c in enumerate(order) if c == name]).values()
               for launches in case.measured.values() for launch in launches]
        for name in "ab"
    }  # fmt: skip
    assert interleaved(sides["a"], sides["b"]) == expected


def test_a_profile_is_found_by_case_settings_and_metric() -> None:
    baseline, candidate = from_records(trainings(count=1)), from_records(trainings(count=1))
    key, case = next(iter(baseline.items()))
    chosen, launches = next(iter(case.measured.items()))
    metric = next(metric for metric in launches[0].values if metric.name == "step_time")
    summaries = tuple(
        SessionSummary(session=session, launches=5, mean=mean, squares=2e-5)
        for session, mean in [("s1", -2.3), ("s2", -2.302), ("s3", -2.301), ("session-a", 0.0)]
    )
    profile = NoiseProfile(
        machine="box",
        fingerprint="machine-box",
        metrics={noise_key(key, chosen, metric): summaries},
        sessions=4,
        launches=20,
    )
    known = compare(baseline, candidate, Rule(), noise={"machine-box": profile})
    assert of(known, "step_time").verdict == "same"
    assert of(known, "throughput").verdict == "inconclusive"
    # The compared launches are of session-a: its own part of the profile does not count.
    assert of(known, "step_time").judgement.spread == pytest.approx((3 * 2e-5 / 12) ** 0.5)  # type: ignore[union-attr]


def test_the_lower_quartile_counts_on_a_cpu_and_the_median_on_a_gpu() -> None:
    steps = [[1.0, 1.0, 2.0, 2.0, 2.0]] * 2
    cpu = builders.training_record(step_seconds=steps)
    gpu = builders.training_record(step_seconds=steps, task={"device_kind": "cuda"})
    values = [
        {metric.statistic: value for metric, value in cases.launch_values(record, ["step_time"]).items()}
        for record in (cpu, gpu)
    ]
    assert values == [{"p25": 1.0}, {"median": 2.0}]


def test_memory_is_the_largest_cell() -> None:
    record = builders.training_record()
    ranks = [
        replace(rank, memory=(builders.device_memory(0, peak_allocated_bytes=100 + rank.rank),))
        for rank in record.ranks
    ]
    values = cases.launch_values(replace(record, ranks=tuple(ranks)), ["peak_allocated"])
    assert list(values.values()) == [101.0]


def test_differences_of_machine_environment_and_commit() -> None:
    left = [builders.training_record(machine=builders.machine(gpus=2))]
    other = builders.environment(nccl="2.27.3", packages={"numpy": "2.3.0"}, variables={"NCCL_P2P_DISABLE": "1"})
    right = [builders.training_record(machine=builders.machine(gpus=2, driver_version="580.1"), environment=other)]
    found = {(d.subject, d.name): (d.baseline, d.candidate) for d in differences(left, right)}
    assert found == {
        ("machine", "driver"): ("570.86.15", "580.1"),
        ("environment", "NCCL"): ("2.26.2", "2.27.3"),
        ("environment", "package numpy"): ("2.2.6=py312h_0", "2.3.0"),
        ("environment", "package pytorch"): ("2.7.1=cuda128_mkl_py312_300", "-"),
        ("environment", "variable NCCL_P2P_DISABLE"): ("-", "1"),
    }
    assert differences(left, left) == []
    assert differences(left, []) == []


def sampled(clock: float, reason: str) -> RunRecord:
    device = DeviceSampling(
        uuid="GPU-0",
        samples=20,
        sm_clock_mhz=Spread(minimum=clock, median=clock, maximum=clock),
        throttle_share={reason: 0.5, "short": 0.01},
    )
    return builders.training_record(sampling=SamplingSummary(devices=(device,)))


def test_clocks_and_throttling_during_the_runs_are_differences() -> None:
    found = {d.name: (d.baseline, d.candidate) for d in differences([sampled(1980, "idle")], [sampled(1410, "power")])}
    assert found == {"throttled by": ("idle", "power"), "SM clock during the runs (MHz)": ("1980", "1410")}
    assert differences([sampled(1980, "idle")], [sampled(1965, "idle")]) == []


def test_a_side_of_several_machines_is_said_to_be_one() -> None:
    warnings = pooled([*trainings(), *trainings(**MACHINE_B)], "baseline")
    assert warnings[0] == "the baseline holds 2 machines, compared as one: box, other"
    assert pooled(trainings(), "baseline") == []
