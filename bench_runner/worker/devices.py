"""The device of a rank, and the clock that belongs to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from bench_runner.errors import DeviceError


class Device:
    """The device that this process computes on, chosen by the *local* rank.

    On a node the local rank counts from 0; the global rank would point past the devices of every node but the first.
    """

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.torch = torch.device("cpu") if kind == "cpu" else torch.device(kind, index)
        self.module: Any = None if kind == "cpu" else getattr(torch, kind)

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    def count(self) -> int:
        """Devices of this kind that this process can see (a CPU counts as one)."""
        return 1 if self.is_cpu else int(self.module.device_count())

    def synchronize(self) -> None:
        """Wait until everything that was asked of the device is done."""
        if not self.is_cpu:
            self.module.synchronize()

    def uuid(self) -> str | None:
        """The device's UUID as NVML spells it, or None where torch does not tell."""
        if self.kind != "cuda":
            return None
        identifier = getattr(torch.cuda.get_device_properties(self.index), "uuid", None)
        return None if identifier is None else f"GPU-{str(identifier).removeprefix('GPU-')}"


def select(kind: str, local_rank: int, devices_in_process: int) -> Device:
    """Choose and prepare the device, and prove it by a kernel whose result is checked.

    ``devices_in_process`` is 1, or the number that DataParallel drives.  Raises DeviceError.
    """
    if kind == "cpu":
        return Device("cpu", 0)
    module = getattr(torch, kind, None)
    if module is None or not module.is_available():
        raise DeviceError(f"{kind}: torch {torch.__version__} finds no usable device: bench-runner verify says why")
    needed = local_rank + devices_in_process
    if module.device_count() < needed:
        raise DeviceError(f"{kind}: {needed} devices needed on this node, torch sees {module.device_count()}")
    device = Device(kind, local_rank)
    module.set_device(device.index)
    # is_available() can be true although the first kernel fails: a pass rests on a kernel that ran.
    total = torch.arange(1000, device=device.torch, dtype=torch.float32).sum().item()
    if total != 499500.0:
        raise DeviceError(f"{device.torch}: the sum 0 … 999 came out as {total}: the device computes wrong values")
    return device


class Marks:
    """Points in time along the device's own work: ``count`` marks give ``count − 1`` durations.

    On accelerators these are events in the stream, so that marking does not stall the device between two steps.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._next = 0
        self._clock = [0] * count if device.is_cpu else []
        self._events = [] if device.is_cpu else [device.module.Event(enable_timing=True) for _ in range(count)]

    def mark(self) -> None:
        """Set the next mark."""
        if self._device.is_cpu:
            self._clock[self._next] = time.perf_counter_ns()
        else:
            self._events[self._next].record()
        self._next += 1

    def seconds(self) -> list[float]:
        """Durations between neighbouring marks, in seconds.  Waits for the device."""
        self._device.synchronize()
        if self._device.is_cpu:
            return [round((b - a) / 1e9, 9) for a, b in zip(self._clock, self._clock[1:], strict=False)]
        return [round(a.elapsed_time(b) / 1e3, 9) for a, b in zip(self._events, self._events[1:], strict=False)]


def time_repeated(device: Device, repeat: Callable[[], object], count: int) -> tuple[list[float], float]:
    """Call ``repeat`` ``count`` times: the seconds of each call, and of the whole loop by a clock of its own.

    The device is synchronised at both ends of the loop, not between the calls.  The loop's clock is
    CLOCK_MONOTONIC_RAW, which no time daemon adjusts.
    """
    marks = Marks(device, count + 1)
    device.synchronize()
    begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    marks.mark()
    for _ in range(count):
        repeat()
        marks.mark()
    device.synchronize()
    loop_seconds = (time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - begin) / 1e9
    return marks.seconds(), loop_seconds
