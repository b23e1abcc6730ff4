"""Findings of ``verify`` as text for people and as a document for machines: values in, strings out."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from bench_runner.finding import Finding, Status, verdict

MEASURED: Final = "links."
"""Checks whose message is a measurement: worth reading when they pass, too."""
VERIFY_SCHEMA: Final = "bench-runner/verify/1"
LONGEST_LINE: Final = 200
"""A drain reason in Slurm is cut off not far behind this."""
SHOWN_SKIPS: Final = 5
"""More skipped checks mostly have one reason in common, which the first of them says."""
_ORDER: Final[tuple[Status, ...]] = ("fail", "warn", "skip", "pass")
_HEADINGS: Final[Mapping[Status, str]] = {"fail": "FAILED", "warn": "WARNINGS", "skip": "SKIPPED", "pass": "PASSED"}


def verify_document(
    groups: Mapping[str, Sequence[Finding]], subject: Mapping[str, Any], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """The document of ``docs/schemas/verify-1.json``; ``groups`` are findings by what was verified."""
    every = [finding for findings in groups.values() for finding in findings]
    return {
        "schema": VERIFY_SCHEMA,
        "verdict": verdict(every),
        "subject": dict(subject),
        "groups": {name: verdict(findings) for name, findings in groups.items()},
        "findings": [{**asdict(finding), "evidence": list(finding.evidence)} for finding in every],
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def verify_text(groups: Mapping[str, Sequence[Finding]], subject: Mapping[str, Any], *, passes: bool = False) -> str:
    """Worst first, with evidence and remedy, the verdict last.

    Of the passed checks a count, unless ``passes``, and what was measured; of many skipped ones the first reasons
    and the names of the rest.
    """
    lines = [f"{name}: {_printable(value)}" for name, value in subject.items() if value is not None]
    every = [finding for findings in groups.values() for finding in findings]
    for status in _ORDER:
        found = [finding for finding in every if finding.status == status]
        if not found:
            continue
        lines += ["", f"{_HEADINGS[status]} ({len(found)})"]
        if status == "pass" and not passes:
            lines[-1] += ": " + ", ".join(f"{name} {_passed(findings)}" for name, findings in groups.items())
            found = [finding for finding in found if finding.check.startswith(MEASURED)]
        if status == "skip" and not passes and len(found) > SHOWN_SKIPS:
            lines += _folded(found)
            continue
        for finding in found:
            lines += _paragraph(finding)
    by_group = ", ".join(f"{name} {verdict(findings)}" for name, findings in groups.items())
    return "\n".join([*lines, "", f"verdict: {verdict(every)} ({by_group})"])


def verify_line(groups: Mapping[str, Sequence[Finding]]) -> str:
    """One line for a prolog, a health check or a drain reason: the verdict and the worst of it."""
    every = [finding for findings in groups.values() for finding in findings]
    found = verdict(every)
    bad = [finding for finding in every if finding.status == found and found != "pass"]
    if not bad:
        return f"bench-runner verify: {found}: {len(every)} checks"
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    line = f"bench-runner verify: {found}: {bad[0].check}: "
    text = " ".join(_printable(bad[0].message).split())
    room = LONGEST_LINE - len(line) - len(more)
    return line + (text if len(text) <= room else text[: max(room - 3, 0)] + "...") + more


def _folded(skipped: Sequence[Finding]) -> list[str]:
    """The first reason of each part (environment, machine, links), and the names of the rest."""
    first: dict[str, Finding] = {}
    for finding in skipped:
        first.setdefault(finding.check.partition(".")[0], finding)
    rest = [finding.check for finding in skipped if finding not in first.values()]
    lines = [line for finding in first.values() for line in _paragraph(finding)]
    names = f"{len(rest)} more (--passed says why): {', '.join(rest)}"
    return lines + textwrap.wrap(names, 80, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _passed(findings: Sequence[Finding]) -> str:
    return f"{sum(finding.status == 'pass' for finding in findings)} of {len(findings)}"


def _paragraph(finding: Finding) -> list[str]:
    lines = [f"  {finding.check}: {_printable(finding.message)}"]
    if finding.status in ("pass", "skip"):
        return lines
    if finding.expected is not None:
        lines.append(f"      expected  {_printable(finding.expected)}")
    if finding.actual is not None:
        lines.append(f"      actual    {_printable(finding.actual)}")
    lines += [f"      | {_printable(line)}" for line in finding.evidence]
    if finding.remedy:
        lines.append(f"      remedy    {_printable(finding.remedy)}")
    return lines


def _printable(value: Any) -> str:
    """Text from files and programs with its control characters shown: it goes to a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
