"""Many machines at once: how each metric is distributed over machines of one kind, and who stands out.  Pure.

The rule is robust, because the machines that are looked for must not move the yardstick: distance from the median of
the logarithms in units of the median absolute deviation, scaled to a standard deviation, and flagged from 3.5 on
(Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993), if it is also at least the asked change.  With many
metrics the limit is higher, so that a healthy machine is flagged by none of them but once in five hundred.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bench_runner.analysis.cases import COMPARED, CaseKey, Launch, MetricKey, Settings, from_records
from bench_runner.analysis.metrics import median
from bench_runner.finding import Finding
from bench_runner.machine.info import MachineInfo
from bench_runner.record import RunRecord

ROBUST_LIMIT: Final = 3.5
TO_SIGMA: Final = 1.4826
"""MAD of a normal distribution times this is its standard deviation."""
ALARMS_PER_MACHINE: Final = 0.002
LEAST_SPREAD: Final = 0.001
LEAST_MACHINES: Final = 5
"""Of fewer machines the median and MAD say little about any one of them."""

Place = Literal["worse", "better"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineValue:
    """One machine's value of a metric: the median over its launches; ``distance`` in robust standard deviations."""

    machine: str
    value: float
    launches: int
    change: float
    distance: float
    outlier: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMetric:
    """One metric of one case over the machines of one kind, values sorted worst first.

    ``spread`` is the scaled MAD of logarithms, ``limit`` the distance from which a value is flagged; ``missing`` are
    machines of the kind without a value.  ``judged`` is false where the machines are too few.
    """

    kind: str
    key: CaseKey
    metric: MetricKey
    values: tuple[MachineValue, ...]
    middle: float
    spread: float
    judged: bool
    limit: float
    missing: tuple[str, ...]

    @property
    def worst(self) -> float:
        """The largest distance to the worse side."""
        return max((abs(v.distance) for v in self.values if v.outlier == "worse"), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All metrics, those with the worst outliers first; machines by kind; what is to be said as findings."""

    kinds: Mapping[str, tuple[str, ...]]
    metrics: tuple[FleetMetric, ...]
    findings: tuple[Finding, ...]
    threshold: float


def kind_of(machine: MachineInfo) -> str:
    """What makes machines comparable: the GPUs and their number, or the CPU and its allowed cores."""
    names = [gpu.name for gpu in machine.accelerators]
    if names:
        return "; ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
    return f"{machine.cpu_model}, {machine.cores_allowed} cores, no GPU"


def newest_session(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Of each machine the records of the session that began last: a fleet is looked at as it is now."""
    machines: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        machines[record.machine.name].append(record)
    chosen = []
    for group in machines.values():
        last = max(group, key=lambda record: (record.started_at, record.record_id)).session_id
        chosen += [record for record in group if record.session_id == last]
    return chosen


def survey(records: Sequence[RunRecord], *, threshold: float = 0.03, metrics: Sequence[str] = COMPARED) -> Fleet:
    """Look at all machines; ``threshold`` is the smallest deviation worth naming, a fraction."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for record in records:
        kinds[kind_of(record.machine)].add(record.machine.name)
    found: list[FleetMetric] = []
    findings: list[Finding] = []
    for kind in sorted(kinds):
        group = [record for record in records if kind_of(record.machine) == kind]
        found += _metrics(kind, kinds[kind], group, threshold, metrics)
        findings += _failures(group)
    found.sort(key=lambda metric: (-metric.worst, metric.kind, metric.key.label, metric.metric.label))
    findings += _outliers(found) + _missing(found)
    named = {kind: tuple(sorted(names)) for kind, names in sorted(kinds.items())}
    return Fleet(kinds=named, metrics=tuple(found), findings=tuple(findings), threshold=threshold)


def _metrics(
    kind: str, machines: set[str], records: Sequence[RunRecord], threshold: float, chosen: Sequence[str]
) -> list[FleetMetric]:
    values: dict[tuple[CaseKey, Settings, MetricKey], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, case in from_records(records, chosen).items():
        for used, launches in case.measured.items():
            for launch in launches:
                for metric, value in launch.values.items():
                    if value > 0:
                        values[key, used, metric][launch.machine].append(value)
    limit = limit_for(len(values))
    return [
        _judge(kind, machines, key, metric, by_machine, threshold, limit)
        for (key, _, metric), by_machine in values.items()
    ]


def robust(logs: Sequence[float]) -> tuple[float, float]:
    """The median, and the median absolute deviation scaled to a standard deviation (no less than a thousandth)."""
    middle = median(logs)
    return middle, max(TO_SIGMA * median([abs(one - middle) for one in logs]), LEAST_SPREAD)


def limit_for(metrics: int) -> float:
    """The distance from which one of so many metrics is flagged, in robust standard deviations (Bonferroni)."""
    from scipy.stats import norm

    return max(ROBUST_LIMIT, float(norm.isf(ALARMS_PER_MACHINE / 2 / max(metrics, 1))))


def _judge(
    kind: str,
    machines: set[str],
    key: CaseKey,
    metric: MetricKey,
    values: Mapping[str, Sequence[float]],
    threshold: float,
    limit: float,
) -> FleetMetric:
    logs = {machine: median([math.log(value) for value in series]) for machine, series in values.items()}
    middle, spread = robust(list(logs.values()))
    judged = len(logs) >= LEAST_MACHINES
    placed = []
    for machine, value in logs.items():
        distance = (value - middle) / spread
        far = judged and abs(distance) >= limit and abs(value - middle) >= math.log1p(threshold)
        worse = (distance > 0) == (metric.direction == "lower")
        placed.append(
            MachineValue(
                machine=machine,
                value=math.exp(value),
                launches=len(values[machine]),
                change=math.expm1(value - middle),
                distance=distance,
                outlier=("worse" if worse else "better") if far else None,
            )
        )
    sign = 1 if metric.direction == "higher" else -1
    placed.sort(key=lambda one: (sign * one.value, one.machine))
    return FleetMetric(
        kind=kind,
        key=key,
        metric=metric,
        values=tuple(placed),
        middle=math.exp(middle),
        spread=spread,
        judged=judged,
        limit=limit,
        missing=tuple(sorted(machines - values.keys())),
    )


def _outliers(metrics: Sequence[FleetMetric]) -> list[Finding]:
    return [_outlier(metric, value) for metric in metrics for value in metric.values if value.outlier is not None]


def _outlier(metric: FleetMetric, value: MachineValue) -> Finding:
    worse = value.outlier == "worse"
    look, check_up = "bench-runner verify --only machine --only links", "bench-runner report"
    return Finding(
        check="fleet.outlier" if worse else "fleet.outlier.better",
        status="fail" if worse else "warn",
        message=f"{value.machine}: {metric.metric.label} of {metric.key.label} is {value.change:+.1%} from the median "
        f"of {len(metric.values)} machines, {abs(value.distance):.1f} robust deviations",
        expected=f"{metric.middle:.6g} {metric.metric.unit}, spread {metric.spread:.2%}, limit {metric.limit:.2g}",
        actual=f"{value.value:.6g} {metric.metric.unit}",
        evidence=(f"kind: {metric.kind}", f"launches: {value.launches}"),
        remedy=f"{look if worse else check_up}  # on {value.machine}",
    )


def _missing(metrics: Sequence[FleetMetric]) -> list[Finding]:
    """A metric that most machines of a kind have and one has not, one finding a machine and case."""
    lacking: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for metric in metrics:
        if len(metric.values) > len(metric.missing):
            for machine in metric.missing:
                lacking[metric.kind, machine, metric.key.label].append(metric.metric.label)
    return [
        Finding(
            check="fleet.missing",
            status="warn",
            message=f"{machine}: no {', '.join(names)} of {label}, which most machines of its kind have",
            expected="a value",
            actual="none in its newest session",
            evidence=(f"kind: {kind}",),
            remedy=f"bench-runner run  # on {machine}",
        )
        for (kind, machine, label), names in sorted(lacking.items())
    ]


def _failures(records: Sequence[RunRecord]) -> list[Finding]:
    """Runs that failed on a machine; one finding a machine and case."""
    failed: dict[tuple[str, str], list[Launch]] = defaultdict(list)
    for key, case in from_records(records, ()).items():
        for launch in case.broken:
            if launch.outcome in ("failed", "timeout"):
                failed[launch.machine, key.label].append(launch)
    return [
        Finding(
            check="fleet.failed",
            status="fail",
            message=f"{machine}: {label} failed in {len(launches)} launch(es): {launches[0].reason}",
            expected="ok",
            actual=", ".join(sorted({launch.outcome for launch in launches})),
            evidence=tuple(str(launch.reason) for launch in launches[:3]),
            remedy=f"bench-runner doctor startup  # on {machine}",
        )
        for (machine, label), launches in sorted(failed.items())
    ]
