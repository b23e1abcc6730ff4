"""Is the suite's own clockwork in the figures?  ``python -m tests.evaluate.fidelity_blocks`` prints a table.

In one launch, one process a rank, the suite's loop and a loop as one writes it by hand take turns, block by block, on
models of the same seed; so both have the same cores, memory and neighbours, and what is left is what the suite adds.  A
row gives the median over all blocks of all launches of suite / bare (the median step of a block for trainings; the mean
call over ranks against the back-to-back loop for all-reduce), with a bootstrap interval of 95 %.  Whole launches
against whole scripts are ``tests.evaluate.fidelity``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from scipy.stats import bootstrap
from torch.nn.parallel import DistributedDataParallel

from bench_runner.profile import load
from bench_runner.spec import RunSpec, Training
from bench_runner.worker import settings, workloads
from bench_runner.worker.collectives import Buffers
from bench_runner.worker.devices import Device, time_repeated
from bench_runner.worker.group import Group, Ranks
from bench_runner.worker.training import Trainer
from tests.evaluate.bare_launch import ROOT, specs_of

STEPS = 10
SECONDS_PER_BLOCK = 0.2
CPU = Device("cpu", 0)
Block = Callable[[], float]


def bare_training(task: Training, distributed: bool) -> Block:
    """Ten steps by hand; the median step in seconds."""
    torch.manual_seed(0)
    workload = workloads.build(task.workload)
    model = DistributedDataParallel(workload.model) if distributed else workload.model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    inputs, target = workload.batch(task.per_device_batch(1), torch.device("cpu"))

    def block() -> float:
        times = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            workload.loss(model(inputs), target).backward()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    return block


def suite_training(spec: RunSpec, task: Training, group: Group) -> Block:
    """The same by the suite."""
    trainer = Trainer(spec, task, CPU, group)
    return lambda: statistics.median(time_repeated(CPU, trainer.step, STEPS)[0])


def all_reduces(size: int, group: Group) -> tuple[Block, Block]:
    """The mean call of a block in seconds: the suite's, over calls and ranks, and a back-to-back loop's."""
    buffers = Buffers("all_reduce", size, CPU, group)
    bare = torch.zeros(size // 4)
    begin = time.perf_counter()
    for _ in range(5):
        dist.all_reduce(bare)
    calls = max(5, min(200, int(group.agree_min(SECONDS_PER_BLOCK / ((time.perf_counter() - begin) / 5)))))

    def suite_block() -> float:
        group.barrier()
        return group.agree_sum(statistics.fmean(time_repeated(CPU, buffers.call, calls)[0])) / group.size

    def bare_block() -> float:
        group.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(bare)
        return (time.perf_counter() - begin) / calls

    return suite_block, bare_block


def in_turns(suite: Block, bare: Block, blocks: int) -> list[tuple[float, float]]:
    """Pairs of blocks, each kind first every second time; one pair as a warm-up."""
    suite(), bare()
    pairs = []
    for number in range(blocks):
        if number % 2:
            second = bare()
            pairs.append((suite(), second))
        else:
            pairs.append((suite(), bare()))
    return pairs


def worker(strategy: str, blocks: int, path: Path) -> None:
    """One rank; rank 0 writes the pairs of each name."""
    ranks = Ranks.from_environment()
    settings.apply(ranks.local_rank, ranks.local_world_size, on_cpu=True, options={})
    group = Group(CPU, ranks, wanted=strategy == "ddp", timeout_seconds=600)
    found = {}
    for spec in specs_of(load("quick"), strategy, ranks.world_size, ranks.world_size):
        if isinstance(spec.task, Training):
            sides = suite_training(spec, spec.task, group), bare_training(spec.task, strategy == "ddp")
            found[spec.task.workload] = in_turns(*sides, blocks)
        elif ranks.world_size > 1:
            for size in spec.task.message_bytes:
                found[f"all-reduce {size}"] = in_turns(*all_reduces(size, group), blocks)
    if ranks.rank == 0:
        path.write_text(json.dumps(found))
    group.leave()


def launch(strategy: str, devices: int, blocks: int) -> dict[str, list[tuple[float, float]]]:
    """All pairs of one launch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}", "-m"]
        command += ["tests.evaluate.fidelity_blocks", "--worker", strategy, "--blocks", str(blocks), "--to", str(path)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=900, env=one_thread())
        found: dict[str, list[tuple[float, float]]] = json.loads(path.read_text())
        return found


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def row(what: str, pairs: list[tuple[float, float]]) -> str:
    ratios = np.array([suite / bare for suite, bare in pairs])
    interval = bootstrap((ratios,), np.median, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    ours, bare = (statistics.median(pair[side] for pair in pairs) * 1e3 for side in (0, 1))
    return (
        f"| {what} | {ours:.3f} ms | {bare:.3f} ms | {np.median(ratios):.3f} | {interval.low:.3f}–{interval.high:.3f} "
        f"| {len(pairs)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--worker")
    parser.add_argument("--to", type=Path)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.blocks, arguments.to)
        return
    print("| what | suite, median | bare, median | suite / bare: median | 95 % interval | blocks of each |")
    print("|---|---|---|---|---|---|")
    for strategy, devices in (("single", 1), ("ddp", 1), ("ddp", 2)):
        if devices > len(os.sched_getaffinity(0)):
            continue
        found = [launch(strategy, devices, arguments.blocks) for _ in range(arguments.launches)]
        for name in found[0]:
            print(row(f"{strategy} on {devices}: {name}", [pair for one in found for pair in one[name]]), flush=True)


if __name__ == "__main__":
    main()
