"""Start tests/evaluate/bare.py the way a user starts a script: ``torchrun --standalone``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_runner.capacity import Capacity
from bench_runner.plan import plan
from bench_runner.profile import Profile
from bench_runner.spec import Collective, RunSpec, Strategy, Training

ROOT = Path(__file__).resolve().parents[2]


def specs_of(profile: Profile, strategy: Strategy, devices: int, cores: int) -> list[RunSpec]:
    """What the suite measures under one strategy and device count on a CPU."""
    capacity = Capacity(kind="cpu", count=cores, reason="evaluation")
    return [case.spec for case in plan(profile, strategy, devices, capacity) if case.skip is None]


def run_bare(specs: list[RunSpec], *, quiet: bool = True) -> dict[str, Any]:
    """The same trainings and collectives by hand; what rank 0 measured."""
    spec = specs[0]
    trainings = [s.task for s in specs if isinstance(s.task, Training)]
    collectives = [s.task for s in specs if isinstance(s.task, Collective)]
    task = {
        "strategy": spec.strategy,
        "quiet": quiet,
        "trainings": [
            {
                "workload": t.workload,
                "batch": t.per_device_batch(spec.device_count),
                "warmup_steps": t.warmup_steps,
                "steps": t.steps,
                "phase_steps": t.phase_steps,
            }
            for t in trainings
        ],
        "sizes": [size for c in collectives for size in c.message_bytes],
        "calls": max((c.calls for c in collectives), default=0),
    }
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "task.json", Path(folder) / "found.json"
        given.write_text(json.dumps(task))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={spec.world_size}", "-m", "tests.evaluate.bare", str(given), str(found)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=900)
        result: dict[str, Any] = json.loads(found.read_text())
    return result
