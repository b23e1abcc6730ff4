"""Two sides compared case by case and metric by metric: cases in, ``Comparison``s and one verdict out.  Pure.

What was measured and how has to be equal (``cases``); what differs there is ``not-comparable``, with the difference.
How launches ended counts as much as their numbers: a failure on either side is never "no change".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench_runner.analysis.cases import Case, CaseKey, Launch, MetricKey, Settings, noise_key
from bench_runner.analysis.comparison import (
    Comparison,
    Outcome,
    SideValue,
    Verdict,
    fingerprints,
    not_comparable,
    side,
)
from bench_runner.analysis.judge import judge
from bench_runner.analysis.noise import NoiseProfile
from bench_runner.analysis.outcomes import order, outcomes, unmatched
from bench_runner.analysis.power import LARGEST_PLAN
from bench_runner.analysis.statistics import Judgement, Noise, Pair, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A pair of numbers on its way to the judge."""

    key: CaseKey
    metric: MetricKey
    pair: Pair
    baseline: SideValue
    candidate: SideValue
    machines_differ: bool


def compare(
    baseline: Mapping[CaseKey, Case],
    candidate: Mapping[CaseKey, Case],
    rule: Rule,
    *,
    noise: Mapping[str, NoiseProfile] | None = None,
) -> Outcome:
    """Compare two sides.  ``noise`` maps machine fingerprints to their profiles."""
    waiting: list[_Waiting] = []
    told: list[Comparison] = []
    for key in sorted(baseline.keys() & candidate.keys(), key=order):
        told += outcomes(baseline[key], candidate[key])
        found, refused = _metrics(baseline[key], candidate[key], noise or {})
        waiting += found
        told += refused
    near, lonely = unmatched(baseline, candidate)
    told += near
    for item, judgement in zip(waiting, judge([item.pair for item in waiting], rule), strict=True):
        told.append(_judged(item, judgement, rule))
    worst: tuple[Verdict, ...] = ("regression", "inconclusive", "not-comparable", "improvement", "same")
    told.sort(key=lambda c: worst.index(c.verdict))
    return Outcome(
        rule=rule,
        comparisons=tuple(told),
        unmatched=tuple(lonely),
        sessions_uncounted=any(item.pair.sessions_uncounted for item in waiting),
    )


# --- numbers ----------------------------------------------------------------------------------------------------


def _metrics(
    baseline: Case, candidate: Case, noise: Mapping[str, NoiseProfile]
) -> tuple[list[_Waiting], list[Comparison]]:
    waiting: list[_Waiting] = []
    refused: list[Comparison] = []
    shared = baseline.measured.keys() & candidate.measured.keys()
    for chosen in sorted(shared):
        found, missing = _pairs(baseline, candidate, chosen, noise)
        waiting += found
        refused += missing
    if baseline.measured and candidate.measured and not shared:
        reason = _unlike(next(iter(baseline.measured)), next(iter(candidate.measured)))
        refused.append(not_comparable(baseline, candidate, reason))
    elif shared and (baseline.measured.keys() ^ candidate.measured.keys()):
        other = next(iter(baseline.measured.keys() ^ candidate.measured.keys()))
        reason = f"some launches were left out: {_unlike(min(shared), other)}"
        refused.append(not_comparable(baseline, candidate, reason))
    return waiting, refused


