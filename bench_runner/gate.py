"""The gate: verify, run and compare with a frozen baseline, and one verdict.

What verifies, runs and compares is handed in; here is the order of things, and when to measure more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bench_runner.analysis.comparison import THRESHOLD, Comparison, Unmatched
from bench_runner.analysis.power import LARGEST_PLAN
from bench_runner.analysis.statistics import Rule
from bench_runner.comparing import Compared
from bench_runner.finding import Finding, verdict
from bench_runner.record import RunRecord

GateVerdict = Literal["pass", "fail", "inconclusive"]
MOST_LOOKS: Final = 6
LEAST_LAUNCHES: Final = Rule(threshold=THRESHOLD).least_launches
"""On each side, before a change is flagged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One verdict with its reasons.  ``compared`` is missing when verification failed: nothing was measured then.

    ``launches_needed`` a side would show the asked change in every metric that is still inconclusive; ``None``: not
    known, or no number would.
    """

    verdict: GateVerdict
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    compared: Compared | None
    launches: int
    looks: int
    minutes: float
    launches_needed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What the gate does, as functions.

    ``verify`` gives findings, or is ``None``; ``run`` measures so many launches, or is ``None`` where the results are
    there already; ``compare`` gets the records measured so far and the share of the error probabilities that this look
    may spend.
    """

    verify: Callable[[], Sequence[Finding]] | None
    run: Callable[[int], Sequence[RunRecord]] | None
    compare: Callable[[Sequence[RunRecord], float], Compared]
    clock: Callable[[], float]


def pass_gate(steps: Steps, *, launches: int, max_minutes: float | None) -> GateResult:
    """Verify, then measure and compare; with ``max_minutes`` launches are added until the answer is clear."""
    begin = steps.clock()
    findings = tuple(steps.verify()) if steps.verify is not None else ()
    if verdict(findings) == "fail":
        reasons = tuple(f"verify: {f.check}: {f.message}" for f in findings if f.status == "fail")
        minutes = (steps.clock() - begin) / 60
        return GateResult(
            verdict="fail", reasons=reasons, findings=findings, compared=None, launches=0, looks=0, minutes=minutes
        )
    compared, measured, looks = _measure(steps, launches, begin, max_minutes)
    told, reasons = judge_gate(compared)
    return GateResult(
        verdict=told,
        reasons=reasons,
        findings=findings,
        compared=compared,
        launches=measured,
        looks=looks,
        minutes=(steps.clock() - begin) / 60,
        launches_needed=needed(compared),
    )


def _measure(steps: Steps, launches: int, begin: float, max_minutes: float | None) -> tuple[Compared, int, int]:
    """The last comparison, the launches measured for it, and how often was looked."""
    if steps.run is None:
        return steps.compare((), 1.0), 0, 1
    started = steps.clock()
    records = list(steps.run(launches))
    measured, looks = launches, 1
    # One look spends the whole probability of error; of several, each spends half of what is left.
    share = 1.0 if max_minutes is None else 0.5
    while True:
        compared = steps.compare(records, share)
        more = wanted(compared) if max_minutes is not None and looks < MOST_LOOKS else 0
        if not more or max_minutes is None:
            return compared, measured, looks
        each = (steps.clock() - started) / measured
        affordable = int((begin + 60 * max_minutes - steps.clock()) / max(each, 1e-3))
        if affordable < 1:
            return compared, measured, looks
        # A plan from few launches is rough: never less than half as many again, so that looks stay few.
        more = min(max(more, (measured + 1) // 2), affordable)
        records += steps.run(more)
        measured, looks, share = measured + more, looks + 1, share / 2


def judge_gate(compared: Compared) -> tuple[GateVerdict, tuple[str, ...]]:
    """``fail`` on a regression; ``inconclusive`` when something of the baseline could not be judged; else ``pass``."""
    worse = [told(c) for c in compared.outcome.comparisons if c.verdict == "regression"]
    if worse:
        return "fail", tuple(worse)
    open_questions = [told(c) for c in compared.outcome.comparisons if c.verdict == "inconclusive" or lost(c)]
    open_questions += [f"{one.key.label}: not measured now" for one in missing(compared)]
    if open_questions:
        return "inconclusive", tuple(open_questions)
    return "pass", (f"no change of {compared.outcome.rule.threshold:.1%} or more for the worse",)


def told(comparison: Comparison) -> str:
    """A comparison in one line."""
    size = "" if comparison.bytes is None else f" {comparison.bytes} B"
    change = "" if comparison.ratio is None else f" {100 * (comparison.ratio - 1):+.3g} %"
    return f"{comparison.key.label}: {comparison.metric}{size}{change}: {comparison.reason}"


def lost(comparison: Comparison) -> bool:
    """The baseline has it and it could not be compared: the gate cannot speak for it."""
    measured = comparison.baseline.outcomes.get("ok", 0) > 0
    only_candidate = comparison.unit is not None and comparison.baseline.value is None
    return comparison.verdict == "not-comparable" and measured and not only_candidate


def missing(compared: Compared) -> list[Unmatched]:
    """Cases of the baseline that were not run now."""
    return [one for one in compared.outcome.unmatched if one.side == "baseline"]


def wanted(compared: Compared) -> int:
    """Launches to add; 0 when all is clear, when something is worse, or when more launches cannot help."""
    if any(comparison.verdict == "regression" for comparison in compared.outcome.comparisons):
        return 0
    more = 0
    for comparison in _unclear(compared):
        judgement = comparison.judgement
        if spread_unknown(comparison):
            more = max(more, LEAST_LAUNCHES - comparison.candidate.launches)
        plan = None if judgement is None else judgement.candidate_launches_needed
        if plan is not None and plan <= LARGEST_PLAN:
            more = max(more, plan - comparison.candidate.launches, 1)
    return more


def needed(compared: Compared) -> int | None:
    """Launches a side for all that is inconclusive; ``None`` if nothing is, or no number would do."""
    plans = [c.judgement.launches_needed for c in _unclear(compared) if c.judgement is not None]
    known = [plan for plan in plans if plan is not None]
    if not known or max(known) > LARGEST_PLAN:
        return None
    return max(known)


def spread_unknown(comparison: Comparison) -> bool:
    """One launch a side and no noise profile: whether more launches would do cannot even be planned yet."""
    judgement = comparison.judgement
    single = comparison.baseline.launches == comparison.candidate.launches == 1
    return comparison.verdict == "inconclusive" and judgement is not None and judgement.degrees is None and single


def _unclear(compared: Compared) -> list[Comparison]:
    return [comparison for comparison in compared.outcome.comparisons if comparison.verdict == "inconclusive"]
