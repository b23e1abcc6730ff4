"""The ranks of a launch: who this one is, and the process group they form."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from bench_runner.worker.devices import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among the others, as torchrun says through ``env://``."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node: int

    @staticmethod
    def from_environment() -> Ranks:
        """Read RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and GROUP_RANK; a process of its own is rank 0 of 1."""
        rank = int(os.environ.get("RANK", "0"))
        return Ranks(
            rank=rank,
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            node=int(os.environ.get("GROUP_RANK", "0")),
        )


class Group:
    """The process group, or the lack of one: with strategies of one process nothing has to be joined.

    NCCL is tied to the device from the start, so that no rank opens a context on device 0 by accident.
    """

    def __init__(self, device: Device, ranks: Ranks, *, wanted: bool, timeout_seconds: float) -> None:
        self._device = device
        self.ranks = ranks
        self.backend: str | None = None
        if wanted:
            self.backend = dist.get_default_backend_for_device(device.torch)
            # A rank alone is started without torchrun, and so without a store to meet others at.
            alone = ranks.world_size == 1 and "MASTER_ADDR" not in os.environ
            meeting = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {"init_method": "env://"}
            dist.init_process_group(
                self.backend,
                **meeting,
                timeout=timedelta(seconds=timeout_seconds),
                device_id=None if device.is_cpu else device.torch,
            )

    @property
    def size(self) -> int:
        return self.ranks.world_size if self.backend else 1

    def barrier(self) -> None:
        """Wait for all ranks; every rank must come here."""
        if self.backend and self.size > 1:
            self.agree_sum(1.0)

    def agree_sum(self, value: float) -> float:
        """The sum of ``value`` over all ranks; every rank must come here."""
        return self._agree(value, dist.ReduceOp.SUM)

    def agree_min(self, value: float) -> float:
        """The smallest ``value`` of all ranks; every rank must come here."""
        return self._agree(value, dist.ReduceOp.MIN)

    def _agree(self, value: float, operation: dist.ReduceOp.RedOpType) -> float:
        if not self.backend or self.size == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64 if self._device.is_cpu else torch.float32)
        tensor = tensor.to(self._device.torch)
        dist.all_reduce(tensor, operation)
        return float(tensor.item())

    def leave(self) -> None:
        """Take the group down: peers that merely vanish make the others abort now and then."""
        if self.backend:
            self._device.synchronize()
            dist.destroy_process_group()
