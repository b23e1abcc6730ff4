"""``doctor watch``: what it costs the watched job, whether healthy jobs stay clean, and how soon a hang is explained.

    python -m tests.evaluate.watching

Prints Markdown tables: the CPU time of the watch itself, without that of the job below it, and the median step of a
two-rank gloo training alone and watched, in alternating rounds; the verdicts of 20 healthy runs; and for hanging
trainers the verdict and the time from the last line of output to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

from bench_runner.doctor.job import cpu_seconds

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests" / "faulty"
ROUNDS = 4
HEALTHY_RUNS = 20
QUIET_SECONDS = 10.0
POLL_SECONDS = 0.25
STARTED_SECONDS = 4.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One watched job.  ``after_output_seconds``: from the job's last line to the end of the watch, None without one;
    ``cpu_share``: CPU time of the watch's own process for a second of watching, once it has started."""

    document: dict[str, Any]
    output: str
    after_output_seconds: float | None
    cpu_share: float


def watched(command: list[str], *options: str) -> Watched:
    arguments = [sys.executable, "-m", "bench_runner", "doctor", "watch", "--json", "--kill", *options, "--", *command]
    lines: list[tuple[float, str]] = []
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(arguments, env=environment(), stdout=said, stderr=subprocess.PIPE, text=True)
        stream = process.stderr
        assert stream is not None
        reader = Thread(target=lambda: lines.extend((time.monotonic(), line) for line in stream))
        reader.start()
        began = time.monotonic()
        uses = [(began, 0.0)]
        while process.poll() is None:
            uses.append((time.monotonic(), cpu_seconds([process.pid])))
            time.sleep(POLL_SECONDS)
        ended = time.monotonic()
        reader.join()
        said.seek(0)
        document = json.load(said)
    settled = [use for use in uses[:-1] if use[0] - began > STARTED_SECONDS] or uses[:1]
    (first, before), (last, after) = settled[0], settled[-1]
    return Watched(
        document=document,
        output="".join(line for _, line in lines),
        after_output_seconds=ended - lines[-1][0] if lines else None,
        cpu_share=(after - before) / max(last - first, POLL_SECONDS),
    )


def step_of(output: str) -> float:
    return next(float(line.split()[1]) for line in output.splitlines() if line.startswith("median "))


def cost() -> None:
    print("| round | median step alone, ms | watched, ms | difference | CPU of the watch, ms per s |")
    print("|---|---|---|---|---|")
    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "steps.py"
        program.write_text(STEPS)
        for number in range(1, ROUNDS + 1):
            done = subprocess.run(torchrun(program), env=environment(), capture_output=True, text=True, check=True)
            alone = step_of(done.stdout)
            watch = watched(torchrun(program))
            with_watch = step_of(watch.output)
            ratios.append(with_watch / alone)
            shares.append(watch.cpu_share)
            difference = 100 * (with_watch / alone - 1)
            print(
                f"| {number} | {alone * 1e3:.3f} | {with_watch * 1e3:.3f} | {difference:+.1f} % |"
                f" {watch.cpu_share * 1e3:.1f} |"
            )
    cores = len(os.sched_getaffinity(0))
    print(
        f"\nThe watch takes {100 * median(shares):.2f} % of one core, {100 * median(shares) / cores:.2f} % of the job's"
        f" {cores}. Median difference of the steps: {100 * (median(ratios) - 1):+.1f} % (as noisy as the machine).\n"
    )


def healthy() -> None:
    verdicts = Counter(watched(torchrun(FAULTY / "healthy.py")).document["fault"] for _ in range(HEALTHY_RUNS))
    print(f"Healthy runs: {HEALTHY_RUNS}, clean: {verdicts[None]}; false alarms: {HEALTHY_RUNS - verdicts[None]}.\n")


def hangs() -> None:
    print("| trainer | verdict | from the last line of output to the verdict, beyond T, s |\n|---|---|---|")
    for name in HANGING:
        watch = watched(torchrun(FAULTY / f"{name}.py"), "--quiet", str(QUIET_SECONDS))
        after = watch.after_output_seconds
        beyond = "no output" if after is None else f"{after - QUIET_SECONDS:.1f}"
        print(f"| {name} | {watch.document['fault']} | {beyond} |")
    print(
        f"\nT, the time without progress, is {QUIET_SECONDS:.0f} s; the end of the job by --kill is part of the figure."
    )


def main() -> None:
    cost()
    healthy()
    hangs()


if __name__ == "__main__":
    main()
