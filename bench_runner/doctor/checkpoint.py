"""Gathers what a checkpoint holds, by a process of its own that reads it as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench_runner.doctor.loader import require_factory
from bench_runner.doctor.world import WorldPlan, last_line, run_world
from bench_runner.errors import UnreadableError

MODULE: Final = "bench_runner.worker.doctor_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProbe:
    """``content`` and ``model`` as ``worker.doctor_checkpoint`` says them; ``unreadable`` has a reason and a detail;
    ``error`` is what went wrong beside the file (the model's factory, a crash, the deadline)."""

    path: str
    content: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    unreadable: dict[str, str] | None = None
    error: str | None = None


def probe_checkpoint(
    path: Path, *, python: str, model: str | None = None, deadline_seconds: float = 300.0
) -> CheckpointProbe:
    """Read ``path``; UnreadableError when it is no file that can be opened at all."""
    try:
        if not path.is_file():
            kind = "a directory: name one of its files" if path.is_dir() else "no file there"
            raise UnreadableError(f"{path}: {kind}")
        with path.open("rb"):
            pass
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from error
    plan = WorldPlan(
        module=MODULE,
        world_size=1,
        deadline_seconds=deadline_seconds,
        python=python,
        options={"path": str(path.resolve()), "model": require_factory(model) if model else None},
        variables={"CUDA_VISIBLE_DEVICES": ""},
    )
    with run_world(plan) as (outcome, _):
        rank = outcome.ranks[0]
    raised = rank.last("error")
    failure = str(raised["error"]) if raised else None
    if failure is None and outcome.timed_out:
        failure = f"reading did not end in {deadline_seconds:.0f} s"
    elif failure is None and rank.exit_code != 0:
        failure = f"reading ended with exit code {rank.exit_code}: {last_line(rank.log)}"
    return CheckpointProbe(
        path=str(path),
        content=_values(rank.last("content")),
        model=_values(rank.last("model")),
        unreadable=_values(rank.last("unreadable")),
        error=failure,
    )


def _values(event: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if event is None else {key: value for key, value in event.items() if key != "kind"}
