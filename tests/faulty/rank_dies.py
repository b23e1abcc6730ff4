"""Fault: rank 1 meets a sample that cannot be read and raises; the others learn of it by a broken connection."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def read_sample(rank: int, step: int) -> torch.Tensor:
    if rank == 1 and step == 3:
        raise ValueError("sample 1003 is truncated")
    return torch.randn(4, 8)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    for step in range(20):
        x = read_sample(dist.get_rank(), step)
        model(x).square().mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
