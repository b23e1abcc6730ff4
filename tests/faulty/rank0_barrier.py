"""Fault: a barrier that only rank 0 comes to, in the block that saves the checkpoint."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def save(model: torch.nn.Module) -> None:
    print(f"saving {sum(p.numel() for p in model.parameters())} parameters", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    for step in range(20):
        model(torch.randn(4, 8)).square().mean().backward()
        if rank == 0 and step % 5 == 4:
            save(model)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
