"""Time copies between the host and every device, and between every two devices; values checked.

``python -m bench_runner.worker.copies LAUNCH_JSON``: one process that sees all devices.  Options of the launch:
``copy_bytes``, ``copies`` (how often each is timed).  Before each pair a line is added to ``progress.txt`` in the
launch's directory, so that a copy that hangs has a name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import torch

from bench_runner.spec import RunSpec
from bench_runner.worker import devices, probing
from bench_runner.worker.channel import Channel
from bench_runner.worker.collectives import pattern
from bench_runner.worker.devices import Device, time_repeated

PROGRESS_NAME = "progress.txt"


def body(launch: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """Host copies of each device, then all ordered pairs."""
    options: dict[str, Any] = launch["options"]
    spec = RunSpec.from_json(launch["specs"][0])
    channel.state("device")
    devices.select(spec.device_kind, 0, spec.device_count)
    channel.state("joined")
    channel.state("case", 0)
    size, count = int(options["copy_bytes"]), int(options["copies"])
    progress = Path(sys.argv[1]).parent / PROGRESS_NAME
    seen = [Device(spec.device_kind, index) for index in range(spec.device_count)]
    host = [host_copies(device, size, count) for device in seen]
    pairs = []
    for source, target in permutations(seen, 2):
        with progress.open("a", encoding="utf-8") as file:
            file.write(f"{source.index} {target.index}\n")
        pairs.append(pair_copy(source, target, size, count))
    return {"host": host, "pairs": pairs}


def _timed(device: Device, call: Callable[[], object], count: int) -> list[float]:
    call()
    return time_repeated(device, call, count)[0]


def host_copies(device: Device, size: int, count: int) -> dict[str, Any]:
    """Pinned host memory to the device and back: seconds of each copy, and whether the values survived."""
    values = pattern(size // 4, 0, torch.device("cpu")).pin_memory()
    back = torch.zeros_like(values).pin_memory()
    on_device = torch.zeros(size // 4, device=device.torch)
    device.module.set_device(device.index)
    to_device = _timed(device, lambda: on_device.copy_(values, non_blocking=True), count)
    to_host = _timed(device, lambda: back.copy_(on_device, non_blocking=True), count)
    return {
        "device": device.index,
        "uuid": device.uuid(),
        "bytes": values.numel() * 4,
        "to_device": to_device,
        "to_host": to_host,
        "right": torch.equal(back, values),
    }


def pair_copy(source: Device, target: Device, size: int, count: int) -> dict[str, Any]:
    """One device's memory to another's.  ``peer_access``: what the driver claims; ``right``: what came of it."""
    claims = getattr(source.module, "can_device_access_peer", None)
    values = pattern(size // 4, 1, torch.device("cpu"))
    there = values.to(source.torch)
    here = torch.zeros(size // 4, device=target.torch)
    # Copies run in the source's stream, so its events time them.
    source.module.set_device(source.index)
    seconds = _timed(source, lambda: here.copy_(there, non_blocking=True), count)
    target.module.synchronize(target.index)
    return {
        "source": source.index,
        "target": target.index,
        "bytes": values.numel() * 4,
        "peer_access": None if claims is None else bool(claims(source.index, target.index)),
        "seconds": seconds,
        "right": torch.equal(here.cpu(), values),
    }


if __name__ == "__main__":
    probing.leave(probing.run(sys.argv[1:], body))
