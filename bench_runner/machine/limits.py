"""Limits of this process that training runs into: shared memory, locked memory, open files, processes."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from bench_runner.machine.host import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes and counts; ``None``: not read.  A limit that is unlimited is ``UNLIMITED``."""

    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    open_files: int | None = None
    processes: int | None = None


UNLIMITED: int = resource.RLIM_INFINITY
"""The value of a limit that does not limit (-1 on Linux)."""


def read_limits(root: Path = ROOT) -> Limits:
    """The soft limits of this process, and the space in /dev/shm."""
    total: int | None = None
    free: int | None = None
    try:
        shm = os.statvfs(root / "dev/shm")
        total, free = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    except OSError:
        total = None  # no /dev/shm at all, or not ours to look at
    return Limits(
        shm_total_bytes=total,
        shm_free_bytes=free,
        memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
    )
