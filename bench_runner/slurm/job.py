"""A job's life: submitted, followed until Slurm has done with it, cancelled when the caller breaks off."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench_runner.errors import LaunchError, shortened
from bench_runner.launch import raising_on_termination

POLL_SECONDS: Final = 2.0
CANCEL_SECONDS: Final = 60.0
SILENCE_SECONDS: Final = 600.0
"""slurmctld may be restarted or busy for minutes; a job is not given up for that."""
_COMMAND_SECONDS: Final = 60.0
_FIELD: Final = re.compile(r"(?:^|\s)([A-Za-z/:]+)=(\S*)")
FINISHED: Final = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "TIMEOUT"),
    }
)
LARGEST_FILE_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What scontrol says of a job.  ``reason`` is Slurm's word for why it waits or ended."""

    state: str
    reason: str
    nodes: str
    restarts: int

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def words(self) -> str:
        """For a line of progress."""
        known = (self.reason, self.nodes)
        reason, nodes = (value if value not in ("None", "(null)", "") else None for value in known)
        parts = [self.state.lower(), f"({reason})" if reason else None, f"on {nodes}" if nodes else None]
        again = f"after {self.restarts} restart(s)" if self.restarts else None
        return " ".join(part for part in (*parts, again) if part)


def parse_job(text: str) -> JobState | None:
    """``scontrol --oneliner show job`` as a state; None for what is none."""
    fields = dict(_FIELD.findall(text))
    if "JobState" not in fields:
        return None
    restarts = fields.get("Restarts", "0")
    return JobState(
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        nodes=fields.get("NodeList", ""),
        restarts=int(restarts) if restarts.isascii() and restarts.isdecimal() else 0,
    )


def parse_submission(text: str) -> str:
    """The job's number from ``sbatch --parsable``: ``123`` or ``123;cluster``."""
    number = text.strip().splitlines()[-1].partition(";")[0] if text.strip() else ""
    if not number.isascii() or not number.isdecimal():
        raise LaunchError(f"sbatch answered {shortened(text.strip())!r}, which is no job's number")
    return number


def require_slurm() -> None:
    """Raise LaunchError where Slurm's commands are missing."""
    missing = [name for name in ("sbatch", "scontrol", "scancel") if shutil.which(name) is None]
    if missing:
        raise LaunchError(f"{', '.join(missing)}: not found; start it where Slurm's commands are, or see --dry-run")


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} gave no answer in {_COMMAND_SECONDS:.0f} s")


def submit(script: Path) -> str:
    """Submit the script; the job's number.  Raises LaunchError with what sbatch says."""
    done = _slurm("sbatch", "--parsable", str(script))
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise LaunchError(f"sbatch refuses {script}: {said[-1] if said else f'exit code {done.returncode}'}")
    return parse_submission(done.stdout)


def cancel(job_id: str) -> None:
    """Cancel the job and wait until it is over."""
    _slurm("scancel", job_id)
    ends = time.monotonic() + CANCEL_SECONDS
    while time.monotonic() < ends:
        state = _state(job_id)
        if state is None or state.finished:
            return
        time.sleep(0.5)


def _state(job_id: str) -> JobState | None:
    """The job now; None when Slurm has forgotten it.  Raises LaunchError when slurmctld does not answer."""
    done = _slurm("scontrol", "--oneliner", "show", "job", job_id)
    state = parse_job(done.stdout)
    if state is None and "invalid job id" not in done.stderr.lower():
        raise LaunchError(f"scontrol: {done.stderr.strip() or 'no answer'}")
    return state


def follow(
    job_id: str, folder: Path, say: Callable[[str], None], poll_seconds: float = POLL_SECONDS
) -> JobState | None:
    """Say how the job gets on, with the lines of node 0's task, until it is over; its last state, if Slurm knows it.

    When this is broken off (Ctrl-C, SIGTERM), the job is cancelled first.  Raises LaunchError when Slurm does not
    answer for ten minutes; the job is then left alone.
    """
    try:
        with raising_on_termination():
            return _follow(job_id, folder, say, poll_seconds)
    except LaunchError:
        raise
    except BaseException:
        say(f"job {job_id}: cancelling")
        cancel(job_id)
        say(f"job {job_id}: cancelled; its files are in {folder}")
        raise


def _follow(job_id: str, folder: Path, say: Callable[[str], None], poll_seconds: float) -> JobState | None:
    lines = Lines(folder / "task-0.err")
    shown: str | None = None
    answered = time.monotonic()
    while True:
        try:
            state = _state(job_id)
            answered = time.monotonic()
        except LaunchError as error:
            if time.monotonic() - answered > SILENCE_SECONDS:
                raise LaunchError(f"job {job_id}: {error}; it may still run: squeue --jobs {job_id}") from error
            time.sleep(poll_seconds)
            continue
        if state is not None and state.words != shown:
            shown = state.words
            say(f"job {job_id}: {shown}")
        for line in lines.read():
            say(f"  {line}")
        if state is None or state.finished:
            return state
        time.sleep(poll_seconds)


class Lines:
    """Whole lines that are added to a file, which is begun anew when the job is requeued: it is shorter then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[str]:
        """The lines that are there since the last call."""
        try:
            if self._path.stat().st_size < self._offset:
                self._offset = 0
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read(LARGEST_FILE_BYTES)
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", "replace").splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """How one node's task ended.  ``exit_code`` None: it left no word (its node died, or the job was cancelled);
    ``document`` is what it printed with --json, if that is whole; ``said`` the last line of its notes."""

    rank: int
    node: str | None
    exit_code: int | None
    document: dict[str, Any] | None
    said: str


def read_tasks(folder: Path, nodes: int) -> tuple[TaskResult, ...]:
    """What the tasks left in the job's folder, one result each."""
    return tuple(_task(folder, rank) for rank in range(nodes))


def _task(folder: Path, rank: int) -> TaskResult:
    end = _json(folder / f"task-{rank}.json") or {}
    code, node = end.get("exit_code"), end.get("node")
    notes = _text(folder / f"task-{rank}.err").strip().splitlines()
    return TaskResult(
        rank=rank,
        node=node if isinstance(node, str) else None,
        exit_code=code if isinstance(code, int) else None,
        document=_json(folder / f"task-{rank}.out"),
        said=notes[-1] if notes else "",
    )


def _json(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(_text(path))
    except (ValueError, RecursionError):  # cut off in the middle
        return None
    return document if isinstance(document, dict) else None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_FILE_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
