"""A machine's fingerprint: the same over reboots and new containers, another one for other hardware or settings.

What is in it: processor, cores allowed, memory in whole GiB (the kernel keeps a little more or less for itself at each
boot), NUMA nodes, and per device its UUID, name, memory, power limit, highest clock, widest PCIe link and MIG mode; of
devices that NVML knows nothing of (AMD's, for instance) model, serial number and memory by PCI bus and driver.
What is not: host name, kernel, driver, and anything that changes by itself (clocks and links that idle, temperatures).
The UUIDs tell two boxes of the same make apart: their results differ by several per cent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from bench_runner.errors import UsageError
from bench_runner.machine.info import Accelerator
from bench_runner.machine.pci import OtherDevice

_GIB: Final = 1 << 30
_VERSION: Final = 1
_SHOWN: Final = ("cpu", "num_cpu", "ram", "gpu", "num_gpu", "driver", "arch", "os")


def fingerprint(
    *,
    cpu_model: str,
    cores_allowed: int,
    memory_bytes: int,
    numa_nodes: int | None,
    accelerators: tuple[Accelerator, ...],
    other_devices: Sequence[OtherDevice] = (),
) -> str:
    """Sixteen hexadecimal digits over the values named above; the order of the devices does not count.

    ``other_devices`` are those of other makers, as the PCI bus and their driver tell: whatever torch is installed.
    """
    devices = sorted(
        [
            str(device.uuid),
            device.name,
            str(device.memory_bytes),
            str(device.power_limit_watts and round(device.power_limit_watts)),
            str(device.sm_clock_max_mhz),
            str(device.pcie_generation),
            str(device.pcie_width),
            str(device.mig),
        ]
        for device in accelerators
    )
    document = [_VERSION, cpu_model, cores_allowed, round(memory_bytes / _GIB), numa_nodes, devices]
    if other_devices:
        document.append(
            sorted([device.model, str(device.serial), str(device.memory_bytes)] for device in other_devices)
        )
    return hashlib.sha256(json.dumps(document, ensure_ascii=True).encode()).hexdigest()[:16]


def check_same_machine(
    name: str,
    current_fingerprint: str,
    stored_entry: Mapping[str, object] | None,
    current_entry: Mapping[str, object] | None = None,
) -> None:
    """Raise UsageError when results under ``name`` belong to another machine, with both fingerprints shown.

    ``stored_entry`` is the machine entry that lies beside the stored results (None: no results yet), ``current_entry``
    this machine's, to name the fields in which they differ.  An entry without a fingerprint was not written by this
    program; nothing can be said about it, and it is let pass.
    """
    stored = (stored_entry or {}).get("fingerprint")
    if stored is None or stored == current_fingerprint:
        return
    differences = [
        f"{key} {stored_entry.get(key)!r} → {current_entry.get(key)!r}"
        for key in _SHOWN
        if stored_entry and current_entry and key in stored_entry and stored_entry.get(key) != current_entry.get(key)
    ]
    shown = "; ".join(differences) or "a device's UUID, power limit, clock or another setting"
    raise UsageError(
        f"machine {name!r}: the stored results come from a machine with fingerprint {stored}, this one has "
        f"{current_fingerprint} (different: {shown}); name this machine otherwise with --machine NAME"
    )
