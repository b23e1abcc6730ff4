"""Time collectives over message sizes, and check on every rank that they computed what they should.

Sizes are counted as nccl-tests does: the bytes of the larger of a rank's send and receive buffers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from bench_runner.spec import Collective, Operation
from bench_runner.worker.devices import Device, time_repeated
from bench_runner.worker.group import Group

PERIOD: Final = 251
"""The checked pattern repeats after this prime number of elements, so that a shifted or repeated block is seen."""
FEWEST_CALLS: Final = 10
SECONDS_PER_SIZE: Final = 0.5
"""A size is timed for about this long, within ``FEWEST_CALLS`` and the calls asked for."""
# torch 2.13 renamed these two and warns about the old names; older ones have only those.
_ALL_GATHER: Final[Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Final[Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def pattern(elements: int, first: int, device: torch.device) -> torch.Tensor:
    """Small whole numbers that depend on the position: float32 sums of them are exact for thousands of ranks."""
    period = torch.arange(PERIOD, device=device, dtype=torch.float32)
    begin = first % PERIOD
    return period.repeat((begin + elements) // PERIOD + 1)[begin : begin + elements]


class Buffers:
    """The buffers of one operation at one size, how to fill them, call it, and what must come out.

    ``elements`` is rounded down to a multiple of the ranks where the buffer is divided among them.
    """

    def __init__(self, operation: Operation, message_bytes: int, device: Device, group: Group) -> None:
        self.operation = operation
        self.rank, self.size, self.device = group.ranks.rank, group.size, device.torch
        whole = message_bytes // 4
        self.part = max(1, whole // self.size)
        self.elements = self.part * self.size if operation in ("all_gather", "reduce_scatter") else whole
        self.full = torch.zeros(self.elements, device=self.device)
        self.shard = torch.zeros(self.part, device=self.device)

    def fill(self) -> None:
        """Put this rank's contribution in place."""
        mine = float(self.rank + 1)
        if self.operation == "all_gather":
            self.full.zero_()
            self.shard.copy_(pattern(self.part, 0, self.device) * mine)
            return
        self.shard.zero_()
        self.full.copy_(pattern(self.elements, 0, self.device) * mine)

    def clear(self) -> None:
        """Zeros: repeated sums in place would leave float32's range, and denormal numbers are slow on CPUs."""
        self.full.zero_()
        self.shard.zero_()

    def call(self) -> None:
        """The operation itself, in stream order."""
        if self.operation == "all_reduce":
            dist.all_reduce(self.full)
        elif self.operation == "broadcast":
            dist.broadcast(self.full, src=0)
        elif self.operation == "all_gather":
            _ALL_GATHER(self.full, self.shard)
        else:
            _REDUCE_SCATTER(self.shard, self.full)

    def correct(self) -> bool:
        """Whether every element is what the ranks' contributions give."""
        total = float(self.size * (self.size + 1) // 2)
        if self.operation == "all_reduce":
            return torch.equal(self.full, pattern(self.elements, 0, self.device) * total)
        if self.operation == "broadcast":
            return torch.equal(self.full, pattern(self.elements, 0, self.device))
        if self.operation == "reduce_scatter":
            expected = pattern(self.part, self.rank * self.part, self.device) * total
            return torch.equal(self.shard, expected)
        parts = [pattern(self.part, 0, self.device) * float(rank + 1) for rank in range(self.size)]
        return torch.equal(self.full, torch.cat(parts))


def _checked_call(buffers: Buffers) -> bool:
    buffers.fill()
    buffers.call()
    return buffers.correct()


def _calls_for(call: Callable[[], None], task: Collective, device: Device, group: Group) -> int:
    """Warm this size up, and the number of calls to time, the same on every rank."""
    for _ in range(task.warmup_calls):
        call()
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(3):
        call()
    device.synchronize()
    seconds = max((time.perf_counter() - begin) / 3, 1e-7)
    affordable = group.agree_min(SECONDS_PER_SIZE / seconds)
    return max(1, min(task.calls, max(FEWEST_CALLS, int(affordable))))


def measure(task: Collective, device: Device, group: Group) -> dict[str, Any]:
    """Time the operation at every size: fields ``collective_seconds`` and ``wrong_values`` of ``RankSamples``.

    Values are checked on every rank before and after the timed calls; a size at which any rank saw a wrong value gets
    no times on any rank.
    """
    seconds: dict[int, list[float]] = {}
    wrong: list[int] = []
    for message_bytes in task.message_bytes:
        buffers = Buffers(task.operation, message_bytes, device, group)
        right = _checked_call(buffers)
        buffers.clear()
        calls = _calls_for(buffers.call, task, device, group)
        group.barrier()
        times, _ = time_repeated(device, buffers.call, calls)
        right = _checked_call(buffers) and right
        if group.agree_min(1.0 if right else 0.0) == 1.0:
            seconds[message_bytes] = times
        else:
            wrong.append(message_bytes)
    return {"collective_seconds": seconds, "wrong_values": wrong}
