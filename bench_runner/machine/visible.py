"""CUDA_VISIBLE_DEVICES read the way CUDA reads it, with the reason for each entry.

The rules (CUDA's programming guide, and torch's own count by NVML, which this agrees with):

- not set: all devices; empty: none;
- a list of indices, or of UUIDs, or of UUIDs of MIG slices; the first entry decides which, and an entry of another
  kind counts as invalid;
- the first invalid entry ends the list: what stands before it stays visible, what follows does not;
- a device named twice empties the whole list;
- a UUID may be cut short, as long as only one device begins like that;
- an index is what ``strtoul`` makes of the text, so that ``1gpu`` is 1; ``-1`` is invalid, the usual way to say "none".

A process sees at most one MIG slice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["index", "uuid", "mig"]
_REPEATED: Final = "no device is visible, because {!r} names one a second time"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalDevice:
    """A device as the driver numbers it, in the order of PCI addresses; ``mig_uuids`` are its slices."""

    index: int
    uuid: str | None = None
    pci_bus_id: str | None = None
    name: str | None = None
    mig_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the list.  ``physical`` is the index of the device it names, None when it names none.

    ``reason`` says why it is not visible, None when it is.
    """

    text: str
    physical: int | None = None
    mig_uuid: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """``value`` None: the variable is not set.  ``mapping`` holds physical indices in the order of logical ones.

    ``certain``: whether the mapping can be relied on.  With CUDA_DEVICE_ORDER other than PCI_BUS_ID, CUDA numbers
    unlike devices by speed, in an order that only CUDA knows; a UUID names its device in any order.
    """

    value: str | None
    entries: tuple[Entry, ...]
    mapping: tuple[int, ...]
    certain: bool

    @property
    def count(self) -> int:
        """Devices a process would see."""
        return len(self.mapping)


def parse(value: str | None, devices: Sequence[PhysicalDevice], order: str | None = None) -> Visible:
    """Read ``value`` (CUDA_VISIBLE_DEVICES) for these devices; ``order`` is CUDA_DEVICE_ORDER."""
    alike = len({device.name for device in devices}) < 2
    certain = order == "PCI_BUS_ID" or alike
    if value is None:
        return Visible(value=None, entries=(), mapping=tuple(device.index for device in devices), certain=certain)
    texts = [text.strip() for text in value.split(",")] if value.strip() else []
    kind = _kind(texts[0]) if texts else "index"
    entries = _repeated_indices(texts) if kind == "index" else []
    entries = entries or _without_duplicates(_read_in_order(texts, kind, devices))
    if kind == "mig":
        entries = _first_slice_only(entries)
    mapping = tuple(entry.physical for entry in entries if entry.reason is None and entry.physical is not None)
    return Visible(value=value, entries=tuple(entries), mapping=mapping, certain=certain or kind != "index")


def _read_in_order(texts: list[str], kind: Kind, devices: Sequence[PhysicalDevice]) -> list[Entry]:
    entries: list[Entry] = []
    ended: str | None = None
    for text in texts:
        if ended is not None:
            entries.append(Entry(text=text, reason=f"comes after {ended!r}, which ends the list"))
            continue
        entry = _entry(text, kind, devices)
        if entry.reason is not None:
            ended = text
        entries.append(entry)
    return entries


def _kind(text: str) -> Kind:
    if text.startswith("MIG-"):
        return "mig"
    return "uuid" if text.startswith("GPU-") else "index"


def _entry(text: str, kind: Kind, devices: Sequence[PhysicalDevice]) -> Entry:
    if _kind(text) != kind:
        return Entry(text=text, reason=f"is of another kind than the first entry ({kind})")
    if kind == "index":
        return _by_index(text, devices)
    if kind == "uuid":
        return _by_uuid(text, devices)
    return _by_slice(text, devices)


