"""Records grouped as a reader looks at them: cases, and in each case the settings that were run, launches together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench_runner.analysis.efficiency import efficiencies
from bench_runner.analysis.metrics import MetricValue, median, metric_values
from bench_runner.record import RunRecord
from bench_runner.spec import STRATEGIES, Checkpoint, Collective, Operation, Training

NAN: Final = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """What is held fixed while strategies and device counts change; ``batch`` is the held one of the two batches.

    Strategies at the same device count therefore stand beside each other at equal global batch, and at no other.
    """

    workload: str
    precision: str
    scaling: str
    batch: int
    data: str
    loader_workers: int
    find_batch: bool

    @property
    def name(self) -> str:
        held = f"{self.batch} per device" if self.scaling == "weak" else f"{self.batch} in all (strong scaling)"
        loader = f", data loader with {self.loader_workers} workers" if self.data == "loader" else ""
        return f"{self.workload}, {self.precision}, batch {held}{loader}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a case was run."""

    devices: int
    strategy: str
    nodes: int
    threads: int
    scheduler: str
    backend: str | None

    @property
    def order(self) -> tuple[object, ...]:
        place = STRATEGIES.index(self.strategy)
        return (self.devices, place, self.nodes, self.threads, self.scheduler, self.backend or "")


@dataclass(slots=True, kw_only=True)
class Group:
    """All launches of one setting.  ``values``: (metric, denominator) → one number a launch; ``cells``: (metric, rank,
    device) → one number a launch."""

    setting: Setting
    records: list[RunRecord] = field(default_factory=list)
    values: dict[tuple[str, str | None], list[float]] = field(default_factory=lambda: defaultdict(list))
    cells: dict[tuple[str, int, int | None], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, record: RunRecord, values: Iterable[MetricValue]) -> None:
        self.records.append(record)
        for value in values:
            if value.rank is None:
                self.values[value.metric, value.denominator].append(value.value)
            else:
                self.cells[value.metric, value.rank, value.device].append(value.value)

    def median(self, metric: str, denominator: str | None = None) -> float:
        """Over launches; NaN where the metric was not measured."""
        found = self.values.get((metric, denominator))
        return median(found) if found else NAN

    def spread(self, metric: str) -> float:
        """From the smallest to the largest launch, relative to the median; NaN for a single launch."""
        found = self.values.get((metric, None), [])
        return (max(found) - min(found)) / median(found) if len(found) > 1 else NAN

    def matrix(self, metric: str) -> dict[tuple[int, int | None], float]:
        """(rank, device) → median over launches."""
        return {(rank, device): median(v) for (name, rank, device), v in self.cells.items() if name == metric}

    @property
    def global_batch(self) -> int:
        task = self.records[0].spec.task
        return task.global_batch(self.setting.devices) if isinstance(task, Training) else 0


def setting_of(record: RunRecord) -> Setting:
    settings = record.ranks[0].settings
    return Setting(
        devices=record.spec.device_count,
        strategy=record.spec.strategy,
        nodes=record.spec.nodes,
        threads=settings.threads,
        scheduler=settings.scheduler,
        backend=record.ranks[0].backend,
    )


def case_of(task: Training) -> Case:
    return Case(
        workload=task.workload,
        precision=task.precision,
        scaling=task.scaling,
        batch=task.batch,
        data=task.data,
        loader_workers=task.loader_workers,
        find_batch=task.find_batch,
    )


def training_cases(records: Sequence[RunRecord]) -> dict[Case, list[Group]]:
    """The groups of each case, cases by name, groups by devices and then strategy.  Records that are not ok are left
    out."""
    derived = efficiencies(records)
    cases: dict[Case, dict[Setting, Group]] = defaultdict(dict)
    for record in records:
        task = record.spec.task
        if record.outcome == "ok" and isinstance(task, Training):
            setting = setting_of(record)
            group = cases[case_of(task)].setdefault(setting, Group(setting=setting))
            group.add(record, [*metric_values(record), *derived.get(record.record_id, ())])
    return {case: sorted(cases[case].values(), key=lambda group: group.setting.order) for case in sorted(cases)}


def collective_curves(records: Sequence[RunRecord]) -> dict[tuple[Operation, str], dict[tuple[int, int], Group]]:
    """(operation, backend) → (message bytes, ranks) → launches, in ascending order.

    What was measured over several nodes stands apart from the same number of ranks within one.
    """
    curves: dict[tuple[Operation, str], dict[tuple[int, int], Group]] = defaultdict(dict)
    for record in records:
        task = record.spec.task
        if record.outcome != "ok" or not isinstance(task, Collective):
            continue
        setting = setting_of(record)
        over = f" across {setting.nodes} nodes" if setting.nodes > 1 else ""
        curve = curves[task.operation, (setting.backend or "an unknown backend") + over]
        by_size: dict[int, list[MetricValue]] = defaultdict(list)
        for value in metric_values(record):
            if value.bytes is not None:
                by_size[value.bytes].append(value)
        for size, values in by_size.items():
            key = (size, setting.devices)
            curve.setdefault(key, Group(setting=setting)).add(record, values)
    return {key: dict(sorted(curves[key].items())) for key in sorted(curves)}


def checkpoint_groups(records: Sequence[RunRecord]) -> dict[str, list[Group]]:
    """Workload → launches of each setting, in ascending order."""
    groups: dict[str, dict[Setting, Group]] = defaultdict(dict)
    for record in records:
        task = record.spec.task
        if record.outcome == "ok" and isinstance(task, Checkpoint):
            setting = setting_of(record)
            groups[task.workload].setdefault(setting, Group(setting=setting)).add(record, metric_values(record))
    return {name: sorted(groups[name].values(), key=lambda group: group.setting.order) for name in sorted(groups)}
