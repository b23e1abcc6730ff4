"""Why a launch ended before its cases were through: pure functions over what the ranks said and the processes' ends.

Torn connections are echoes: when one rank dies, the others fail a moment later in a collective.  The cause is the
rank that failed by itself.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench_runner.launch_watch import Stop
from bench_runner.rank_files import RankError, RankProgress
from bench_runner.record import Failure, Outcome

_DOING: Final = {
    None: "starting Python",
    "started": "importing torch",
    "device": "taking its device",
    "joining": "joining the process group",
    "joined": "between joining and the first case",
    "case": "carrying out the case",
    "leaving": "leaving the process group",
}
_EXIT: Final = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+) \(pid: (\d+)\)")
_TRACE: Final = re.compile(
    r"^(?:Fatal Python error|Traceback \(most recent call last\)|(?:Current t|T)hread 0x)", re.MULTILINE
)
# What gloo, NCCL, the store and the kernel say when a peer has gone.
_ECHO: Final = re.compile(
    r"connection (?:closed|reset|was closed|refused)|closed by (?:the )?peer|broken pipe|socket (?:closed|timeout)"
    r"|remote process (?:exited|has terminated)|peer (?:has )?(?:closed|gone)|failed to recv|sendBytes|recvValue",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a rank's process ended: ``code`` is negative for a signal."""

    rank: int
    code: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the processes of a launch ended.

    ``supervised`` is the supervisor's result, None if it died; ``exits`` are those of ranks, the first seen in front,
    and only what is known of them; the logs are tails of output; ``lost`` says which other node left the launch.
    """

    started: float
    ended: float
    stop: Stop | None
    supervised: Mapping[str, Any] | None
    exits: Sequence[Exit]
    agent_log: str
    rank_logs: Mapping[int, str]
    supervisor_log: str = ""
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What ended a launch before its cases were through."""

    outcome: Outcome
    failure: Failure
    reason: str
    rank: int | None = None
    traceback: str | None = None


def parse_exits(agent_log: str) -> tuple[Exit, ...]:
    """The exits in torchrun's error report, the one it saw first in front (it prints that one last)."""
    found = [Exit(rank=int(rank), code=int(code), pid=int(pid)) for rank, code, pid in _EXIT.findall(agent_log)]
    return tuple(reversed(found))


def exit_of_only_rank(supervised: Mapping[str, Any] | None) -> tuple[Exit, ...]:
    """The exit of a worker that the supervisor started without an agent."""
    result = supervised or {}
    code = -result["signal"] if result.get("signal") is not None else result.get("exit_code")
    return () if code is None else (Exit(rank=0, code=code, pid=result["pid"]),)


def find_cause(ranks: Sequence[RankProgress], case: int, ending: Ending) -> Cause:
    """What ended the launch while ``case`` was the next to settle."""
    errors = sorted((rank.error for rank in ranks if rank.error is not None), key=lambda error: error.at)
    own = [error for error in errors if not _ECHO.search(error.message)]
    dead = _silent_deaths(ranks, ending)
    by_themselves = [death for death in dead if death.code != -signal.SIGTERM]
    terminated = [death for death in dead if death.code == -signal.SIGTERM]
    if own:
        return _of_error(own[0])
    if by_themselves:
        return _of_exit(by_themselves[0], ending)
    if ending.lost:
        return Cause(outcome="failed", failure="lost-node", reason=ending.lost)
    if errors and len(terminated) == 1:
        # The agent sends SIGTERM too, but only after a first death, and the echoes heard one.
        return _of_exit(terminated[0], ending)
    if errors:
        return _of_error(errors[0])
    if ending.stop is not None:
        return _of_stop(ending.stop, ranks, ending)
    if terminated:
        return _of_exit(terminated[0], ending)  # by somebody; the agent ended the others before they could say a word
    return _of_ending(ranks, case, ending)


def _of_error(error: RankError) -> Cause:
    return Cause(
        outcome="failed",
        failure=error.failure,
        reason=f"rank {error.rank}: {error.message}",
        rank=error.rank,
        traceback=error.traceback,
    )


def _silent_deaths(ranks: Sequence[RankProgress], ending: Ending) -> list[Exit]:
    """Ranks that ended without a word and not by the supervisor; the first seen in front."""
    spoke = {rank.rank for rank in ranks if rank.error is not None}
    ended_by_us = {entry["pid"] for entry in (ending.supervised or {}).get("killed", ())}
    exits = (found for found in ending.exits if found.code != 0)
    return [found for found in exits if found.rank not in spoke and found.pid not in ended_by_us]


