"""Fault: rank 1 is killed from outside, as the kernel does when memory runs out; it leaves no traceback."""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    for step in range(20):
        if dist.get_rank() == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.randn(4, 8)).square().mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
