"""One rank of the skew probe of ``doctor memory``: loads a checkpoint as it was saved, and mapped to where it belongs.

The checkpoint is saved from device 0 by rank 0.  On accelerators "mapped" is ``map_location`` to the rank's own device;
on the CPU, where there is one memory for all, it is ``mmap=True``, which leaves the tensors in the file.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from bench_runner.worker.devices import Device, select
from bench_runner.worker.doctor_ranks import start_group

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def run(rank: int, world: dict[str, Any], directory: Path, say: Any) -> None:
    """Say by how much each way of loading made this rank grow, on the host and on every device."""
    options = world["options"]
    device = select(options["device_kind"], 0 if options["device_kind"] == "cpu" else rank, 1)
    start_group(rank, world, directory)
    path = directory / "checkpoint.pt"
    if rank == 0:
        where = "cpu" if device.is_cpu else f"{device.kind}:0"
        torch.save({"weight": torch.ones(options["bytes"] // 4, device=where)}, path)
    dist.barrier()
    ways: dict[str, dict[str, Any]] = {
        "as-saved": {},
        "mapped": {"mmap": True} if device.is_cpu else {"map_location": device.torch},
    }
    for how, arguments in ways.items():
        before = measure(device)
        content = torch.load(path, weights_only=True, **arguments)
        device.synchronize()
        after = measure(device)
        devices = [new - old for new, old in zip(after[1], before[1], strict=True)]
        say("load", how=how, resident=after[0] - before[0], devices=devices, elements=content["weight"].numel())
        del content
        gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def measure(device: Device) -> tuple[int, list[int]]:
    """Resident bytes of this process, and the bytes that its tensors take on every device of the kind."""
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    held = [] if device.is_cpu else [int(device.module.memory_allocated(index)) for index in range(device.count())]
    return resident, held
