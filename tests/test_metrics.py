import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.analysis import metrics
from bench_runner.analysis.metrics import METRICS, MetricValue, headline, metric_values
from bench_runner.record import RunRecord
from tests import builders

MIB = builders.MIB


def value(record: RunRecord, metric: str, **where: object) -> float:
    """The only value of a metric in a record."""
    (found,) = [
        v for v in metric_values(record) if v.metric == metric and all(getattr(v, k) == w for k, w in where.items())
    ]
    return found.value


def test_fixed_100_ms_step_with_8_per_device_on_2_ranks_gives_160_samples_per_second() -> None:
    record = builders.training_record(devices=2, seconds=0.1)
    assert value(record, "throughput") == pytest.approx(160)
    assert value(record, "throughput_per_device") == pytest.approx(80)
    assert value(record, "time_per_sample") == pytest.approx(1 / 160)
    assert value(record, "step_time") == 0.1


def test_throughput_is_that_of_the_slowest_rank_over_all_steps() -> None:
    fast, slow = [0.1] * 10, [0.1] * 9 + [1.1]
    record = builders.training_record(step_seconds=[fast, slow])
    assert value(record, "throughput") == pytest.approx(16 * 10 / 2.0)
    assert value(record, "step_time") == 0.1


def test_slowest_rank_of_the_step_time_is_the_one_with_the_largest_median() -> None:
    record = builders.training_record(step_seconds=[[0.1, 0.1, 9.0], [0.2, 0.2, 0.2]])
    assert value(record, "step_time") == 0.2
    assert value(record, "throughput") == pytest.approx(16 * 3 / 9.2)


def test_strong_scaling_and_data_parallel_count_the_global_batch() -> None:
    strong = builders.training_record(devices=4, seconds=0.1, task={"batch": 64, "scaling": "strong"})
    assert value(strong, "throughput") == pytest.approx(640)
    parallel = builders.training_record(strategy="data_parallel", devices=4, seconds=0.1, task={"batch": 16})
    assert value(parallel, "throughput") == pytest.approx(640)
    assert value(parallel, "throughput_per_device") == pytest.approx(160)


def test_phases_are_medians_of_the_slowest_rank_each() -> None:
    phases = [
        {"data": (0.1, 0.2, 0.9), "forward": (1.0,), "backward": (2.0,), "optimizer": (0.5,)},
        {"data": (0.3, 0.3, 0.3), "forward": (1.5,), "backward": (1.0,), "optimizer": ()},
    ]
    ranks = [builders.rank_samples(rank, [1.0], phase_seconds=phase) for rank, phase in enumerate(phases)]
    record = builders.record(builders.training_spec(), ranks)
    found = {v.metric: v.value for v in metric_values(record) if v.metric.startswith("phase_")}
    assert found == {"phase_data": 0.3, "phase_forward": 1.5, "phase_backward": 2.0, "phase_optimizer": 0.5}


def test_exposed_communication_is_the_difference_of_medians_and_never_negative() -> None:
    record = builders.training_record(seconds=0.1, rank_changes={"no_sync_step_seconds": (0.07, 0.06, 0.5)})
    assert value(record, "exposed_communication") == pytest.approx(0.03)
    faster = builders.training_record(seconds=0.1, rank_changes={"no_sync_step_seconds": (0.2, 0.2)})
    assert value(faster, "exposed_communication") == 0.0
    without = builders.training_record(strategy="single", devices=1)
    assert headline(without, "exposed_communication") is None


def test_loop_clock_is_held_against_the_sum_of_steps() -> None:
    agreeing = builders.training_record(seconds=0.1, rank_changes={"loop_seconds": 1.019})
    assert value(agreeing, "loop_clock_ratio") == pytest.approx(1.019)
    assert metrics.clock_warning(agreeing) is None
    for loop_seconds, shown in ((1.05, "1.050"), (0.9, "0.900")):
        record = builders.training_record(seconds=0.1, rank_changes={"loop_seconds": loop_seconds})
        assert shown in (metrics.clock_warning(record) or "")
    assert metrics.clock_warning(builders.training_record(rank_changes={"loop_seconds": None})) is None


