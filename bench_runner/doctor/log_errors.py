"""The errors that the ranks themselves raised, each rank's first, and which of them came first in time.  Pure rules."""

from __future__ import annotations

from typing import Final

from bench_runner.doctor.desync import ranks_do
from bench_runner.doctor.faults import fault_finding
from bench_runner.doctor.log_times import Stamp
from bench_runner.doctor.logs import LoggedError, LogSummary
from bench_runner.finding import Finding

TERMINATED: Final = -15
_MOST_SHOWN: Final = 16


def died_findings(summary: LogSummary, probe: str, causes: list[Finding]) -> list[Finding]:
    """``causes`` (of known signatures) with the ranks' own errors that none of them accounts for, or a rank that was
    killed without one; whatever came first in time, as far as that is known, stands first."""
    explained = any(finding.status == "fail" for finding in causes)
    known = [match for match in summary.matches if match.signature.status == "fail" and not match.signature.symptom]
    accounted = {match.rank for match in known}
    errors = [
        error
        for error in first_errors(summary)
        if not explained or (error.rank is not None and error.rank not in accounted and None not in accounted)
    ]
    if errors:
        finding = _finding_of(errors, summary, probe)
        times = [match.at for match in known]
        began = errors[0].at
        earlier = began is not None and all(at is not None and began < at for at in times)
        return [finding, *causes] if earlier or not explained else [*causes, finding]
    return [*causes, *_killed(summary, probe)] if not explained else causes


def first_errors(summary: LogSummary) -> list[LoggedError]:
    """Each rank's first error that is its own and not another's consequence, in the order of time where it is known.

    Where no rank is named, each file's first.
    """
    firsts: dict[int | str, LoggedError] = {}
    for error in summary.errors:
        if not error.of_launcher and not error.consequence:
            firsts.setdefault(error.rank if error.rank is not None else error.file, error)
    errors = list(firsts.values())
    if len({error.file for error in errors}) < 2:
        return errors  # one file's order is that of time
    times = _times(errors, summary)
    return (
        errors
        if times is None
        else [error for _, _, error in sorted(zip(times, range(len(errors)), errors, strict=True))]
    )


def _times(errors: list[LoggedError], summary: LogSummary) -> list[Stamp] | None:
    """A time for every error by one and the same clock: the lines' own, else the launcher's; None if some has none."""
    for times in (
        [error.at for error in errors],
        [summary.failed_at.get(error.rank) if error.rank is not None else None for error in errors],
    ):
        found = [time for time in times if time is not None]
        if len(found) == len(errors):
            return found
    return None


def _finding_of(errors: list[LoggedError], summary: LogSummary, probe: str) -> Finding:
    first, others = errors[0], errors[1:]
    ordered = len({error.file for error in errors}) < 2 or _times(errors, summary) is not None
    message = f"{_who(first)} failed {'first' if ordered else 'with its own error'}: {first.error}"
    evidence = [first.where, *(str(frame) for frame in first.frames[-8:]), first.error]
    if others:
        ranks = [error.rank for error in others if error.rank is not None]
        whose = (
            ranks_do(ranks, "has an error of its own", "have errors of their own")
            if len(ranks) == len(others)
            else f"{len(others)} more processes have errors of their own"
        )
        message += f"; {whose}" + ("" if ordered else ", and no times say which came first")
        evidence += [_line(error) for error in others[:_MOST_SHOWN]]
    return fault_finding(probe, "rank-died", message, evidence=tuple(evidence))


def _who(error: LoggedError) -> str:
    return f"rank {error.rank}" if error.rank is not None else "a process"


def _line(error: LoggedError) -> str:
    place = f" at {error.frames[-1]}" if error.frames else ""
    return f"{_who(error)}, {error.where}: {error.error[:200]}{place}"


def _killed(summary: LogSummary, probe: str) -> list[Finding]:
    killed = {rank: code for rank, code in summary.exits.items() if code < 0 and code != TERMINATED}
    if not killed:
        return []
    rank, code = next(iter(sorted(killed.items())))
    evidence = tuple(f"rank {r}: exit code {c}" for r, c in sorted(summary.exits.items()))
    message = f"rank {rank} was ended by signal {-code} without an error"
    return [fault_finding(probe, "rank-died", message, evidence=evidence)]
