"""The launches of a run, made by the run itself while asv gets ready and while it collects.

asv takes seconds to start and to fetch values.  Each launch gets ready at the same time, is held before its first
measurement until asv waits for its values, and measures undisturbed.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench_runner.measure import Context
from bench_runner.plan import plan
from bench_runner.spec import Checkpoint, Collective, Strategy
from bench_runner.suite import ASKED_NAME, Session


def in_asvs_order(context: Context, pairs: Sequence[tuple[Strategy, int | str]]) -> list[tuple[Strategy, int | str]]:
    """The (strategy, device count) pairs as asv comes to them: its benchmarks by name, so checkpoints first, then
    collectives."""

    def place(pair: tuple[Strategy, int | str]) -> int:
        cases = plan(context.profile, *pair, context.capacity, context.asked_devices)
        tasks = [case.spec.task for case in cases if case.skip is None]
        if any(isinstance(task, Checkpoint) for task in tasks):
            return 0
        return 1 if any(isinstance(task, Collective) for task in tasks) else 2

    return sorted(pairs, key=place)


def measure_ahead(
    context: Context,
    folder: Path,
    pairs: Sequence[tuple[Strategy, int | str]],
    on_progress: Callable[[], None],
    later: Sequence[str] = (),
) -> None:
    """Measure all pairs into the session's ``folder``, where asv's processes find the values.

    ``later`` are modules that the caller will want when all is measured.  They are imported while the last launch's
    workers import theirs: before, asv needs the processor, and after that the measurement.  Raises what ``measure``
    raises; what was complete is stored.
    """
    session = Session(folder, on_progress)
    waiting_room = session.repeat_folder(context.launch_index)
    for left_over in waiting_room.glob(f"*/{ASKED_NAME}"):
        left_over.unlink()  # by an earlier call that was broken off
    held = replace(context, options={**context.options, "held_by": [str(waiting_room), ASKED_NAME]})
    for left, (strategy, count) in zip(reversed(range(len(pairs))), in_asvs_order(context, pairs), strict=True):
        if left == 0:
            threading.Thread(target=_import, args=(tuple(later),), daemon=True).start()
        session.measure_once(held, strategy, count)


def _import(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)