def _unlike(left: Settings, right: Settings) -> str:
    before, after = dict(left), dict(right)
    parts = [
        f"{name} {before.get(name, '-')} against {after.get(name, '-')}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]
    return f"measured with unlike settings: {', '.join(parts)}"


def _pairs(
    baseline: Case, candidate: Case, chosen: Settings, noise: Mapping[str, NoiseProfile]
) -> tuple[list[_Waiting], list[Comparison]]:
    waiting: list[_Waiting] = []
    missing: list[Comparison] = []
    left, right = baseline.measured[chosen], candidate.measured[chosen]
    metrics = dict.fromkeys(metric for launch in (*left, *right) for metric in launch.values)
    alternating = interleaved(left, right)
    for metric in metrics:
        before = tuple(launch.values[metric] for launch in left if metric in launch.values)
        after = tuple(launch.values[metric] for launch in right if metric in launch.values)
        sides = {"baseline": side(left, before), "candidate": side(right, after)}
        if not before or not after:
            reason = f"the {'baseline' if after else 'candidate'} has no value of it"
            missing.append(_bare(baseline.key, metric, sides, "not-comparable", reason))
            continue
        pair = Pair(
            baseline=before,
            candidate=after,
            direction=metric.direction,
            interleaved=alternating,
            noise=_profiles(baseline.key, chosen, metric, [*left, *right], noise),
        )
        differ = fingerprints(left) != fingerprints(right)
        waiting.append(_Waiting(key=baseline.key, metric=metric, pair=pair, machines_differ=differ, **sides))
    return waiting, missing


def interleaved(baseline: Sequence[Launch], candidate: Sequence[Launch]) -> bool:
    """Whether the launches of the two sides alternate in time on one machine, so that both met the same conditions."""
    if min(len(baseline), len(candidate)) < 2 or fingerprints(baseline) != fingerprints(candidate):
        return False
    moments = sorted([(one.started_at, 0) for one in baseline] + [(one.started_at, 1) for one in candidate])
    switches = sum(1 for (_, before), (_, after) in pairwise(moments) if before != after)
    return switches >= min(len(baseline), len(candidate))


def _profiles(
    key: CaseKey, chosen: Settings, metric: MetricKey, launches: Sequence[Launch], noise: Mapping[str, NoiseProfile]
) -> tuple[Noise, ...]:
    name = noise_key(key, chosen, metric)
    compared = {launch.session for launch in launches}
    profiles = [noise[fingerprint] for fingerprint in sorted(fingerprints(launches)) if fingerprint in noise]
    known = [profile.noise(name, without=compared) for profile in profiles]
    return tuple(one for one in known if one is not None)


def _bare(key: CaseKey, metric: MetricKey, sides: Mapping[str, SideValue], verdict: Verdict, reason: str) -> Comparison:
    return Comparison(
        key=key,
        metric=metric.name,
        bytes=metric.bytes,
        unit=metric.unit,
        direction=metric.direction,
        statistic=metric.statistic,
        baseline=sides["baseline"],
        candidate=sides["candidate"],
        verdict=verdict,
        reason=reason,
    )


def _judged(item: _Waiting, judgement: Judgement, rule: Rule) -> Comparison:
    return Comparison(
        key=item.key,
        metric=item.metric.name,
        bytes=item.metric.bytes,
        unit=item.metric.unit,
        direction=item.metric.direction,
        statistic=item.metric.statistic,
        baseline=item.baseline,
        candidate=item.candidate,
        verdict=judgement.verdict,
        reason="; ".join((_reason(item, judgement, rule), *judgement.notes)),
        judgement=judgement,
    )


def _reason(item: _Waiting, judgement: Judgement, rule: Rule) -> str:
    asked = f"{rule.threshold:.1%}"
    where = "between these two machines" if item.machines_differ else "between the two sides"
    if judgement.verdict == "same":
        return f"no change of {asked} {where}"
    if judgement.verdict == "inconclusive":
        return f"a change of {asked} can be neither seen nor ruled out{_plan(judgement)}"
    p_value = 1.0 if judgement.p_adjusted is None else judgement.p_adjusted
    return f"changed {where}, p = {p_value:.2g} among all metrics compared"


def _plan(judgement: Judgement) -> str:
    needed = judgement.launches_needed
    if needed is None:
        return ""
    if needed > LARGEST_PLAN:
        return f": no number of launches up to {LARGEST_PLAN} would do"
    return f": about {needed} launches a side would do"
