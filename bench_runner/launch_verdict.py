"""What became of each case of a launch: pure functions over what the ranks said and how the launch ended."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bench_runner.launch_cause import Cause, Ending, doing_by_rank, find_cause
from bench_runner.rank_files import CaseProgress, RankProgress
from bench_runner.record import Failure, Outcome
from bench_runner.spec import RunSpec

LONGEST_REASON: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case of a launch.  ``ranks`` holds the fields of RankSamples as plain values, in the order of the ranks."""

    spec: RunSpec
    outcome: Outcome
    started_at: str
    duration_seconds: float
    reason: str | None = None
    failure: Failure | None = None
    failed_rank: int | None = None
    traceback: str | None = None
    ranks: tuple[dict[str, Any], ...] = ()
    runtime: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


def case_results(
    specs: Sequence[RunSpec], first_case: int, ranks: Sequence[RankProgress], ending: Ending
) -> tuple[CaseResult, ...]:
    """The cases from ``first_case`` on that are decided by this launch: at least one.

    Settled cases and the one that failed; all that are left if none had begun, as another try would end alike.
    """
    decided = settled_results(specs, first_case, ranks, ending)
    failed = first_case + len(decided)
    if failed == len(specs):
        return decided
    cause = find_cause(ranks, failed, ending)
    # A rank that fails before its first case fails in any launch; nobody's fault in particular counts for all.
    suspects = [rank for rank in ranks if cause.rank in (None, rank.rank)]
    begun = any(rank.has_begun(index) for rank in suspects for index in range(first_case, len(specs)))
    # With a node gone the next try says so at once, and ends the run: what it would have measured stays to be measured.
    one = begun or cause.failure == "lost-node"
    lost = range(failed, failed + 1 if one else len(specs))
    return (*decided, *(_failed(specs[index], index, ranks, ending, cause) for index in lost))


def settled_results(
    specs: Sequence[RunSpec], first_case: int, ranks: Sequence[RankProgress], ending: Ending | None
) -> tuple[CaseResult, ...]:
    """The cases from ``first_case`` on that every rank has finished; ``ending`` is None for a launch broken off."""
    settled = itertools.takewhile(
        lambda index: all(rank.has_settled(index) for rank in ranks), range(first_case, len(specs))
    )
    return tuple(_settled(specs[index], index, ranks, ending) for index in settled)


def _settled(spec: RunSpec, index: int, ranks: Sequence[RankProgress], ending: Ending | None) -> CaseResult:
    cases = [rank.cases[index] for rank in ranks]
    started_at, seconds = _times(cases)
    samples = tuple(case.samples for case in cases if case.samples is not None)
    skips = [case.skipped for case in cases if case.skipped is not None]
    outcome: Outcome = "ok" if not skips else "skipped" if not samples else "failed"
    reason = skips[0] if skips else None
    if outcome == "failed":
        reason = f"{len(samples)} of {len(cases)} ranks measured and the others skipped: {skips[0]}"
    return CaseResult(
        spec=spec,
        outcome=outcome,
        reason=reason,
        failure="exception" if outcome == "failed" else None,
        started_at=started_at,
        duration_seconds=seconds,
        ranks=samples,
        runtime=_runtime(ranks),
        warnings=_warnings(index, ranks, ending),
    )


def _failed(spec: RunSpec, index: int, ranks: Sequence[RankProgress], ending: Ending, cause: Cause) -> CaseResult:
    started_at, seconds = _times([rank.cases[index] for rank in ranks if rank.has_begun(index)], ending)
    samples = (rank.cases[index].samples for rank in ranks if rank.has_begun(index))
    return CaseResult(
        spec=spec,
        outcome=cause.outcome,
        reason=" ".join(cause.reason.split())[:LONGEST_REASON],
        failure=cause.failure,
        failed_rank=cause.rank,
        traceback=cause.traceback,
        started_at=started_at,
        duration_seconds=seconds,
        ranks=tuple(sample for sample in samples if sample is not None),
        runtime=_runtime(ranks),
        warnings=_warnings(index, ranks, ending),
    )


def _times(cases: Sequence[CaseProgress], ending: Ending | None = None) -> tuple[str, float]:
    """ISO time of the first rank's beginning, and the seconds to the last one's end, or to the launch's end."""
    moments = [moment for case in cases for moment in (case.began, case.settled) if moment is not None]
    began = min(moments, default=ending.started if ending else 0.0)
    ended = ending.ended if ending else max(moments, default=began)
    return datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"), max(ended - began, 0.0)


def _runtime(ranks: Sequence[RankProgress]) -> dict[str, Any] | None:
    return next((rank.runtime for rank in ranks if rank.runtime is not None), None)


def _warnings(index: int, ranks: Sequence[RankProgress], ending: Ending | None) -> tuple[str, ...]:
    found = [warning for rank in ranks if rank.has_begun(index) for warning in rank.cases[index].warnings]
    found += [
        f"rank {rank.rank}: {rank.unreadable_lines} unreadable lines in its file"
        for rank in ranks
        if rank.unreadable_lines
    ]
    found += _unlike_versions(ranks)
    if ending is not None and ending.stop is not None and ending.stop.kind == "teardown":
        stuck = ", ".join(doing_by_rank(ranks))
        found.append(f"the workers had not ended {ending.stop.seconds:.0f} s after their last result ({stuck})")
    return tuple(dict.fromkeys(found))


def _unlike_versions(ranks: Sequence[RankProgress]) -> list[str]:
    """Nodes may have environments of their own: ranks that ran other versions than the first one."""
    lines = []
    for name in ("python", "torch", "cuda", "nccl", "cudnn"):
        versions = {rank.rank: rank.runtime.get(name) for rank in ranks if rank.runtime is not None}
        first = next(iter(versions), None)
        other = next((rank for rank in versions if first is not None and versions[rank] != versions[first]), None)
        if first is not None and other is not None:
            lines.append(f"ranks differ in {name}: rank {first} {versions[first]}, rank {other} {versions[other]}")
    return lines
