"""The page's figures as PNG or SVG files, drawn with matplotlib."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from bench_runner.errors import StoreError, UsageError
from bench_runner.record import RunRecord
from bench_runner.report.figures import Figure, Role
from bench_runner.report.files import write_file
from bench_runner.report.formats import printable, size
from bench_runner.report.page import page_of
from bench_runner.store import machine_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PlotFormat = Literal["png", "svg"]
COLORS: Final = ("#4d4d4d", "#c26a00", "#0072b2", "#007a5a", "#a3458b", "#8a6d00")
MARKERS: Final = "sDo^X*"
DASHES: Final[dict[Role, str]] = {"measured": "-", "ideal": ":", "predicted": "--", "fit": "--"}


def write_plots(records: Sequence[RunRecord], folder: Path, file_format: PlotFormat = "png") -> list[Path]:
    """Draw every figure of the newest session of each machine; returns the files, named by machine, block and figure.

    Raises UsageError where matplotlib is not installed, StoreError where the folder cannot be written.
    """
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise UsageError("--plots: needs matplotlib; install it with pip install matplotlib") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be made: {error.strerror or error}; choose another folder") from error
    written = []
    for system in page_of(records).systems:
        for number, block in enumerate(system.blocks, 1):
            for figure in block.figures:
                name = f"{machine_folder(system.name)}-{number:02d}-{_word(block.title)}-{figure.name}.{file_format}"
                canvas = Canvas(figsize=(7, 4.2), layout="constrained")
                axes: Any = canvas.subplots()
                _draw(axes, figure)
                axes.set_title(f"{printable(system.name)}: {printable(block.title)}", fontsize=9, parse_math=False)
                path = folder / name
                write_file(path, lambda target, c=canvas: c.savefig(target, format=file_format, dpi=130))  # type: ignore[misc]
                written.append(path)
    return written


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text)[:50].strip("-").lower()


def _draw(axes: Axes, figure: Figure) -> None:
    if figure.kind == "matrix":
        _matrix(axes, figure)
        return
    if figure.kind == "stack":
        _stack(axes, figure)
    else:
        _lines(axes, figure)
    axes.set_ylabel(figure.y_label)
    axes.set_xlabel(figure.x_label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _lines(axes: Axes, figure: Figure) -> None:
    for one in figure.series:
        color = "black" if one.role == "ideal" else COLORS[one.color % len(COLORS)]
        marker = MARKERS[one.color % len(MARKERS)] if one.role in ("measured", "predicted") else None
        filling = "none" if one.role == "predicted" else "full"
        x: Any = [str(value)[:16] for value in one.x] if figure.name == "history" else one.x
        axes.plot(x, one.y, label=one.name, color=color, marker=marker, fillstyle=filling, linestyle=DASHES[one.role])
    if figure.x_log:
        axes.set_xscale("log", base=2)
        ticks = sorted({float(x) for one in figure.series for x in one.x})
        shown = ticks[:: -(-len(ticks) // 8)]
        axes.set_xticks(shown, [size(tick) for tick in shown])
        axes.minorticks_off()
    if figure.y_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if figure.name == "history":
        axes.tick_params(axis="x", rotation=30)


def _stack(axes: Axes, figure: Figure) -> None:
    bottom = [0.0] * len(figure.series[0].x)
    for one in figure.series:
        axes.bar(
            [str(x) for x in one.x], one.y, bottom=bottom, label=one.name, color=COLORS[(one.color + 2) % len(COLORS)]
        )
        bottom = [low + height for low, height in zip(bottom, one.y, strict=True)]
    axes.tick_params(axis="x", rotation=30)


def _matrix(axes: Axes, figure: Figure) -> None:
    rows = [one.y for one in figure.series]
    axes.imshow(rows, cmap="Blues", vmin=0, aspect="auto")
    axes.set_xticks(range(len(figure.series[0].x)), [str(x) for x in figure.series[0].x])
    axes.set_yticks(range(len(rows)), [one.name for one in figure.series])
    largest = max(value for row in rows for value in row)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            color = "white" if value > 0.6 * largest else "black"
            axes.text(j, i, f"{value:.3g} {figure.y_label}", ha="center", va="center", fontsize=8, color=color)
