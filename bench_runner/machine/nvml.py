"""What NVIDIA's management library (NVML) tells about the devices.

Whatever cannot be read becomes ``None`` and a line in ``not_read``; nothing here raises.  NVML ignores
CUDA_VISIBLE_DEVICES: devices are told apart by UUID or PCI id, never by index.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bench_runner.machine.nvml_library import NvmlUnavailable, Reader, code_text, session

# NVML_NVLINK_MAX_LINKS has grown over the generations; a device answers "invalid argument" behind its last link.
_MOST_LINKS: Final = 36
_GPU_CORE_SENSOR: Final = 0
_CLOCK_SM: Final = 1
_CLOCK_MEMORY: Final = 2
THROTTLE_REASONS: Final = {
    0x1: "idle",
    0x2: "application-clocks",
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "thermal-software",
    0x40: "thermal-hardware",
    0x80: "power-brake",
    0x100: "display-clocks",
}
COMPUTE_MODES: Final = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process with a context on a device, by the host's PID; ``memory_bytes`` None: the driver does not tell."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlDevice:
    """One physical device.  ``None``: not read.  Error counts are volatile ones: since the driver was loaded."""

    index: int
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    power_limit_default_watts: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    sm_clock_application_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    temperature_celsius: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapping_failed: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: tuple[bool, ...] | None = None
    mig: bool | None = None
    mig_uuids: tuple[str, ...] = ()
    persistence: bool | None = None
    compute_mode: str | None = None
    capability: tuple[int, int] | None = None
    processes: tuple[DeviceProcess, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlState:
    """All that NVML said.  ``code``: why it could not be used at all (see ``NvmlUnavailable``); 0 when it could."""

    code: int | None
    reason: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    devices: tuple[NvmlDevice, ...] = ()
    not_read: tuple[str, ...] = ()


def throttle_names(mask: int) -> tuple[str, ...]:
    """The names of the set bits; unknown bits are kept as hexadecimal numbers."""
    known = tuple(name for bit, name in THROTTLE_REASONS.items() if mask & bit)
    rest = mask & ~sum(THROTTLE_REASONS)
    return (*known, hex(rest)) if rest else known


def cuda_version_text(number: int) -> str:
    """12080 → ``12.8``."""
    return f"{number // 1000}.{number % 1000 // 10}"


def read_pci_bus_id(reader: Reader, where: str, handle: Any) -> str | None:
    """``00000000:3b:00.0``, in lower case as under /sys."""
    info = reader.call(where, "nvmlDeviceGetPciInfo", handle)
    if info is None:
        return None
    bus: str | bytes = info.busId
    return (bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus).lower()


def read_processes(reader: Reader, where: str, handle: Any) -> tuple[DeviceProcess, ...] | None:
    """Processes with a compute context on the device; None when the list cannot be read."""
    listed = reader.call(where, "nvmlDeviceGetComputeRunningProcesses", handle)
    if listed is None:
        return None
    return tuple(DeviceProcess(pid=int(p.pid), memory_bytes=p.usedGpuMemory) for p in listed)


def read_nvlinks(reader: Reader, handle: Any) -> tuple[bool, ...] | None:
    """State of each NVLink; None for a device that has none, or does not tell."""
    states: list[bool] = []
    for link in range(_MOST_LINKS):
        try:
            states.append(bool(reader.nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except (reader.nvml.NVMLError, AttributeError):
            break
    return tuple(states) or None


def read_mig(reader: Reader, where: str, handle: Any) -> tuple[bool | None, tuple[str, ...]]:
    """Whether the device is split, and the UUIDs of its slices."""
    mode = reader.call(where, "nvmlDeviceGetMigMode", handle)
    if mode is None or not mode[0]:
        return (None if mode is None else False), ()
    uuids: list[str] = []
    for index in range(reader.call(where, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        try:
            part = reader.nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            uuids.append(reader.nvml.nvmlDeviceGetUUID(part))
        except reader.nvml.NVMLError as error:
            if error.value != reader.nvml.NVML_ERROR_NOT_FOUND:
                reader.note("nvmlDeviceGetMigDeviceHandleByIndex", code_text(error.value), where)
    return True, tuple(uuids)


def _divided(value: int | None, by: float) -> float | None:
    return None if value is None else value / by


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """The handle of one device, and what its calls have in common."""

    reader: Reader
    where: str
    handle: Any

    def get(self, function: str, *arguments: Any) -> Any:
        """``nvmlDeviceGet<function>`` of it; None when it cannot be read."""
        return self.reader.call(self.where, f"nvmlDeviceGet{function}", self.handle, *arguments)


def _open(reader: Reader, index: int) -> _Opened | None:
    """None, and a note why, when there is no handle to be had."""
    where = f"GPU {index}"
    handle = reader.call(where, "nvmlDeviceGetHandleByIndex", index)
    return None if handle is None else _Opened(reader=reader, where=where, handle=handle)


def read_identity(reader: Reader, index: int) -> NvmlDevice:
    """What a record keeps of the device with this NVML index, and no more: each call can take milliseconds."""
    device = _open(reader, index)
    if device is None:
        return NvmlDevice(index=index)
    where, handle, get = device.where, device.handle, device.get
    memory = get("MemoryInfo")
    mig = get("MigMode")
    return NvmlDevice(
        index=index,
        name=get("Name"),
        uuid=get("UUID"),
        pci_bus_id=read_pci_bus_id(reader, where, handle),
        memory_total_bytes=None if memory is None else int(memory.total),
        power_limit_watts=_divided(get("EnforcedPowerLimit"), 1000),
        sm_clock_max_mhz=get("MaxClockInfo", _CLOCK_SM),
        pcie_generation_max=get("MaxPcieLinkGeneration"),
        pcie_width_max=get("MaxPcieLinkWidth"),
        mig=None if mig is None else bool(mig[0]),
    )


def read_device(reader: Reader, index: int) -> NvmlDevice:
    """Everything about the device with this NVML index."""
    device = _open(reader, index)
    if device is None:
        return NvmlDevice(index=index)
    where, handle, get = device.where, device.handle, device.get
    memory = get("MemoryInfo")
    throttle = get("CurrentClocksThrottleReasons")
    persistence = get("PersistenceMode")
    remapped = get("RemappedRows")
    mig, mig_uuids = read_mig(reader, where, handle)
    compute_mode = get("ComputeMode")
    return NvmlDevice(
        index=index,
        name=get("Name"),
        uuid=get("UUID"),
        pci_bus_id=read_pci_bus_id(reader, where, handle),
        memory_total_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        power_watts=_divided(get("PowerUsage"), 1000),
        power_limit_watts=_divided(get("EnforcedPowerLimit"), 1000),
        power_limit_default_watts=_divided(get("PowerManagementDefaultLimit"), 1000),
        sm_clock_mhz=get("ClockInfo", _CLOCK_SM),
        sm_clock_max_mhz=get("MaxClockInfo", _CLOCK_SM),
        sm_clock_application_mhz=get("ApplicationsClock", _CLOCK_SM),
        memory_clock_mhz=get("ClockInfo", _CLOCK_MEMORY),
        memory_clock_max_mhz=get("MaxClockInfo", _CLOCK_MEMORY),
        temperature_celsius=get("Temperature", _GPU_CORE_SENSOR),
        throttle_reasons=None if throttle is None else throttle_names(throttle),
        ecc_corrected=get("TotalEccErrors", 0, 0),
        ecc_uncorrected=get("TotalEccErrors", 1, 0),
        remapping_failed=None if remapped is None else bool(remapped[3]),
        pcie_generation=get("CurrPcieLinkGeneration"),
        pcie_generation_max=get("MaxPcieLinkGeneration"),
        pcie_width=get("CurrPcieLinkWidth"),
        pcie_width_max=get("MaxPcieLinkWidth"),
        nvlinks=read_nvlinks(reader, handle),
        mig=mig,
        mig_uuids=mig_uuids,
        persistence=None if persistence is None else bool(persistence),
        compute_mode=None if compute_mode is None else COMPUTE_MODES.get(compute_mode, str(compute_mode)),
        capability=get("CudaComputeCapability"),
        processes=read_processes(reader, where, handle),
    )


def _read_all(read_one: Callable[[Reader, int], NvmlDevice]) -> NvmlState:
    try:
        with session() as nvml:
            reader = Reader(nvml)
            driver = reader.call("system", "nvmlSystemGetDriverVersion")
            cuda = reader.call("system", "nvmlSystemGetCudaDriverVersion_v2")
            count = reader.call("system", "nvmlDeviceGetCount") or 0
            devices = tuple(read_one(reader, index) for index in range(count))
            return NvmlState(
                code=0,
                driver_version=driver,
                cuda_version=cuda_version_text(cuda) if cuda else None,
                devices=devices,
                not_read=reader.not_read,
            )
    except NvmlUnavailable as error:
        return NvmlState(code=error.code, reason=str(error), not_read=(f"NVML: {error}",))


def read(deadline_seconds: float = 20.0, *, identity_only: bool = False) -> NvmlState:
    """Everything NVML tells, within a deadline: a driver in trouble can block a call for ever.

    ``identity_only`` leaves out what a record does not keep.

    The reading runs in a daemon thread (ctypes gives up the interpreter's lock), which a hang leaves behind.
    """
    if not deadline_seconds > 0:
        raise ValueError(f"deadline_seconds = {deadline_seconds!r}: must be positive")
    answers: list[NvmlState] = []
    read_one = read_identity if identity_only else read_device
    thread = threading.Thread(target=lambda: answers.append(_read_all(read_one)), name="nvml", daemon=True)
    thread.start()
    thread.join(deadline_seconds)
    if answers:
        return answers[0]
    reason = f"no answer within {deadline_seconds:g} s"
    return NvmlState(code=10, reason=reason, not_read=(f"NVML: {reason}",))
