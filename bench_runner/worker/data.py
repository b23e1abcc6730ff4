"""Where a step's batch comes from: made once on the device, or through a real DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench_runner.worker.devices import Device
from bench_runner.worker.workloads import Workload


class BatchSource(Protocol):
    """Gives the next ``(inputs, target)`` on the device."""

    def next(self) -> tuple[Any, Any]: ...


class DeviceBatch:
    """One batch made on the device beforehand and used in every step: the input costs nothing."""

    def __init__(self, workload: Workload, samples: int, device: Device) -> None:
        self._batch = workload.batch(samples, device.torch)

    def next(self) -> tuple[Any, Any]:
        return self._batch


class LoaderBatches:
    """Batches through DataLoader and DistributedSampler, epoch after epoch, each in an order of its own.

    ``samples`` per rank and step, ``ranks`` shards of which this is ``rank``; an epoch is eight steps.
    """

    STEPS_PER_EPOCH = 8

    def __init__(
        self, workload: Workload, samples: int, device: Device, *, rank: int, ranks: int, workers: int, seed: int
    ) -> None:
        self._device = device
        generator_state = torch.random.get_rng_state()
        torch.manual_seed(seed)  # every rank must see the same data set, or the shards would not be shards of it
        tensors = workload.batch(samples * ranks * self.STEPS_PER_EPOCH, torch.device("cpu"))
        torch.random.set_rng_state(generator_state)
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise TypeError("data = loader needs a batch function that returns two tensors")
        data = TensorDataset(*tensors)
        self._sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=True, seed=seed)
        self._loader = DataLoader(
            data,
            batch_size=samples,
            sampler=self._sampler,
            num_workers=workers,
            pin_memory=not device.is_cpu,
            persistent_workers=workers > 0,
            drop_last=True,
        )
        self._epoch = -1
        self._batches: Iterator[Any] = iter(())

    def next(self) -> tuple[Any, Any]:
        batch = next(self._batches, None)
        if batch is None:
            self._epoch += 1
            self._sampler.set_epoch(self._epoch)
            self._batches = iter(self._loader)
            batch = next(self._batches)
        inputs, target = batch
        if self._device.is_cpu:
            return inputs, target
        return inputs.to(self._device.torch, non_blocking=True), target.to(self._device.torch, non_blocking=True)
