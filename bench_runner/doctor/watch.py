"""Watches a job, its own or one that runs already, until it ends, hangs, or the watch's own time is up.  Gathers only.

Progress is output, or CPU time of the ranks.  Nothing of either for ``quiet_seconds``, and no busy device: a hang.  A
job that is silent but busy (a rank that spins while it waits) hangs when no rank's stack changes any more and one of
them waits for others.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bench_runner.doctor.device_use import busiest_device_percent
from bench_runner.doctor.dump import Method, Stack, dump, prepare_questions
from bench_runner.doctor.job import Job, RankProcess, cpu_seconds, exit_code_of, look
from bench_runner.doctor.recorder import GroupTrace
from bench_runner.doctor.stacks import wait_of
from bench_runner.doctor.traces import ask_for_traces
from bench_runner.errors import LaunchError, UsageError
from bench_runner.processes import adopt_orphans, read_process

Ended = Literal["exit", "hang", "time-up"]
POLL_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 5.0
_IDLE_SHARE: Final = 0.05
_SAME_STACKS: Final = 3
_CHUNK: Final = 1 << 20
_WAITS: Final = (
    "collective",
    "barrier",
    "gradients",
    "process-group",
    "model-construction",
    "shutdown",
    "device",
    "loader",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan:
    """Either ``command`` or ``pid``.  ``quiet_seconds`` without progress are a hang."""

    command: tuple[str, ...] = ()
    pid: int | None = None
    quiet_seconds: float = 60.0
    max_seconds: float = 7 * 86400.0
    output: Path | None = None
    method: Method | None = None
    kill: bool = False

    def __post_init__(self) -> None:
        if bool(self.command) == (self.pid is not None):
            raise UsageError("watch: name either a command (-- torchrun … train.py) or --pid PID")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOutcome:
    """``ranks`` are all that were ever seen, with their last state (``X``: gone); ``stacks`` are by PID, ``traces`` of
    the flight recorder by rank, both only of a hang.  ``exit_code`` is the command's (negative: a signal), None while
    it runs or where the kernel does not tell."""

    ended: Ended
    exit_code: int | None
    seconds: float
    quiet_seconds: float
    ranks: tuple[RankProcess, ...]
    world_size: int | None
    stacks: dict[int, Stack]
    output: Path | None
    method: Method
    root: int
    device_percent: float | None = None
    traces: dict[int, dict[str, GroupTrace]] = field(default_factory=dict)


@dataclass(slots=True)
class _Progress:
    """When something last moved, and the ranks that were ever there."""

    at: float
    cpu: float = 0.0
    output_at: float = 0.0
    read: int = 0
    ranks: dict[int, RankProcess] = field(default_factory=dict)
    world_size: int | None = None
    stacks: list[dict[int, Stack]] = field(default_factory=list)
    sampled_at: float = 0.0


def start(plan: WatchPlan, directory: Path, method: Method) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the command in a session of its own, with its output in a file; the process and the file."""
    path = plan.output or directory / "output.log"
    environment = {**os.environ, **prepare_questions(directory, os.environ, method)}
    adopt_orphans()  # what the job's processes leave behind stays below this one, and is seen
    try:
        with path.open("wb") as file:
            process = subprocess.Popen(
                plan.command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={"PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(f"{error.filename or plan.command[0]}: {error.strerror}") from error
    return process, path


class Watch:
    """One watch: the loop and what it knows so far."""

    def __init__(
        self,
        plan: WatchPlan,
        method: Method,
        directory: Path,
        root: int,
        process: subprocess.Popen[bytes] | None,
        output: Path | None,
        on_output: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._method = method
        self._directory = directory
        self._root = root
        self._process = process
        self._output = output
        self._on_output = on_output
        self._began = time.monotonic()
        self._progress = _Progress(at=self._began, output_at=self._began)
        self._device: float | None = None

    def run(self) -> WatchOutcome:
        """Poll until something ends it."""
        looked_at = -_LOOK_SECONDS
        job = Job(ranks=(), pids=(), world_size=None)
        while True:
            code, over = self._exit_code()
            now = time.monotonic()
            self._read_output(now, to_end=over)
            if over:
                return self._outcome("exit", code, {})
            if now - looked_at >= _LOOK_SECONDS or self._someone_left(job):
                job = self._look()
                looked_at = now
            stacks = self._hang(job, now)
            if stacks is not None:
                return self._outcome("hang", None, stacks, ask_for_traces(job.ranks, self._directory))
            if now - self._began > self._plan.max_seconds:
                return self._outcome("time-up", None, {})
            time.sleep(POLL_SECONDS)

    def _exit_code(self) -> tuple[int | None, bool]:
        if self._process is not None:
            code = self._process.poll()
            return code, code is not None
        process = read_process(self._root)
        return None, process is None or process.gone

    def _someone_left(self, job: Job) -> bool:
        """Whether a rank has gone since the last look; its exit code can be read only while it is a zombie."""
        left = False
        for rank in job.ranks:
            process = read_process(rank.pid)
            if process is None or process.gone:
                left = True
                code = exit_code_of(rank.pid)
                self._progress.ranks[rank.rank] = RankProcess(rank=rank.rank, pid=rank.pid, state="X", exit_code=code)
        return left

    def _look(self) -> Job:
        job = look(self._root)
        known = self._progress.ranks
        real = [rank for rank in job.ranks if rank.pid != self._root]
        only_root = all(rank.pid == self._root for rank in known.values())
        if real and only_root:
            known.clear()  # what was taken for the only rank is the launcher
        for rank in real or (job.ranks if only_root else ()):
            known[rank.rank] = rank
        present = {rank.pid for rank in job.ranks}
        for number, rank in list(known.items()):
            if rank.pid not in present and rank.state != "X":
                known[number] = RankProcess(rank=number, pid=rank.pid, state="X")
        if job.world_size is not None and job.all_here:
            self._progress.world_size = job.world_size
        return job

    def _read_output(self, now: float, *, to_end: bool) -> None:
        if self._output is None:
            return
        with self._output.open("rb") as file:
            file.seek(self._progress.read)
            while data := file.read(_CHUNK):
                self._progress.read += len(data)
                self._progress.at = self._progress.output_at = now
                self._on_output(data.decode("utf-8", "backslashreplace"))
                if not to_end:
                    return

    def _hang(self, job: Job, now: float) -> dict[int, Stack] | None:
        """The stacks of a job that hangs; None for one that moves."""
        progress, quiet = self._progress, self._plan.quiet_seconds
        pids = [pid for rank in job.ranks for pid in (rank.pid, *rank.helpers)]
        used = cpu_seconds(pids)
        if used < progress.cpu or used - progress.cpu > max(_IDLE_SHARE * (now - progress.at), 0.02 * quiet):
            progress.at, progress.cpu = now, used
        if now - progress.output_at < quiet:
            return None
        self._device = busiest_device_percent()
        if now - progress.at >= quiet and not self._device:
            return dump(pids, self._method, self._directory)
        return self._same_stacks(job, pids, now)

    def _same_stacks(self, job: Job, pids: list[int], now: float) -> dict[int, Stack] | None:
        """Busy and silent: three looks with the same stacks, and somebody in a wait for others."""
        progress = self._progress
        if now - progress.sampled_at < max(self._plan.quiet_seconds / 2, 1.0):
            return None
        progress.sampled_at = now
        stacks = dump(pids, self._method, self._directory)
        if progress.stacks and progress.stacks[-1] != stacks:
            progress.stacks.clear()
        progress.stacks.append(stacks)
        waiting = any(wait_of(stacks[rank.pid].frames).kind in _WAITS for rank in job.ranks if rank.pid in stacks)
        return stacks if waiting and len(progress.stacks) >= _SAME_STACKS else None

    def _outcome(
        self,
        ended: Ended,
        exit_code: int | None,
        stacks: dict[int, Stack],
        traces: dict[int, dict[str, GroupTrace]] | None = None,
    ) -> WatchOutcome:
        return WatchOutcome(
            ended=ended,
            exit_code=exit_code,
            seconds=time.monotonic() - self._began,
            quiet_seconds=self._plan.quiet_seconds,
            ranks=tuple(sorted(self._progress.ranks.values(), key=lambda rank: rank.rank)),
            world_size=self._progress.world_size,
            stacks=stacks,
            output=self._output,
            method=self._method,
            root=self._root,
            device_percent=self._device,
            traces=traces or {},
        )
