"""Hash many files on all cores.

The work is cut into chunks of about equal bytes, several for each worker: a task a file drowns in its own bookkeeping
(tens of thousands of small files), and a task a package leaves one worker with torch's gigabytes at the end.  Workers
are processes (``hash_worker.py``), since the interpreter's lock lets threads overlap only large files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_runner.environment import hash_worker
from bench_runner.errors import EnvironmentBuildError

CHUNKS_PER_WORKER: Final = 8
COST_OF_A_FILE_BYTES: Final = 32 << 10
"""Opening and closing a file takes about as long as hashing this much; balances chunks of many small files."""
SMALLEST_PARALLEL_BYTES: Final = 64 << 20
WORKER: Final = (sys.executable, "-I", "-S", hash_worker.__file__)


@dataclass(frozen=True, slots=True)
class HashTask:
    package: str
    path: str
    sha256: str
    size_bytes: int


Outcome = tuple[int, list[tuple[HashTask, str, str]]]
"""Bytes read, and of each file that differs: the task, ``content`` or ``unreadable``, the actual hash or the reason."""


def usable_cores() -> int:
    """The cores that this process may use, which a container or a scheduler may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hash_files(prefix: Path, tasks: list[HashTask], workers: int) -> Outcome:
    """Compare the files of ``prefix`` with the hashes in the tasks, on as many cores as there are ``workers``.

    Raises EnvironmentBuildError if a worker is killed; no worker outlives the call.
    """
    if workers <= 1 or sum(map(cost, tasks)) < SMALLEST_PARALLEL_BYTES:
        read, differences = hash_worker.hash_chunk(str(prefix), [(task.path, task.sha256) for task in tasks])
        return read, [(tasks[index], kind, actual) for index, kind, actual in differences]
    chunks = deque(balanced_chunks(tasks, workers * CHUNKS_PER_WORKER))
    with ThreadPoolExecutor(workers, thread_name_prefix="hash") as pool:
        outcomes = list(pool.map(lambda _: _drive_worker(str(prefix), chunks), range(workers)))
    return sum(read for read, _ in outcomes), [difference for _, found in outcomes for difference in found]


def balanced_chunks(tasks: list[HashTask], count: int) -> list[list[HashTask]]:
    """At most ``count`` + 1 runs of neighbouring files of about equal cost; the costliest come first."""
    share = max(1, -(-sum(map(cost, tasks)) // count))
    chunks: list[list[HashTask]] = []
    size = share
    for task in tasks:
        if size >= share:
            chunks.append([])
            size = 0
        chunks[-1].append(task)
        size += cost(task)
    return sorted(chunks, key=lambda chunk: -sum(map(cost, chunk)))


def cost(task: HashTask) -> int:
    """How long a file takes, in bytes of hashing."""
    return task.size_bytes + COST_OF_A_FILE_BYTES


def _drive_worker(prefix: str, chunks: deque[list[HashTask]]) -> Outcome:
    """Feed one worker process until no chunk is left; leaving the ``with`` block ends its input and waits for it."""
    read = 0
    found: list[tuple[HashTask, str, str]] = []
    with subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        while chunks:
            try:
                chunk = chunks.popleft()
            except IndexError:  # another thread took the last one in between
                break
            request = json.dumps([prefix, [(task.path, task.sha256) for task in chunk]])
            try:
                worker.stdin.write(request.encode() + b"\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
            except BrokenPipeError:
                answer = b""
            if not answer.endswith(b"\n"):
                chunks.clear()
                raise EnvironmentBuildError(f"a process that hashed files of {prefix} ended early: was it killed?")
            size, differences = json.loads(answer)
            read += size
            found += [(chunk[index], kind, actual) for index, kind, actual in differences]
    return read, found
