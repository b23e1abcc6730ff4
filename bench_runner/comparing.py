"""A comparison from start to end, as ``compare`` and ``gate`` make it: sides and profiles in, everything to say out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench_runner.analysis.asv_results import from_asv
from bench_runner.analysis.cases import COMPARED, Case, CaseKey, from_records
from bench_runner.analysis.compare import compare
from bench_runner.analysis.comparison import THRESHOLD, THRESHOLD_BETWEEN_MACHINES, Outcome, machines_differ
from bench_runner.analysis.differences import Difference, asv_differences, differences, pooled
from bench_runner.analysis.metrics import METRICS
from bench_runner.analysis.statistics import Rule
from bench_runner.errors import BenchRunnerError, UsageError
from bench_runner.noise_file import profiles_for
from bench_runner.sides import Side


class NothingToCompareError(BenchRunnerError):
    """Both sides could be read, and no number of one has a partner in the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The outcome, what else differs, what was decided on the way (``notes``), and what could not be read."""

    baseline: Side
    candidate: Side
    outcome: Outcome
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    unreadable: tuple[str, ...]


def compare_sides(
    baseline: Side,
    candidate: Side,
    results: Path,
    *,
    threshold: float | None = None,
    metrics: Sequence[str] = (),
    share: float = 1.0,
) -> Compared:
    """Compare two sides.  ``threshold`` is a fraction; without one it is 5 %, or 10 % between two machines.

    Who looks several times while launches are added may spend the probability of error once: ``share`` of it here.

    Raises NothingToCompareError when the sides have no case in common.
    """
    left, right = cases_of(baseline, metrics), cases_of(candidate, metrics)
    notes = [*baseline.notes, *candidate.notes]
    notes += [*pooled(baseline.records, "baseline"), *pooled(candidate.records, "candidate")]
    both = {r.record_id for r in baseline.records} & {r.record_id for r in candidate.records}
    if both:
        notes.append(f"{len(both)} record(s) stand on both sides: what is compared with itself is the same")
    differ = machines_differ(left.values(), right.values())
    if threshold is None:
        threshold = THRESHOLD_BETWEEN_MACHINES if differ else THRESHOLD
    if differ and threshold < THRESHOLD_BETWEEN_MACHINES:
        notes.append("identical GPUs differ by up to 8 %: less than 10 % says something about these two machines alone")
    machines = [(r.machine.name, r.machine.fingerprint) for r in (*baseline.records, *candidate.records)]
    profiles, unfit, damaged = profiles_for(results, machines)
    usual = Rule(threshold=threshold)
    rule = replace(usual, suite_level=usual.suite_level * share, same_level=usual.same_level * share)
    outcome = compare(left, right, rule, noise=profiles)
    if outcome.sessions_uncounted:
        notes.append(
            "the launches of the two sides did not alternate, and no noise profile says how far sessions differ by "
            "themselves: that shift is not counted (bench-runner profile-noise makes one from several sessions)"
        )
    if not outcome.comparisons:
        raise NothingToCompareError(_nothing(baseline, candidate, left, right))
    return Compared(
        baseline=baseline,
        candidate=candidate,
        outcome=outcome,
        differences=(
            *differences(baseline.records, candidate.records),
            *asv_differences(baseline.asv.results, candidate.asv.results),
        ),
        notes=(*notes, *unfit),
        unreadable=(*baseline.unreadable, *candidate.unreadable, *damaged),
    )


def cases_of(side: Side, metrics: Sequence[str] = ()) -> dict[CaseKey, Case]:
    """The cases of a side, from its records and from asv's results."""
    unknown = [name for name in metrics if name not in METRICS or METRICS[name].direction == "none"]
    if unknown:
        known = ", ".join(name for name, metric in METRICS.items() if metric.direction != "none")
        raise UsageError(f"--metric {unknown[0]}: must be one of {known}")
    return {**from_records(side.records, metrics or COMPARED), **from_asv(side.asv)}


def _nothing(baseline: Side, candidate: Side, left: Mapping[CaseKey, Case], right: Mapping[CaseKey, Case]) -> str:
    def told(side: Side, cases: Mapping[CaseKey, Case]) -> str:
        labels = sorted(key.label for key in cases)
        if not labels:
            return f"{side.selector} holds no results" + (" that can be read" if side.unreadable else "")
        return f"{side.selector} has {', '.join(labels[:3])}{', ...' if len(labels) > 3 else ''}"

    return f"nothing to compare: {told(baseline, left)}; {told(candidate, right)}"
