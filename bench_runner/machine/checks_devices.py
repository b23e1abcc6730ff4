"""Judgement on the devices: visible ones, busy ones, split ones, and their health."""

from __future__ import annotations

from typing import Final

from bench_runner.finding import Finding
from bench_runner.machine.nvml import NvmlDevice
from bench_runner.machine.state import MachineState

_NO_DEVICES: Final = "no device that NVML describes"
_SLOWING: Final = ("power-cap", "hardware-slowdown", "thermal-software", "thermal-hardware", "power-brake")
_MANY_CORRECTED: Final = 1000
# The driver, its contexts and the display take a little of an idle device.
_IDLE_SHARE: Final = 0.05


def _skip(check: str, message: str = _NO_DEVICES) -> Finding:
    return Finding(check=check, status="skip", message=message)


def label(device: NvmlDevice) -> str:
    return f"GPU {device.index} ({device.uuid or device.pci_bus_id or 'unnamed'})"


def check_visible(state: MachineState) -> Finding:
    """CUDA_VISIBLE_DEVICES, with the reason for each entry that names nothing."""
    check = "machine.visible-devices"
    if not state.nvml.devices:
        return _skip(check)
    visible = state.visible
    devices = {device.index: device for device in state.nvml.devices}
    lines = [f"cuda:{logical} → {label(devices[index])}" for logical, index in enumerate(visible.mapping)]
    dropped = [f"{entry.text!r} {entry.reason}" for entry in visible.entries if entry.reason]
    shown = "not set" if visible.value is None else repr(visible.value)
    if not dropped and visible.count:
        order = "" if visible.certain else "; which is which is CUDA's choice, as CUDA_DEVICE_ORDER is not PCI_BUS_ID"
        message = f"CUDA_VISIBLE_DEVICES is {shown}: {visible.count} of {len(devices)} devices{order}"
        return Finding(check=check, status="pass", message=message, actual=shown, evidence=tuple(lines))
    slices = bool(visible.entries) and all(entry.mig_uuid or entry.text.startswith("MIG-") for entry in visible.entries)
    what = f"{visible.count} of {len(visible.entries)} entries count" if visible.entries else "it hides every device"
    return Finding(
        check=check,
        status="warn" if slices and visible.count else "fail",
        message=f"CUDA_VISIBLE_DEVICES is {shown}: {what}",
        expected="each entry names one device of this host, once",
        actual=shown,
        evidence=(*dropped, *lines, f"devices here: {', '.join(map(label, state.nvml.devices))}"),
        remedy="export CUDA_VISIBLE_DEVICES=" + ",".join(str(index) for index in devices),
    )


def check_rank_count(state: MachineState) -> Finding:
    """Are there as many devices as processes on this host?"""
    check = "machine.ranks"
    wanted = state.demand.ranks
    source = "asked for"
    local = state.environ.get("LOCAL_WORLD_SIZE", "")
    if wanted is None and local.isascii() and local.isdecimal():
        wanted, source = int(local[:9]), "LOCAL_WORLD_SIZE"
    if wanted is None or not state.nvml.devices:
        return _skip(check, _NO_DEVICES if wanted is not None else "no number of processes was asked for")
    count = state.visible.count
    if wanted <= count:
        message = f"{wanted} processes ({source}) on {count} visible devices"
        return Finding(check=check, status="pass", message=message, actual=str(count))
    return Finding(
        check=check,
        status="fail",
        message=f"{wanted} processes ({source}) for {count} visible devices: ranks would share a device",
        expected=f"at least {wanted} devices",
        actual=str(count),
        evidence=(f"CUDA_VISIBLE_DEVICES={state.environ.get('CUDA_VISIBLE_DEVICES', '(not set)')}",),
        remedy=f"torchrun --nproc-per-node {count or 1} …",
    )


