"""Data loaders as users write them, each with one fault; ``healthy_*`` have none."""

import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    get_worker_info,
    random_split,
)


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count, dtype=torch.float32).reshape(count, 1))


class Stream(IterableDataset):
    """Numbers from 0 on; ``divide`` says among whom: nobody, ranks, or ranks and workers."""

    def __init__(self, count: int, divide: str) -> None:
        self.count = count
        self.divide = divide

    def __iter__(self):
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info and self.divide == "ranks and workers" else (1, 0)
        ranks, rank = (1, 0) if self.divide == "nobody" else (dist.get_world_size(), dist.get_rank())
        for number in range(rank * workers + worker, self.count, ranks * workers):
            yield torch.tensor([float(number)])


def healthy_split() -> DataLoader:
    train, _ = random_split(numbers(40), [32, 8], generator=torch.Generator().manual_seed(1))
    return DataLoader(train, batch_size=4, sampler=DistributedSampler(train, shuffle=False))


def healthy_stream() -> DataLoader:
    return DataLoader(Stream(64, "ranks and workers"), batch_size=4, num_workers=1)


def healthy_own_files(rank: int) -> DataLoader:
    """Every rank reads files of its own: the same indices are other samples."""
    return DataLoader(
        TensorDataset(torch.full((16, 1), float(rank)) + torch.arange(16).reshape(16, 1) * 10), batch_size=4
    )


def padded() -> DataLoader:
    data = numbers(31)
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))


def not_divided() -> DataLoader:
    data = numbers(32)
    return DataLoader(data, batch_size=4, sampler=RandomSampler(data))


def stream_not_divided_by_worker() -> DataLoader:
    return DataLoader(Stream(64, "ranks"), batch_size=4, num_workers=2)


def no_samples() -> DataLoader:
    rank = int(os.environ["RANK"])
    return DataLoader(TensorDataset(torch.zeros(8 if rank == 0 else 3, 1)), batch_size=4, drop_last=True)


def raises() -> DataLoader:
    if int(os.environ["RANK"]) == 1:
        raise FileNotFoundError("/data/train/part-1.tar")
    return DataLoader(numbers(8), batch_size=4)


def stuck() -> DataLoader:
    class Slow(IterableDataset):
        def __iter__(self):
            yield torch.zeros(1)
            time.sleep(3600)

    return DataLoader(Slow(), batch_size=1)
