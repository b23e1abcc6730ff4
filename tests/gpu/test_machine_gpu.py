"""The machine and its links on real devices."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from bench_runner.machine import nvml
from bench_runner.machine.checks_links import judge_links
from bench_runner.machine.gather import describe
from bench_runner.machine.links import measure_links
from bench_runner.machine.memory import device_memory, process_bytes
from bench_runner.machine.sampling import Sampler
from bench_runner.machine.torch_probe import probe_torch
from bench_runner.machine.verify import machine_findings, visible_devices
from bench_runner.machine.visible import PhysicalDevice, physical_of

pytestmark = pytest.mark.gpu
MIB = 1 << 20
if not any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg")):
    # Before torch, which takes seconds to import.
    pytest.skip("no node of an NVIDIA driver, so no CUDA device", allow_module_level=True)
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def devices() -> int:
    count = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    if count == 0:
        pytest.skip("needs a CUDA device")
    return count


def several(devices: int) -> None:
    if devices < 2:
        pytest.skip("needs two CUDA devices")


def test_the_description_is_complete_and_stable() -> None:
    first, second = describe("box"), describe("other name")
    assert first.fingerprint == second.fingerprint
    assert first.driver_version
    assert first.driver_cuda_version
    for accelerator in first.accelerators:
        assert accelerator.uuid
        assert accelerator.memory_bytes


def test_every_visible_device_of_torch_is_found_by_nvml(devices: int) -> None:
    probe = probe_torch(sys.executable)
    assert probe.failure is None
    assert probe.count == devices
    assert all(device.works for device in probe.devices)
    physical = tuple(
        PhysicalDevice(index=d.index, uuid=d.uuid, pci_bus_id=d.pci_bus_id, name=d.name) for d in nvml.read().devices
    )
    matched = [physical_of(device.uuid, device.pci_bus_id, physical) for device in probe.devices]
    assert None not in matched
    assert len({device.index for device in matched if device}) == devices


def test_verify_rests_on_kernels_that_ran() -> None:
    findings = {finding.check: finding for finding in machine_findings(sys.executable)}
    for check in ("gpu", "driver", "cuda", "driver-version", "torch-build", "architecture", "kernel"):
        assert findings[f"machine.{check}"].status == "pass", findings[f"machine.{check}"]


def test_hidden_devices_are_explained() -> None:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    findings = {finding.check: finding for finding in machine_findings(sys.executable, environ=environ)}
    assert findings["machine.visible-devices"].status == "fail"
    assert findings["machine.torch-devices"].status == "fail"
    assert "hides them all" in findings["machine.torch-devices"].message
    assert findings["machine.kernel"].status == "skip"


def test_the_driver_accounts_for_this_process() -> None:
    held = torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda:0")
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    (use,) = device_memory([uuid])
    assert use.used_bytes is not None
    assert use.used_bytes >= held.numel()
    assert use.total_bytes is not None
    assert use.total_bytes > use.used_bytes
    mine = process_bytes(use, os.getpid())
    # In a container the driver lists the host's process numbers: unknown, and never zero.
    assert mine is None or mine >= held.numel()


def test_sampling_sees_a_device_at_work() -> None:
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    begin = time.time()
    matrix = torch.randn(4096, 4096, device="cuda:0")
    with Sampler([uuid], period_seconds=0.1) as sampler:
        while time.time() < begin + 3:
            matrix = (matrix @ matrix).clamp(-1, 1)
        torch.cuda.synchronize()
    summary = sampler.window(begin, time.time())
    assert summary.not_sampled is None
    (device,) = summary.devices
    assert device.samples > 3
    assert device.sm_clock_mhz is not None
    assert device.memory_used_bytes is not None
    assert device.memory_used_bytes.maximum >= matrix.numel() * 4


def test_copies_of_one_device(tmp_path: Path) -> None:
    measured = measure_links(sys.executable, "cuda", 1, tmp_path)
    assert measured.failures == {}
    assert {(copy.source, copy.target) for copy in measured.copies} == {(None, 0), (0, None)}
    assert all(copy.right and copy.bandwidth_bytes_per_second > 1e9 for copy in measured.copies)


def test_links_of_all_devices(tmp_path: Path, devices: int) -> None:
    several(devices)
    measured = measure_links(sys.executable, "cuda", devices, tmp_path)
    assert measured.failures == {}
    assert measured.series[0].ranks == tuple(range(devices))
    assert all(series.wrong == () for series in measured.series)
    pairs = [series for series in measured.series if series.name == "send"]
    assert len(pairs) == devices * (devices - 1) // 2
    between = [copy for copy in measured.copies if None not in (copy.source, copy.target)]
    assert len(between) == devices * (devices - 1)
    assert all(copy.right for copy in between)
    findings = judge_links(measured, visible_devices(nvml.read().devices)[:devices])
    assert not [finding for finding in findings if finding.status == "fail"]
