"""The energy that devices have taken, by the driver's own counter (NVML's total energy, since the driver was loaded).

Importable in workers: the standard library, and nvidia-ml-py where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from bench_runner.machine.memory import normalised
from bench_runner.machine.nvml_library import NvmlUnavailable, Reader, session

ReadJoules = Callable[[], float | None]


@contextmanager
def energy_counter(uuids: Sequence[str | None]) -> Iterator[ReadJoules]:
    """A function that reads the sum of the counters of the devices with these UUIDs, in joules.

    It gives None unless every device is known and has a counter of its own: a slice of a divided device (MIG) has none,
    the counter there is that of the whole device.
    """
    with ExitStack() as stack:
        handles: list[Any] = []
        reader = Reader(None)
        if uuids and None not in uuids:
            with suppress(NvmlUnavailable):
                reader = Reader(stack.enter_context(session()))
                handles = [_whole_device(reader, normalised(uuid)) for uuid in uuids if uuid is not None]
        yield lambda: _sum(reader, handles)


def _whole_device(reader: Reader, uuid: str) -> Any:
    """The handle of a device, or None for one that is unknown or divided."""
    handle = reader.call(uuid, "nvmlDeviceGetHandleByUUID", uuid)
    if handle is None:
        return None
    mode = reader.call(uuid, "nvmlDeviceGetMigMode", handle)  # None: a device that cannot be divided
    return None if mode is not None and mode[0] else handle


def _sum(reader: Reader, handles: Sequence[Any]) -> float | None:
    read = [
        None if handle is None else reader.call("device", "nvmlDeviceGetTotalEnergyConsumption", handle)
        for handle in handles
    ]
    known = [millijoules / 1000 for millijoules in read if millijoules is not None]
    return sum(known) if handles and len(known) == len(handles) else None