def _of_exit(found: Exit, ending: Ending) -> Cause:
    log = ending.rank_logs.get(found.rank, "")
    trace = trace_in(log)
    if found.code < 0:
        hint = " (by hand, or by the kernel when memory ran out)" if found.code == -signal.SIGKILL else ""
        reason = f"rank {found.rank} was killed by {signal_name(-found.code)}{hint}"
        return Cause(outcome="failed", failure="signal", reason=reason, rank=found.rank, traceback=trace)
    reason = f"rank {found.rank} exited with code {found.code} before it had delivered its results"
    if trace is not None:
        reason = f"rank {found.rank}: {last_line(log)}"
    failure: Failure = "exit" if trace is None else "exception"
    return Cause(outcome="failed", failure=failure, reason=reason, rank=found.rank, traceback=trace)


def _of_stop(stop: Stop, ranks: Sequence[RankProgress], ending: Ending) -> Cause:
    size = len(ranks)
    trace = "\n".join(
        f"rank {rank}:\n{trace}" for rank, log in sorted(ending.rank_logs.items()) if (trace := trace_in(log))
    )
    if stop.kind == "missing-rank":
        outside = [rank for rank in ranks if not rank.joined]
        # Those at the door wait for the ones that have not come to it.
        missing = [rank for rank in outside if rank.state != "joining"] or outside
        seen = ", ".join(doing_by_rank(missing))
        names = ", ".join(str(rank.rank) for rank in missing)
        what = f"rank{'s' * (len(missing) > 1)} {names} of {size} never joined the process group"
        reason = f"{what} within {stop.seconds:.0f} s (last seen: {seen})"
        return Cause(
            outcome="timeout", failure="missing-rank", reason=reason, rank=missing[0].rank, traceback=trace or None
        )
    doing = ", ".join(f"rank {rank.rank}: {_doing(rank, stop.case)}" for rank in ranks)
    what = "the case did not begin within" if stop.kind == "between-cases" else "the deadline passed after"
    late = next((rank.rank for rank in ranks if stop.case is not None and not rank.has_settled(stop.case)), None)
    return Cause(
        outcome="timeout",
        failure="deadline",
        reason=f"{what} {stop.seconds:.0f} s ({doing})",
        rank=late,
        traceback=trace or None,
    )


def doing_by_rank(ranks: Sequence[RankProgress]) -> list[str]:
    """What each rank was last seen doing, in words; without their numbers if there is but one."""
    doing = [_DOING.get(rank.state, str(rank.state)) for rank in ranks]
    return doing if len(ranks) == 1 else [f"rank {rank.rank}: {what}" for rank, what in zip(ranks, doing, strict=True)]


def _doing(rank: RankProgress, case: int | None) -> str:
    if case is not None and rank.has_settled(case):
        return "has its result"
    return _DOING.get(rank.state, str(rank.state))


def _of_ending(ranks: Sequence[RankProgress], case: int, ending: Ending) -> Cause:
    """Nobody reported anything: what the agent's and the supervisor's ends tell."""
    supervised = ending.supervised
    if supervised is None:
        if not ending.supervisor_log.strip():
            return Cause(outcome="failed", failure="signal", reason="the supervisor of the workers was killed")
        reason = f"the supervisor of the workers failed: {last_line(ending.supervisor_log)}"
        return Cause(outcome="failed", failure="exception", reason=reason, traceback=ending.supervisor_log.strip())
    if supervised.get("signal") is not None:
        reason = f"torchrun's agent was killed by {signal_name(supervised['signal'])}"
        return Cause(outcome="failed", failure="signal", reason=reason)
    if supervised.get("reason") == "not-started":
        return Cause(outcome="failed", failure="not-started", reason=str(supervised.get("error")))
    if supervised.get("exit_code") == 0:
        short = next(rank.rank for rank in ranks if not rank.has_settled(case))
        reason = f"rank {short} ended without a result and without an error"
        return Cause(outcome="failed", failure="exit", reason=reason, rank=short)
    code = supervised.get("exit_code")
    line = last_line(ending.agent_log) or "it wrote nothing"
    reason = f"torchrun ended with {code}: {line}"
    failure: Failure = "not-started" if not any(rank.state for rank in ranks) else "exit"
    return Cause(outcome="failed", failure=failure, reason=reason, traceback=trace_in(ending.agent_log))


def signal_name(number: int) -> str:
    """SIGSEGV for 11, and the number for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def trace_in(log: str) -> str | None:
    """The first traceback in a log, Python's own or faulthandler's, to the log's end."""
    found = _TRACE.search(log)
    return None if found is None else log[found.start() :].strip()


def last_line(log: str) -> str:
    """The last line that says something: of a traceback that is the error itself."""
    lines = (line.strip() for line in reversed(log.splitlines()))
    return next((line for line in lines if re.search(r"\w", line)), "")
