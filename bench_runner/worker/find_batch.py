"""Find the largest batch that fits, per strategy, by doubling and then halving the gap.

All ranks try the same batch and agree on the outcome after each trial.  A trial runs without gradient communication
(the buffers for it exist), so that a rank that runs out of memory leaves no other one waiting in a collective.
"""

from __future__ import annotations

import gc
import re
import resource
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final, Literal

from torch.nn.parallel import DistributedDataParallel

from bench_runner.spec import RunSpec, Training
from bench_runner.worker.data import DeviceBatch
from bench_runner.worker.devices import Device
from bench_runner.worker.failures import is_out_of_memory
from bench_runner.worker.group import Group
from bench_runner.worker.memory import proc_bytes
from bench_runner.worker.training import Trainer

TRIAL_SECONDS_AT_MOST: Final = 5.0
"""A batch whose step takes longer than this is not doubled again."""


_ONEDNN_WITHOUT_MEMORY: Final = re.compile(
    r"could not (create|execute|initialize) a [a-z ]*(primitive|memory|scratchpad)"
)
"""What oneDNN says when its own allocation fails: it drops the reason.  The same operations ran with one sample
before, under the same limit, so memory is what is missing."""

Trial = Literal["fits", "fails", "slow"]
"""``slow``: it fits, but so large a step takes too long to go on."""


def largest_that_fits(attempt: Callable[[int], Trial], first: int, limit: int) -> tuple[int, int | None]:
    """The largest batch ≤ ``limit`` that fits, and the smallest tried one that does not.

    Fitting must be monotonic.  (0, 1) if not even one sample fits; (n, None) if nothing failed up to n, the limit or
    the first batch that was slow.
    """
    good, bad = 0, None
    batch = min(first, limit)
    while bad is None and good < limit:
        outcome = attempt(batch)
        if outcome == "fails":
            bad = batch
        elif outcome == "slow":
            return batch, None
        else:
            good, batch = batch, min(batch * 2, limit)
    while bad is not None and bad - good > max(1, good // 64):
        middle = (good + bad) // 2
        if attempt(middle) == "fails":
            bad = middle
        else:
            good = middle
    return good, bad


def limit_cpu_memory(group: Group, limit_bytes: int | None) -> int:
    """Let allocations beyond this rank's share of the free memory fail, instead of the kernel killing the process.

    ``limit_bytes``: for each rank; None takes four fifths of what is available, divided by the ranks of this node.
    """
    if limit_bytes is None:
        limit_bytes = int(proc_bytes("/proc/meminfo", "MemAvailable:") * 0.8) // group.ranks.local_world_size
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    used = proc_bytes("/proc/self/status", "VmData:")
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit_bytes, hard))
    return limit_bytes


def measure(spec: RunSpec, task: Training, device: Device, group: Group, options: dict[str, Any]) -> dict[str, Any]:
    """Fields ``largest_batch`` and ``smallest_failing_batch`` of ``RankSamples``, per device."""
    limit = int(options.get("largest_batch", 1 << 16))
    if device.is_cpu:
        limit_cpu_memory(group, options.get("memory_limit_bytes"))
    small = replace(task, batch=1 if task.scaling == "weak" else spec.device_count, data="device", warmup_steps=1)
    trainer = Trainer(spec, small, device, group)
    trainer.step()
    devices_in_process = spec.device_count if spec.strategy == "data_parallel" else 1

    def attempt(batch: int) -> Trial:
        begin = time.perf_counter()
        fitted = _trial(trainer, batch * devices_in_process)
        quick = time.perf_counter() - begin < TRIAL_SECONDS_AT_MOST
        if group.agree_min(1.0 if fitted else 0.0) == 0.0:
            return "fails"
        return "fits" if group.agree_min(1.0 if quick else 0.0) == 1.0 else "slow"

    good, bad = largest_that_fits(attempt, task.per_device_batch(spec.device_count), limit)
    if device.is_cpu:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return {"largest_batch": good, "smallest_failing_batch": bad, "parameters": trainer.parameters}


def _trial(trainer: Trainer, samples: int) -> bool:
    """Whether one whole step with so many samples in this process fits into memory."""
    model = trainer.model
    try:
        trainer.source = DeviceBatch(trainer.workload, samples, trainer.device)
        with model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext():
            trainer.step()
        trainer.device.synchronize()
        fitted = True
    except (RuntimeError, MemoryError) as error:
        if not (is_out_of_memory(error) or (trainer.device.is_cpu and _is_onednn_without_memory(error))):
            raise
        fitted = False
    # Only outside the handler: the traceback held the tensors of the failed step.
    trainer.forget_batch()
    gc.collect()
    if not trainer.device.is_cpu:
        trainer.device.module.empty_cache()
    return fitted


def _is_onednn_without_memory(error: BaseException) -> bool:
    return _ONEDNN_WITHOUT_MEMORY.match(str(error)) is not None
