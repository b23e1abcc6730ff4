"""The devices' energy counters, read from a fake NVML by the real nvidia-ml-py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench_runner.worker.devices import Device
from bench_runner.worker.training import driven_uuids
from tests import builders
from tests.fakes.driver import FakeDriver

IMPORTS = """
from bench_runner.machine.energy import energy_counter
def joules(*uuids):
    with energy_counter(uuids) as read:
        return read()
"""


def asked(driver: FakeDriver, *uuids: str | None) -> Any:
    return driver.ask(f"joules(*{uuids!r})", IMPORTS)


def test_the_counters_of_the_devices_asked_for_are_added(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, 3).device(0, energy=1_500).device(2, energy=2_000_250)
    assert asked(driver, FakeDriver.uuid(0), FakeDriver.uuid(2).removeprefix("GPU-")) == 2001.75


@pytest.mark.parametrize(
    ("driver", "uuids"),
    [
        (lambda driver: driver, ()),
        (lambda driver: driver, (FakeDriver.uuid(0), None)),
        (lambda driver: driver, (FakeDriver.uuid(0), "GPU-unknown")),
        (lambda driver: driver.without("energy"), (FakeDriver.uuid(0),)),
        (lambda driver: driver.device(0, mig=1), (FakeDriver.uuid(0),)),
        (lambda driver: driver.error("nvmlInitWithFlags", 9), (FakeDriver.uuid(0),)),
        (lambda driver: driver.vanish(0, 1), (FakeDriver.uuid(0),)),
    ],
)
def test_one_device_without_a_counter_leaves_no_sum(tmp_path: Path, driver: Any, uuids: tuple[Any, ...]) -> None:
    assert asked(driver(FakeDriver(tmp_path)), *uuids) is None


def test_a_device_that_cannot_be_divided_has_a_counter(tmp_path: Path) -> None:
    assert asked(FakeDriver(tmp_path).without("mig"), FakeDriver.uuid(0)) == 1000.0


def test_data_parallel_drives_all_devices_and_a_rank_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    named = SimpleNamespace(get_device_properties=lambda index: SimpleNamespace(uuid=f"u{index}"))
    monkeypatch.setattr("torch.cuda", named)
    device = Device("cuda", 1)
    assert driven_uuids(builders.training_spec("ddp", 4), device) == ["GPU-u1"]
    assert driven_uuids(builders.training_spec("data_parallel", 3), Device("cuda", 0)) == ["GPU-u0", "GPU-u1", "GPU-u2"]
    assert driven_uuids(builders.training_spec(), Device("cpu", 0)) == []
