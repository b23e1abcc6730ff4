"""Which kind of device to measure on, and how many there are to use."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, cast, get_args

from bench_runner.errors import DeviceError, UsageError
from bench_runner.machine.info import Accelerator, MachineInfo
from bench_runner.machine.torch_probe import TorchDevice, TorchProbe, probe_torch
from bench_runner.spec import DeviceKind

ACCELERATOR_NODES: Final = ("nvidia0", "nvidiactl", "dxg", "kfd", "accel", "davinci0", "dri")
"""Entries of /dev without which no accelerator's driver is there to be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """``count`` devices of ``kind``; on a CPU a device is one allowed core.  ``reason`` says how that is known.

    ``accelerators`` are the devices as torch describes them, where no driver's library told of any (AMD's, say).
    """

    kind: DeviceKind
    count: int
    reason: str
    accelerators: tuple[Accelerator, ...] = ()


def with_devices(machine: MachineInfo, capacity: Capacity) -> MachineInfo:
    """The machine with what torch tells of devices that no driver's library told of; the fingerprint stays."""
    return machine if machine.accelerators else replace(machine, accelerators=capacity.accelerators)


def find_capacity(machine: MachineInfo, python: str, *, kind: str | None = None, dev: Path = Path("/dev")) -> Capacity:
    """Ask torch in the workers' ``python``, if there is anything to ask about, else count cores.

    ``kind`` insists on one kind of device.  Raises DeviceError when that kind cannot be used, and when the machine has
    an accelerator that torch cannot use: a run on the CPU would then look like the machine's.
    """
    if kind not in (None, *get_args(DeviceKind)):
        raise UsageError(f"device {kind}: must be one of {', '.join(get_args(DeviceKind))}")
    hint = bool(machine.accelerators) or any((dev / node).exists() for node in ACCELERATOR_NODES)
    if kind == "cpu" or (kind is None and not hint):
        why = "asked for" if kind == "cpu" else "no accelerator on this machine"
        return Capacity(kind="cpu", count=machine.cores_allowed, reason=f"{why}; a device is one of its cores")
    probe = probe_torch(python)
    working = [device for device in probe.devices if device.works]
    if kind in (None, "cuda") and working:
        told = () if machine.accelerators else tuple(map(_accelerator, working))
        reason = "a kernel ran with the right result on each"
        return Capacity(kind="cuda", count=len(working), reason=reason, accelerators=told)
    trouble = _trouble(probe)
    if kind is None and not machine.accelerators:
        return Capacity(kind="cpu", count=machine.cores_allowed, reason=f"{trouble}; a device is one of its cores")
    if kind not in (None, "cuda"):
        return Capacity(kind=cast("DeviceKind", kind), count=1, reason="asked for")
    found = f"{len(machine.accelerators)} GPUs by the driver, but " if machine.accelerators else ""
    raise DeviceError(
        f"{found}{trouble}: `bench-runner verify --only machine` says why; --device cpu measures the CPU instead"
    )


def _accelerator(device: TorchDevice) -> Accelerator:
    return Accelerator(
        index=device.index,
        name=device.name,
        uuid=device.uuid,
        pci_bus_id=device.pci_bus_id,
        memory_bytes=device.memory_bytes,
    )


def _trouble(probe: TorchProbe) -> str:
    broken = [f"device {device.index}: {device.error}" for device in probe.devices if not device.works]
    if probe.failure is not None:
        return f"torch could not be asked ({probe.failure})"
    if broken:
        return f"no kernel runs ({broken[0]})"
    return f"torch {probe.torch} sees no CUDA device"


def known_capacity(cache: Path) -> Capacity | None:
    """The answer that an earlier process has left in ``cache``."""
    if not cache.exists():
        return None
    known = json.loads(cache.read_text(encoding="utf-8"))
    return Capacity(**{**known, "accelerators": tuple(Accelerator(**device) for device in known["accelerators"])})


def cached_capacity(cache: Path, machine: MachineInfo, python: str, *, kind: str | None) -> Capacity:
    """As ``find_capacity``, asked once per session: the answer is kept in the file ``cache``."""
    known = known_capacity(cache)
    if known is not None:
        return known
    capacity = find_capacity(machine, python, kind=kind)
    keep_capacity(cache, capacity)
    return capacity


def keep_capacity(cache: Path, capacity: Capacity) -> None:
    """Leave the answer for later processes, whole or not at all."""
    temporary = cache.with_name(cache.name + ".new")
    temporary.write_text(json.dumps(asdict(capacity)), encoding="utf-8")
    temporary.replace(cache)
