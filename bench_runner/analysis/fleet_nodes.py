"""A fleet machine by machine: slower in everything, slower than it was, unlike the others, never measured.  Pure.

A machine that is a little slower in everything is seen best by all its metrics together: the median of its distances,
held against the same of the other machines.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bench_runner.analysis.cases import CaseKey, MetricKey, Settings, from_records
from bench_runner.analysis.fleet import (
    LEAST_MACHINES,
    ROBUST_LIMIT,
    Fleet,
    FleetMetric,
    kind_of,
    robust,
)
from bench_runner.analysis.metrics import median
from bench_runner.finding import Finding
from bench_runner.record import RunRecord

LEAST_SESSIONS: Final = 6
"""The newest one and five before it: of fewer the spread says little."""
COMMON_SHARE: Final = 0.8
"""What so many machines of a kind have in common is what the others are expected to have."""
SPEED: Final = ("throughput", "step_time", "latency", "save_time", "load_time")
"""Metrics that a slow machine moves; memory and sizes it leaves alone."""

NodeState = Literal["ok", "suspect", "failed", "unjudged", "unmeasured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine for a scheduler: ``reason`` is one line, empty for ``ok``."""

    name: str
    state: NodeState
    reason: str


def worse_by(metric: MetricKey, difference: float) -> float:
    """A difference of logarithms with the sign that makes worse positive."""
    return difference if metric.direction == "lower" else -difference


def slow_machines(fleet: Fleet) -> list[Finding]:
    """Machines that are worse over all their metrics of speed, beyond what chance does to one of their kind."""
    findings = []
    for kind in fleet.kinds:
        metrics = [m for m in fleet.metrics if m.kind == kind and m.judged and m.metric.name in SPEED]
        changes: dict[str, list[float]] = defaultdict(list)
        for metric in metrics:
            for value in metric.values:
                changes[value.machine].append(worse_by(metric.metric, math.log1p(value.change)))
        overall = {name: median(series) for name, series in changes.items()}
        if len(overall) < LEAST_MACHINES:
            continue
        middle, spread = robust(list(overall.values()))
        for name, mine in sorted(overall.items(), key=lambda item: (-item[1], item[0])):
            distance, change = (mine - middle) / spread, mine - middle
            if distance >= ROBUST_LIMIT and change >= math.log1p(fleet.threshold):
                findings.append(_slow(kind, name, change, distance, len(changes[name]), metrics))
    return findings


def _slow(kind: str, name: str, change: float, distance: float, count: int, metrics: Sequence[FleetMetric]) -> Finding:
    of_machine = [
        (worse_by(metric.metric, math.log1p(value.change)), metric, value)
        for metric in metrics
        for value in metric.values
        if value.machine == name
    ]
    worst = sorted(of_machine, key=lambda one: -one[0])[:3]
    return Finding(
        check="fleet.slow",
        status="fail",
        message=f"{name}: {math.expm1(change):.1%} worse than the median of its kind over {count} metrics, "
        f"{distance:.1f} robust deviations",
        expected="as fast as its kind",
        actual=f"{math.expm1(change):.1%} worse",
        evidence=(
            f"kind: {kind}",
            *(f"{m.metric.label} of {m.key.label}: {value.change:+.1%}" for _, m, value in worst),
        ),
        remedy=f"bench-runner verify --only machine --only links  # on {name}",
    )


def drifted(records: Iterable[RunRecord], *, threshold: float, metrics: Sequence[str] = SPEED) -> list[Finding]:
    """Machines whose newest session is worse than their own earlier ones, over all metrics of speed together."""
    by_machine: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        by_machine[record.machine.name].append(record)
    findings = []
    for name, own in sorted(by_machine.items()):
        if len({record.session_id for record in own}) < LEAST_SESSIONS:
            continue
        newest = max(own, key=lambda record: (record.started_at, record.record_id)).session_id
        seen = _against_past(own, newest, metrics)
        if not seen:
            continue
        change, distance = median([change for change, _ in seen]), median([distance for _, distance in seen])
        if distance >= ROBUST_LIMIT and change >= math.log1p(threshold):
            findings.append(
                Finding(
                    check="fleet.drift",
                    status="fail",
                    message=f"{name}: {math.expm1(change):.1%} worse than in its earlier sessions over {len(seen)} "
                    f"metrics, {distance:.1f} robust deviations",
                    expected="as in its earlier sessions",
                    actual=f"{math.expm1(change):.1%} worse",
                    evidence=(f"sessions: {len({record.session_id for record in own})}", f"newest: {newest}"),
                    remedy=f"bench-runner verify --only machine --only links  # on {name}",
                )
            )
    return findings


