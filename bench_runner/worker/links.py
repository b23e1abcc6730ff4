"""Time the links between ranks: all-reduce over all, and there and back between every pair; values checked.

``python -m bench_runner.worker.links LAUNCH_JSON``, started by torchrun.  Options of the launch: ``sizes`` and
``pair_sizes`` (bytes), ``budget_seconds`` (about how long a size is timed), ``most_calls``, ``pairs`` (whether to go
through the pairs).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any, Final

import torch
import torch.distributed as dist

from bench_runner.spec import RunSpec
from bench_runner.worker import devices, probing, settings
from bench_runner.worker.channel import Channel
from bench_runner.worker.collectives import pattern
from bench_runner.worker.devices import Device, time_repeated
from bench_runner.worker.group import Group, Ranks

FEWEST_CALLS: Final = 3


def body(launch: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """Join, measure, leave."""
    options: dict[str, Any] = launch["options"]
    spec = RunSpec.from_json(launch["specs"][0])
    ranks = Ranks.from_environment()
    settings.apply(ranks.local_rank, ranks.local_world_size, on_cpu=spec.device_kind == "cpu", options=options)
    channel.state("device")
    device = devices.select(spec.device_kind, ranks.local_rank, 1)
    channel.state("joining")
    group = Group(device, ranks, wanted=True, timeout_seconds=float(options.get("group_timeout_seconds", 120.0)))
    group.barrier()
    channel.state("joined")
    channel.state("case", 0)
    measured: dict[str, Any] = {"backend": group.backend, "uuid": device.uuid()}
    measured["all_reduce"] = sweep(AllReduce(device, group.size, None), device, group.agree_min, options)
    measured["pairs"] = pairs(device, group, options) if options.get("pairs", True) else {}
    group.leave()
    return measured


class AllReduce:
    """An all-reduce over a group whose ranks contribute the pattern times their position in it, from 1."""

    def __init__(self, device: Device, size: int, group: Any) -> None:
        self.device, self.size, self.group = device.torch, size, group
        self.position = dist.get_rank(group) + 1
        self.buffer = torch.empty(0)

    def prepare(self, message_bytes: int) -> None:
        """A buffer for messages of this size."""
        self.buffer = torch.zeros(message_bytes // 4, device=self.device)

    def call(self) -> None:
        """The operation."""
        dist.all_reduce(self.buffer, group=self.group)

    def check(self) -> bool:
        """One call with values that every rank can predict; the buffer is zero again afterwards."""
        expected = pattern(len(self.buffer), 0, self.device)
        self.buffer.copy_(expected * float(self.position))
        self.call()
        right = torch.equal(self.buffer, expected * float(self.size * (self.size + 1) // 2))
        self.buffer.zero_()
        return right


class ThereAndBack:
    """A message to the peer and back: half of it is the time of one way."""

    def __init__(self, device: Device, mine: int, peer: int) -> None:
        self.device, self.first, self.peer = device.torch, mine < peer, peer
        self.buffer = torch.empty(0)

    def prepare(self, message_bytes: int) -> None:
        """A buffer for messages of this size."""
        self.buffer = torch.zeros(message_bytes // 4, device=self.device)

    def call(self) -> None:
        """The lower rank sends and waits for the answer."""
        if self.first:
            dist.send(self.buffer, self.peer)
            dist.recv(self.buffer, self.peer)
        else:
            dist.recv(self.buffer, self.peer)
            dist.send(self.buffer, self.peer)

    def check(self) -> bool:
        """The second rank sends back the double of what it got; both know what they must receive."""
        sent = pattern(len(self.buffer), 0, self.device)
        if self.first:
            self.buffer.copy_(sent)
            self.call()
            right = torch.equal(self.buffer, sent * 2)
        else:
            dist.recv(self.buffer, self.peer)
            right = torch.equal(self.buffer, sent)
            self.buffer.mul_(2)
            dist.send(self.buffer, self.peer)
        self.buffer.zero_()
        return right


def sweep(
    operation: AllReduce | ThereAndBack,
    device: Device,
    agree_min: Callable[[float], float],
    options: dict[str, Any],
    sizes: str = "sizes",
) -> dict[str, Any]:
    """``seconds`` of each call per size, and the sizes with wrong values; those get no times.

    ``sizes`` names the option that lists the message sizes in bytes.
    """
    seconds: dict[int, list[float]] = {}
    wrong: list[int] = []
    for message_bytes in options[sizes]:
        operation.prepare(int(message_bytes))
        right = operation.check()
        calls = _calls(operation.call, device, agree_min, options)
        times, _ = time_repeated(device, operation.call, calls)
        right = operation.check() and right
        if agree_min(1.0 if right else 0.0) == 1.0:
            seconds[int(message_bytes)] = times
        else:
            wrong.append(int(message_bytes))
    return {"seconds": seconds, "wrong": wrong}


def _calls(
    call: Callable[[], None], device: Device, agree_min: Callable[[float], float], options: dict[str, Any]
) -> int:
    """Warm the size up with one call, and the number of calls that fits into the budget, the same on every rank."""
    call()
    device.synchronize()
    begin = time.perf_counter()
    call()
    device.synchronize()
    affordable = agree_min(float(options["budget_seconds"]) / max(time.perf_counter() - begin, 1e-7))
    return min(int(options["most_calls"]), max(FEWEST_CALLS, int(affordable)))


def pairs(device: Device, group: Group, options: dict[str, Any]) -> dict[str, Any]:
    """Every pair in turn while the others wait; on this rank the pairs it belongs to.

    All ranks create every pair's group, in one order, as ``new_group`` demands.  With two ranks the pair's all-reduce
    is the one over all and is not repeated.
    """
    found: dict[str, Any] = {}
    for first, second in combinations(range(group.size), 2):
        pair = dist.new_group([first, second])
        if group.ranks.rank in (first, second):
            peer = second if group.ranks.rank == first else first
            agree = _agree_within(pair, device)
            measured = {
                "send": sweep(ThereAndBack(device, group.ranks.rank, peer), device, agree, options, "pair_sizes")
            }
            if group.size > 2:
                measured["all_reduce"] = sweep(AllReduce(device, 2, pair), device, agree, options, "pair_sizes")
            found[f"{first}-{second}"] = measured
        group.barrier()
        dist.destroy_process_group(pair)
    return found


def _agree_within(pair: Any, device: Device) -> Callable[[float], float]:
    def agree_min(value: float) -> float:
        tensor = torch.tensor([value], dtype=torch.float32, device=device.torch)
        dist.all_reduce(tensor, dist.ReduceOp.MIN, group=pair)
        return float(tensor.item())

    return agree_min


if __name__ == "__main__":
    probing.leave(probing.run(sys.argv[1:], body))
