"""What a watched job's end, or its standstill, means: pure rules over what ``watch`` gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from bench_runner.doctor.desync import RankView, diagnose, ranks_do
from bench_runner.doctor.faults import fault_finding
from bench_runner.doctor.job import RankProcess
from bench_runner.doctor.log_rules import judge_logs
from bench_runner.doctor.logs import LogSummary
from bench_runner.doctor.recorder import compare_traces
from bench_runner.doctor.stacks import wait_of
from bench_runner.doctor.watch import WatchOutcome
from bench_runner.finding import Finding

_PROBE: Final = "watch"
_SIGNAL_REMEDIES: Final[Mapping[int, str]] = {
    9: "most often the kernel ended it for want of memory: `dmesg | grep -i -E 'killed process|oom'`, and the limits of"
    " the container or the job",
    11: "a native library crashed: `export PYTHONFAULTHANDLER=1` and run it again, for the line in which it did;"
    " then `bench-runner verify`",
}
_STOPPED: Final = ("T", "t")


def judge_watch(outcome: WatchOutcome, log: LogSummary, sources: Mapping[str, str]) -> list[Finding]:
    """The findings; a healthy job's is one that passes."""
    if outcome.ended == "hang":
        return _hang(outcome, log, sources)
    said = judge_logs(log, sources, world_size=outcome.world_size, probe=_PROBE)
    if outcome.ended == "time-up":
        message = f"the job still runs after {outcome.seconds:.0f} s, and moves; the watch is over"
        return [*_spoken(said), Finding(check="doctor.watch.time-up", status="skip", message=message)]
    if outcome.exit_code:
        return _failed(outcome, said, log)
    code = "" if outcome.exit_code is None else " with exit code 0"
    ended = Finding(
        check="doctor.watch.ended", status="pass", message=f"the job ended{code} after {outcome.seconds:.0f} s"
    )
    return [*(f for f in _spoken(said) if not _only_late(f)), ended]


def _spoken(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status in ("warn", "fail")]


def _only_late(finding: Finding) -> bool:
    """Time-outs and broken connections in the log of a job that ended well: it got over them."""
    return finding.check.rpartition(".")[2] in ("gloo-timeout", "peer-gone", "collective-timeout", "hang-unexplained")


def _failed(outcome: WatchOutcome, said: list[Finding], log: LogSummary) -> list[Finding]:
    spoken = _spoken(said)
    if any(finding.status == "fail" for finding in spoken):
        return spoken
    code = outcome.exit_code or 0
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    message = f"the job ended with {how}, and its output names no cause"
    ranks = tuple(_rank_line(rank) for rank in outcome.ranks if rank.exit_code)
    last = tuple(f"output: {line}" for line in log.last_lines) or ("the job wrote nothing",)
    if code < 0:
        remedy = _SIGNAL_REMEDIES.get(-code, f"find out who sends signal {-code}: the scheduler's log, `dmesg | tail`")
    else:
        remedy = (
            f"look where the program leaves with {code} (sys.exit, os._exit), beginning at its last lines of output;"
            " have it say why: `export PYTHONFAULTHANDLER=1 TORCH_DISTRIBUTED_DEBUG=INFO`, and run it again"
        )
    finding = fault_finding(_PROBE, "rank-died", message, expected="exit code 0", actual=how, evidence=(*ranks, *last))
    return [*spoken, replace(finding, remedy=remedy)]


def _rank_line(rank: RankProcess) -> str:
    if rank.state == "X":
        return f"rank {rank.rank} (pid {rank.pid}): gone" + (f", exit code {rank.exit_code}" if rank.exit_code else "")
    return f"rank {rank.rank} (pid {rank.pid}): state {rank.state}"


def _hang(outcome: WatchOutcome, log: LogSummary, sources: Mapping[str, str]) -> list[Finding]:
    said = [
        f for f in _spoken(judge_logs(log, sources, world_size=outcome.world_size, probe=_PROBE)) if not _only_late(f)
    ]
    named = [f for f in said if f.status == "fail"]
    processes = tuple(_rank_line(rank) for rank in outcome.ranks)
    if named and not _from_positions(log):
        return said
    stopped = [rank.rank for rank in outcome.ranks if rank.state in _STOPPED]
    if stopped:
        message = f"{ranks_do(stopped, 'is', 'are')} stopped (by a signal, or by a debugger), and the others wait"
        return [fault_finding(_PROBE, "straggler", message, evidence=processes)]
    died = [rank for rank in outcome.ranks if rank.exit_code]
    if died:
        message = f"rank {died[0].rank} ended with exit code {died[0].exit_code}, and the others still wait for it"
        return [fault_finding(_PROBE, "rank-died", message, evidence=processes)]
    blocked = [rank.rank for rank in outcome.ranks if rank.state == "D"]
    if blocked:
        message = f"{ranks_do(blocked, 'waits', 'wait')} in the kernel for a device or a file system (state D)"
        return [fault_finding(_PROBE, "device-or-link", message, evidence=processes)]
    views = [_view(rank, outcome) for rank in outcome.ranks]
    problems = tuple(
        f"rank {rank.rank}: {outcome.stacks[rank.pid].problem}"
        for rank in outcome.ranks
        if rank.pid in outcome.stacks and outcome.stacks[rank.pid].problem
    )
    found = diagnose(views, sources, world_size=outcome.world_size, evidence=problems)
    fault, message, evidence = found.fault, found.message, found.evidence
    parted = compare_traces(outcome.traces)
    if parted is not None:
        # Ranks that stand in the same line may do so in different steps: then the recorder knows better.
        fault = parted.fault if fault in ("hang-unexplained", "device-or-link") else fault
        message = f"{message}; by torch's flight recorder {parted.message}"
        evidence = (*evidence, *parted.evidence)
    message = f"nothing moved for {outcome.quiet_seconds:.0f} s: {message}"
    finding = fault_finding(_PROBE, fault, message, evidence=evidence)
    return [finding, *(f for f in said if f.status == "warn")]


def _from_positions(log: LogSummary) -> bool:
    """Whether the log's verdict rests on where ranks stood alone: then the stacks of now know better."""
    causes = [match for match in log.matches if not match.signature.symptom and match.signature.status == "fail"]
    own = [error for error in log.errors if not error.consequence and not error.of_launcher]
    return not causes and not own


def _view(rank: RankProcess, outcome: WatchOutcome) -> RankView:
    if rank.state == "X":
        return RankView(rank=rank.rank, condition="left")
    stack = outcome.stacks.get(rank.pid)
    lines = []
    for pid in rank.helpers:
        frames = outcome.stacks[pid].frames if pid in outcome.stacks else ()
        own = [frame for frame in frames if not frame.foreign] or list(frames)
        if own:
            lines.append(f"pid {pid} at {own[0]}")
    return RankView(
        rank=rank.rank,
        condition="running",
        wait=wait_of(stack.frames) if stack is not None and stack.frames else None,
        worker_lines=tuple(lines),
    )
