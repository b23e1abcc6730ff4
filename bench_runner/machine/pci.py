"""The PCI bus: which GPUs are there whatever the driver says, NVSwitches, IOMMU and access control.

IOMMU in translating mode and access control services (ACS) that redirect requests send peer-to-peer traffic through
the root complex: slow at best, and known to hang or to deliver zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_runner.machine.host import ROOT, read_text

NVIDIA: Final = 0x10DE
AMD: Final = 0x1002
INTEL: Final = 0x8086
# A100 boxes carry switches with the first vendor number, later ones with NVIDIA's own; class "bridge, other".
_SWITCH_VENDORS: Final = (0x1AF1, NVIDIA)
_SWITCH_CLASS: Final = 0x0680
_DISPLAY: Final = 0x03
# Class "display, other": Intel's GPUs for data centres; its graphics inside processors are class "display, VGA".
_WITHOUT_DISPLAY: Final = 0x0380
_ACCELERATOR: Final = 0x12
_ACS_CAPABILITY: Final = 0x000D
# Request redirect, completion redirect, upstream forwarding (PCI Express base specification, ACS control register).
_ACS_REDIRECTS: Final = 0x04 | 0x08 | 0x10
_EXTENDED_START: Final = 0x100


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDevice:
    """A GPU or accelerator that NVML knows nothing of.  ``model`` is ``vendor:device`` in hexadecimal.

    ``serial`` and ``memory_bytes`` are what AMD's driver shows under /sys (unique_id, mem_info_vram_total); None: not
    told.
    """

    address: str
    model: str
    serial: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PciState:
    """``None``: not read.  ``gpus`` are PCI addresses of NVIDIA's; ``other_devices`` are AMD's GPUs, Intel's without a
    display, and everybody's accelerators.

    ``translated``: the GPUs whose IOMMU group translates addresses; ``redirecting``: bridges above GPUs on which ACS
    redirects peer traffic, None where the configuration space is not ours to read (that takes root).
    ``device_nodes``: /dev/nvidia0, ….
    """

    gpus: tuple[str, ...] | None = None
    other_devices: tuple[OtherDevice, ...] = ()
    switches: int = 0
    translated: tuple[str, ...] = ()
    redirecting: tuple[str, ...] | None = None
    device_nodes: tuple[str, ...] = ()
    iommu_arguments: tuple[str, ...] = ()


def _hexadecimal(path: Path) -> int | None:
    try:
        return int(read_text(path) or "", 16)
    except ValueError:
        return None


def read_pci(root: Path = ROOT) -> PciState:
    """The bus as /sys shows it."""
    base = root / "sys/bus/pci/devices"
    arguments = tuple(word for word in (read_text(root / "proc/cmdline") or "").split() if "iommu" in word)
    try:
        devices = sorted(base.iterdir())
    except OSError:
        return PciState(device_nodes=_device_nodes(root), iommu_arguments=arguments)
    gpus: list[Path] = []
    others: list[Path] = []
    switches = 0
    for device in devices:
        vendor, code = _hexadecimal(device / "vendor"), (_hexadecimal(device / "class") or 0) >> 8
        if vendor in _SWITCH_VENDORS and code == _SWITCH_CLASS:
            switches += 1
        elif code >> 8 in (_DISPLAY, _ACCELERATOR):
            if vendor == NVIDIA:
                gpus.append(device)
            elif vendor == AMD or code >> 8 == _ACCELERATOR or (vendor == INTEL and code == _WITHOUT_DISPLAY):
                others.append(device)
    return PciState(
        gpus=tuple(gpu.name for gpu in gpus),
        other_devices=tuple(_other_device(device) for device in others),
        switches=switches,
        translated=tuple(gpu.name for gpu in gpus if _translated(gpu)),
        redirecting=_redirecting(gpus),
        device_nodes=_device_nodes(root),
        iommu_arguments=arguments,
    )


def _other_device(device: Path) -> OtherDevice:
    vendor, model = _hexadecimal(device / "vendor") or 0, _hexadecimal(device / "device") or 0
    memory = (read_text(device / "mem_info_vram_total") or "").strip()
    return OtherDevice(
        address=device.name,
        model=f"{vendor:04x}:{model:04x}",
        serial=(read_text(device / "unique_id") or "").strip() or None,
        memory_bytes=int(memory) if memory.isdecimal() else None,
    )


def _device_nodes(root: Path) -> tuple[str, ...]:
    try:
        names = sorted(path.name for path in (root / "dev").iterdir())
    except OSError:
        return ()
    return tuple(name for name in names if name.removeprefix("nvidia").isdecimal() and name.startswith("nvidia"))


def _translated(device: Path) -> bool:
    kind = read_text(device / "iommu_group/type")
    return kind is not None and kind.startswith("DMA")


def acs_control(configuration: bytes) -> int | None:
    """The ACS control register in a device's configuration space (4096 bytes); None for a device without ACS.

    Extended capabilities are a list from byte 256 on: 16 bits of id, 4 of version, 12 of offset of the next one.
    """
    offset, seen = _EXTENDED_START, set[int]()
    while offset and offset not in seen and offset + 8 <= len(configuration):
        seen.add(offset)
        header = int.from_bytes(configuration[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int.from_bytes(configuration[offset + 6 : offset + 8], "little")
        offset = header >> 20
    return None


def _redirecting(gpus: list[Path]) -> tuple[str, ...] | None:
    """Bridges above the GPUs that redirect; None as soon as one of them cannot be read in full."""
    bridges: dict[Path, None] = {}
    for gpu in gpus:
        for parent in gpu.resolve().parents:
            if (parent / "vendor").exists():
                bridges[parent] = None
    found = []
    for bridge in bridges:
        try:
            configuration = (bridge / "config").read_bytes()
        except OSError:
            return None
        # Without privilege the kernel gives only the first 64 bytes; a plain PCI bridge has 256 and no ACS.
        if len(configuration) < _EXTENDED_START:
            return None
        if (acs_control(configuration) or 0) & _ACS_REDIRECTS:
            found.append(bridge.name)
    return tuple(found)
