"""A fleet as one JSON document, ``bench-runner/fleet/1`` (docs/schemas/fleet-1.json), and as text of 80 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from bench_runner.analysis.fleet import LEAST_MACHINES, Fleet, FleetMetric
from bench_runner.analysis.fleet_nodes import Node
from bench_runner.finding import verdict
from bench_runner.report.comparison import WIDTH, amount
from bench_runner.report.formats import printable, size

SCHEMA: Final = "bench-runner/fleet/1"
SHOWN_FINDINGS: Final = 40
SHOWN_MACHINES: Final = 20


def fleet_document(fleet: Fleet, nodes: Sequence[Node], unreadable: Sequence[str]) -> dict[str, Any]:
    """Plain values, worst first."""
    return {
        "schema": SCHEMA,
        "verdict": verdict(fleet.findings),
        "threshold": fleet.threshold,
        "kinds": [{"kind": kind, "machines": list(machines)} for kind, machines in fleet.kinds.items()],
        "nodes": [asdict(node) for node in nodes],
        "findings": [asdict(finding) for finding in fleet.findings],
        "metrics": [_metric_document(metric) for metric in fleet.metrics],
        "unreadable": list(unreadable),
    }


def _metric_document(metric: FleetMetric) -> dict[str, Any]:
    return {
        "kind": metric.kind,
        "key": metric.key.to_json(),
        "metric": metric.metric.name,
        "bytes": metric.metric.bytes,
        "unit": metric.metric.unit,
        "direction": metric.metric.direction,
        "median": metric.middle,
        "robust_spread": metric.spread,
        "judged": metric.judged,
        "limit": metric.limit,
        "missing": list(metric.missing),
        "values": [asdict(value) for value in metric.values],
    }


def nodes_text(nodes: Sequence[Node]) -> str:
    """A line a machine for schedulers and scripts: name, state, reason, with tabs between them."""
    return "".join("\t".join(_field(text) for text in (node.name, node.state, node.reason)) + "\n" for node in nodes)


def _field(text: str) -> str:
    return " ".join(printable(text).split())


def fleet_text(fleet: Fleet, nodes: Sequence[Node], unreadable: Sequence[str]) -> str:
    """Findings first, worst first, then the distribution of each metric over the machines of each kind."""
    lines: list[str] = []
    for kind, machines in fleet.kinds.items():
        shown = ", ".join(machines[:SHOWN_MACHINES])
        more = f" … and {len(machines) - SHOWN_MACHINES} more" if len(machines) > SHOWN_MACHINES else ""
        lines += _wrapped(f"{len(machines)} x ({kind}): {shown}{more}")
        if len(machines) < LEAST_MACHINES:
            lines += _wrapped(f"{LEAST_MACHINES} of a kind are needed to tell who stands out", "    ")
    states = Counter(node.state for node in nodes)
    lines += ["", ", ".join(f"{count} {state}" for state, count in sorted(states.items())), ""]
    for finding in fleet.findings[:SHOWN_FINDINGS]:
        lines += _wrapped(f"{finding.status.upper()} {finding.message}")
        lines += _wrapped(f"remedy: {finding.remedy}", "    ")
    if len(fleet.findings) > SHOWN_FINDINGS:
        lines.append(f"... and {len(fleet.findings) - SHOWN_FINDINGS} more (--json has all)")
    if fleet.findings:
        lines.append("")
    lines += _distributions(fleet)
    if unreadable:
        lines += ["Not read", *(line for one in unreadable for line in _wrapped(f"- {one}")), ""]
    judged = any(metric.judged for metric in fleet.metrics)
    said = verdict(fleet.findings) if judged or fleet.findings else "nothing to judge"
    lines.append(f"verdict: {said} ({len(fleet.findings)} findings)")
    return "\n".join(lines) + "\n"


_WIDTHS: Final = (20, 4, 11, 11, 11, 9)


def _distributions(fleet: Fleet) -> list[str]:
    lines: list[str] = []
    title = None
    for metric in sorted(fleet.metrics, key=lambda m: (m.kind, m.key.label, m.metric.name, m.metric.bytes or 0)):
        if title != (metric.kind, metric.key.label):
            title = (metric.kind, metric.key.label)
            lines += [*([""] if lines else []), *_wrapped(f"{metric.key.label} on {metric.kind}")]
            lines.append(_row("metric", "n", "worst", "median", "best", "spread %"))
        lines.append(_metric_row(metric))
    return [*lines, ""] if lines else []


def _metric_row(metric: FleetMetric) -> str:
    label = metric.metric.name if metric.metric.bytes is None else f"{metric.metric.name} {size(metric.metric.bytes)}"
    shown = [
        amount(value, metric.metric.unit) for value in (metric.values[0].value, metric.middle, metric.values[-1].value)
    ]
    note = "" if metric.judged else "  too few to judge"
    return _row(label, str(len(metric.values)), *shown, f"{100 * metric.spread:.2f}") + note


def _row(*cells: str) -> str:
    first, *others = cells
    return " ".join([first.ljust(_WIDTHS[0]), *(c.rjust(w) for c, w in zip(others, _WIDTHS[1:], strict=True))]).rstrip()


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(printable(text), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
