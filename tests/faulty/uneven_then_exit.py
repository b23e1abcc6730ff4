"""Fault: rank 0 has more batches than the others, which simply end: rank 0 crashes and did nothing wrong."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    for step in range(6 if dist.get_rank() == 0 else 5):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
