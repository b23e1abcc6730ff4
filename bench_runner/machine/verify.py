"""The machine judged: gather once, then every check.  Links, which take longer and start processes, are apart."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bench_runner.finding import Finding
from bench_runner.machine import checks_devices, checks_driver, checks_host, checks_torch, checks_twins, nvml
from bench_runner.machine.state import Demand, MachineState, gather_state
from bench_runner.machine.visible import PhysicalDevice, parse
from bench_runner.spec import DeviceKind

CHECKS: Final[tuple[Callable[[MachineState], Finding], ...]] = (
    checks_driver.check_presence,
    checks_driver.check_driver,
    checks_driver.check_cuda_init,
    checks_driver.check_driver_version,
    checks_torch.check_build,
    checks_torch.check_available,
    checks_torch.check_architecture,
    checks_torch.check_kernels,
    checks_torch.check_nccl,
    checks_torch.check_mapping,
    checks_devices.check_visible,
    checks_devices.check_rank_count,
    checks_devices.check_mig,
    checks_devices.check_unlike,
    checks_devices.check_busy,
    checks_devices.check_memory_errors,
    checks_devices.check_throttling,
    checks_devices.check_power_limit,
    checks_twins.check_narrow_link,
    checks_host.check_shm,
    checks_host.check_memlock,
    checks_host.check_open_files,
    checks_host.check_threads,
    checks_host.check_port,
    checks_host.check_nccl_interface,
    checks_host.check_gloo_interface,
    checks_host.check_iommu,
    checks_host.check_acs,
    checks_host.check_pynvml,
)


def judge(state: MachineState) -> list[Finding]:
    """Every check over gathered values; pure."""
    return [*(check(state) for check in CHECKS), *checks_twins.check_twins(state)]


def machine_findings(
    python: str,
    *,
    demand: Demand | None = None,
    environ: Mapping[str, str] | None = None,
    deadline_seconds: float = 90.0,
) -> list[Finding]:
    """Gather this machine, with torch asked in ``python``'s environment, and judge it.

    Takes as long as torch's import there, and never longer than ``deadline_seconds`` and a little.
    """
    return judge(gather_state(python, demand=demand, environ=environ, deadline_seconds=deadline_seconds))


def links_findings(
    python: str,
    *,
    device_kind: DeviceKind | None = None,
    device_count: int | None = None,
    environ: Mapping[str, str] | None = None,
    deadline_seconds: float | None = None,
) -> list[Finding]:
    """Measure this host's links with processes of ``python`` and judge them.

    By default all visible NVIDIA devices, or two processes over gloo on a host without any.  Each of the two launches
    ends within ``deadline_seconds`` (default: see ``measure_links``) and the launch's own start-up time.
    """
    # Here because judging a machine alone needs neither scipy nor the launcher.
    from bench_runner.machine.checks_links import judge_links
    from bench_runner.machine.links import measure_links

    devices = visible_devices(nvml.read().devices, environ)
    kind: DeviceKind = device_kind or ("cuda" if devices else "cpu")
    count = device_count or (len(devices) if kind == "cuda" and devices else 2)
    with tempfile.TemporaryDirectory(prefix="bench-runner-links-") as directory:
        measured = measure_links(python, kind, count, Path(directory), deadline_seconds=deadline_seconds)
    findings = judge_links(measured, devices[:count] if kind == "cuda" else ())
    if kind == "cpu":
        message = "no NVIDIA device that is visible: the links of GPUs are skipped, those of processes measured"
        findings.insert(0, Finding(check="links.gpu", status="skip", message=message))
    return findings


def visible_devices(
    devices: tuple[nvml.NvmlDevice, ...], environ: Mapping[str, str] | None = None
) -> tuple[nvml.NvmlDevice, ...]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in logical order."""
    variables = os.environ if environ is None else environ
    physical = tuple(
        PhysicalDevice(index=d.index, uuid=d.uuid, pci_bus_id=d.pci_bus_id, name=d.name, mig_uuids=d.mig_uuids)
        for d in devices
    )
    by_index = {device.index: device for device in devices}
    visible = parse(variables.get("CUDA_VISIBLE_DEVICES"), physical, variables.get("CUDA_DEVICE_ORDER"))
    return tuple(by_index[index] for index in visible.mapping)
