"""Sampling: the summary of made-up samples, the judgement on it, and the thread over a fake NVML."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.machine.sampling import DeviceSample, DeviceSampling, Sampler, SamplingSummary, Spread, summarise
from bench_runner.machine.stability import slow_rank_reason, unstable_reason
from tests.fakes.driver import GIB, FakeDriver

IMPORTS = """
import time
from bench_runner.machine.sampling import Sampler
def sampled(samples=1, period=0.02, uuids=None, until=lambda result: True):
    begin, deadline = time.time(), time.monotonic() + 60
    with Sampler(uuids, period) as sampler:
        while time.monotonic() < deadline:
            result = sampler.window(begin, time.time())
            if all(device.samples >= samples for device in result.devices) and until(result):
                break
            time.sleep(0.01)
    return sampler.window(begin, time.time())
"""


def sample(at: float, uuid: str = "GPU-a", **changes: object) -> DeviceSample:
    values: dict[str, object] = {
        "sm_clock_mhz": 1980,
        "power_watts": 500.0,
        "temperature_celsius": 60,
        "utilisation_percent": 90,
        "memory_used_bytes": GIB,
        "throttle_reasons": (),
        "energy_joules": 100.0 + 500.0 * at,
    }
    return DeviceSample(at=at, uuid=uuid, **{**values, **changes})  # type: ignore[arg-type]


def test_summary_of_three_samples() -> None:
    samples = [
        sample(0, sm_clock_mhz=1980),
        sample(1, sm_clock_mhz=1200, throttle_reasons=("thermal-hardware",)),
        sample(2, sm_clock_mhz=1500),
        sample(2, uuid="GPU-b"),
    ]
    first, second = summarise(samples)
    assert (first.uuid, first.samples, second.samples) == ("GPU-a", 3, 1)
    assert first.sm_clock_mhz == Spread(minimum=1200, median=1500, maximum=1980)
    assert first.throttle_share == {"thermal-hardware": 1 / 3}
    assert (first.energy_joules, first.energy_seconds) == (1000.0, 2)
    assert (second.energy_joules, second.throttle_share) == (None, {})


def test_what_was_not_read_is_none_and_a_reset_counter_says_nothing() -> None:
    blank = {"sm_clock_mhz": None, "throttle_reasons": None, "energy_joules": None}
    (summary,) = summarise([sample(0, **blank), sample(1, **blank)])
    assert (summary.sm_clock_mhz, summary.throttle_share, summary.energy_joules) == (None, None, None)
    (reset,) = summarise([sample(0, energy_joules=1000.0), sample(1, energy_joules=5.0)])
    assert reset.energy_joules is None
    assert summarise([]) == ()


@given(st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.integers(0, 3000)), min_size=1, max_size=30))
def test_spread_is_ordered(values: list[tuple[float, int | None]]) -> None:
    (summary,) = summarise([sample(at, sm_clock_mhz=clock) for at, clock in values])
    spread = summary.sm_clock_mhz
    known = [clock for _, clock in values if clock is not None]
    assert (spread is None) == (not known)
    if spread is not None:
        assert min(known) == spread.minimum <= spread.median <= spread.maximum == max(known)


def summary(*devices: DeviceSampling) -> SamplingSummary:
    return SamplingSummary(devices=devices)


def clocked(uuid: str, clock: float, **throttle: float) -> DeviceSampling:
    return DeviceSampling(
        uuid=uuid,
        samples=100,
        sm_clock_mhz=Spread(minimum=clock, median=clock, maximum=clock),
        temperature_celsius=Spread(minimum=50, median=80, maximum=91),
        throttle_share={name.replace("_", "-"): share for name, share in throttle.items()},
    )


@pytest.mark.parametrize(
    ("given_summary", "reason"),
    [
        (summary(), None),
        (summary(clocked("GPU-a", 1980), clocked("GPU-b", 1965)), None),
        (summary(clocked("GPU-a", 1980, power_cap=0.9)), None),
        (summary(clocked("GPU-a", 1980, thermal_hardware=0.01)), None),
        (summary(clocked("GPU-a", 1980, thermal_hardware=0.4)), "held back (thermal-hardware) in 40% of the samples"),
        (summary(clocked("GPU-a", 1980, power_brake=0.1)), "power-brake"),
        (summary(clocked("GPU-a", 1500), clocked("GPU-b", 1980)), "GPU-a ran at 1500 MHz, the others at 1980"),
    ],
)  # fmt: skip
def test_unstable(given_summary: SamplingSummary, reason: str | None) -> None:
    found = unstable_reason(given_summary)
    assert found is None if reason is None else reason in (found or "")


def test_slow_rank() -> None:
    assert slow_rank_reason({}) is None
    assert slow_rank_reason({0: 1.0}) is None
    assert slow_rank_reason({0: 1.0, 1: 1.05, 2: 1.0}) is None
    assert slow_rank_reason({0: 0.1, 1: 0.1, 2: 0.1, 3: 0.15}) == "rank 3 takes 1.50 × the median of the ranks"


def test_the_thread_samples_every_device(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, 8).device("*", energy="1000|2000|3000|4000", throttle="0x20")
    result = driver.ask("sampled(4)", IMPORTS)
    assert result["warnings"] == []
    assert result["not_sampled"] is None
    assert [device["uuid"] for device in result["devices"]] == [FakeDriver.uuid(i) for i in range(8)]
    first = result["devices"][0]
    assert first["samples"] >= 4
    assert first["sm_clock_mhz"] == {"minimum": 1980, "median": 1980, "maximum": 1980}
    assert first["throttle_share"] == {"thermal-software": 1.0}
    assert first["power_watts"]["median"] == 100.0


def test_only_the_devices_asked_for(tmp_path: Path) -> None:
    wanted = FakeDriver.uuid(2)
    expression = f"sampled(uuids=[{wanted.removeprefix('GPU-')!r}, 'GPU-none'])"
    result = FakeDriver(tmp_path, 4).ask(expression, IMPORTS)
    assert [device["uuid"] for device in result["devices"]] == [wanted]
    assert result["warnings"] == ["sampling: GPU-none: not found (NVML code 6)"]


def test_a_device_lost_in_mid_run_leaves_its_samples_and_a_warning(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, 2).vanish(0, 40)
    result = driver.ask("sampled(until=lambda r: r.warnings and r.devices[1].samples > r.devices[0].samples)", IMPORTS)
    lost, alive = result["devices"]
    assert 0 < lost["samples"] < alive["samples"]
    assert result["warnings"] == [f"sampling: {FakeDriver.uuid(0)}: GPU is lost (NVML code 15)"]


def test_one_unreadable_field_costs_only_itself(tmp_path: Path) -> None:
    result = FakeDriver(tmp_path).error("nvmlDeviceGetPowerUsage", 3).ask("sampled()", IMPORTS)
    (device,) = result["devices"]
    assert device["power_watts"] is None
    assert device["temperature_celsius"]["median"] == 35
    assert result["warnings"] == []


def test_all_devices_lost(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, 2)
    for index in range(2):
        driver.vanish(index, 30)
    result = driver.ask("sampled(period=0.01, until=lambda result: len(result.warnings) == 2)", IMPORTS)
    assert len(result["warnings"]) == 2


def test_devices_that_cannot_be_listed(tmp_path: Path) -> None:
    result = FakeDriver(tmp_path).error("nvmlDeviceGetCount_v2", 999).ask("sampled()", IMPORTS)
    assert result["devices"] == []
    assert "cannot be listed: unknown error" in result["warnings"][0]


def test_without_nvml_there_is_a_reason_and_no_warning(tmp_path: Path) -> None:
    result = FakeDriver(tmp_path, nvml=False).ask("sampled()", IMPORTS)
    assert (result["devices"], result["warnings"]) == ([], [])
    assert "library not found" in result["not_sampled"]


def test_a_driver_that_hangs_does_not_hold_the_run_up(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path).delay("nvmlDeviceGetPowerUsage", 100_000_000)
    result = driver.ask("sampled()", IMPORTS)
    assert result["devices"] == []
    assert "has not answered" in result["warnings"][0]


def test_window_takes_only_its_own_samples() -> None:
    sampler = Sampler()
    sampler._samples.extend(sample(at) for at in range(10))
    assert sampler.window(2, 4).devices[0].samples == 3
    assert sampler.window(20, 30) == dataclasses.replace(sampler.window(0, 1), devices=())


def test_a_period_must_be_positive() -> None:
    with pytest.raises(ValueError, match="period_seconds = 0"):
        Sampler(period_seconds=0)
