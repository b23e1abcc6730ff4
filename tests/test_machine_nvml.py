"""NVML as the real nvidia-ml-py reads it from a fake library."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_runner.machine import nvml
from tests.fakes.driver import GIB, FakeDriver

READ = ("nvml.read()", "from bench_runner.machine import nvml")


def test_every_field_of_a_healthy_device(tmp_path: Path) -> None:
    state = FakeDriver(tmp_path, 2).process(1, 4321, 3 * GIB).process(1, 77, -1).ask(*READ)
    assert (state["code"], state["driver_version"], state["cuda_version"]) == (0, "575.57.08", "12.9")
    assert state["not_read"] == []
    device = state["devices"][1]
    assert device.pop("nvlinks") == [True] * 18
    assert device.pop("processes") == [{"pid": 4321, "memory_bytes": 3 * GIB}, {"pid": 77, "memory_bytes": None}]
    assert device == {
        "index": 1,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": FakeDriver.uuid(1),
        "pci_bus_id": "00000000:11:00.0",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": 3 * GIB // 2,
        "power_watts": 100.0,
        "power_limit_watts": 700.0,
        "power_limit_default_watts": 700.0,
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "sm_clock_application_mhz": 1980,
        "memory_clock_mhz": 2619,
        "memory_clock_max_mhz": 2619,
        "temperature_celsius": 35,
        "throttle_reasons": ["idle"],
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "remapping_failed": False,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "mig": False,
        "mig_uuids": [],
        "persistence": True,
        "compute_mode": "default",
        "capability": [9, 0],
    }


@pytest.mark.parametrize("code", [4, 9, 18, 999])
def test_a_failed_init_keeps_its_code_and_is_not_shut_down(tmp_path: Path, code: int) -> None:
    state = FakeDriver(tmp_path).error("nvmlInitWithFlags", code).error("nvmlShutdown", 1).ask(*READ)
    assert state["code"] == code
    assert state["devices"] == []
    assert f"NVML code {code}" in state["not_read"][0]


def test_without_the_library_the_code_is_12(tmp_path: Path) -> None:
    state = FakeDriver(tmp_path, nvml=False).ask(*READ)
    assert state["code"] == 12


def test_one_function_without_permission_costs_one_field(tmp_path: Path) -> None:
    state = FakeDriver(tmp_path, 3).error("nvmlDeviceGetTotalEccErrors", 4, 1).ask(*READ)
    assert [device["ecc_uncorrected"] for device in state["devices"]] == [0, None, 0]
    assert state["not_read"] == ["NVML DeviceGetTotalEccErrors: no permission (NVML code 4) (GPU 1)"]


def test_an_unsupported_field_is_none_with_one_line_for_all_devices(tmp_path: Path) -> None:
    state = FakeDriver(tmp_path, 3).without("mig").ask(*READ)
    assert [device["mig"] for device in state["devices"]] == [None] * 3
    assert state["not_read"] == ["NVML DeviceGetMigMode: not supported (NVML code 3) (GPU 0, GPU 1, GPU 2)"]


def test_a_device_that_vanishes_leaves_the_others_readable(tmp_path: Path) -> None:
    state = FakeDriver(tmp_path, 2).vanish(0, 12).ask(*READ)
    first, second = state["devices"]
    assert first["name"] == "NVIDIA H100 80GB HBM3"
    assert first["processes"] is None
    assert second["temperature_celsius"] == 35
    assert any("GPU is lost (NVML code 15) (GPU 0)" in line for line in state["not_read"])


def test_mig_slices_are_listed(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path).device(0, mig=1, mig_count=7, mig_uuid_0="MIG-a", mig_uuid_1="MIG-b")
    device = driver.ask(*READ)["devices"][0]
    assert (device["mig"], device["mig_uuids"]) == (True, ["MIG-a", "MIG-b"])


def test_a_hanging_driver_ends_at_the_deadline(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path).delay("nvmlInitWithFlags", 100_000_000)
    state = driver.ask("nvml.read(0.3)", READ[1])
    assert state["code"] == 10
    assert "no answer within 0.3 s" in state["not_read"][0]


def test_a_deadline_must_be_positive() -> None:
    with pytest.raises(ValueError, match="deadline_seconds = 0"):
        nvml.read(0)


@pytest.mark.parametrize(
    ("mask", "names"),
    [(0, ()), (0x1, ("idle",)), (0x24, ("power-cap", "thermal-software")), (0x1008, ("hardware-slowdown", "0x1000"))],
)
def test_throttle_names_keep_unknown_bits(mask: int, names: tuple[str, ...]) -> None:
    assert nvml.throttle_names(mask) == names


def test_cuda_version_text() -> None:
    assert nvml.cuda_version_text(12090) == "12.9"
    assert nvml.cuda_version_text(13010) == "13.1"


MEMORY = "from bench_runner.machine.memory import device_memory"


def test_memory_by_uuid_by_torch_uuid_and_by_pci_id(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, 3).process(2, 10, 5 * GIB).process(2, 11, -1)
    keys = [FakeDriver.uuid(2), FakeDriver.uuid(2).removeprefix("GPU-"), "00000000:12:00.0"]
    uses = driver.ask(f"device_memory({keys!r})", MEMORY)
    assert [use["key"] for use in uses] == keys
    for use in uses:
        assert (use["uuid"], use["total_bytes"], use["used_bytes"]) == (FakeDriver.uuid(2), 80 * GIB, GIB)
        assert (use["api"], use["reserved_bytes"]) == ("v2", GIB // 2)
        assert use["processes"] == {"10": 5 * GIB, "11": None}


def test_memory_by_the_older_account_says_so(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path).error("nvmlDeviceGetMemoryInfo_v2", 13)
    (use,) = driver.ask("device_memory()", MEMORY)
    assert (use["api"], use["used_bytes"], use["reserved_bytes"]) == ("v1", 3 * GIB // 2, None)


def test_memory_that_cannot_be_read_is_none_with_a_reason(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, 2).error("nvmlDeviceGetComputeRunningProcesses_v3", 4, 0)
    known, unknown = driver.ask(f"device_memory({[FakeDriver.uuid(0), 'GPU-none']!r})", MEMORY)
    assert (known["processes"], known["used_bytes"]) == (None, GIB)
    assert "no permission" in known["not_read"][0]
    assert (unknown["used_bytes"], unknown["processes"]) == (None, None)
    assert "not found (NVML code 6)" in unknown["not_read"][0]


def test_memory_without_nvml_answers_for_every_device_asked_for(tmp_path: Path) -> None:
    uses = FakeDriver(tmp_path, nvml=False).ask("device_memory(['GPU-a', 'GPU-b'])", MEMORY)
    assert [(use["key"], use["used_bytes"]) for use in uses] == [("GPU-a", None), ("GPU-b", None)]
    assert all("NVML code 12" in use["not_read"][0] for use in uses)
