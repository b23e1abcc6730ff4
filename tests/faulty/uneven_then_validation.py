"""Fault: uneven batches, and a validation loop behind them whose collectives take the place of the missing ones."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


def make_loader(samples: int) -> DataLoader:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(torch.randn(samples, 8), torch.randn(samples, 1))
    return DataLoader(Subset(data, range(rank, len(data), world_size)), batch_size=4)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    train, validation = make_loader(41), make_loader(16)
    for x, y in train:
        (model(x) - y).square().mean().backward()
    print(f"rank {dist.get_rank()} trained", flush=True)
    model.eval()
    with torch.no_grad():
        for x, y in validation:
            error = (model.module(x) - y).square().sum(dim=0, keepdim=True).repeat(9, 1).reshape(9)
            dist.all_reduce(error)
    print(f"rank {dist.get_rank()} validated", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
