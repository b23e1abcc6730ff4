"""Judgement on devices of one make in a box: are they really alike?  A slow twin sets the pace of a DDP job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from bench_runner.finding import Finding
from bench_runner.machine.checks_devices import label
from bench_runner.machine.nvml import NvmlDevice
from bench_runner.machine.state import MachineState

_CLOCK_TOLERANCE: Final = 0.02
_RESET_CLOCKS: Final = "sudo nvidia-smi -i {0} -rgc; nvidia-smi -q -i {0} -d CLOCK"
_RESEAT: Final = "sudo lspci -vv -d 10de: | grep -E 'LnkCap|LnkSta'; reseat the card or its riser (GPU {})"


def _twin_outliers(
    devices: Sequence[NvmlDevice], value: Callable[[NvmlDevice], int | None], tolerance: float
) -> tuple[list[NvmlDevice], float]:
    """Devices whose value lies below the median of their make by more than ``tolerance``, and that median."""
    values = {device.index: value(device) for device in devices}
    known = [number for number in values.values() if number is not None]
    if len(known) < 2:
        return [], 0.0
    middle = max(known) if len(known) == 2 else median(known)
    low = [d for d in devices if (v := values[d.index]) is not None and v < middle * (1 - tolerance)]
    return low, middle


def check_twins(state: MachineState) -> tuple[Finding, ...]:
    """Devices of one make that differ: clocks, PCIe link, NVLinks, memory.  One finding each property."""
    properties: tuple[tuple[str, str, str, Callable[[NvmlDevice], int | None], float, str], ...] = (
        ("machine.clocks", "highest clock", "MHz", lambda d: d.sm_clock_max_mhz, _CLOCK_TOLERANCE, _RESET_CLOCKS),
        (
            "machine.application-clocks",
            "application clock",
            "MHz",
            lambda d: d.sm_clock_application_mhz,
            _CLOCK_TOLERANCE,
            "sudo nvidia-smi -i {} -rac",
        ),
        ("machine.pcie-width", "PCIe lanes in use", "lanes", lambda d: d.pcie_width, 0.0, _RESEAT),
        ("machine.pcie-generation", "PCIe generation possible", "", lambda d: d.pcie_generation_max, 0.0, _RESEAT),
        ("machine.nvlink", "NVLinks up", "links", _links_up, 0.0, "nvidia-smi nvlink -s -i {}; reseat or see dmesg"),
        (
            "machine.memory",
            "memory",
            "bytes",
            lambda d: d.memory_total_bytes,
            0.01,
            "nvidia-smi -q -i {} -d MEMORY,ECC",
        ),
    )
    return tuple(_twins(state, *entry) for entry in properties)


def _links_up(device: NvmlDevice) -> int | None:
    return None if device.nvlinks is None else sum(device.nvlinks)


def _twins(
    state: MachineState,
    check: str,
    noun: str,
    unit: str,
    value: Callable[[NvmlDevice], int | None],
    tolerance: float,
    remedy: str,
) -> Finding:
    makes: dict[str | None, list[NvmlDevice]] = {}
    for device in state.nvml.devices:
        makes.setdefault(device.name, []).append(device)
    groups = [group for group in makes.values() if len(group) > 1]
    if not any(value(device) is not None for group in groups for device in group):
        return Finding(check=check, status="skip", message=f"no two devices of one make tell: {noun}")
    low: list[NvmlDevice] = []
    middle = 0.0
    for group in groups:
        outliers, typical = _twin_outliers(group, value, tolerance)
        if outliers:
            low, middle = [*low, *outliers], typical
    if not low:
        return Finding(check=check, status="pass", message=f"devices of one make agree: {noun}")
    named = ",".join(str(device.index) for device in low)
    return Finding(
        check=check,
        status="warn",
        message=f"GPU {named} lies below its twins: {noun}",
        expected=f"{middle:g} {unit}".strip(),
        actual=f"{value(low[0])} {unit}".strip(),
        evidence=tuple(f"{label(d)}: {value(d)} {unit}".strip() for d in state.nvml.devices),
        remedy=remedy.format(named),
    )


def check_narrow_link(state: MachineState) -> Finding:
    """A PCIe link narrower than card and slot allow.  Generation is left out: links slow down when idle."""
    check = "machine.pcie-link"
    known = [d for d in state.nvml.devices if d.pcie_width and d.pcie_width_max]
    if not known:
        return Finding(check=check, status="skip", message="no device tells its PCIe link")
    narrow = [d for d in known if (d.pcie_width or 0) < (d.pcie_width_max or 0)]
    if not narrow:
        return Finding(check=check, status="pass", message="every device uses all its PCIe lanes")
    named = ",".join(str(device.index) for device in narrow)
    return Finding(
        check=check,
        status="warn",
        message=f"GPU {named}: fewer PCIe lanes in use than possible, copies from and to the host are slower",
        expected=f"{narrow[0].pcie_width_max} lanes",
        actual=f"{narrow[0].pcie_width} lanes",
        evidence=tuple(f"{label(d)}: {d.pcie_width} of {d.pcie_width_max} lanes" for d in narrow),
        remedy=_RESEAT.format(named),
    )
