"""``doctor watch`` as a whole: start or attach, watch, read the job's output and program, judge, and leave in order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench_runner.doctor.dump import Method, best_method
from bench_runner.doctor.logfile import LogText, read_log
from bench_runner.doctor.logs import summarise
from bench_runner.doctor.sources import read_sources
from bench_runner.doctor.watch import Watch, WatchOutcome, WatchPlan, start
from bench_runner.doctor.watch_rules import judge_watch
from bench_runner.errors import SpecError, UsageError
from bench_runner.finding import Finding
from bench_runner.launch import raising_on_termination
from bench_runner.processes import Process, descendants, process_table, read_process, send_signal

__all__ = ["WatchPlan", "end_job", "require_method", "watch_and_judge"]

_GRACE_SECONDS: Final = 5.0
_GIVE_UP_SECONDS: Final = 20.0


def require_method(name: str) -> Method | None:
    """The way to read stacks; None for ``auto``."""
    methods: dict[str, Method | None] = {"auto": None, "py-spy": "py-spy", "faulthandler": "faulthandler"}
    if name not in methods:
        raise SpecError("stacks", name, f"must be one of {', '.join(methods)}")
    return methods[name]


def watch_and_judge(plan: WatchPlan, note: Callable[[str], None]) -> tuple[list[Finding], dict[str, Any]]:
    """Watch until the job ends, hangs, or the time is up; findings and plain values for the document.

    On an interrupt, SIGTERM or SIGHUP the job that was started here is ended too.  The job's output is kept when it
    still runs.
    """
    with raising_on_termination():
        return _watch_and_judge(plan, note)


def _watch_and_judge(plan: WatchPlan, note: Callable[[str], None]) -> tuple[list[Finding], dict[str, Any]]:
    directory = Path(tempfile.mkdtemp(prefix="bench-runner-watch-"))
    method = plan.method or (best_method() if plan.pid is None else "py-spy")
    process: subprocess.Popen[bytes] | None = None
    output: Path | None = None
    keep = False
    try:
        if plan.pid is None:
            process, output = start(plan, directory, method)
        elif read_process(plan.pid) is None:
            raise UsageError(f"pid = {plan.pid}: no such process")
        root = process.pid if process is not None else plan.pid or 0
        outcome = Watch(plan, method, directory, root, process, output, _by_lines(note)).run()
        findings, details = _judge(outcome)
        keep = outcome.ended != "exit" and not plan.kill and process is not None  # the job still uses what is there
        if outcome.ended != "exit" and plan.kill:
            end_job(root, process)
    except BaseException as error:
        if process is not None and not isinstance(error, Exception):
            end_job(process.pid, process, first=signal.SIGINT)
        raise
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    details["output"] = str(output) if output is not None and (keep or plan.output is not None) else None
    details["killed"] = outcome.ended != "exit" and plan.kill
    return findings, details


def _by_lines(note: Callable[[str], None]) -> Callable[[str], None]:
    """Hand on whole lines as they come; what is left at the end stays in the file."""
    rest = ""

    def take(text: str) -> None:
        nonlocal rest
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            note(line)

    return take


def _judge(outcome: WatchOutcome) -> tuple[list[Finding], dict[str, Any]]:
    logs: list[LogText] = [read_log(outcome.output)] if outcome.output is not None else []
    summary = summarise(logs)
    frames = [frame for stack in outcome.stacks.values() for frame in stack.frames]
    frames += [frame for error in summary.errors for frame in error.frames]
    findings = judge_watch(outcome, summary, read_sources(frames))
    details = {
        "ended": outcome.ended,
        "exit_code": outcome.exit_code,
        "seconds": round(outcome.seconds, 1),
        "world_size": outcome.world_size,
        "stacks_by": outcome.method,
        "device_percent": outcome.device_percent,
        "ranks": [
            {
                "rank": rank.rank,
                "pid": rank.pid,
                "state": rank.state,
                "exit_code": rank.exit_code,
                "helpers": list(rank.helpers),
                "stack": _stack_lines(outcome, rank.pid),
            }
            for rank in outcome.ranks
        ],
    }
    return findings, details


def _stack_lines(outcome: WatchOutcome, pid: int) -> list[str]:
    stack = outcome.stacks.get(pid)
    return [] if stack is None else [str(frame) for frame in stack.frames]


def end_job(root: int, process: subprocess.Popen[bytes] | None, first: int = signal.SIGTERM) -> list[Process]:
    """End a job and all below it: ``first`` to its launcher, a grace, then SIGKILL to all; what would not die."""
    family = _family(root)
    for member in family[:1]:
        send_signal(member, first)
    began = time.monotonic()
    while time.monotonic() - began < _GIVE_UP_SECONDS:
        if process is not None:
            process.poll()
        # A process whose parent has died is no longer below the root, but it is among those that were seen.
        family = list({p.pid: p for p in [*family, *_family(root)]}.values())
        alive = [p for p in family if _runs(p)]
        if not alive:
            break
        if time.monotonic() - began > _GRACE_SECONDS:
            for member in alive:
                send_signal(member, signal.SIGKILL)
        time.sleep(0.1)
    if process is not None:
        process.poll()  # collects its exit status
    _reap_adopted(family, process)
    return [p for p in family if _runs(p)]


def _family(root: int) -> list[Process]:
    table = process_table()
    return [*(p for p in table if p.pid == root), *descendants(root, table)]


def _runs(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and not now.gone and now.started_ticks == process.started_ticks


def _reap_adopted(family: list[Process], process: subprocess.Popen[bytes] | None) -> None:
    """Collect the job's orphans that the kernel handed to this process."""
    for member in family:
        now = read_process(member.pid)
        started_here = process is not None and member.pid == process.pid
        if now is not None and now.gone and now.parent == os.getpid() and not started_here:
            os.waitpid(member.pid, os.WNOHANG)
