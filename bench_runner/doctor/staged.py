"""Runs one workload from a single process to all ranks and gathers how its gradients compare at each stage."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench_runner.doctor.world import WorldPlan, last_line, run_world

MODULE: Final = "bench_runner.worker.doctor_staged"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """One stage: ``gradients`` by rank as the worker says them; ``error`` is what ended it otherwise."""

    stage: str
    world_size: int
    gradients: dict[int, dict[str, Any]]
    error: str | None = None
    evidence: tuple[str, ...] = ()
    seconds: float = 0.0


def stage_sizes(devices: int) -> list[tuple[str, int]]:
    """Name and number of ranks of each stage: single, sampler, DDP with 1, 2, 4 … and with all."""
    sizes = [1]
    while sizes[-1] * 2 <= devices:
        sizes.append(sizes[-1] * 2)
    if sizes[-1] != devices:
        sizes.append(devices)
    return [("single", 1), ("sampler", 1), *((f"ddp-{size}", size) for size in sizes)]


def global_batch(devices: int, per_device: int) -> int:
    """Samples of the global batch: a multiple of every stage's ranks, so that all shards are equal."""
    batch = devices * per_device
    sizes = [size for _, size in stage_sizes(devices)]
    return next(n for n in range(batch, batch * max(sizes) + 1) if all(n % size == 0 for size in sizes))


def run_staged(
    workload: str,
    *,
    device_kind: str,
    devices: int,
    per_device_batch: int,
    python: str,
    deadline_seconds: float,
    note: Callable[[str], None],
) -> list[StageOutcome]:
    """All stages up to the first that fails to give gradients."""
    outcomes: list[StageOutcome] = []
    with tempfile.TemporaryDirectory(prefix="bench-runner-staged-") as directory:
        for stage, size in stage_sizes(devices):
            note(f"{stage}: {size} process{'es' if size > 1 else ''}")
            plan = WorldPlan(
                module=MODULE,
                world_size=size,
                deadline_seconds=deadline_seconds,
                python=python,
                options={
                    "stage": "ddp" if stage.startswith("ddp-") else stage,
                    "workload": workload,
                    "device_kind": device_kind,
                    "global_batch": global_batch(devices, per_device_batch),
                    "reference": str(Path(directory) / "reference.pt"),
                },
            )
            outcomes.append(_run(plan, stage))
            if outcomes[-1].error is not None:
                break
    return outcomes


def _run(plan: WorldPlan, stage: str) -> StageOutcome:
    with run_world(plan) as (outcome, _):
        gradients = {rank.rank: said for rank in outcome.ranks if (said := rank.last("gradients")) is not None}
        errors = [(rank.rank, said) for rank in outcome.ranks if (said := rank.last("error")) is not None]
        own = [pair for pair in errors if "Connection closed by peer" not in pair[1]["error"]] or errors
        error: str | None = None
        evidence: tuple[str, ...] = ()
        if own:
            error = f"rank {own[0][0]}: {own[0][1]['error']}"
            evidence = tuple(str(own[0][1]["traceback"]).strip().splitlines()[-10:])
        elif outcome.timed_out:
            error = f"not done after {outcome.seconds:.0f} s"
            evidence = tuple(line for rank in outcome.ranks for line in rank.log.strip().splitlines()[-10:])
        elif len(gradients) < plan.world_size:
            rank = next(rank for rank in outcome.ranks if rank.rank not in gradients)
            error = f"rank {rank.rank} ended with exit code {rank.exit_code}: {last_line(rank.log)}"
    return StageOutcome(
        stage=stage,
        world_size=plan.world_size,
        gradients=gradients,
        error=error,
        evidence=evidence,
        seconds=outcome.seconds,
    )
