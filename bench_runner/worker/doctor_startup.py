"""One rank of ``doctor startup``: goes through the stages of a job's start and says each as it is reached.

Every value that comes back from a device or a link is compared with what it must be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench_runner.worker.devices import Device, select
from bench_runner.worker.doctor_ranks import start_group
from bench_runner.worker.workloads import build

BACKENDS: Final = {"cuda": "nccl", "xpu": "xccl", "npu": "hccl", "hpu": "hccl"}
_SIDE: Final = 256
_SIZES: Final = (1, 256, 1 << 18)
"""Elements of float32: 4 B, 1 KiB, 1 MiB; on accelerators 32 MiB as well."""

_LARGE: Final = 1 << 23
_STEPS: Final = 2


class WrongValuesError(Exception):
    """A computation or a transfer gave other values than it must."""


def run(rank: int, world: dict[str, Any], directory: Path, say: Any) -> None:
    """The stages up to ``options["until"]``: device, process-group, collective, training."""
    options = world["options"]
    say("phase", name="import", torch=torch.__version__)
    device = select(options["device_kind"], options["devices"][rank], 1)
    check_device(device)
    say("phase", name="device")
    if options["until"] == "device":
        return
    start_group(rank, world, directory, BACKENDS.get(options["device_kind"], "gloo"))
    say("phase", name="process-group")
    check_collectives(device, rank, world["world_size"])
    say("phase", name="collective")
    if options["until"] == "training":
        train(device, rank, world["world_size"], options)
        say("phase", name="training")
    dist.destroy_process_group()


def check_device(device: Device) -> None:
    """A matrix product of small whole numbers is exact in float32 on every device: max |value| is 256·7·7."""
    numbers = torch.arange(_SIDE * _SIDE, dtype=torch.float32).reshape(_SIDE, _SIDE) % 8
    expected = numbers @ numbers.T
    there = numbers.to(device.torch)
    result = (there @ there.T).cpu()
    if not torch.equal(result, expected):
        wrong = int((result != expected).sum())
        raise WrongValuesError(f"{device.torch}: {wrong} of {expected.numel()} elements of a matrix product are wrong")


def check_collectives(device: Device, rank: int, world_size: int) -> None:
    """An all-reduce of values that depend on rank and place, against the sum that every rank can work out."""
    sizes = _SIZES if device.is_cpu else (*_SIZES, _LARGE)
    factor = world_size * (world_size + 1) // 2
    for size in sizes:
        places = torch.arange(size, device=device.torch, dtype=torch.float32) % 1000
        sent = places * (rank + 1)
        dist.all_reduce(sent)
        device.synchronize()
        wrong = int((sent != places * factor).sum())
        if wrong:
            raise WrongValuesError(f"all-reduce of {4 * size} bytes: {wrong} of {size} values are wrong on rank {rank}")


def train(device: Device, rank: int, world_size: int, options: dict[str, Any]) -> None:
    """A few steps of the workload under DDP; afterwards every rank must hold the same gradients."""
    torch.manual_seed(0)
    workload = build(options["workload"])
    model = DistributedDataParallel(
        workload.model.to(device.torch), device_ids=None if device.is_cpu else [device.index]
    )
    torch.manual_seed(rank)
    for _ in range(_STEPS):
        inputs, target = workload.batch(options["batch"], device.torch)
        model.zero_grad()
        loss = workload.loss(model(inputs), target)
        loss.backward()
        device.synchronize()
    if not bool(torch.isfinite(loss)):
        raise WrongValuesError(f"the loss is {loss.item()} on rank {rank}")
    total = torch.stack([p.grad.double().sum() for p in model.parameters() if p.grad is not None]).float()
    gathered = [torch.empty_like(total) for _ in range(world_size)]
    dist.all_gather(gathered, total)
    unlike = [other for other, sums in enumerate(gathered) if not torch.equal(sums, gathered[0])]
    if unlike:
        raise WrongValuesError(f"after DDP's average the gradients of ranks {unlike} differ from rank 0's")
