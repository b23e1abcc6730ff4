"""A training and an all-reduce loop as one writes them by hand, to hold the suite's figures against.

Started by ``torchrun --standalone``; nothing of the suite but the model itself is used.  Arguments: a JSON file with
``quiet`` (the suite's process settings: a core per rank, SCHED_BATCH), ``trainings`` (workload, batch, warm-up, steps,
phase and no_sync steps) and ``sizes`` with ``calls``; rank 0 writes what it measured to the second argument.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench_runner.worker import workloads


def train(task: dict[str, Any], distributed: bool) -> dict[str, float]:
    torch.manual_seed(0)
    workload = workloads.build(task["workload"])
    model = DistributedDataParallel(workload.model) if distributed else workload.model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    inputs, target = workload.batch(task["batch"], torch.device("cpu"))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        workload.loss(model(inputs), target).backward()
        optimizer.step()

    for _ in range(task["warmup_steps"]):
        step()
    if distributed:
        dist.barrier()
    times = []
    for _ in range(task["steps"]):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    for _ in range(task["phase_steps"]):
        step()
    if distributed and dist.get_world_size() > 1:
        with model.no_sync():
            for _ in range(task["phase_steps"]):
                step()
    return {"median": statistics.median(times), "mean": statistics.fmean(times)}


def all_reduce(size: int, calls: int) -> float:
    """Mean seconds of a call over a back-to-back loop, as nccl-tests times it."""
    buffer = torch.zeros(size // 4)
    for _ in range(8):
        dist.all_reduce(buffer)
    # As many calls as half a second holds, between ten and those asked for, agreed upon by all ranks.
    begin = time.perf_counter()
    for _ in range(3):
        dist.all_reduce(buffer)
    affordable = torch.tensor([0.5 / ((time.perf_counter() - begin) / 3)])
    dist.all_reduce(affordable, dist.ReduceOp.MIN)
    count = max(1, min(calls, max(10, int(affordable.item()))))
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(buffer)
    return (time.perf_counter() - begin) / count


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if task["quiet"]:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[local_rank % len(cores)]})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    torch.set_num_threads(1)
    distributed = task["strategy"] == "ddp"
    if distributed:
        dist.init_process_group("gloo")
    found: dict[str, Any] = {"trainings": [train(training, distributed) for training in task["trainings"]]}
    if distributed and dist.get_world_size() > 1:
        found["latency"] = {size: all_reduce(size, task["calls"]) for size in task["sizes"]}
    if rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