def test_latency_is_the_mean_over_calls_and_ranks() -> None:
    record = builders.collective_record(seconds={1000: [[1.0, 2.0, 3.0], [2.0, 2.0, 8.0]]})
    assert value(record, "latency", bytes=1000) == 3.0
    assert value(record, "latency_max_over_ranks") == pytest.approx((2 + 2 + 8) / 3)
    assert value(record, "latency_p50") == 2.0
    assert value(record, "latency_p10") == pytest.approx(1.5)
    assert value(record, "latency_p99") == pytest.approx(8 - 5 * 0.05)
    assert value(record, "algbw") == pytest.approx(1000 / 3)


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1.0)],
)
def test_bus_bandwidth_on_four_ranks_as_nccl_tests_counts_it(operation: str, factor: float) -> None:
    record = builders.collective_record(devices=4, operation=operation, seconds={MIB: [[0.001, 0.003]] * 4})
    assert value(record, "algbw") == pytest.approx(MIB / 0.002)
    assert value(record, "busbw") == pytest.approx(factor * MIB / 0.002)


def test_size_with_wrong_values_on_one_rank_has_no_numbers() -> None:
    ranks = [
        builders.rank_samples(0, collective_seconds={1024: (0.1,), MIB: (0.2,)}),
        builders.rank_samples(1, collective_seconds={1024: (0.1,)}, wrong_values=(MIB,)),
    ]
    record = builders.record(builders.collective_spec(sizes=(1024, MIB)), ranks)
    assert {v.bytes for v in metric_values(record) if v.bytes} == {1024}


def test_memory_is_a_matrix_of_processes_and_devices() -> None:
    ranks = [
        builders.rank_samples(
            rank,
            [0.1],
            memory=(
                builders.device_memory(0, peak_allocated_bytes=100 + rank),
                builders.device_memory(1, peak_allocated_bytes=200 + rank, process_used_bytes=None),
            ),
        )
        for rank in range(2)
    ]
    found = metric_values(builders.record(builders.training_spec(), ranks))
    cells = {(v.rank, v.device): v.value for v in found if v.metric == "peak_allocated"}
    assert cells == {(0, 0): 100, (0, 1): 200, (1, 0): 101, (1, 1): 201}
    assert {v.device for v in found if v.metric == "process_used"} == {0}
    assert [v.rank for v in found if v.metric == "peak_rss"] == [0, 1]


def energy_record(*joules: float | None, loop_seconds: float = 1.0) -> RunRecord:
    """One rank for each amount, ten steps of 0.1 s with 8 samples each."""
    ranks = [
        builders.rank_samples(rank, [0.1] * 10, loop_energy_joules=amount, loop_seconds=loop_seconds)
        for rank, amount in enumerate(joules)
    ]
    return builders.record(builders.training_spec(devices=len(joules)), ranks)


def test_energy_of_all_ranks_is_divided_by_the_samples_of_the_timed_steps() -> None:
    assert value(energy_record(300.0, 340.0), "energy_per_sample") == pytest.approx(640 / (2 * 8 * 10))


@pytest.mark.parametrize(
    "record", [energy_record(300.0, None), energy_record(None), energy_record(30.0, loop_seconds=0.9)]
)
def test_energy_is_not_given_without_every_counter_or_over_a_short_loop(record: RunRecord) -> None:
    assert headline(record, "energy_per_sample") is None


def test_largest_batch_is_the_one_that_fits_on_every_rank() -> None:
    ranks = [builders.rank_samples(rank, largest_batch=batch) for rank, batch in enumerate((96, 64))]
    record = builders.record(builders.training_spec(find_batch=True), ranks)
    assert value(record, "largest_batch") == 64


def test_nothing_is_derived_from_a_record_that_is_not_ok() -> None:
    rescued = builders.training_record(outcome="failed", reason="rank 1 died")
    assert metric_values(rescued) == []


