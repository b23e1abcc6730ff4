"""What the devices did while they were measured, as a table: clocks, power, heat, load, what held them back, energy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from bench_runner.analysis.metrics import headline
from bench_runner.machine.sampling import DeviceSampling, SamplingSummary, Spread
from bench_runner.machine.stability import unstable_reason
from bench_runner.record import RunRecord
from bench_runner.report import formats
from bench_runner.report.table import Table

UNSTABLE: Final = "unstable"
_NORMAL: Final = ("idle", "application-clocks")
"""Reasons that do not hold a busy device back: nothing to do for a moment, and clocks that somebody has set."""


def is_unstable(records: Iterable[RunRecord]) -> bool:
    """Whether any of the runs was measured while a device was held back or slower than its twins."""
    return any(record.sampling is not None and unstable_reason(record.sampling) for record in records)


def sampled_table(records: Sequence[RunRecord]) -> Table | None:
    """A row for each case and number of devices, its launches together; None where nothing was sampled."""
    groups: dict[str, list[tuple[RunRecord, SamplingSummary]]] = defaultdict(list)
    for record in records:
        if record.outcome == "ok" and record.sampling is not None and record.sampling.devices:
            groups[record.spec.label].append((record, record.sampling))
    if not groups:
        return None
    return Table(
        title="What the devices did meanwhile",
        columns=("run", "clock MHz", "power W", "max. °C", "load %", "held back by", "J per sample"),
        numeric=(False, True, True, True, True, False, True),
        rows=tuple(_row(label, group) for label, group in groups.items()),
        note="sampled once a second over the whole case; lowest–highest device, each by its median; "
        "held back: largest share of a device's samples; J per sample: over the timed steps alone",
    )


def _row(label: str, group: Sequence[tuple[RunRecord, SamplingSummary]]) -> tuple[str, ...]:
    devices = [device for _, summary in group for device in summary.devices]
    hottest = [device.temperature_celsius.maximum for device in devices if device.temperature_celsius]
    energies = [found.value for record, _ in group if (found := headline(record, "energy_per_sample"))]
    return (
        f"{label}, {UNSTABLE}" if is_unstable(record for record, _ in group) else label,
        _medians([device.sm_clock_mhz for device in devices]),
        _medians([device.power_watts for device in devices]),
        f"{max(hottest):.0f}" if hottest else formats.NOTHING,
        _medians([device.utilisation_percent for device in devices]),
        _held_back(devices),
        formats.number(median(energies)) if energies else formats.NOTHING,
    )


def _medians(spreads: Sequence[Spread | None]) -> str:
    """The lowest and the highest of the devices' medians."""
    known = [spread.median for spread in spreads if spread is not None]
    return formats.span(f"{min(known):.0f}", f"{max(known):.0f}") if known else formats.NOTHING


def _held_back(devices: Sequence[DeviceSampling]) -> str:
    """Each throttle reason with its largest share over the devices; "nothing" only where the reasons were read."""
    told = [device.throttle_share for device in devices if device.throttle_share is not None]
    if not told:
        return formats.NOTHING
    largest: dict[str, float] = defaultdict(float)
    for shares in told:
        for reason, share in shares.items():
            largest[reason] = max(largest[reason], share)
    counted = sorted((-share, reason) for reason, share in largest.items() if reason not in _NORMAL and share > 0)
    return ", ".join(f"{reason} {formats.percent(-share, 0)}" for share, reason in counted) or "nothing"
