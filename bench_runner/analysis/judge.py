"""Verdicts over a suite of metrics compared together: values in, ``Judgement`` out.

The rule is that of ``statistics``; here it is applied to metrics with unlike numbers of launches, noise and
direction, and each verdict gets its interval, the smallest change it could see and the launches it would need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Final

import numpy as np

from bench_runner.analysis import power, statistics
from bench_runner.analysis.statistics import Evidence, Judgement, Pair, Rule, StatisticalVerdict


def judge(pairs: Sequence[Pair], rule: Rule) -> list[Judgement]:
    """One judgement a pair, in order.  The adjustment for many metrics counts the pairs that can be flagged at all."""
    usable = [index for index, pair in enumerate(pairs) if _problem(pair) is None]
    outcome: dict[int, Judgement] = {}
    if usable:
        chosen = [pairs[index] for index in usable]
        outcome = dict(zip(usable, _judge(chosen, _stack([_weigh(pair, rule) for pair in chosen]), rule), strict=True))
    return [outcome[index] if index in outcome else _untested(pair) for index, pair in enumerate(pairs)]


def _problem(pair: Pair) -> str | None:
    """Why a pair cannot be tested at all."""
    values = np.asarray((*pair.baseline, *pair.candidate), dtype=float)
    if not pair.baseline or not pair.candidate:
        return "no values on one side"
    if not np.isfinite(values).all():
        return "a value is not finite"
    if (values <= 0).any():
        return "a value is not positive, so there is no ratio"
    return None


def _untested(pair: Pair) -> Judgement:
    problem = _problem(pair)
    if pair.baseline and pair.candidate and not any((*pair.baseline, *pair.candidate)):
        return Judgement(verdict="same", ratio=1.0, notes=("zero on both sides in every launch",))
    return Judgement(verdict="inconclusive", ratio=None, notes=(str(problem),))


def _weigh(pair: Pair, rule: Rule) -> Evidence:
    baseline, candidate = np.log(np.asarray(pair.baseline)), np.log(np.asarray(pair.candidate))
    return statistics.weigh(baseline, candidate, rule, noise=pair.noise, interleaved=pair.interleaved)


def _stack(items: Sequence[Evidence]) -> Evidence:
    return Evidence(**{f.name: np.array([getattr(item, f.name) for item in items]) for f in fields(Evidence)})


def _judge(pairs: Sequence[Pair], evidence: Evidence, rule: Rule) -> list[Judgement]:
    p_values = statistics.two_sided_p(evidence)
    flaggable = np.minimum(evidence.baseline_launches, evidence.candidate_launches) >= rule.least_launches
    adjusted = np.ones_like(p_values)
    adjusted[flaggable] = statistics.benjamini_hochberg(p_values[flaggable])
    codes = statistics.decide(evidence, adjusted, rule)
    widths = statistics.half_width(evidence, rule.same_level)
    visible = power.smallest_visible(evidence.error, evidence.degrees, rule)
    judgements = []
    for index, pair in enumerate(pairs):
        tested = bool(evidence.degrees[index] > 0)
        verdict = _verdict(int(codes[index]), pair)
        unclear = tested and verdict == "inconclusive"
        judgements.append(
            Judgement(
                verdict=verdict,
                ratio=_ratio(float(evidence.difference[index])),
                interval=_interval(float(evidence.difference[index]), float(widths[index])),
                p_value=float(p_values[index]) if tested else None,
                p_adjusted=float(adjusted[index]) if flaggable[index] else None,
                spread=float(evidence.spread[index]) if tested else None,
                degrees=float(evidence.degrees[index]) if tested else None,
                smallest_visible=_change(float(visible[index])) if flaggable[index] else None,
                launches_needed=_needed(pair, evidence, index, rule, fixed=False) if unclear else None,
                candidate_launches_needed=_needed(pair, evidence, index, rule, fixed=True) if unclear else None,
                notes=_notes(pair, tested=tested, verdict=verdict, rule=rule),
            )
        )
    return judgements


LARGEST_LOG: Final = 20.0
"""Changes beyond e^20 are not worth stating, and e^710 is no number."""


def _ratio(difference: float) -> float | None:
    return math.exp(difference) if abs(difference) <= 700 else None


def _interval(difference: float, width: float) -> tuple[float, float] | None:
    if abs(difference) + width > LARGEST_LOG:
        return None
    return math.exp(difference - width), math.exp(difference + width)


def _change(logs: float) -> float | None:
    return math.expm1(logs) if logs <= LARGEST_LOG else None


def _verdict(code: int, pair: Pair) -> StatisticalVerdict:
    if code == statistics.SAME:
        return "same"
    if code == statistics.INCONCLUSIVE:
        return "inconclusive"
    return "improvement" if (code == statistics.LARGER) == (pair.direction == "higher") else "regression"


def _needed(pair: Pair, evidence: Evidence, index: int, rule: Rule, *, fixed: bool) -> int:
    today = evidence.baseline_launches[index] + evidence.candidate_launches[index] - 2
    spread = float(evidence.spread[index])
    sessions = None if pair.interleaved else statistics.session_shift(pair.noise)
    between = 0.0 if sessions is None else max(0.0, sessions.variance - spread**2 * sessions.launches_share)
    return power.launches_needed(
        spread,
        rule,
        metrics=evidence.difference.size,
        profile_degrees=float(evidence.spread_degrees[index] - today),
        between=between,
        baseline_launches=len(pair.baseline) if fixed else None,
    )


def _notes(pair: Pair, *, tested: bool, verdict: StatisticalVerdict, rule: Rule) -> tuple[str, ...]:
    notes = []
    fewest = min(len(pair.baseline), len(pair.candidate))
    if not tested:
        notes.append("one launch a side and no noise profile: the spread is not known")
    elif fewest < rule.least_launches and verdict != "same":
        notes.append(f"{fewest} launch(es) on one side, {rule.least_launches} are needed to flag a change")
    return tuple(notes)
