from typing import Any

import pytest

from bench_runner.analysis.efficiency import efficiencies
from bench_runner.record import RunRecord
from tests import builders


def found(records: list[RunRecord], record: RunRecord) -> dict[str | None, float]:
    return {value.denominator: value.value for value in efficiencies(records).get(record.record_id, [])}


def single(seconds: float, **changes: Any) -> RunRecord:
    return builders.training_record(strategy="single", devices=1, seconds=seconds, **changes)


def ddp(devices: int, seconds: float, **changes: Any) -> RunRecord:
    return builders.training_record(devices=devices, seconds=seconds, **changes)


def test_weak_scaling_divides_by_devices_times_the_rate_of_one() -> None:
    records = [single(0.10), ddp(1, 0.11), ddp(4, 0.125)]
    assert found(records, records[2]) == {"single": pytest.approx(0.8), "ddp-1": pytest.approx(0.88)}


def test_strong_scaling_divides_times_at_equal_global_batch() -> None:
    strong = {"batch": 64, "scaling": "strong"}
    records = [single(0.8, task=strong), ddp(4, 0.25, task=strong)]
    assert found(records, records[1]) == {"single": pytest.approx(0.8 / (4 * 0.25))}
    weak_one = [single(0.8, task={"batch": 64}), records[1]]
    assert found(weak_one, records[1]) == {"single": pytest.approx(0.8)}


def test_published_table_of_resnet50_on_16_devices() -> None:
    """PyTorch's published table: the denominator alone moves the figure from 93.0 % to 95.9 %."""
    records = [single(0.100), ddp(1, 0.100 * 95.9 / 93.0), ddp(16, 0.100 / 0.930)]
    values = found(records, records[2])
    assert round(100 * values["single"], 1) == 93.0
    assert round(100 * values["ddp-1"], 1) == 95.9


def test_one_device_ddp_is_held_against_plain_and_plain_against_nothing() -> None:
    records = [single(0.10), ddp(1, 0.125)]
    assert found(records, records[1]) == {"single": pytest.approx(0.8)}
    assert found(records, records[0]) == {}


def test_denominator_is_the_median_over_launches() -> None:
    ones = builders.launches(3, lambda index: single((0.1, 0.1, 0.4)[index]))
    many = ddp(2, 0.1)
    assert found([*ones, many], many) == {"single": pytest.approx(1.0)}


@pytest.mark.parametrize(
    "other",
    [
        {"task": {"batch": 16}},
        {"task": {"precision": "bf16"}},
        {"task": {"workload": "transformer-tiny"}},
        {"task": {"data": "loader"}},
        {"session_id": "session-b"},
        {"machine": builders.machine("other")},
        {"environment": builders.environment(fingerprint="other")},
        {"rank_changes": {"settings": builders.settings(threads=2)}},
        {"rank_changes": {"settings": builders.settings(scheduler="other")}},
        {"measurement_version": 2},
        {"outcome": "failed", "reason": "x"},
    ],
)
def test_nothing_is_divided_by_what_is_not_alike(other: dict[str, Any]) -> None:
    many = ddp(2, 0.1)
    assert found([single(0.1, **other), many], many) == {}


def test_collectives_and_failures_have_none() -> None:
    records = [builders.collective_record(), builders.failed_record(), single(0.1)]
    assert efficiencies(records) == {}
