"""What is done to a worker process before it measures, so that the numbers are those of the work and not of the
scheduler.  All of it is recorded, and results with unlike settings are not compared."""

from __future__ import annotations

import os
from typing import Any

import torch


def share_of_cores(cores: list[int], local_rank: int, cores_per_rank: int) -> list[int]:
    """The cores of one rank: its own block of the allowed ones, going round again when there are too few."""
    first = local_rank * cores_per_rank
    return sorted({cores[(first + i) % len(cores)] for i in range(cores_per_rank)})


def apply(local_rank: int, local_world_size: int, *, on_cpu: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Settle threads, cores and scheduling class; returns the fields of ``ProcessSettings``.

    On a CPU "device" each rank gets cores of its own (``options["cores_per_device"]``, default 1), as many threads as
    cores, and SCHED_BATCH: without it gloo's small all-reduces wait for whole scheduler ticks.  Beside an accelerator
    the process keeps what it was given, with OMP_NUM_THREADS as the launch set it.
    """
    cores = sorted(os.sched_getaffinity(0))
    scheduler = "other"
    if on_cpu:
        cores_per_rank = max(1, int(options.get("cores_per_device", 1)))
        oversubscribed = local_world_size * cores_per_rank > len(cores)
        cores = share_of_cores(cores, local_rank, cores_per_rank)
        if options.get("quiet", True):
            os.sched_setaffinity(0, cores)
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            scheduler = "batch"
        torch.set_num_threads(len(cores))
    else:
        oversubscribed = local_world_size > len(cores)
    torch.set_num_interop_threads(1)
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cores": cores,
        "scheduler": scheduler,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "oversubscribed": oversubscribed,
    }
