"""A machine's description, its fingerprint, and asv's entry."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench_runner.errors import UsageError
from bench_runner.machine.fingerprint import check_same_machine, fingerprint
from bench_runner.machine.gather import asv_machine_entry, describe, gpu_names
from bench_runner.machine.info import Accelerator
from bench_runner.machine.pci import OtherDevice
from tests.fakes.driver import GIB, FakeDriver

DESCRIBE = ("describe('box')", "from bench_runner.machine.gather import describe")
GPU = Accelerator(
    index=0, name="H100", uuid="GPU-a", memory_bytes=80 * GIB, power_limit_watts=700.0, sm_clock_max_mhz=1980, mig=False
)


def make(**changes: object) -> str:
    values: dict[str, object] = {
        "cpu_model": "Xeon",
        "cores_allowed": 8,
        "memory_bytes": 64 * GIB,
        "numa_nodes": 2,
        "accelerators": (GPU,),
    }
    return fingerprint(**{**values, **changes})  # type: ignore[arg-type]


def test_this_machine_without_a_driver(tmp_path: Path) -> None:
    info = FakeDriver(tmp_path, nvml=False).ask(*DESCRIBE)
    assert info["name"] == "box"
    assert info["accelerators"] == []
    assert info["cores_allowed"] >= 1
    assert info["memory_bytes"] > 0
    assert "library not found" in info["not_read"][0]


def test_devices_of_a_machine(tmp_path: Path) -> None:
    info = FakeDriver(tmp_path, 8).device(3, name="NVIDIA A100").ask(*DESCRIBE)
    assert (info["driver_version"], info["driver_cuda_version"]) == ("575.57.08", "12.9")
    assert [gpu["index"] for gpu in info["accelerators"]] == list(range(8))
    assert info["accelerators"][3] == {
        "index": 3,
        "name": "NVIDIA A100",
        "uuid": FakeDriver.uuid(3),
        "pci_bus_id": "00000000:13:00.0",
        "memory_bytes": 80 * GIB,
        "power_limit_watts": 700.0,
        "sm_clock_max_mhz": 1980,
        "pcie_generation": 5,
        "pcie_width": 16,
        "mig": False,
    }


def test_the_fingerprint_outlives_idle_clocks_and_another_host_name(tmp_path: Path) -> None:
    busy = FakeDriver(tmp_path, 2).ask("describe('a').fingerprint", DESCRIBE[1])
    idle = (
        FakeDriver(tmp_path, 2)
        .device("*", clock_1=210, pcie_generation=1, temperature_0=70, power=70_000, driver="580.1", cuda=13000)
        .ask("describe('b').fingerprint", DESCRIBE[1])
    )
    assert busy == idle
    capped = FakeDriver(tmp_path, 2).device(1, power_limit=350_000).ask("describe().fingerprint", DESCRIBE[1])
    assert capped != busy


def test_describe_reads_the_given_root(tmp_path: Path) -> None:
    info = describe(root=tmp_path)
    assert info.memory_bytes == 0
    assert any(line.startswith("memory:") for line in info.not_read)


def test_devices_of_another_maker_are_named_as_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:04:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x1002\n", encoding="utf-8")
    (folder / "class").write_text("0x120000\n", encoding="utf-8")
    (line,) = [line for line in describe(root=tmp_path).not_read if "that NVML knows nothing of" in line]
    assert "0000:04:00.0 (1002:0000)" in line


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu_model": "EPYC"},
        {"cores_allowed": 4},
        {"memory_bytes": 32 * GIB},
        {"numa_nodes": 1},
        {"accelerators": ()},
        {"accelerators": (GPU, GPU)},
        *(
            {"accelerators": (dataclasses.replace(GPU, **change),)}
            for change in (
                {"uuid": "GPU-b"},
                {"name": "A100"},
                {"memory_bytes": 40 * GIB},
                {"power_limit_watts": 500.0},
                {"sm_clock_max_mhz": 1755},
                {"pcie_generation": 3},
                {"pcie_width": 8},
                {"mig": True},
            )
        ),
    ],
)
def test_other_hardware_or_settings_give_another_fingerprint(changes: dict[str, object]) -> None:
    assert make(**changes) != make()


def test_boxes_with_other_makers_devices_do_not_share_a_fingerprint() -> None:
    def box(*devices: OtherDevice) -> str:
        return make(accelerators=(), other_devices=devices)

    first = OtherDevice(address="0000:04:00.0", model="1002:74a1", serial="8b", memory_bytes=192 << 30)
    second = dataclasses.replace(first, address="0000:05:00.0", serial="8c")
    others = [box(), box(first), box(second), box(first, second), box(dataclasses.replace(first, model="1002:7408"))]
    others.append(box(dataclasses.replace(first, memory_bytes=64 << 30)))
    assert len(set(others)) == len(others)
    assert box(first, second) == box(second, first)
    assert box() == make(accelerators=())


def test_what_a_reboot_changes_does_not_change_the_fingerprint() -> None:
    other = dataclasses.replace(GPU, uuid="GPU-b", index=1)
    swapped = (dataclasses.replace(other, index=0), dataclasses.replace(GPU, index=1))
    assert make(accelerators=(GPU, other)) == make(accelerators=swapped)
    assert make(memory_bytes=64 * GIB - 9_000_000) == make()


def test_asv_entry_holds_scalars_and_asv_own_fields() -> None:
    from asv.machine import Machine

    entry = asv_machine_entry(describe("box"))
    assert {name for name, _ in Machine.fields} <= set(entry)
    assert all(type(value) in (str, int) for value in entry.values())
    assert json.loads(json.dumps(entry)) == entry
    assert entry["machine"] == "box"


def test_gpu_names() -> None:
    assert gpu_names(()) == ""
    assert gpu_names((GPU, GPU)) == "H100"
    assert gpu_names((GPU, GPU, dataclasses.replace(GPU, name="A100"))) == "2 × H100, 1 × A100"


def test_the_same_machine_and_a_foreign_entry_pass() -> None:
    check_same_machine("box", "aa", None)
    check_same_machine("box", "aa", {"fingerprint": "aa"})
    check_same_machine("box", "aa", {"machine": "box", "cpu": "by asv itself"})


def test_another_machine_under_the_same_name_is_refused_with_both_shown() -> None:
    stored = {"machine": "box", "fingerprint": "aaaa", "gpu": "A100", "num_gpu": 8}
    current = {"machine": "box", "fingerprint": "bbbb", "gpu": "H100", "num_gpu": 8}
    with pytest.raises(UsageError) as caught:
        check_same_machine("box", "bbbb", stored, current)
    for part in ("'box'", "aaaa", "bbbb", "gpu 'A100' → 'H100'", "--machine"):
        assert part in str(caught.value)
    assert "num_gpu" not in str(caught.value)


def test_another_machine_with_equal_fields_is_refused_too() -> None:
    entry = {"gpu": "H100"}
    with pytest.raises(UsageError, match="UUID"):
        check_same_machine("box", "bbbb", {**entry, "fingerprint": "aaaa"}, {**entry, "fingerprint": "bbbb"})


def test_gathering_imports_neither_pandas_nor_torch_nor_psutil() -> None:
    code = (
        "import sys, bench_runner.machine.gather as g; g.describe();"
        "print([m for m in ('torch', 'pandas', 'numpy', 'psutil', 'pydantic', 'asv') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
