"""This machine in one value: what goes into every record, and into asv's machine entry."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bench_runner.machine import host, nvml
from bench_runner.machine.fingerprint import fingerprint
from bench_runner.machine.info import Accelerator, MachineInfo
from bench_runner.machine.pci import read_pci


def describe(name: str | None = None, *, root: Path = host.ROOT, nvml_deadline_seconds: float = 20.0) -> MachineInfo:
    """This machine.  Each source is optional: what could not be read is None (or 0) with a line in ``not_read``.

    ``name`` is the machine's name in results, the host name by default.  Devices are all that NVML sees, whatever
    CUDA_VISIBLE_DEVICES says.  Takes up to ``nvml_deadline_seconds`` when the driver hangs, milliseconds otherwise.
    """
    state = nvml.read(nvml_deadline_seconds, identity_only=True)
    not_read = list(state.not_read)
    memory = host.memory_allowed(root)
    if memory is None:
        not_read.append("memory: /proc/meminfo cannot be read")
    others = read_pci(root).other_devices
    if others:
        found = ", ".join(f"{device.address} ({device.model})" for device in others)
        not_read.append(f"devices on the PCI bus that NVML knows nothing of: {found}")
    accelerators = tuple(_accelerator(device) for device in state.devices)
    driver = state.driver_version or host.kernel_driver_version(root)
    hostname = platform.node() or "unknown"
    model = host.cpu_model(root)
    cores = host.cores_allowed(root=root)
    numa = host.numa_nodes(root)
    return MachineInfo(
        name=name or hostname,
        fingerprint=fingerprint(
            cpu_model=model,
            cores_allowed=cores,
            memory_bytes=memory or 0,
            numa_nodes=numa,
            accelerators=accelerators,
            other_devices=others,
        ),
        hostname=hostname,
        kernel=f"{platform.system()} {platform.release()}",
        cpu_model=model,
        cores_allowed=cores,
        memory_bytes=memory or 0,
        accelerators=accelerators,
        driver_version=driver,
        driver_cuda_version=state.cuda_version,
        numa_nodes=numa,
        container=host.container_hint(os.environ, root),
        not_read=tuple(not_read),
    )


def _accelerator(device: nvml.NvmlDevice) -> Accelerator:
    return Accelerator(
        index=device.index,
        name=device.name or "unknown",
        uuid=device.uuid,
        pci_bus_id=device.pci_bus_id,
        memory_bytes=device.memory_total_bytes,
        power_limit_watts=device.power_limit_watts,
        sm_clock_max_mhz=device.sm_clock_max_mhz,
        pcie_generation=device.pcie_generation_max,
        pcie_width=device.pcie_width_max,
        mig=device.mig,
    )


def asv_machine_entry(info: MachineInfo) -> dict[str, str | int]:
    """asv's machine file entry: its own fields, and ours beside them, scalars all (asv's publish needs that)."""
    return {
        "machine": info.name,
        "os": info.kernel,
        "arch": platform.machine(),
        "cpu": info.cpu_model,
        "num_cpu": str(info.cores_allowed),
        "ram": str(info.memory_bytes),
        "gpu": gpu_names(info.accelerators) or "none",
        "num_gpu": len(info.accelerators),
        "driver": info.driver_version or "none",
        "fingerprint": info.fingerprint,
    }


def gpu_names(accelerators: tuple[Accelerator, ...]) -> str:
    """``NVIDIA H100 80GB HBM3``; with unlike devices each name with its count, ``2 × A, 1 × B``."""
    counts: dict[str, int] = {}
    for accelerator in accelerators:
        counts[accelerator.name] = counts.get(accelerator.name, 0) + 1
    if len(counts) < 2:
        return next(iter(counts), "")
    return ", ".join(f"{count} × {name}" for name, count in counts.items())