def check_mig(state: MachineState) -> Finding:
    """Split devices: a process sees one slice, and slices of one device cannot be ranks of one NCCL job."""
    check = "machine.mig"
    split = [device for device in state.nvml.devices if device.mig]
    if not split:
        known = [device for device in state.nvml.devices if device.mig is not None]
        if not known:
            return _skip(check, "no device tells about MIG")
        return Finding(check=check, status="pass", message="no device is split (MIG)", actual="off")
    lines = [f"{label(device)}: {len(device.mig_uuids)} slices" for device in split]
    partly = len(split) < len(state.nvml.devices)
    job = " and more than one rank is planned" if (state.demand.ranks or 0) > 1 else ""
    return Finding(
        check=check,
        status="fail" if job else "warn",
        message=f"{len(split)} of {len(state.nvml.devices)} devices are split (MIG){job}: a process sees one slice, "
        "and two slices cannot be ranks of one DDP job",
        expected="whole devices" if job or partly else "one slice a job",
        actual="MIG",
        evidence=tuple(lines),
        remedy=f"sudo nvidia-smi -i {','.join(str(d.index) for d in split)} -mig 0  (on idle GPUs)",
    )


def check_unlike(state: MachineState) -> Finding:
    """Unlike devices in one box: DDP goes at the pace of the slowest, and results compare with nothing."""
    check = "machine.unlike-devices"
    names: dict[str, list[int]] = {}
    for device in state.nvml.devices:
        names.setdefault(device.name or "unknown", []).append(device.index)
    if not names:
        return _skip(check)
    if len(names) == 1:
        return Finding(check=check, status="pass", message=f"all devices are {next(iter(names))}")
    lines = tuple(f"{name}: GPU {', '.join(map(str, indices))}" for name, indices in names.items())
    largest = max(names.values(), key=len)
    return Finding(
        check=check,
        status="warn",
        message=f"{len(names)} kinds of device in one host: a job over all of them goes at the slowest one's pace",
        expected="one kind",
        actual=", ".join(names),
        evidence=lines,
        remedy=f"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(map(str, largest))}",
    )


def check_busy(state: MachineState) -> Finding:
    """Are the devices free?  A neighbour on one of them makes every figure of the job its figure."""
    check = "machine.busy"
    if not state.nvml.devices:
        return _skip(check)
    lines: list[str] = []
    refusing: list[int] = []
    pids: set[int] = set()
    for device in state.nvml.devices:
        for process in device.processes or ():
            pids.add(process.pid)
            held = "unknown memory" if process.memory_bytes is None else f"{process.memory_bytes / 2**20:.0f} MiB"
            lines.append(f"{label(device)}: process {process.pid}, {held}")
        used, total = device.memory_used_bytes, device.memory_total_bytes
        if not device.processes and used is not None and total and used > _IDLE_SHARE * total:
            lines.append(f"{label(device)}: {used / 2**20:.0f} MiB used by processes that cannot be seen from here")
        if device.compute_mode == "prohibited" or (device.compute_mode == "exclusive-process" and device.processes):
            refusing.append(device.index)
            lines.append(f"{label(device)}: compute mode {device.compute_mode}")
    if not lines:
        unread = [device.index for device in state.nvml.devices if device.processes is None]
        if unread and all(device.memory_used_bytes is None for device in state.nvml.devices):
            return _skip(check, "neither processes nor memory in use could be read")
        return Finding(check=check, status="pass", message="no other process is on the devices")
    if refusing:
        named = ",".join(map(str, refusing))
        return Finding(
            check=check,
            status="fail",
            message=f"GPU {named} takes no further process",
            expected="compute mode default",
            actual="exclusive or prohibited",
            evidence=tuple(lines),
            remedy=f"sudo nvidia-smi -i {named} -c DEFAULT",
        )
    return Finding(
        check=check,
        status="warn",
        message="the devices are in use by other processes: figures taken now are not theirs alone",
        expected="idle devices",
        actual=f"{len(pids)} processes" if pids else "memory in use",
        evidence=tuple(lines),
        remedy=f"ps -o pid,user,etime,cmd -p {','.join(map(str, sorted(pids)))}"
        if pids
        else "nvidia-smi  (on the host)",
    )


