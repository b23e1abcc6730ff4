"""Which device is measured: never the CPU in place of an accelerator that does not work."""

import json
import stat
from pathlib import Path

import pytest

from bench_runner.capacity import cached_capacity, find_capacity, keep_capacity, known_capacity, with_devices
from bench_runner.errors import DeviceError, UsageError
from bench_runner.machine.info import Accelerator, MachineInfo


def machine(gpus: int = 0) -> MachineInfo:
    return MachineInfo(
        name="box",
        fingerprint="0" * 16,
        hostname="box",
        kernel="Linux",
        cpu_model="CPU",
        cores_allowed=4,
        memory_bytes=1 << 30,
        accelerators=tuple(Accelerator(index=i, name="GPU") for i in range(gpus)),
    )


def python_without_torch(folder: Path) -> str:
    path = folder / "python"
    path.write_text("#!/bin/sh\necho 'ModuleNotFoundError: torch' >&2\nexit 1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_without_an_accelerator_a_device_is_a_core(tmp_path):
    found = find_capacity(machine(), "/no/python", dev=tmp_path)  # torch is not even asked
    assert (found.kind, found.count) == ("cpu", 4)
    assert found.reason == "no accelerator on this machine; a device is one of its cores"


def test_gpus_that_torch_cannot_use_are_an_error_and_no_cpu_run(tmp_path):
    with pytest.raises(DeviceError, match=r"2 GPUs by the driver, but .*--device cpu measures the CPU instead"):
        find_capacity(machine(gpus=2), python_without_torch(tmp_path), dev=tmp_path)
    assert find_capacity(machine(gpus=2), "/no/python", kind="cpu", dev=tmp_path).kind == "cpu"


def test_a_device_node_alone_is_asked_about_and_then_left(tmp_path):
    (tmp_path / "dri").mkdir()
    found = find_capacity(machine(), python_without_torch(tmp_path), dev=tmp_path)
    assert found.kind == "cpu"
    assert "torch could not be asked" in found.reason


def test_an_unknown_kind_is_named(tmp_path):
    with pytest.raises(UsageError, match="device tpu: must be one of cpu, cuda"):
        find_capacity(machine(), "/no/python", kind="tpu", dev=tmp_path)


def test_the_answer_is_kept(tmp_path):
    first = cached_capacity(tmp_path / "capacity.txt", machine(), "/no/python", kind="cpu")
    assert cached_capacity(tmp_path / "capacity.txt", machine(gpus=8), "/no/python", kind=None) == first


def python_that_answers(folder: Path, *lines: dict) -> str:
    """In place of a Python whose torch has devices: the probe's answer, ready made."""
    path = folder / "python-with-devices"
    answer = "".join(f"{json.dumps(line)}\n" for line in lines)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}END\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_devices_that_only_torch_tells_of_are_in_the_machines_description(tmp_path):
    (tmp_path / "kfd").touch()
    told = {"part": "device", "index": 0, "name": "AMD Instinct MI300X", "works": True, "memory_bytes": 192 << 30}
    python = python_that_answers(tmp_path, {"part": "build", "torch": "2.7.1"}, told, {"part": "end"})
    found = find_capacity(machine(), python, dev=tmp_path)
    assert (found.kind, found.count) == ("cuda", 1)
    described = with_devices(machine(), found)
    assert [(gpu.name, gpu.memory_bytes) for gpu in described.accelerators] == [("AMD Instinct MI300X", 192 << 30)]
    assert described.fingerprint == machine().fingerprint
    keep_capacity(tmp_path / "kept", found)
    assert known_capacity(tmp_path / "kept") == found
    by_driver = find_capacity(machine(gpus=1), python, dev=tmp_path)
    assert with_devices(machine(gpus=1), by_driver) == machine(gpus=1)
