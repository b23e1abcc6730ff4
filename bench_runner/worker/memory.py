"""Memory of this process on every device it can see, never only on its own."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_runner.machine.memory import device_memory
from bench_runner.worker.devices import Device


def start_case(device: Device) -> None:
    """Forget the peaks of what was measured before."""
    gc.collect()
    if device.is_cpu:
        # Linux resets VmHWM, the peak of the resident set, when a 5 is written here (proc(5)).
        Path("/proc/self/clear_refs").write_text("5")
        return
    device.module.synchronize()
    device.module.empty_cache()
    for index in range(device.count()):
        device.module.reset_peak_memory_stats(index)


def proc_bytes(path: str, key: str) -> int:
    """A line like ``VmData:  123 kB`` of a file of proc(5), in bytes.  (A worker needs nothing but torch.)"""
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no {key}")


def peak_rss_bytes() -> int:
    """The largest resident set of this process since ``start_case``, in bytes."""
    return proc_bytes("/proc/self/status", "VmHWM:")


def device_rows(device: Device) -> list[dict[str, Any]]:
    """A row per visible device, as fields of ``DeviceMemory``: torch's account of this process and the driver's.

    Memory on a device that is not this rank's own shows here; that is what the rows are for.
    """
    if device.is_cpu:
        return []
    visible = [Device(device.kind, index) for index in range(device.count())]
    rows: list[dict[str, Any]] = [
        {
            "device": seen.index,
            "uuid": seen.uuid(),
            "peak_allocated_bytes": int(device.module.max_memory_allocated(seen.index)),
            "peak_reserved_bytes": int(device.module.max_memory_reserved(seen.index)),
        }
        for seen in visible
    ]
    uuids = [row["uuid"] for row in rows]
    if device.kind == "cuda" and None not in uuids:
        uses = device_memory(uuids)
        own = own_bytes([use.processes for use in uses], os.getpid())
        for row, use, process_bytes in zip(rows, uses, own, strict=True):
            row["process_used_bytes"] = process_bytes
            row["device_used_bytes"] = use.used_bytes
            row["device_total_bytes"] = use.total_bytes
    return rows


def own_bytes(processes: Sequence[Mapping[int, int | None] | None], pid: int) -> list[int | None]:
    """What the driver says this process holds on each device, in bytes.

    In a container the driver lists the host's PIDs.  Only when this process is listed somewhere does its absence
    elsewhere mean zero; otherwise it is unknown.
    """
    listed = any(pid in on_device for on_device in processes if on_device is not None)
    return [on_device.get(pid, 0) if listed and on_device is not None else None for on_device in processes]