def _against_past(records: Sequence[RunRecord], newest: str, metrics: Sequence[str]) -> list[tuple[float, float]]:
    """(change of the logarithm, distance in robust deviations of the past), worse positive, one for each metric."""
    values: dict[tuple[CaseKey, Settings, MetricKey], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, case in from_records(records, metrics).items():
        for used, launches in case.measured.items():
            for launch in launches:
                for metric, value in launch.values.items():
                    if value > 0:
                        values[key, used, metric][launch.session].append(math.log(value))
    seen = []
    for (_, _, metric), sessions in values.items():
        past = [median(series) for session, series in sessions.items() if session != newest]
        if newest in sessions and len(past) >= LEAST_SESSIONS - 1:
            middle, spread = robust(past)
            change = worse_by(metric, median(sessions[newest]) - middle)
            seen.append((change, change / spread))
    return seen


def unlike(records: Sequence[RunRecord]) -> list[Finding]:
    """Versions and settings in which few machines of a kind differ from nearly all the others."""
    machines: dict[str, dict[str, RunRecord]] = defaultdict(dict)
    for record in records:
        machines[kind_of(record.machine)][record.machine.name] = record
    findings = []
    for kind, group in sorted(machines.items()):
        if len(group) < LEAST_MACHINES:
            continue
        described = {name: _described(record) for name, record in group.items()}
        for field in sorted({field for one in described.values() for field in one}):
            values = {name: one.get(field, "none") for name, one in described.items()}
            common, count = Counter(values.values()).most_common(1)[0]
            if count < COMMON_SHARE * len(group):
                continue
            findings += [
                _odd(kind, name, field, value, common, count)
                for name, value in sorted(values.items())
                if value != common
            ]
    return findings


def _described(record: RunRecord) -> Mapping[str, str]:
    """What of a machine and its environment is expected to be the same over machines of one kind."""
    machine, environment = record.machine, record.environment
    limits = sorted({f"{gpu.power_limit_watts:g} W" for gpu in machine.accelerators if gpu.power_limit_watts})
    known = {
        "driver": machine.driver_version,
        "kernel": machine.kernel,
        "power limit": ", ".join(limits) or None,
        "cores allowed": str(machine.cores_allowed),
        "Python": environment.python,
        "torch": environment.torch,
        "CUDA": environment.cuda,
        "NCCL": environment.nccl,
        "cuDNN": environment.cudnn,
        "lock": environment.lock_sha256 and environment.lock_sha256[:12],
        "lock state": environment.lock_state,
    }
    variables = {f"${name}": value for name, value in environment.variables.items()}
    return {name: value for name, value in {**known, **variables}.items() if value}


def _odd(kind: str, name: str, field: str, value: str, common: str, count: int) -> Finding:
    return Finding(
        check="fleet.unlike",
        status="warn",
        message=f"{name}: {field} {value}, where {count} machines of its kind have {common}",
        expected=common,
        actual=value,
        evidence=(f"kind: {kind}",),
        remedy=f"bench-runner verify --only environment --only machine  # on {name}",
    )


def unmeasured(fleet: Fleet, expected: Iterable[str]) -> list[Finding]:
    """Machines that were expected and have no results."""
    known = {name for names in fleet.kinds.values() for name in names}
    return [
        Finding(
            check="fleet.unmeasured",
            status="fail",
            message=f"{name}: expected, and has no results",
            expected="results",
            actual="none",
            remedy=f"bench-runner run --machine {name}  # there",
        )
        for name in sorted(set(expected) - known)
    ]


def nodes_of(fleet: Fleet, expected: Iterable[str] = ()) -> tuple[Node, ...]:
    """Every machine, by name: ``failed`` (a failing finding), ``suspect`` (a warning), ``unmeasured``, ``unjudged``
    (too few of its kind) or ``ok``."""
    said: dict[str, list[Finding]] = defaultdict(list)
    for finding in fleet.findings:
        said[finding.message.partition(":")[0]].append(finding)
    nodes = {}
    judged = {metric.kind for metric in fleet.metrics if metric.judged}
    for kind, names in fleet.kinds.items():
        for name in names:
            nodes[name] = _node(name, said[name], judged=kind in judged, fewest=len(names))
    for name in sorted(set(expected) - nodes.keys()):
        nodes[name] = Node(name=name, state="unmeasured", reason="expected, and has no results")
    return tuple(nodes[name] for name in sorted(nodes))


def _node(name: str, findings: Sequence[Finding], *, judged: bool, fewest: int) -> Node:
    worst = sorted(findings, key=lambda finding: finding.status != "fail")
    counted = [finding for finding in worst if finding.check != "fleet.outlier.better"]
    if counted:
        reason = counted[0].message.partition(": ")[2]
        more = f" (and {len(counted) - 1} more)" if len(counted) > 1 else ""
        return Node(name=name, state="failed" if counted[0].status == "fail" else "suspect", reason=reason + more)
    if not judged:
        return Node(name=name, state="unjudged", reason=f"{fewest} of its kind: {LEAST_MACHINES} are needed to judge")
    return Node(name=name, state="ok", reason="")
