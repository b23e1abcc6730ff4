"""``doctor watch``: what it costs the watched job, whether healthy jobs stay clean, and how soon a hang is explained.

    python -m tests.evaluate.watching

Prints Markdown tables: the median step of a two-rank gloo training alone and watched, in alternating rounds; the
verdicts of 20 healthy runs; and for hanging trainers the verdict and the time from the last sign of progress to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests" / "faulty"
ROUNDS = 5
HEALTHY_RUNS = 20
QUIET_SECONDS = 10.0
HANGING = ("uneven_loader", "uneven_then_validation", "rank0_barrier", "loader_stuck", "straggler")
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint"]

STEPS = """
import json, statistics, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]))
steps = []
end = time.monotonic() + 10
go = torch.ones(1)
while True:
    begin = time.perf_counter()
    model(torch.randn(64, 256)).square().mean().backward()
    steps.append(time.perf_counter() - begin)
    if len(steps) % 50 == 0:
        go.fill_(float(time.monotonic() < end))
        dist.broadcast(go, 0)
        if not go.item():
            break
if dist.get_rank() == 0:
    print("median", statistics.median(steps[50:]), flush=True)
dist.destroy_process_group()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def torchrun(program: Path) -> list[str]:
    return [sys.executable, *TORCHRUN, "127.0.0.1:0", "--local-addr", "127.0.0.1", str(program)]


def watched(command: list[str], *options: str) -> tuple[dict[str, Any], str, float]:
    """The document, the job's output, and the seconds it took."""
    began = time.monotonic()
    arguments = [sys.executable, "-m", "bench_runner", "doctor", "watch", "--json", "--kill", *options, "--", *command]
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)
    return json.loads(done.stdout), done.stderr, time.monotonic() - began


def step_of(output: str) -> float:
    return next(float(line.split()[1]) for line in output.splitlines() if line.startswith("median "))


def cost() -> None:
    print("| round | median step alone, ms | watched, ms | difference |\n|---|---|---|---|")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "steps.py"
        program.write_text(STEPS)
        for number in range(1, ROUNDS + 1):
            done = subprocess.run(torchrun(program), env=environment(), capture_output=True, text=True, check=True)
            alone = step_of(done.stdout)
            with_watch = step_of(watched(torchrun(program))[1])
            ratios.append(with_watch / alone)
            print(
                f"| {number} | {alone * 1e3:.3f} | {with_watch * 1e3:.3f} | {100 * (with_watch / alone - 1):+.1f} % |"
            )
    print(f"\nMedian difference: {100 * (median(ratios) - 1):+.1f} %.\n")


def healthy() -> None:
    verdicts = Counter(watched(torchrun(FAULTY / "healthy.py"))[0]["fault"] for _ in range(HEALTHY_RUNS))
    print(f"Healthy runs: {HEALTHY_RUNS}, clean: {verdicts[None]}; false alarms: {HEALTHY_RUNS - verdicts[None]}.\n")


def hangs() -> None:
    print(f"| trainer | verdict | seconds, start to end (of it {QUIET_SECONDS:.0f} without progress) |\n|---|---|---|")
    for name in HANGING:
        document, _, seconds = watched(torchrun(FAULTY / f"{name}.py"), "--quiet", str(QUIET_SECONDS))
        print(f"| {name} | {document['fault']} | {seconds:.1f} |")


def main() -> None:
    cost()
    healthy()
    hangs()


if __name__ == "__main__":
    main()
