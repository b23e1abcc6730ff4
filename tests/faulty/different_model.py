"""Fault: the model's size comes from the data, and rank 1 sees one class fewer."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    classes = 10 if dist.get_rank() == 0 else 9
    model = DistributedDataParallel(torch.nn.Linear(8, classes))
    for _ in range(5):
        model(torch.randn(4, 8)).square().mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
