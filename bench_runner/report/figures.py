"""Figures as values: series and labels, with no drawing library.

html.py has them drawn by Plotly in the reader's browser, plots.py draws them with matplotlib.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final, Literal

from bench_runner.analysis.efficiency import SINGLE
from bench_runner.analysis.summary import Case, Group
from bench_runner.report import formats
from bench_runner.report.table import Table
from bench_runner.report.tables import PHASES, STRATEGY_NAMES, setting_name

Role = Literal["measured", "ideal", "predicted", "fit"]
Kind = Literal["lines", "stack", "matrix"]
Point = float | str

PART_NAMES: Final = {"data": "data wait", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, or one layer of stacked bars.  ``color`` numbers the palette, so that a strategy looks the same in
    every figure."""

    name: str
    x: tuple[Point, ...]
    y: tuple[float, ...]
    role: Role = "measured"
    color: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``alt`` says in words what is shown.  A matrix has its rows in ``series``: their x are the columns' names."""

    name: str
    title: str
    alt: str
    kind: Kind
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_log: bool = False
    y_log: bool = False
    x_bytes: bool = False


def rounded(value: float) -> float:
    """Six significant digits: more than a screen shows, and a third of the size on the page."""
    return float(f"{value:.6g}")


_COLORS: Final = {name: place for place, name in enumerate(STRATEGY_NAMES)}


def _by_strategy(
    groups: Sequence[Group], metric: str, denominator: str | None = None, factor: float = 1.0
) -> list[Series]:
    """A series for each strategy (and set of settings) over the device count."""
    points: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    for group in groups:
        value = group.median(metric, denominator)
        if not isnan(value):
            key = (setting_name(group, groups), _COLORS[group.setting.strategy])
            points[key].append((group.setting.devices, rounded(value * factor)))
    return [
        Series(name=name, x=tuple(x for x, _ in found), y=tuple(y for _, y in found), color=color)
        for (name, color), found in points.items()
    ]


def throughput(case: Case, groups: Sequence[Group], predicted: Mapping[int, float]) -> Figure | None:
    """Samples a second over devices, the line of perfect scaling from one device, and the model's prediction."""
    series = _by_strategy(groups, "throughput")
    if not series:
        return None
    counts = sorted({group.setting.devices for group in groups})
    one = next((group.median("throughput") for group in groups if group.setting.strategy == "single"), float("nan"))
    if isnan(one):
        one = next((group.median("throughput") for group in groups if group.setting.devices == 1), float("nan"))
    if not isnan(one) and len(counts) > 1:
        ideal = tuple(rounded(one * count) for count in counts)
        series.append(Series(name="ideal", x=tuple(counts), y=ideal, role="ideal"))
    if predicted:
        series.append(
            Series(
                name="DDP predicted",
                x=tuple(predicted),
                y=tuple(rounded(rate) for rate in predicted.values()),
                role="predicted",
                color=_COLORS["ddp"],
            )
        )
    return Figure(
        name="throughput",
        title="Throughput",
        alt=f"Throughput in samples per second against the number of devices for {case.name}. {_in_words(series)}",
        kind="lines",
        x_label="devices",
        y_label="samples/s",
        series=tuple(series),
    )


def efficiency(case: Case, groups: Sequence[Group]) -> Figure | None:
    """Scaling efficiency against the plain single device."""
    series = _by_strategy(groups, "efficiency", SINGLE, factor=100)
    if not series:
        return None
    return Figure(
        name="efficiency",
        title="Efficiency against one plain device",
        alt=f"Scaling efficiency in percent against the number of devices for {case.name}. {_in_words(series)}",
        kind="lines",
        x_label="devices",
        y_label="%",
        series=tuple(series),
    )


def _in_words(series: Sequence[Series]) -> str:
    """The ends of each measured line."""
    parts = [
        f"{one.name}: {formats.number(one.y[0], 3)} at {one.x[0]}"
        + (f", {formats.number(one.y[-1], 3)} at {one.x[-1]}" if len(one.x) > 1 else "")
        for one in series
        if one.role == "measured"
    ]
    return "; ".join(parts) + "."


def phases(case: Case, groups: Sequence[Group]) -> Figure | None:
    """The parts of a step, stacked, for each strategy and device count."""
    shown = [group for group in groups if not isnan(group.median("phase_forward"))]
    if not shown:
        return None
    names = tuple(f"{setting_name(group, groups)} ×{group.setting.devices}" for group in shown)
    layers = []
    for color, phase in enumerate(PHASES):
        values = [group.median(f"phase_{phase}") for group in shown]
        heights = tuple(0.0 if isnan(value) else rounded(value * 1e3) for value in values)
        layers.append(Series(name=PART_NAMES[phase], x=names, y=heights, color=color))
    exposed = [group.median("exposed_communication") for group in shown]
    alt = [
        f"{name}: {formats.seconds(group.median('step_time'))} a step"
        + ("" if isnan(wait) else f", {formats.seconds(wait)} of it exposed communication")
        for name, group, wait in zip(names, shown, exposed, strict=True)
    ]
    return Figure(
        name="phases",
        title="Parts of a step",
        alt=f"Stacked bars of the parts of a step in milliseconds for {case.name}. {'; '.join(alt)}.",
        kind="stack",
        x_label="",
        y_label="ms",
        series=tuple(layers),
    )


