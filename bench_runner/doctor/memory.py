"""Gathers which process of a job holds how much memory on which device, and resident memory on the host."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench_runner.doctor.job import look
from bench_runner.doctor.watch import WatchPlan, start
from bench_runner.doctor.watching import end_job
from bench_runner.doctor.world import last_line
from bench_runner.errors import UsageError
from bench_runner.machine.memory import DeviceUse, device_memory
from bench_runner.processes import read_process

POLL_SECONDS: Final = 1.0
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TAIL_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """The most that one rank held, in bytes: resident on the host (its helpers apart), and on each device by index.

    A device on which the driver shows the process without telling how much is in ``device_bytes`` with None."""

    rank: int
    pid: int
    resident_bytes: int
    helper_bytes: int = 0
    device_bytes: dict[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProbe:
    """``devices`` is the number that the driver shows, None where there is no driver; ``strangers`` counts processes on
    the devices whose PID is none of this machine's, as in a container, where the driver tells the host's."""

    ranks: tuple[RankMemory, ...]
    devices: int | None
    strangers: int
    samples: int
    seconds: float
    exit_code: int | None
    ended: bool
    last_words: str = ""


@dataclass(slots=True)
class _Peaks:
    resident: dict[tuple[int, int], int] = field(default_factory=dict)
    helpers: dict[tuple[int, int], int] = field(default_factory=dict)
    on_devices: dict[tuple[int, int], dict[int, int | None]] = field(default_factory=dict)
    strangers: set[int] = field(default_factory=set)
    devices: int | None = None
    samples: int = 0


def probe_job(plan: WatchPlan, read_devices: Callable[[], tuple[DeviceUse, ...]] = device_memory) -> MemoryProbe:
    """Run the command, or attach to the PID, and sample until it ends or ``max_seconds`` have passed; with ``kill`` the
    job is ended then."""
    with tempfile.TemporaryDirectory(prefix="bench-runner-memory-", ignore_cleanup_errors=True) as directory:
        process: subprocess.Popen[bytes] | None = None
        output: Path | None = None
        if plan.pid is None:
            process, output = start(plan, Path(directory), "py-spy")
        elif read_process(plan.pid) is None:
            raise UsageError(f"pid = {plan.pid}: no such process")
        root = process.pid if process is not None else plan.pid or 0
        began = time.monotonic()
        peaks = _Peaks()
        try:
            ended = _sample_to_end(peaks, root, process, began + plan.max_seconds, read_devices)
        except KeyboardInterrupt:
            if process is not None:
                end_job(root, process)
            raise
        if not ended and plan.kill:
            end_job(root, process)
        code = process.poll() if process is not None and ended else None
        words = last_line(_tail(output)) if output is not None else ""
    ranks = tuple(
        RankMemory(
            rank=rank,
            pid=pid,
            resident_bytes=resident,
            helper_bytes=peaks.helpers.get((rank, pid), 0),
            device_bytes=peaks.on_devices.get((rank, pid), {}),
        )
        for (rank, pid), resident in sorted(peaks.resident.items())
    )
    if len(ranks) > 1:  # the launcher was taken for the only rank before its ranks were there
        ranks = tuple(rank for rank in ranks if rank.pid != root)
    return MemoryProbe(
        ranks=ranks,
        devices=peaks.devices,
        strangers=len(peaks.strangers),
        samples=peaks.samples,
        seconds=time.monotonic() - began,
        exit_code=code,
        ended=ended,
        last_words=words,
    )


def _sample_to_end(
    peaks: _Peaks,
    root: int,
    process: subprocess.Popen[bytes] | None,
    ends: float,
    read_devices: Callable[[], tuple[DeviceUse, ...]],
) -> bool:
    """True when the job ended, False when the time did."""
    while time.monotonic() < ends:
        if process is not None and process.poll() is not None:
            return True
        now = read_process(root)
        if now is None or now.gone:
            return True
        _sample(peaks, root, read_devices())
        time.sleep(POLL_SECONDS)
    return False


def _sample(peaks: _Peaks, root: int, devices: tuple[DeviceUse, ...]) -> None:
    job = look(root)
    peaks.samples += 1
    if devices:
        peaks.devices = len(devices)
    for rank in job.ranks:
        key = (rank.rank, rank.pid)
        peaks.resident[key] = max(peaks.resident.get(key, 0), resident_bytes([rank.pid]))
        peaks.helpers[key] = max(peaks.helpers.get(key, 0), resident_bytes(rank.helpers))
        held = peaks.on_devices.setdefault(key, {})
        for index, use in enumerate(devices):
            if rank.pid in (use.processes or {}):
                amount = (use.processes or {})[rank.pid]
                before = held.get(index)
                held[index] = amount if before is None else max(before, amount or 0)
    for use in devices:
        peaks.strangers |= {pid for pid in use.processes or {} if read_process(pid) is None}


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of these processes, those that have gone counting nothing."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        except (FileNotFoundError, ProcessLookupError):
            continue  # gone meanwhile
    return total


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
