"""A gate's result as JSON (``bench-runner/gate/1``, docs/schemas/gate-1.json), as text, and as one line."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any, Final

from bench_runner.finding import verdict
from bench_runner.gate import GateResult, spread_unknown
from bench_runner.report.comparison import WIDTH, compare_document, compare_text
from bench_runner.report.formats import printable

SCHEMA: Final = "bench-runner/gate/1"
LONGEST_LINE: Final = 200
"""A drain reason in Slurm is cut off not far behind this."""


def gate_document(result: GateResult, baseline: str, *, verified: bool) -> dict[str, Any]:
    """Plain values.  ``comparison`` is a document of ``compare``, or null when verification failed."""
    verification = {"verdict": verdict(result.findings), "findings": [asdict(one) for one in result.findings]}
    return {
        "schema": SCHEMA,
        "verdict": result.verdict,
        "baseline": baseline,
        "reasons": list(result.reasons),
        "launches": result.launches,
        "looks": result.looks,
        "launches_needed": result.launches_needed,
        "minutes": round(result.minutes, 3),
        "verification": verification if verified else None,
        "comparison": None if result.compared is None else compare_document(result.compared),
    }


def gate_text(result: GateResult, baseline: str) -> str:
    """For a terminal of 80 columns: what failed of verify, the comparison, the verdict last."""
    lines: list[str] = []
    bad = [finding for finding in result.findings if finding.status in ("warn", "fail")]
    if result.findings:
        lines += [f"verify: {verdict(result.findings)} ({len(result.findings)} checks)"]
    for finding in bad:
        lines += _wrapped(f"{finding.status.upper()} {finding.check}: {finding.message}", "  ")
        lines += _wrapped(f"remedy: {finding.remedy}", "    ")
    if lines:
        lines.append("")
    if result.compared is not None:
        lines += [compare_text(result.compared), ""]
    lines += _wrapped(f"gate {baseline}: {result.verdict}")
    for reason in result.reasons:
        lines += _wrapped(f"- {reason}", "  ")
    if result.compared is None:
        lines += _wrapped("nothing was measured: put right what verify found first", "  ")
    lines += _wrapped(_plan(result), "  ")
    return "\n".join(lines) + "\n"


def _plan(result: GateResult) -> str:
    compared = result.compared
    if compared is not None and any(map(spread_unknown, compared.outcome.comparisons)):
        return (
            "one launch a side does not tell how far launches differ: measure several (--launches 5), and freeze a "
            "baseline of several (bench-runner run --launches 5)"
        )
    if result.launches_needed is not None:
        return f"about {result.launches_needed} launches a side, baseline and now, would show such a change"
    if result.verdict == "inconclusive" and result.compared is not None:
        return "more launches alone would not settle all of it"
    return ""


def prolog_line(result: GateResult, baseline: str) -> str:
    """One line fit for a log or a drain reason."""
    first = result.reasons[0] if result.reasons else ""
    more = f" (and {len(result.reasons) - 1} more)" if len(result.reasons) > 1 else ""
    line = f"bench-runner gate {baseline}: {result.verdict}: "
    room = LONGEST_LINE - len(line) - len(more)
    text = printable(first)
    return line + (text if len(text) <= room else text[: room - 3] + "...") + more


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(printable(text), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
