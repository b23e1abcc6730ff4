"""Fault: a data loader's worker waits for ever, here for a lock that nobody gives back."""

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CACHE_LOCK = threading.Lock()


class Cached(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 21 and int(os.environ["RANK"]) == 1:
            CACHE_LOCK.acquire()
            CACHE_LOCK.acquire()
        return torch.randn(8)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    for x in DataLoader(Cached(), batch_size=4, num_workers=1):
        model(x).square().mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
