"""How long ``compare`` of two machines takes in a tree of many.  Prints Markdown.

    python -m tests.evaluate.compare_speed [MACHINES] [FILES]

Each machine has FILES result files of about 60 metric values (10 records: trainings and an all-reduce over sizes); the
command runs as a user runs it, in a process of its own, three times, the files in the page cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench_runner import store
from bench_runner.record import RunRecord
from tests import builders

STEPS = 100
SIZES = tuple(1 << exponent for exponent in range(10, 28, 2))


def records_of_a_file(machine: str, launch: int, random: np.random.Generator) -> list[RunRecord]:
    """One launch of nine trainings and one sweep: 9 x 3 values and 9 x 1 latencies, memory of each rank beside them."""
    info = builders.machine(machine, gpus=2)
    speed = float(np.exp(random.normal(0, 0.01)))
    made = []
    for number, (strategy, devices) in enumerate([("single", 1), ("data_parallel", 2), ("ddp", 2)] * 3):
        steps = speed * 0.1 * np.exp(random.normal(0, 0.01, (devices, STEPS)))
        made.append(
            builders.training_record(
                strategy=strategy,
                devices=devices,
                step_seconds=steps.tolist(),
                task={"batch": 8 << (number // 3), "device_kind": "cuda"},
                rank_changes={"memory": (builders.device_memory(),)},
            )
        )
    calls = {size: (speed * 1e-4 * np.exp(random.normal(0, 0.01, (2, 20)))).tolist() for size in SIZES}
    made.append(builders.collective_record(seconds=calls))
    return [
        replace(
            record,
            record_id=f"{machine}-{launch}-{place}",
            launch_id=f"{machine}-{launch}",
            launch_index=launch,
            started_at=f"2026-11-01T{launch // 60:02d}:{launch % 60:02d}:00Z",
            machine=info,
        )
        for place, record in enumerate(made)
    ]


def build(root: Path, machines: int, files: int) -> None:
    """Two machines with records of their own; the others are copies of the first, which is all that a listing sees."""
    random = np.random.default_rng(1)
    for name in ("node-0000", "node-0001"):
        for launch in range(files):
            store.write(records_of_a_file(name, launch, random), root, label=f"run-{launch}")
    for number in range(2, machines):
        shutil.copytree(root / "node-0000", root / f"node-{number:04d}")


def main(arguments: Sequence[str]) -> None:
    machines = int(arguments[0]) if arguments else 1000
    files = int(arguments[1]) if len(arguments) > 1 else 50
    folder = Path(tempfile.mkdtemp())
    try:
        build(folder, machines, files)
        command = [sys.executable, "-m", "bench_runner", "compare", "node-0000", "node-0001", "--results", str(folder)]
        walls, cpus = [], []
        for _ in range(3):
            begin, before = time.perf_counter(), os.times()
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            walls.append(time.perf_counter() - begin)
            after = os.times()
            cpus.append(sum(after[2:4]) - sum(before[2:4]))
            if done.returncode not in (0, 1):
                raise SystemExit(done.stderr)
        print("| compare of two machines | files each | wall s, best of 3 | CPU s, best | limit s |")
        print("| --- | --- | --- | --- | --- |")
        print(f"| out of {machines} | {files} | {min(walls):.2f} | {min(cpus):.2f} | 2 |")
        print("\n" + done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
