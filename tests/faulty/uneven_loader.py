"""Fault: rank 0 has more batches than the others, which wait at a barrier after the loop."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


def make_loader() -> DataLoader:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(torch.randn(41, 8), torch.randn(41, 1))
    mine = Subset(data, range(rank, len(data), world_size))
    return DataLoader(mine, batch_size=4)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    loader = make_loader()
    for step, (x, y) in enumerate(loader):
        loss = (model(x) - y).square().mean()
        loss.backward()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
