"""Fault: the world size in the settings is that of the old machine, and one rank fewer is started."""

import os
from datetime import timedelta

import torch.distributed as dist
import torch.multiprocessing as mp

WORLD_SIZE = 3
GPUS_OF_THE_NEW_MACHINE = 2


def train(rank: int) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = os.environ["FREE_PORT"]
    timeout = timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800")))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE, timeout=timeout)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, nprocs=GPUS_OF_THE_NEW_MACHINE)