def check_memory_errors(state: MachineState) -> Finding:
    """ECC counts since the driver was loaded, and rows that could not be remapped."""
    check = "machine.ecc"
    known = [d for d in state.nvml.devices if d.ecc_uncorrected is not None or d.remapping_failed is not None]
    if not known:
        return _skip(check, "no device tells its ECC counts")
    bad = [device for device in known if device.ecc_uncorrected or device.remapping_failed]
    many = [device for device in known if (device.ecc_corrected or 0) >= _MANY_CORRECTED]
    lines = tuple(
        f"{label(d)}: {d.ecc_corrected} corrected, {d.ecc_uncorrected} uncorrected"
        + (", row remapping failed" if d.remapping_failed else "")
        for d in (bad or many or known)
    )
    if not bad and not many:
        return Finding(check=check, status="pass", message="no uncorrected memory errors", evidence=lines)
    named = ",".join(str(device.index) for device in bad or many)
    return Finding(
        check=check,
        status="fail" if bad else "warn",
        message=f"GPU {named}: memory errors" + ("" if bad else " (corrected ones, but many)"),
        expected="0 uncorrected" if bad else f"under {_MANY_CORRECTED} corrected",
        actual=str(max((d.ecc_uncorrected or 0) if bad else (d.ecc_corrected or 0) for d in bad or many)),
        evidence=lines,
        remedy=f"sudo nvidia-smi -i {named} --gpu-reset   (idle GPU), then watch; replace the card if it returns",
    )


def check_throttling(state: MachineState) -> Finding:
    """Is a device held back right now?"""
    check = "machine.throttling"
    known = [device for device in state.nvml.devices if device.throttle_reasons is not None]
    if not known:
        return _skip(check, "no device tells why its clock is what it is")
    held = {d.index: [r for r in d.throttle_reasons or () if r in _SLOWING] for d in known}
    slowed = [device for device in known if held[device.index]]
    if not slowed:
        return Finding(check=check, status="pass", message="no device is held back")
    lines = tuple(
        f"{label(d)}: {', '.join(held[d.index])}, {d.temperature_celsius} °C, {d.power_watts} W, "
        f"{d.sm_clock_mhz} of {d.sm_clock_max_mhz} MHz"
        for d in slowed
    )
    reasons = sorted({reason for device in slowed for reason in held[device.index]})
    return Finding(
        check=check,
        status="warn",
        message=f"{len(slowed)} devices are held back: {', '.join(reasons)}",
        expected="none",
        actual=", ".join(reasons),
        evidence=lines,
        remedy="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; see to air flow, power supply and power limit",
    )


def check_power_limit(state: MachineState) -> Finding:
    """Is a device capped below what its maker set?"""
    check = "machine.power-limit"
    known = [d for d in state.nvml.devices if d.power_limit_watts and d.power_limit_default_watts]
    if not known:
        return _skip(check, "no device tells its power limit")
    capped = [d for d in known if (d.power_limit_watts or 0) < 0.99 * (d.power_limit_default_watts or 0)]
    if not capped:
        return Finding(check=check, status="pass", message="no device is capped below its default power limit")
    first = capped[0]
    return Finding(
        check=check,
        status="warn",
        message=f"{len(capped)} devices are capped below their default power limit: slower under load",
        expected=f"{first.power_limit_default_watts:.0f} W",
        actual=f"{first.power_limit_watts:.0f} W",
        evidence=tuple(f"{label(d)}: {d.power_limit_watts:.0f} of {d.power_limit_default_watts:.0f} W" for d in capped),
        remedy=f"sudo nvidia-smi -i {','.join(str(d.index) for d in capped)} -pl {first.power_limit_default_watts:.0f}",
    )
