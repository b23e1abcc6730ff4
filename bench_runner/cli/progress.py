"""Progress of long work on standard error: bars on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bench_runner.cli import output
from bench_runner.environment.progress import Progress, Unit

if TYPE_CHECKING:
    import rich.progress

SECONDS_BETWEEN_LINES: Final = 10.0
_TITLES: Final = {
    "packages": "fetch and unpack packages",
    "check the cache": "check the package cache",
    "link": "link packages",
    "compile": "byte-compile",
}


@contextmanager
def progress_for() -> Iterator[Progress]:
    """Progress that suits where standard error goes."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeRemainingColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield Bars(bars)


def amount(done: int, total: int, unit: Unit) -> str:
    """``12 of 300 packages``, ``0.4 of 3.7 GB``; without the total where that is not known."""
    if unit == "packages":
        return f"{done} of {total} packages" if total else ""
    scale, name = (1e9, "GB") if max(done, total) >= 1e8 else (1e6, "MB")
    return f"{done / scale:.1f} of {total / scale:.1f} {name}" if total else f"{done / scale:.1f} {name}"


class Lines:
    """A line when a stage begins, and again every few seconds while it lasts."""

    def __init__(self) -> None:
        self._done = self._total = 0
        self._unit: Unit = "packages"
        self._last = time.monotonic()

    def stage(self, name: str, total: int, unit: Unit) -> None:
        self._done, self._total, self._unit = 0, total, unit
        size = amount(0, total, unit).partition(" of ")[2]
        output.note(f"{_TITLES.get(name, name)}{': ' + size if size else ''}")
        self._last = time.monotonic()

    def advance(self, amount_done: int) -> None:
        self._done += amount_done
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            output.note(f"  {amount(self._done, self._total, self._unit)}")

    def note(self, text: str) -> None:
        output.note(text)


class Bars:
    """Rich's bars, one a stage."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        self._task: rich.progress.TaskID | None = None
        self._done = self._total = 0
        self._unit: Unit = "packages"

    def stage(self, name: str, total: int, unit: Unit) -> None:
        self._done, self._total, self._unit = 0, total, unit
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(_TITLES.get(name, name), total=total or None, done="")

    def advance(self, amount_done: int) -> None:
        self._done += amount_done
        if self._task is not None:
            self._bars.update(self._task, completed=self._done, done=amount(self._done, self._total, self._unit))

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)