# --- collectives ------------------------------------------------------------------------------------------------

Curve = Mapping[tuple[int, int], Group]


def points_of(curve: Curve, metric: str) -> dict[int, list[tuple[int, float]]]:
    """ranks → (message bytes, median over launches)."""
    points: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (size, ranks), group in curve.items():
        value = group.median(metric)
        if not isnan(value):
            points[ranks].append((size, value))
    return dict(points)


def latency(operation: str, curve: Curve, fits: Mapping[int, Sequence[tuple[int, float]]]) -> Figure:
    """Time over message size, both logarithmic; ``fits`` gives points of the fitted lines for each rank count."""
    series = _by_ranks(points_of(curve, "latency"), 1e6)
    series += [
        Series(
            name=f"{ranks} ranks, fit",
            x=tuple(size for size, _ in points),
            y=tuple(rounded(seconds * 1e6) for _, seconds in points),
            role="fit",
            color=one.color,
        )
        for one, (ranks, points) in zip(series, fits.items(), strict=False)
    ]
    return _curve_figure("latency", "Latency", operation, "µs", series)


def bandwidth(operation: str, curve: Curve) -> Figure:
    """busbw over message size."""
    return _curve_figure("busbw", "Bus bandwidth", operation, "GB/s", _by_ranks(points_of(curve, "busbw"), 1e-9))


def _by_ranks(points: Mapping[int, Sequence[tuple[int, float]]], factor: float) -> list[Series]:
    return [
        Series(
            name=f"{ranks} ranks",
            x=tuple(size for size, _ in found),
            y=tuple(rounded(value * factor) for _, value in found),
            color=color,
        )
        for color, (ranks, found) in enumerate(sorted(points.items()))
    ]


def _curve_figure(name: str, title: str, operation: str, unit: str, series: Sequence[Series]) -> Figure:
    ends = [
        f"{one.name}: {formats.number(one.y[0], 3)} {unit} at {formats.size(float(one.x[0]))}, "
        f"{formats.number(one.y[-1], 3)} {unit} at {formats.size(float(one.x[-1]))}"
        for one in series
        if one.role == "measured"
    ]
    return Figure(
        name=name,
        title=title,
        alt=f"{title} of {operation.replace('_', '-')} against the message size. {'; '.join(ends)}.",
        kind="lines",
        x_label="message size",
        y_label=unit,
        series=tuple(series),
        x_log=True,
        y_log=True,
        x_bytes=True,
    )


# --- memory and history -----------------------------------------------------------------------------------------


def memory(group: Group) -> tuple[Figure, Table] | None:
    """What each process holds on each device, in GiB: the driver's account, or torch's where that is missing."""
    cells, account = group.matrix("process_used"), "the driver's account"
    allocated = group.matrix("peak_allocated")
    if not cells:
        cells, account = allocated, "torch's peak allocated"
    if not cells:
        return None
    ranks = sorted({rank for rank, _ in cells})
    devices = sorted({device for _, device in (*cells, *allocated) if device is not None})
    gib = {place: rounded(value / (1 << 30)) for place, value in cells.items()}
    columns = tuple(f"device {device}" for device in devices)
    figure = Figure(
        name="memory",
        title="Memory of each process on each device",
        alt=f"Matrix of processes by devices in GiB, {account}; the numbers are in the table below.",
        kind="matrix",
        x_label="",
        y_label="GiB",
        series=tuple(
            Series(name=f"rank {rank}", x=columns, y=tuple(gib.get((rank, device), float("nan")) for device in devices))
            for rank in ranks
        ),
    )
    rows = tuple((f"rank {rank}", *(formats.size(cells.get((rank, device))) for device in devices)) for rank in ranks)
    name = f"{STRATEGY_NAMES[group.setting.strategy]} on {group.setting.devices}"
    table = Table(
        title=f"Memory: {name}",
        columns=("process", *columns),
        numeric=(False, *[True] * len(columns)),
        rows=rows,
        note=f"{account}; a process that holds memory on a device not its own is a fault under DDP",
    )
    return figure, table


def history(case: Case, lines: Mapping[str, Sequence[tuple[str, float]]]) -> Figure:
    """Throughput over time; ``lines``: name → (time, samples/s) in order."""
    series = tuple(
        Series(name=name, x=tuple(x for x, _ in points), y=tuple(rounded(y) for _, y in points), color=color)
        for color, (name, points) in enumerate(lines.items())
    )
    return Figure(
        name="history",
        title="History",
        alt=f"Throughput in samples per second over the sessions for {case.name}. {_in_words(series)}",
        kind="lines",
        x_label="",
        y_label="samples/s",
        series=series,
    )