def _index_number(text: str) -> int | None:
    """What ``strtoul`` makes of the text; None for a negative number or none at all."""
    match = re.match(r"\+?(\d+)", text, re.ASCII)
    # A number too long for any machine need not be converted in full.
    return int(match[1][:12]) if match else None


def _by_index(text: str, devices: Sequence[PhysicalDevice]) -> Entry:
    index = _index_number(text)
    if index is None:
        negative = re.match(r"-\d", text, re.ASCII) is not None
        reason = "is negative, which hides it and all that follow" if negative else "is neither an index nor a UUID"
        return Entry(text=text, reason=reason)
    if index >= len(devices):
        span = f"0 to {len(devices) - 1}" if devices else "none"
        return Entry(text=text, reason=f"is out of range (devices here: {span})")
    return Entry(text=text, physical=index)


def _repeated_indices(texts: list[str]) -> list[Entry]:
    """All entries as invisible when an index comes twice before the first text that is no index; else nothing.

    The repetition counts even for indices out of range: the text is read before the devices are counted.
    """
    seen: set[int] = set()
    for text in texts:
        index = _index_number(text)
        if index is None:
            return []
        if index in seen:
            return [Entry(text=t, reason=_REPEATED.format(text)) for t in texts]
        seen.add(index)
    return []


def _by_uuid(text: str, devices: Sequence[PhysicalDevice]) -> Entry:
    if any(device.uuid is None for device in devices):
        return Entry(text=text, reason="cannot be matched: the devices' UUIDs were not read")
    found = [device.index for device in devices if (device.uuid or "").startswith(text)]
    if not found:
        return Entry(text=text, reason="begins no UUID of a device here")
    if len(found) > 1:
        return Entry(text=text, reason=f"begins the UUIDs of {len(found)} devices")
    return Entry(text=text, physical=found[0])


def _by_slice(text: str, devices: Sequence[PhysicalDevice]) -> Entry:
    slices = [(device.index, uuid) for device in devices for uuid in device.mig_uuids]
    found = [(index, uuid) for index, uuid in slices if uuid.startswith(text)]
    # Drivers before R470 wrote MIG-<UUID of the device>/<GPU instance>/<compute instance>.
    older = [device.index for device in devices if device.uuid and text.startswith(f"MIG-{device.uuid}/")]
    if len(older) == 1 and not found:
        return Entry(text=text, physical=older[0], mig_uuid=text)
    if not found:
        return Entry(text=text, reason="begins no UUID of a MIG slice here")
    if len(found) > 1:
        return Entry(text=text, reason=f"begins the UUIDs of {len(found)} slices")
    return Entry(text=text, physical=found[0][0], mig_uuid=found[0][1])


def _without_duplicates(entries: list[Entry]) -> list[Entry]:
    seen: set[tuple[int, str | None]] = set()
    for entry in entries:
        if entry.reason is None and entry.physical is not None:
            key = (entry.physical, entry.mig_uuid)
            if key in seen:
                return [e if e.reason else Entry(text=e.text, reason=_REPEATED.format(entry.text)) for e in entries]
            seen.add(key)
    return entries


def _first_slice_only(entries: list[Entry]) -> list[Entry]:
    kept: list[Entry] = []
    for entry in entries:
        if entry.reason is None and any(other.reason is None for other in kept):
            kept.append(Entry(text=entry.text, reason="is a second MIG slice; a process sees only one"))
        else:
            kept.append(entry)
    return kept


def physical_of(uuid: str | None, pci_bus_id: str | None, devices: Sequence[PhysicalDevice]) -> PhysicalDevice | None:
    """The physical device that torch reports under this UUID or PCI address; None when neither matches exactly one."""
    wanted = None if uuid is None else f"GPU-{uuid.removeprefix('GPU-')}".lower()
    for found in (
        [device for device in devices if wanted and device.uuid and device.uuid.lower() == wanted],
        [device for device in devices if pci_bus_id and device.pci_bus_id == pci_bus_id.lower()],
    ):
        if len(found) == 1:
            return found[0]
    return None
