"""What two sides say without numbers: how their launches ended, and cases that one of them does not have.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields

from bench_runner.analysis.cases import Case, CaseKey, Launch
from bench_runner.analysis.comparison import (
    OUTCOME,
    Comparison,
    Unmatched,
    Verdict,
    all_launches,
    machines_differ,
    not_comparable,
    side,
)


def outcomes(baseline: Case, candidate: Case) -> list[Comparison]:
    """A comparison of outcomes where a launch of either side did not deliver."""
    if not baseline.broken and not candidate.broken:
        return []
    left, right = side(all_launches([baseline])), side(all_launches([candidate]))
    same_machine = not machines_differ([baseline], [candidate])
    verdict, reason = _outcome_verdict(baseline, candidate, same_machine)
    return [
        Comparison(key=baseline.key, metric=OUTCOME, baseline=left, candidate=right, verdict=verdict, reason=reason)
    ]


def _outcome_verdict(baseline: Case, candidate: Case, same_machine: bool) -> tuple[Verdict, str]:
    before, after = _failures(baseline.broken), _failures(candidate.broken)
    if after and not before:
        return "regression", f"the candidate {_told(candidate)}"
    if before and not after and not candidate.broken:
        return "improvement", f"the baseline {_told(baseline)}, the candidate never"
    if before or after:
        return "inconclusive", f"the baseline {_told(baseline)}; the candidate {_told(candidate)}"
    if candidate.broken and not baseline.broken:
        # Skipped now, measured before.  On one machine something was lost; another may just lack the devices.
        return "regression" if same_machine else "not-comparable", f"the candidate {_told(candidate)}"
    if baseline.broken and not candidate.broken:
        return "not-comparable", f"the baseline {_told(baseline)}"
    return "not-comparable", f"skipped on both sides: {candidate.broken[0].reason}"


def _failures(launches: Sequence[Launch]) -> list[Launch]:
    return [launch for launch in launches if launch.outcome in ("failed", "timeout")]


def _told(case: Case) -> str:
    """How the launches of one case ended, in words, with the first reason."""
    total = len(all_launches([case]))
    if not case.broken:
        return f"delivered in all {total} launches"
    counted = Counter(launch.outcome for launch in case.broken)
    words = {"failed": "failed", "timeout": "timed out", "skipped": "was skipped"}
    parts = [f"{words[outcome]} in {count} of {total} launches" for outcome, count in sorted(counted.items())]
    return f"{' and '.join(parts)}: {case.broken[0].reason}"


def order(key: CaseKey) -> tuple[str, ...]:
    """Sorts cases by their fields, numbers as numbers."""
    return tuple(
        f"{value:09d}" if isinstance(value, int) else str(value)
        for f in fields(key)
        for value in [getattr(key, f.name)]
    )


# --- cases of one side alone ------------------------------------------------------------------------------------


def unmatched(
    baseline: Mapping[CaseKey, Case], candidate: Mapping[CaseKey, Case]
) -> tuple[list[Comparison], list[Unmatched]]:
    """Cases without a partner; two that stand for the same question with other values are named together."""
    left = [baseline[key] for key in sorted(baseline.keys() - candidate.keys(), key=order)]
    right = [candidate[key] for key in sorted(candidate.keys() - baseline.keys(), key=order)]
    told, lonely = [], []
    for case in left:
        partners = [other for other in right if _question(other.key) == _question(case.key)]
        rivals = [other for other in left if _question(other.key) == _question(case.key)]
        if len(partners) == len(rivals) == 1:
            told.append(not_comparable(case, partners[0], _key_difference(case.key, partners[0].key)))
            right.remove(partners[0])
        else:
            lonely.append(Unmatched(key=case.key, side="baseline", launches=len(all_launches([case]))))
    lonely += [Unmatched(key=case.key, side="candidate", launches=len(all_launches([case]))) for case in right]
    return told, lonely


def _question(key: CaseKey) -> tuple[object, ...]:
    return (key.kind, key.name, key.strategy, key.devices, key.parameters)


def _key_difference(left: CaseKey, right: CaseKey) -> str:
    parts = [
        f"{f.name.replace('_', ' ')} {getattr(left, f.name)} against {getattr(right, f.name)}"
        for f in fields(CaseKey)
        if getattr(left, f.name) != getattr(right, f.name)
    ]
    return f"not the same case: {', '.join(parts)}"
