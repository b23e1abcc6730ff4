"""A gate's result as JUnit XML, for continuous integration: one test case a check and a comparison.

The format has no schema of its own; this is the common part that Jenkins, GitLab and GitHub's reporters read:
``testsuites/testsuite/testcase`` with ``failure``, ``error`` or ``skipped`` inside.  Inconclusive is an ``error``: the
test could not say.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from bench_runner.analysis.comparison import Comparison
from bench_runner.finding import Finding
from bench_runner.gate import GateResult, lost, missing
from bench_runner.report.formats import printable


def junit_xml(result: GateResult, name: str) -> str:
    """The whole document; ``name`` is the gate's, such as the baseline's name."""
    root = ET.Element("testsuites", name=_text(f"bench-runner gate {name}"), time=f"{60 * result.minutes:.3f}")
    if result.findings:
        _suite(root, "verify", [_finding(finding) for finding in result.findings])
    if result.compared is not None:
        cases = [_comparison(comparison) for comparison in result.compared.outcome.comparisons]
        cases += [
            _case("compare." + one.key.label, "all", "error", "not measured now", "missing")
            for one in missing(result.compared)
        ]
        _suite(root, "compare", cases)
    for outcome in ("tests", "failures", "errors", "skipped"):
        root.set(outcome, str(sum(int(suite.get(outcome, "0")) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ET.Element, name: str, cases: Sequence[ET.Element]) -> None:
    suite = ET.SubElement(root, "testsuite", name=name, tests=str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    suite.extend(cases)


def _finding(finding: Finding) -> ET.Element:
    lines = [
        f"expected: {finding.expected}",
        f"actual: {finding.actual}",
        *finding.evidence,
        f"remedy: {finding.remedy}",
    ]
    if finding.status == "fail":
        return _case("verify", finding.check, "failure", finding.message, "fail", lines)
    if finding.status == "skip":
        return _case("verify", finding.check, "skipped", finding.message)
    case = _case("verify", finding.check)
    if finding.status == "warn":
        ET.SubElement(case, "system-out").text = _text("\n".join([f"warning: {finding.message}", *lines]))
    return case


def _comparison(comparison: Comparison) -> ET.Element:
    name = comparison.metric if comparison.bytes is None else f"{comparison.metric} {comparison.bytes} B"
    place = f"compare.{comparison.key.label}"
    if comparison.verdict == "regression":
        return _case(place, name, "failure", comparison.reason, "regression", _numbers(comparison))
    if comparison.verdict == "inconclusive" or lost(comparison):
        return _case(place, name, "error", comparison.reason, comparison.verdict, _numbers(comparison))
    if comparison.verdict == "not-comparable":
        return _case(place, name, "skipped", comparison.reason)
    return _case(place, name)


def _numbers(comparison: Comparison) -> list[str]:
    sides = (("baseline", comparison.baseline.value), ("candidate", comparison.candidate.value))
    lines = [f"{side}: {value}" for side, value in sides if value is not None]
    if comparison.ratio is not None:
        lines.append(f"ratio: {comparison.ratio:.4f}")
    return lines


def _case(
    place: str, name: str, tag: str | None = None, message: str = "", kind: str = "", lines: Sequence[str] = ()
) -> ET.Element:
    case = ET.Element("testcase", classname=_text(place), name=_text(name))
    if tag is not None:
        child = ET.SubElement(case, tag, message=_text(message))
        if kind:
            child.set("type", kind)
        if lines:
            child.text = _text("\n".join(lines))
    return case


def _text(text: str) -> str:
    """Characters that XML cannot hold are shown as escapes; line ends stay."""
    return "\n".join(printable(line) for line in text.split("\n"))
