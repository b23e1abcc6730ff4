"""Locks between processes: one launch at a time in a session, and one measurement at a time on a machine.

Standard library only, quick to import: every benchmark process of asv does.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Whether the lock was to be had; always with ``wait``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def machine_lock(waiting: Callable[[], None]) -> Iterator[None]:
    """Two launches at once on one machine would measure each other: the second waits for the first, and says so.

    The file in the temporary folder is never followed through a link, and is each user's own.
    """
    path = Path(tempfile.gettempdir()) / f"bench-runner-{os.getuid()}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
