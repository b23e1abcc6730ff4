"""Gathers what each rank's data loader gives, by running it without the training."""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Any, Final

from bench_runner.doctor.loader_views import EpochView, LoaderProbe, LoaderView
from bench_runner.doctor.world import RankOutcome, WorldPlan, last_line, run_world
from bench_runner.errors import SpecError

MODULE: Final = "bench_runner.worker.doctor_loader"
FACTORY_PATTERN: Final = re.compile(r"(?:[A-Za-z_][\w.]*|[^:]+\.py):[A-Za-z_]\w*")
MOST_RANKS: Final = 64


def require_factory(name: str) -> str:
    """``module:factory`` or ``file.py:factory``, with an absolute path; SpecError for anything else."""
    if not FACTORY_PATTERN.fullmatch(name):
        raise SpecError("factory", name, "must be module:factory or path/to/file.py:factory")
    place, _, attribute = name.rpartition(":")
    if not place.endswith(".py"):
        return name
    path = Path(place)
    if not path.is_file():
        raise SpecError("factory", name, f"there is no file {place}")
    return f"{path.resolve()}:{attribute}"


def probe_loader(
    factory: str,
    world_size: int,
    *,
    python: str,
    epochs: int = 2,
    max_batches: int = 0,
    deadline_seconds: float = 300.0,
) -> LoaderProbe:
    """Run the loader of every rank for ``epochs`` (``max_batches``: of each at most so many; 0: all)."""
    if not 1 <= world_size <= MOST_RANKS:
        raise SpecError("world-size", world_size, f"must be between 1 and {MOST_RANKS}: every rank is a process here")
    plan = WorldPlan(
        module=MODULE,
        world_size=world_size,
        deadline_seconds=deadline_seconds,
        python=python,
        options={"factory": require_factory(factory), "epochs": epochs, "max_batches": max_batches},
    )
    with run_world(plan) as (outcome, directory):
        views = tuple(_view(rank, directory) for rank in outcome.ranks)
    return LoaderProbe(
        factory=factory, views=views, timed_out=outcome.timed_out, max_batches=max_batches, seconds=outcome.seconds
    )


def _view(outcome: RankOutcome, directory: Path) -> LoaderView:
    error = outcome.last("error")
    progress = outcome.last("progress")
    failure = None
    if error is not None:
        failure = str(error["error"])
    elif outcome.exit_code not in (0, None):
        failure = f"ended with exit code {outcome.exit_code}: {last_line(outcome.log)}"
    elif outcome.exit_code == 0 and outcome.last("epoch") is None:
        failure = f"ended before its first epoch was over: {last_line(outcome.log) or 'no word why'}"
    epochs = tuple(_epoch(event, outcome.rank, directory) for event in outcome.events if event["kind"] == "epoch")
    return LoaderView(
        rank=outcome.rank,
        described=outcome.last("loader") or {},
        epochs=epochs,
        error=failure,
        trace=str(error["traceback"]) if error else "",
        batches_so_far=progress["batches"] if progress and progress["epoch"] == len(epochs) else 0,
        stacks=outcome.log if outcome.exit_code is None else "",
    )


def _epoch(event: dict[str, Any], rank: int, directory: Path) -> EpochView:
    stem = directory / f"epoch-{rank}-{event['epoch']}"
    ids, digests = _numbers(stem.with_suffix(".ids")), _numbers(stem.with_suffix(".digests"))
    return EpochView(
        batches=event["batches"],
        samples=event["samples"],
        first_size=event["first_size"],
        last_size=event["last_size"],
        first_ids=tuple(event["first_ids"]),
        ids=ids if event["ids_complete"] else None,
        digests=digests if len(digests) == len(ids) else None,
    )


def _numbers(path: Path) -> array[int]:
    numbers = array("q")
    numbers.frombytes(path.read_bytes())
    return numbers
