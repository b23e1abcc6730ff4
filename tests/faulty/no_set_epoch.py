"""Fault: DistributedSampler.set_epoch is never called, so that every epoch has the same order."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_loader() -> DataLoader:
    data = TensorDataset(torch.arange(64, dtype=torch.float32).reshape(64, 1))
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=True))


def epochs():
    """What the training loop below runs through, one loader an epoch."""
    loader = make_loader()
    for _ in range(2):
        yield loader


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    for loader in epochs():
        for (x,) in loader:
            model(x / 64).square().mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
