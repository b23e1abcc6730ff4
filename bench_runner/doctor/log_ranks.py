"""Whose logs are at hand: ranks whose file is not among those given, ranks that contradict each other.  Pure rules.

Only files that belong to one rank each (by their names) say who is missing: in one file for all, a rank that is silent
may have had nothing to say.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from bench_runner.doctor.desync import rank_list, ranks_do
from bench_runner.doctor.logs import LogSummary
from bench_runner.errors import NothingToJudgeError
from bench_runner.finding import Finding

_MOST_RANKS: Final = 1 << 16


def world_size_of(summary: LogSummary, given: int | None) -> int | None:
    """The number of ranks: as given, or as the logs say with one voice."""
    sizes = {source.world_size for source in summary.sources if source.world_size is not None}
    return given if given is not None else next(iter(sizes)) if len(sizes) == 1 else None


def ranks_not_here(summary: LogSummary, given: int | None) -> list[int]:
    """Ranks without a file of their own, when every file given belongs to one rank."""
    of_files = [source.rank for source in summary.sources if source.rank is not None]
    if not of_files or len(of_files) < len(summary.sources):
        return []
    expected = max(world_size_of(summary, given) or 0, max(of_files) + 1)
    return sorted(set(range(min(expected, _MOST_RANKS))) - set(of_files))


def require_something(summary: LogSummary) -> None:
    """NothingToJudgeError when no log has a line of text in it."""
    if all(source.blank is not None for source in summary.sources):
        said = "; ".join(f"{source.name} {source.blank}" for source in summary.sources[:8])
        raise NothingToJudgeError(f"nothing to judge: {said}; give the job's output as text (unpack it first)")


def judge_blank(summary: LogSummary, probe: str = "log") -> list[Finding]:
    """What is left out of the judgement: one finding for each log without a line of text."""
    return [
        Finding(
            check=f"doctor.{probe}.nothing-to-judge",
            status="skip",
            message=f"{source.name} {source.blank}: nothing to judge in it",
            remedy="give the job's output as text (unpack it first); a rank that wrote nothing may not have started",
        )
        for source in summary.sources
        if source.blank is not None
    ]


def judge_ranks(summary: LogSummary, given: int | None, probe: str = "log") -> list[Finding]:
    """Warnings about the logs themselves: none when they are all here and agree."""
    return [*_not_here(summary, given, probe), *_conflicts(summary, given, probe)]


def _not_here(summary: LogSummary, given: int | None, probe: str) -> list[Finding]:
    absent = ranks_not_here(summary, given)
    if not absent:
        return []
    size = world_size_of(summary, given)
    of = f" of {size}" if size is not None else ""
    here = sorted({source.rank for source in summary.sources if source.rank is not None})
    return [
        Finding(
            check=f"doctor.{probe}.ranks-not-here",
            status="warn",
            message=f"the logs of {ranks_do(absent, 'is', 'are')} not among these files: what they say is not known",
            expected=f"the logs of {size if size is not None else max(here) + 1} ranks",
            actual=f"{rank_list(here)}{of}",
            evidence=tuple(f"{source.name}: rank {source.rank}" for source in summary.sources[:8]),
            remedy="give the logs of all ranks: `bench-runner doctor log logs/*rank*.log`; a rank that wrote none did"
            " not start: look at what its node or its launcher says",
        )
    ]


def _conflicts(summary: LogSummary, given: int | None, probe: str) -> list[Finding]:
    lines = [*_two_files(summary), *_other_rank(summary), *_sizes(summary, given)]
    if not lines:
        return []
    return [
        Finding(
            check=f"doctor.{probe}.ranks-conflict",
            status="warn",
            message=f"the logs contradict each other about ranks, and may be of several jobs: {lines[0]}",
            evidence=tuple(lines[:12]),
            remedy="give the logs of one job (of one attempt, under torchrun) at a time",
        )
    ]


def _two_files(summary: LogSummary) -> list[str]:
    """Two files for one rank, unless they are its standard output and its standard error."""
    by_rank: dict[int, dict[str, str]] = {}
    lines = []
    for source in summary.sources:
        if source.rank is None:
            continue
        path = PurePath(source.name)
        place = str(path.parent) if path.stem in ("stdout", "stderr") else source.name
        places = by_rank.setdefault(source.rank, {})
        if places and place not in places:
            lines.append(f"rank {source.rank} has {next(iter(places.values()))} and {source.name}")
        places.setdefault(place, source.name)
    return lines


def _other_rank(summary: LogSummary) -> list[str]:
    return [
        f"{source.name} is named after rank {source.rank}, and its lines are of {rank_list(sorted(source.spoken))}"
        for source in summary.sources
        if source.rank is not None and source.spoken and source.rank not in source.spoken
    ]


def _sizes(summary: LogSummary, given: int | None) -> list[str]:
    sizes = {source.world_size: source.name for source in summary.sources if source.world_size is not None}
    lines = [] if len(sizes) < 2 else [", ".join(f"{name} names a world size of {n}" for n, name in sizes.items())]
    size = world_size_of(summary, given)
    ranks = [source.rank for source in summary.sources if source.rank is not None]
    beyond = sorted({rank for rank in [*ranks, *summary.exits] if size is not None and rank >= size})
    if beyond:
        lines.append(f"{rank_list(beyond)} cannot be in a world of size {size}")
    return lines
