"""Memory on the devices by the driver's account: per device, and per process and device.

Importable in workers: the standard library, and nvidia-ml-py where there is one.  What cannot be read, or cannot be
matched, is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench_runner.machine.nvml import read_pci_bus_id, read_processes
from bench_runner.machine.nvml_library import NvmlUnavailable, Reader, session


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """One device, in bytes.  ``key`` is what was asked for: a UUID or a PCI bus id.

    ``api``: with NVML's ``v2`` account ``used_bytes`` excludes what the driver reserves (``reserved_bytes``); ``v1``
    counts it as used.  ``processes`` maps the *host's* PIDs to bytes (None: the driver does not tell); it is None when
    the list could not be read.
    """

    key: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    api: Literal["v1", "v2"] | None = None
    processes: Mapping[int, int | None] | None = None
    not_read: tuple[str, ...] = ()


def normalised(key: str) -> str:
    """A device's key the way NVML writes it: torch leaves the prefix ``GPU-`` out of a UUID."""
    text = key.strip()
    if ":" in text or text.upper().startswith(("GPU-", "MIG-")):
        return text
    return f"GPU-{text}"


def device_memory(keys: Sequence[str] | None = None) -> tuple[DeviceUse, ...]:
    """The use of the devices with these UUIDs or PCI bus ids, in this order; of all devices for ``None``.

    Without NVML every device asked for comes back with ``None`` in each field and the reason in ``not_read``.
    """
    try:
        with session() as nvml:
            if keys is None:
                return _all_devices(nvml)
            return tuple(_one(nvml, key) for key in keys)
    except NvmlUnavailable as error:
        return tuple(DeviceUse(key=key, not_read=(f"NVML: {error}",)) for key in keys or ())


def _all_devices(nvml: Any) -> tuple[DeviceUse, ...]:
    reader = Reader(nvml)
    uses = []
    for index in range(reader.call("system", "nvmlDeviceGetCount") or 0):
        reader = Reader(nvml)
        handle = reader.call(f"GPU {index}", "nvmlDeviceGetHandleByIndex", index)
        uses.append(_use(reader, f"GPU {index}", handle))
    return tuple(uses)


def _one(nvml: Any, key: str) -> DeviceUse:
    reader = Reader(nvml)
    name = normalised(key)
    by = "nvmlDeviceGetHandleByPciBusId" if ":" in name else "nvmlDeviceGetHandleByUUID"
    return _use(reader, key, reader.call(key, by, name))


def _use(reader: Reader, key: str, handle: Any) -> DeviceUse:
    if handle is None:
        return DeviceUse(key=key, not_read=reader.not_read)
    uuid = reader.call(key, "nvmlDeviceGetUUID", handle)
    api: Literal["v1", "v2"] = "v2"
    probe = Reader(reader.nvml)
    memory = probe.call(key, "nvmlDeviceGetMemoryInfo", handle, getattr(reader.nvml, "nvmlMemory_v2", None))
    if memory is None:
        api = "v1"
        memory = reader.call(key, "nvmlDeviceGetMemoryInfo", handle)
    processes = read_processes(reader, key, handle)
    return DeviceUse(
        key=key,
        uuid=uuid,
        pci_bus_id=read_pci_bus_id(reader, key, handle),
        total_bytes=None if memory is None else int(memory.total),
        used_bytes=None if memory is None else int(memory.used),
        reserved_bytes=int(memory.reserved) if memory is not None and api == "v2" else None,
        api=None if memory is None else api,
        processes=None if processes is None else {p.pid: p.memory_bytes for p in processes},
        not_read=reader.not_read,
    )


def process_bytes(use: DeviceUse, pid: int) -> int | None:
    """What process ``pid`` holds on the device; None when the driver's list does not know that PID.

    In a container the list carries the host's PIDs: a process that is missing from it may well hold memory.
    """
    return None if use.processes is None else use.processes.get(pid)
