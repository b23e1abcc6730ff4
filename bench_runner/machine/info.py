"""The part of a machine's description that goes into every record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device as its driver describes it.  ``None`` means: not read (the reason is in ``MachineInfo.not_read``)."""

    index: int
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    memory_bytes: int | None = None
    power_limit_watts: float | None = None
    sm_clock_max_mhz: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    mig: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInfo:
    """One host.  ``fingerprint`` covers the hardware and the settings that change speed, and neither the host name nor
    anything else that a reboot or a new container changes."""

    name: str
    fingerprint: str
    hostname: str
    kernel: str
    cpu_model: str
    cores_allowed: int
    memory_bytes: int
    accelerators: tuple[Accelerator, ...] = ()
    driver_version: str | None = None
    driver_cuda_version: str | None = None
    numa_nodes: int | None = None
    container: str | None = None
    not_read: tuple[str, ...] = ()