def test_series_without_a_duration_give_no_rate() -> None:
    assert headline(builders.training_record(step_seconds=[[0.0, 0.0]] * 2), "throughput") is None
    record = builders.collective_record(seconds={1024: [[0.0], [0.0]]})
    assert headline(record, "latency") is not None
    assert headline(record, "busbw") is None


def test_samples_of_a_rate_are_rates() -> None:
    rate = headline(builders.training_record(step_seconds=[[0.1, 0.2]] * 2), "throughput")
    assert rate is not None
    assert rate.samples == (160.0, 80.0)
    assert rate.value == pytest.approx(32 / 0.3)


def test_headline_picks_size_and_largest_cell() -> None:
    record = builders.collective_record(seconds={1024: [[1.0]] * 2, MIB: [[2.0]] * 2})
    assert headline(record, "latency", message_bytes=1024).value == 1.0  # type: ignore[union-attr]
    assert headline(record, "latency", message_bytes=4096) is None


def test_every_value_has_its_metric_in_the_table() -> None:
    records = [
        builders.collective_record(),
        builders.checkpoint_record(),
        builders.training_record(
            rank_changes={
                "memory": (builders.device_memory(),),
                "largest_batch": 8,
                "no_sync_step_seconds": (0.1,),
                "loop_seconds": 1.0,
                "loop_energy_joules": 100.0,
                "phase_seconds": dict.fromkeys(("data", "forward", "backward", "optimizer"), (0.1,)),
            }
        ),
    ]
    names = {v.metric for record in records for v in metric_values(record)}
    assert names == set(METRICS) - {"efficiency"}


@given(st.lists(st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=3), min_size=2, max_size=4))
def test_values_are_what_their_series_say(series: list[list[float]]) -> None:
    records = [
        builders.training_record(devices=len(series), step_seconds=series),
        builders.collective_record(devices=len(series), seconds={4096: series}),
    ]
    for found in (v for record in records for v in metric_values(record) if v.series):
        assert found.value == pytest.approx(recomputed(found), rel=1e-9)


def recomputed(found: MetricValue) -> float:
    statistic = metrics.mean(found.series) if found.statistic == "mean" else metrics.median(found.series)
    fractions = {"p10": 0.1, "p90": 0.9, "p99": 0.99}
    if found.statistic in fractions:
        statistic = metrics.quantile(sorted(found.series), fractions[found.statistic])
    return statistic if found.numerator is None else found.numerator / statistic


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(0, 1))
def test_quantile_is_numpys(series: list[float], fraction: float) -> None:
    import numpy as np

    assert metrics.quantile(sorted(series), fraction) == pytest.approx(float(np.quantile(series, fraction)), abs=1e-6)


def test_importing_metrics_costs_neither_numpy_nor_pandas() -> None:
    program = "import sys, bench_runner.analysis.trend, bench_runner.analysis.efficiency; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not {"numpy", "pandas", "scipy", "torch", "rich"} & set(done.stdout.split())


@given(st.lists(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=5), min_size=1, max_size=4))
def test_quick_throughput_is_the_metric(series: list[list[float]]) -> None:
    record = builders.training_record(devices=len(series), step_seconds=series)
    assert metrics.throughput(record) == pytest.approx(value(record, "throughput"), rel=1e-12)
    assert metrics.throughput(builders.collective_record()) is None
    assert metrics.throughput(builders.failed_record()) is None


def test_checkpoints_are_saved_by_rank_0_and_loaded_by_the_slowest() -> None:
    record = builders.checkpoint_record(save_seconds=(0.2, 0.9, 0.3), load_seconds=[[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    values = {value.metric: value for value in metric_values(record)}
    assert (values["save_time"].value, values["load_time"].value) == (0.3, 0.5)
    assert values["load_time"].series == (0.4, 0.5, 0.6)
    assert values["checkpoint_size"].value == 3 * builders.MIB
    assert "throughput" not in values
    assert "latency" not in values
