"""Carries out one trial of a job's start with real processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, get_args

from bench_runner.doctor.startup import PHASES, UNTIL, Phase, Trial, TrialOutcome
from bench_runner.doctor.world import RankOutcome, WorldOutcome, WorldPlan, run_world
from bench_runner.errors import SpecError
from bench_runner.spec import DeviceKind, Training

MODULE: Final = "bench_runner.worker.doctor_startup"
_LAST_LINES: Final = 15


def require_device_kind(name: str) -> str:
    """One of the kinds a rank can be given a device of."""
    if name not in get_args(DeviceKind):
        raise SpecError("device", name, f"must be one of {', '.join(get_args(DeviceKind))}")
    return name


def require_workload(name: str) -> str:
    """A built-in workload, or module:factory."""
    return Training(workload=name, batch=1).workload


def make_runner(
    *, device_kind: str, python: str, workload: str, deadline_seconds: float, note: Callable[[str], None]
) -> Callable[[Trial], TrialOutcome]:
    """A runner for ``plan_startup``; ``note`` is told of each trial before it starts."""

    def run(trial: Trial) -> TrialOutcome:
        numbers = ", ".join(map(str, trial.devices))
        note(f"{trial.stage}: device{'s' if len(trial.devices) > 1 else ''} {numbers} {trial.how}".rstrip())
        plan = WorldPlan(
            module=MODULE,
            world_size=len(trial.devices),
            deadline_seconds=deadline_seconds,
            python=python,
            options={
                "device_kind": device_kind,
                "devices": list(trial.devices) if device_kind != "cpu" else [0] * len(trial.devices),
                "until": UNTIL[trial.stage],
                "workload": workload,
                "batch": trial.batch,
            },
            variables=trial.variables,
        )
        with run_world(plan) as (outcome, _):
            return summarise_trial(trial, outcome)

    return run


def summarise_trial(trial: Trial, world: WorldOutcome) -> TrialOutcome:
    """What the ranks' events mean: the first phase that some rank did not get through, and who was behind."""
    needed = PHASES.index(UNTIL[trial.stage])
    reached = {rank.rank: _reached(rank) for rank in world.ranks}
    errors = [(rank.rank, rank.last("error")) for rank in world.ranks]
    own = [(rank, error) for rank, error in errors if error is not None and not _consequence(str(error["error"]))]
    first = own or [(rank, error) for rank, error in errors if error is not None]
    died = [rank for rank in world.ranks if rank.exit_code not in (0, None) and rank.last("error") is None]
    if not first and not died and all(level >= needed for level in reached.values()) and not world.timed_out:
        return TrialOutcome(seconds=world.seconds)
    lowest, highest = min(reached.values()), max(reached.values())
    phase: Phase = PHASES[min(lowest + 1, len(PHASES) - 1)]
    behind = tuple(rank for rank, level in reached.items() if level == lowest) if lowest < highest else ()
    words = {rank.rank: _words(rank) for rank in world.ranks if rank.exit_code != 0}
    if first:
        number, error = first[0]
        text = str(error["error"]) if error is not None else ""
        wrong = "WrongValuesError" in text or "computes wrong values" in text
        return TrialOutcome(
            failure="wrong-values" if wrong else "error",
            phase=phase,
            detail=f"rank {number}: {text}",
            behind=behind,
            stacks=words,
            seconds=world.seconds,
        )
    if died:
        detail = f"rank {died[0].rank} ended with exit code {died[0].exit_code}"
        return TrialOutcome(
            failure="error", phase=phase, detail=detail, behind=behind, stacks=words, seconds=world.seconds
        )
    detail = f"not done after {world.seconds:.0f} s"
    return TrialOutcome(failure="hang", phase=phase, detail=detail, behind=behind, stacks=words, seconds=world.seconds)


def _consequence(error: str) -> bool:
    return any(words in error for words in ("Connection closed by peer", "Connection reset", "Timed out waiting"))


def _reached(rank: RankOutcome) -> int:
    """The index of the last phase the rank got through; 0 when it did not even import torch."""
    event = rank.last("phase")
    return PHASES.index(event["name"]) if event is not None else 0


def _words(rank: RankOutcome) -> tuple[str, ...]:
    error = rank.last("error")
    text = str(error["traceback"]) if error is not None else rank.log
    return tuple(text.strip().splitlines()[-_LAST_LINES:])
