"""A group of ranks for a probe: started together, ended together, whatever they do.

One process imports torch and forks the ranks (``bench_runner.worker.doctor_ranks``), which is quicker than starting
each anew.  Every rank appends its events to a file of its own, so that a rank that hangs has still said how far it
came; at the deadline the ranks that are still there write their stacks into their logs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench_runner.errors import LaunchError, UsageError
from bench_runner.launch_process import Supervised
from bench_runner.processes import LAUNCH_ID_VARIABLE, process_table, send_signal

RANKS_MODULE: Final = "bench_runner.worker.doctor_ranks"
_PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]
_LARGEST_EVENTS_BYTES: Final = 64 << 20
_LARGEST_LOG_BYTES: Final = 1 << 20
_STACKS_SECONDS: Final = 1.0
_SLACK_SECONDS: Final = 15.0
"""The supervisor's own deadline lies behind ours, for the case that this process is ended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """``module`` is of ``bench_runner.worker`` and has ``run(rank, world_size, options, say)``; ``options`` are plain
    values; ``python`` has torch.  ``variables`` are added to the environment.  The deadline counts from the
    start of the processes."""

    module: str
    world_size: int
    deadline_seconds: float
    python: str
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """What one rank said and how it ended; ``exit_code`` is None for one that had to be ended."""

    rank: int
    events: tuple[dict[str, Any], ...]
    exit_code: int | None
    log: str

    def last(self, kind: str) -> dict[str, Any] | None:
        """The last event with this ``kind``."""
        return next((event for event in reversed(self.events) if event.get("kind") == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOutcome:
    """``timed_out``: the deadline came first.  ``log`` is what the forking process itself said."""

    ranks: tuple[RankOutcome, ...]
    timed_out: bool
    seconds: float
    log: str


@contextmanager
def run_world(plan: WorldPlan) -> Iterator[tuple[WorldOutcome, Path]]:
    """Run the ranks to their end or to the deadline; the outcome, and the directory with what else they wrote, which
    is removed when the context is left.  Raises LaunchError when nothing could be started, UsageError when a rank says
    that a name or a value given by the user is wrong."""
    directory = Path(tempfile.mkdtemp(prefix="bench-runner-doctor-"))
    try:
        yield _run(plan, directory), directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(plan: WorldPlan, directory: Path) -> WorldOutcome:
    launch_id = uuid.uuid4().hex
    began = time.monotonic()
    document = {
        "module": plan.module,
        "world_size": plan.world_size,
        "options": dict(plan.options),
        "timeout_seconds": plan.deadline_seconds + _SLACK_SECONDS,
    }
    (directory / "world.json").write_text(json.dumps(document), encoding="utf-8")
    command = [plan.python, "-m", RANKS_MODULE, str(directory)]
    variables = {**world_environment(os.environ, launch_id), **plan.variables}
    with Supervised(command, variables, directory, plan.deadline_seconds + _SLACK_SECONDS, launch_id) as supervised:
        ended = supervised.wait(plan.deadline_seconds)
        if not ended:
            _ask_for_stacks(directory, plan.world_size)
        supervised.end()
    result = supervised.result or {}
    if result.get("reason") == "not-started":
        raise LaunchError(f"python = {plan.python}: {result.get('error')}; name one with BENCH_RUNNER_PYTHON")
    # At the deadline the ranks were ended by us, and what that made of their exit codes says nothing.
    exits = (read_json(directory / "exits.json") or {}) if ended else {}
    ranks = tuple(_rank_outcome(directory, rank, exits.get(str(rank))) for rank in range(plan.world_size))
    for rank in ranks:
        if (said := rank.last("usage")) is not None:
            raise UsageError(str(said["error"]))
    log = _tail(directory / "agent.log")
    if ended and not any(rank.events for rank in ranks):
        raise LaunchError(f"the ranks could not be started: {last_line(log) or 'no word why'}")
    return WorldOutcome(ranks=ranks, timed_out=not ended, seconds=time.monotonic() - began, log=log)


def world_environment(base: Mapping[str, str], launch_id: str) -> dict[str, str]:
    """The caller's environment without what an outer launch left in it, with ours, and one thread a rank."""
    foreign = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"}
    kept = {k: v for k, v in base.items() if k not in foreign and not k.startswith(("TORCHELASTIC_", "PET_"))}
    paths = [str(_PACKAGE_ROOT), *(path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return {
        **kept,
        LAUNCH_ID_VARIABLE: launch_id,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": kept.get("OMP_NUM_THREADS", "1"),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _ask_for_stacks(directory: Path, world_size: int) -> None:
    """Have the ranks that are still there write their stacks (faulthandler on SIGUSR1) to their logs."""
    by_pid = {process.pid: process for process in process_table() if not process.gone}
    asked = False
    for rank in range(world_size):
        started = next((e for e in _events(directory, rank) if e.get("kind") == "started"), {})
        process = by_pid.get(started.get("pid", -1))
        if process is not None:
            asked = send_signal(process, signal.SIGUSR1) or asked
    if asked:
        time.sleep(_STACKS_SECONDS)


def _rank_outcome(directory: Path, rank: int, exit_code: int | None) -> RankOutcome:
    return RankOutcome(
        rank=rank,
        events=tuple(_events(directory, rank)),
        exit_code=exit_code,
        log=_tail(directory / f"rank-{rank}.log"),
    )


def _events(directory: Path, rank: int) -> list[dict[str, Any]]:
    path = directory / f"rank-{rank}.jsonl"
    if not path.exists():
        return []
    with path.open("rb") as file:
        lines = file.read(_LARGEST_EVENTS_BYTES).split(b"\n")
    return [json.loads(line) for line in lines[:-1]]  # the last one is empty, or was being written


def read_json(path: Path) -> dict[str, Any] | None:
    """A file that a rank wrote in one go, or None when it did not come to that."""
    return json.loads(path.read_bytes()) if path.exists() else None


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LARGEST_LOG_BYTES))
        return file.read(_LARGEST_LOG_BYTES).decode("utf-8", "backslashreplace")


def last_line(text: str) -> str:
    """The last line with anything in it."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
