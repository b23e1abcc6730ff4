"""A probe's findings as the ``--json`` document and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from bench_runner.finding import Finding, verdict

DOCTOR_SCHEMA: Final = "bench-runner/doctor/1"
_MARKS: Final = {"fail": "FAIL", "warn": "WARN", "pass": "ok", "skip": "skip"}


def fault_of(findings: Sequence[Finding]) -> str | None:
    """The name of the first fault: the last part of the first failed check's name, else of the first warning's."""
    for status in ("fail", "warn"):
        for finding in findings:
            if finding.status == status:
                return finding.check.rpartition(".")[2]
    return None


def doctor_document(
    probe: str, findings: Sequence[Finding], details: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The document of docs/schemas/doctor-1.json; ``details`` holds the probe's own values, plain ones only."""
    return {
        "schema": DOCTOR_SCHEMA,
        "probe": probe,
        "verdict": verdict(findings),
        "fault": fault_of(findings),
        "findings": [{**asdict(finding), "evidence": list(finding.evidence)} for finding in findings],
        "details": dict(details or {}),
    }


def doctor_text(findings: Sequence[Finding]) -> str:
    """The findings for people: one paragraph each, failures first, and the verdict at the end."""
    order = {"fail": 0, "warn": 1, "skip": 2, "pass": 3}
    lines: list[str] = []
    for finding in sorted(findings, key=lambda finding: order[finding.status]):
        lines.append(f"{_MARKS[finding.status]:<4}  {finding.check}: {_shown(finding.message)}")
        if finding.expected is not None:
            lines.append(f"      expected  {_shown(finding.expected)}")
        if finding.actual is not None:
            lines.append(f"      actual    {_shown(finding.actual)}")
        lines.extend(f"      | {_shown(line)}" for line in finding.evidence)
        if finding.remedy:
            lines.append(f"      remedy    {finding.remedy}")
    return "\n".join([*lines, f"verdict: {verdict(findings)}"])


def _shown(text: str) -> str:
    """Text out of logs and programs with its control characters made visible: it goes to a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
