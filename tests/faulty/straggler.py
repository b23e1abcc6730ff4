"""Fault: rank 1 waits for something outside (a file that never comes), the others wait for rank 1."""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def wait_for_file(path: Path) -> None:
    while not path.exists():
        time.sleep(1)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    for step in range(20):
        if dist.get_rank() == 1 and step == 4:
            wait_for_file(Path("/nonexistent/labels.bin"))
        model(torch.randn(4, 8)).square().mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
