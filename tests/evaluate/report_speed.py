"""How long the HTML page of many machines takes, and how large it is.  Prints Markdown.

    python -m tests.evaluate.report_speed [MACHINES]

Each machine has eight devices, two workloads under three strategies and an all-reduce over sizes.  The command runs
as a user runs it, in a process of its own, three times, the files in the page cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench_runner import store
from bench_runner.record import RunRecord
from tests import builders

SECONDS_AT_MOST = 10.0
BYTES_AT_MOST = 15_000_000
STEPS = 30
COUNTS = (1, 2, 4, 8)
SIZES = tuple(1 << exponent for exponent in range(10, 28, 2))
PARTS = {"data": 0.02, "forward": 0.3, "backward": 0.55, "optimizer": 0.1}


def records_of(machine: str, random: np.random.Generator) -> list[RunRecord]:
    info = builders.machine(machine, gpus=8)
    speed = float(np.exp(random.normal(0, 0.03)))

    def noisy(seconds: float, *shape: int) -> list[list[float]]:
        made: list[list[float]] = (speed * seconds * np.exp(random.normal(0, 0.02, shape))).tolist()
        return made

    records = []
    for workload, seconds in (("mlp", 0.002), ("transformer-small", 0.05)):
        for strategy, devices in [
            ("single", 1),
            *(("data_parallel", n) for n in COUNTS[1:]),
            *(("ddp", n) for n in COUNTS),
        ]:
            ranks = devices if strategy == "ddp" else 1
            changes = {
                "phase_seconds": {name: tuple(noisy(seconds * part, 1, 10)[0]) for name, part in PARTS.items()},
                "memory": tuple(builders.device_memory(device) for device in range(devices)),
                "parameters": 1_000_000,
            }
            records.append(
                builders.training_record(
                    strategy=strategy,
                    devices=devices,
                    step_seconds=noisy(seconds, ranks, STEPS),
                    task={"workload": workload, "device_kind": "cuda"},
                    rank_changes=changes,
                    machine=info,
                )
            )
    for ranks in COUNTS[1:]:
        calls = {size: noisy(2e-5 * ranks + size / 2e11, ranks, 20) for size in SIZES}
        records.append(builders.collective_record(devices=ranks, seconds=calls, machine=info))
    return records


def main() -> None:
    machines = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        results, page = Path(folder) / "results", Path(folder) / "report.html"
        for number in range(machines):
            store.write(records_of(f"node-{number:03}", random), results, label="x")
        command = [sys.executable, "-m", "bench_runner", "report", "--results", str(results), "-o", str(page)]
        walls, cpus = [], []
        for _ in range(3):
            begin, before = time.monotonic(), os.times()
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            after = os.times()
            walls.append(time.monotonic() - begin)
            cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
        size = page.stat().st_size
    print("| machines | page, s | of that CPU, s | at most, s | size, MB | at most, MB |")
    print("|---:|---:|---:|---:|---:|---:|")
    print(
        f"| {machines} | {min(walls):.1f} | {min(cpus):.1f} | {SECONDS_AT_MOST:.0f} "
        f"| {size / 1e6:.1f} | {BYTES_AT_MOST / 1e6:.0f} |"
    )


if __name__ == "__main__":
    main()
