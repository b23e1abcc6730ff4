"""From records to what is compared: cases, each with the launches that measured it.

A case is what has to be equal for two numbers to mean the same thing: the key says what was measured, the settings
what was done to the processes that measured it.  Machine, environment and commit are not part of it: they are what a
comparison is about.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from bench_runner.analysis.metrics import METRICS, MetricValue, metric_values, quantile
from bench_runner.record import Outcome, RunRecord
from bench_runner.spec import Checkpoint, Training

COMPARED: Final = (
    "throughput",
    "step_time",
    "latency",
    "peak_allocated",
    "peak_reserved",
    "process_used",
    "peak_rss",
    "largest_batch",
    "save_time",
    "load_time",
    "checkpoint_size",
)
"""Compared unless others are asked for.  Rates and percentiles that follow from these are left out: each further
metric makes all of them harder to judge."""

SHARED_HOST_QUANTILE: Final = 0.25
"""A CPU is shared with whatever else runs: the lower quartile of a launch varies a third as much as its median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseKey:
    """What was measured.  ``name`` is the workload, the operation, or asv's benchmark with its parameters."""

    kind: Literal["training", "collective", "checkpoint", "asv"]
    name: str
    strategy: str | None = None
    device_kind: str | None = None
    devices: int | None = None
    nodes: int | None = None
    precision: str | None = None
    per_device_batch: int | None = None
    global_batch: int | None = None
    data: str | None = None
    loader_workers: int | None = None
    find_batch: bool | None = None
    parameters: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The case in one word, such as ``ddp/2/mlp/fp32/b8``; ``b`` is the batch per device."""
        parts = [self.strategy, self.devices, self.name, self.precision]
        parts.append(f"b{self.per_device_batch}" if self.per_device_batch is not None else None)
        parts.append(f"loader{self.loader_workers}" if self.data == "loader" else None)
        parts.append("find" if self.find_batch else None)
        parts.append(f"{self.nodes}-nodes" if self.nodes is not None and self.nodes > 1 else None)
        parts.append(f"({', '.join(self.parameters)})" if self.parameters else None)
        return "/".join(str(part) for part in parts if part is not None)

    def to_json(self) -> dict[str, Any]:
        """The fields that mean something for this kind of case, and the label."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        named["parameters"] = list(self.parameters)
        return {"label": self.label, **{name: value for name, value in named.items() if value not in (None, [])}}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricKey:
    """One metric of a case; ``bytes`` is the message size."""

    name: str
    unit: str
    direction: Literal["higher", "lower"]
    statistic: str
    bytes: int | None = None

    @property
    def label(self) -> str:
        return self.name if self.bytes is None else f"{self.name} {self.bytes} B"


Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a case: where and when, how it ended, and one value a metric."""

    machine: str
    fingerprint: str
    session: str
    started_at: str
    outcome: Outcome
    reason: str | None = None
    values: Mapping[MetricKey, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Case:
    """The launches of one key: those that delivered by their settings, and the others."""

    key: CaseKey
    measured: dict[Settings, list[Launch]] = field(default_factory=lambda: defaultdict(list))
    broken: list[Launch] = field(default_factory=list)


def case_key(record: RunRecord) -> CaseKey:
    spec = record.spec
    common: dict[str, Any] = {
        "strategy": spec.strategy,
        "device_kind": spec.device_kind,
        "devices": spec.device_count,
        "nodes": spec.nodes,
    }
    if isinstance(spec.task, Training):
        return CaseKey(
            kind="training",
            name=spec.task.workload,
            precision=spec.task.precision,
            per_device_batch=spec.task.per_device_batch(spec.device_count),
            global_batch=spec.task.global_batch(spec.device_count),
            data=spec.task.data,
            loader_workers=spec.task.loader_workers,
            find_batch=spec.task.find_batch,
            **common,
        )
    if isinstance(spec.task, Checkpoint):
        return CaseKey(kind="checkpoint", name=spec.task.label, **common)
    return CaseKey(kind="collective", name=spec.task.operation, **common)


def settings(record: RunRecord) -> Settings:
    """What was done to the processes, each as the values seen over the ranks."""
    ranks = record.ranks

    def over_ranks(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    return (
        ("backend", over_ranks(rank.backend for rank in ranks)),
        ("threads", over_ranks(rank.settings.threads for rank in ranks)),
        ("interop threads", over_ranks(rank.settings.interop_threads for rank in ranks)),
        ("scheduler", over_ranks(rank.settings.scheduler for rank in ranks)),
        ("OMP_NUM_THREADS", over_ranks(rank.settings.omp_num_threads for rank in ranks)),
        ("oversubscribed", over_ranks(rank.settings.oversubscribed for rank in ranks)),
        ("measurement version", str(record.measurement_version)),
    )


def launch_values(record: RunRecord, chosen: Sequence[str]) -> dict[MetricKey, float]:
    """One value a chosen metric and message size; of a metric with a value a rank and device it is the largest."""
    values: dict[MetricKey, float] = {}
    for value in metric_values(record):
        metric = METRICS[value.metric]
        if value.metric not in chosen or metric.direction == "none":
            continue
        statistic, number = _launch_value(value, record.spec.device_kind == "cpu")
        key = MetricKey(
            name=metric.name, unit=metric.unit, direction=metric.direction, statistic=statistic, bytes=value.bytes
        )
        values[key] = max(number, values.get(key, number))
    return values


def _launch_value(value: MetricValue, shared_host: bool) -> tuple[str, float]:
    """Times that were sampled count by a quantile fixed beforehand, so that one spike does not move a launch."""
    sampled = value.series and value.numerator is None and value.statistic in ("mean", "median")
    if not sampled:
        return value.statistic, value.value
    ordered = sorted(value.series)
    if shared_host:
        return "p25", quantile(ordered, SHARED_HOST_QUANTILE)
    return "median", quantile(ordered, 0.5)


def from_records(records: Iterable[RunRecord], chosen: Sequence[str] = COMPARED) -> dict[CaseKey, Case]:
    """The cases of one side, launches in the order they were started."""
    cases: dict[CaseKey, Case] = {}
    for record in sorted(records, key=lambda r: (r.started_at, r.record_id)):
        key = case_key(record)
        case = cases.setdefault(key, Case(key=key))
        launch = Launch(
            machine=record.machine.name,
            fingerprint=record.machine.fingerprint,
            session=record.session_id,
            started_at=record.started_at,
            outcome=record.outcome,
            reason=record.reason,
            values=launch_values(record, chosen),
        )
        if record.outcome == "ok":
            case.measured[settings(record)].append(launch)
        else:
            case.broken.append(launch)
    return cases


def noise_key(key: CaseKey, chosen: Settings, metric: MetricKey) -> str:
    """The name of a metric in a machine's noise profile: everything that has to be equal, and the metric."""
    place = "" if key.device_kind is None else f" {key.device_kind}"
    return f"{key.label}{place} | {', '.join(f'{n}={v}' for n, v in chosen)} | {metric.label} {metric.statistic}"
