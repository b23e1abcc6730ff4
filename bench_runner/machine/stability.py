"""Was the machine steady while it was measured?  Pure judgement over sampled values and step times."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Final

from bench_runner.machine.sampling import SamplingSummary

if TYPE_CHECKING:
    from bench_runner.record import RunRecord

# Running into the power limit is how a fully loaded device normally works; it counts when it makes devices unequal.
BRAKES: Final = ("thermal-hardware", "thermal-software", "hardware-slowdown", "power-brake")
_BRAKE_SHARE: Final = 0.02
_CLOCK_GAP: Final = 0.05
_SLOW_RANK: Final = 1.10


def devices_used(record: RunRecord) -> frozenset[str]:
    """UUIDs of the devices that the record's ranks computed on, as far as torch told them."""
    used = {rank.uuid for rank in record.ranks}
    if record.spec.strategy == "data_parallel":
        used |= {cell.uuid for rank in record.ranks for cell in rank.memory if cell.device < record.spec.device_count}
    return frozenset(uuid for uuid in used if uuid is not None)


def only_used(summary: SamplingSummary, used: Collection[str]) -> SamplingSummary:
    """What was sampled of the devices in use: one that idles beside them has low clocks and says nothing of the run.

    All of them where none is known to have been used.
    """
    devices = tuple(device for device in summary.devices if device.uuid in used)
    return replace(summary, devices=devices) if devices else summary


def unstable_reason(summary: SamplingSummary) -> str | None:
    """Why figures taken in this window are not to be trusted; None when nothing speaks against them.

    A brake (heat, power brake) in more than 2 % of a device's samples, or a median clock more than 5 % below that of
    the other devices.
    """
    for device in summary.devices:
        for reason in BRAKES:
            share = (device.throttle_share or {}).get(reason, 0.0)
            if share > _BRAKE_SHARE:
                hot = device.temperature_celsius
                heat = f", up to {hot.maximum:.0f} °C" if hot else ""
                return f"{device.uuid} was held back ({reason}) in {share:.0%} of the samples{heat}"
    clocks = {d.uuid: d.sm_clock_mhz.median for d in summary.devices if d.sm_clock_mhz}
    for uuid, clock in clocks.items():
        others = [other for name, other in clocks.items() if name != uuid]
        if others and clock < (1 - _CLOCK_GAP) * median(others):
            return f"{uuid} ran at {clock:.0f} MHz, the others at {median(others):.0f} MHz (medians)"
    return None


def slow_rank_reason(median_seconds: Mapping[int, float], limit: float = _SLOW_RANK) -> str | None:
    """The rank whose median time exceeds ``limit`` times the median of all; None when there is none.

    Use times that a rank spends on its own (forward and backward without communication): a DDP step takes equally
    long on all ranks, because they wait for each other.
    """
    if len(median_seconds) < 2:
        return None
    middle = median(median_seconds.values())
    rank, slowest = max(median_seconds.items(), key=lambda item: item[1])
    if middle <= 0 or slowest <= limit * middle:
        return None
    return f"rank {rank} takes {slowest / middle:.2f} × the median of the ranks"
