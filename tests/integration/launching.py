"""Launch plans over the stand-ins, and a look at the process table afterwards."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_runner.launch import LaunchPlan
from bench_runner.processes import Process, processes_of_launch
from bench_runner.spec import RunSpec, Training

STANDINS = Path(__file__).parent / "standins"
PATIENCE_SECONDS = 120.0

Fault = tuple[int | str, str, str]


def make_plan(directory: Path, faults: list[Fault], *, cases: int = 2, ranks: int = 2, **changes: Any) -> LaunchPlan:
    """``cases`` cases on ``ranks`` stand-in workers; a deadline that only a hang meets."""
    deadline = changes.pop("case_deadline_seconds", 30.0)
    strategy = changes.pop("strategy", "ddp")
    options = {"faults": faults, **changes.pop("options", {})}
    specs = tuple(
        RunSpec(
            strategy=strategy,
            device_kind="cpu",
            device_count=ranks,
            task=Training(workload="mlp", batch=8, steps=case + 1),
            deadline_seconds=deadline,
        )
        for case in range(cases)
    )
    fields = {"module": "standin_worker", "python": sys.executable, "directory": directory / "launch"}
    return LaunchPlan(specs=specs, options=options, **{**fields, **changes})


def left(plan: LaunchPlan) -> list[Process]:
    """Processes of the launch that still run, now."""
    return processes_of_launch(plan.launch_id)


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait for ``condition`` to become true and return its value; fails after a long time."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)
    return value


def said(directory: Path, rank: int, state: str, case: int | None = None) -> bool:
    """Whether the rank has come to ``state``, of ``case`` if that is given."""
    path = directory / f"rank-{rank}.jsonl"
    if not path.exists():
        return False
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return any(line.get("state") == state and case in (None, line.get("case")) for line in lines)
