"""Remove locked environments that no lock at hand asks for any more."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench_runner.environment import prefix as prefixes

State = Literal["old", "unfinished", "current", "busy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEnvironment:
    """A locked environment's folder: ``old`` is of another lock, ``busy`` is being built at this moment."""

    path: Path
    state: State
    size_bytes: int


def list_environments(environments: Path, current_locks: frozenset[str]) -> list[BuiltEnvironment]:
    """The folders under ``environments`` that this program built; files of others are not looked at."""
    return [
        BuiltEnvironment(path=path, state=_state(path, current_locks), size_bytes=_size(path))
        for path in prefixes.built_prefixes(environments)
        if prefixes.is_ours(path)
    ]


def remove(environment: BuiltEnvironment) -> bool:
    """Remove one, its mark first, so that what is left after a broken-off removal is not used.

    Returns False, and leaves it alone, if a build has begun in it meanwhile.
    """
    import filelock

    lock = filelock.FileLock(environment.path / prefixes.LOCK_NAME)
    try:
        with lock.acquire(timeout=0):
            (environment.path / prefixes.MARK_NAME).unlink(missing_ok=True)
            shutil.rmtree(environment.path)
    except filelock.Timeout:
        return False
    return True


def _state(path: Path, current_locks: frozenset[str]) -> State:
    import filelock

    lock = filelock.FileLock(path / prefixes.LOCK_NAME)
    try:
        with lock.acquire(timeout=0):
            mark = prefixes.read_mark(path)
    except filelock.Timeout:
        return "busy"
    of_current = any(path.name.startswith(prefixes.locked_directory(sha256)) for sha256 in current_locks)
    if of_current:
        return "current"
    return "old" if mark is not None else "unfinished"


def _size(path: Path) -> int:
    """Bytes on disk that removing would free: files that the package cache shares are not counted."""
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            status = (Path(directory) / name).lstat()
            total += status.st_blocks * 512 if status.st_nlink == 1 else 0
    return total
