"""Fault: the port is written into the script, as in the tutorial, and another job has it."""

import os
from datetime import timedelta

import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank: int, world_size: int) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = os.environ["TAKEN_PORT"]
    timeout = timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800")))
    dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timeout)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
