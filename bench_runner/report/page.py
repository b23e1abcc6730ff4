"""What stands on the HTML page, as values: machines with their blocks of figures and tables, and what compares them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final

from bench_runner.analysis.efficiency import SINGLE
from bench_runner.analysis.model import Curve
from bench_runner.analysis.scaling import fitted, predicted_throughput
from bench_runner.analysis.selection import LAST, select, started
from bench_runner.analysis.summary import Case, Group, collective_curves, training_cases
from bench_runner.record import RunRecord
from bench_runner.report import figures, formats
from bench_runner.report.figures import Figure, points_of, rounded
from bench_runner.report.sampled import sampled_table
from bench_runner.report.table import Table
from bench_runner.report.tables import (
    LOCK_SENTENCES,
    collective_table,
    environment_line,
    machine_line,
    nodes_table,
    not_measured,
    parts_table,
    rates_table,
    run_line,
    setting_name,
    training_tables,
    warnings_of,
)
from bench_runner.spec import STRATEGIES, Operation

Curves = Mapping[tuple[Operation, str], Mapping[tuple[int, int], Group]]

COMPARED: Final = (
    ("Throughput", "throughput", None, "samples/s", 1.0),
    ("Efficiency", "efficiency", SINGLE, "%", 100.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Figures and the table with their numbers."""

    title: str
    figures: tuple[Figure, ...]
    table: Table
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One machine: its newest session in full, all its sessions in ``History`` blocks."""

    name: str
    accelerator: str
    environment: str
    locked: bool
    newest: str
    lines: tuple[str, ...]
    not_measured: tuple[str, ...]
    outcomes: str
    warnings: tuple[str, ...]
    blocks: tuple[Block, ...]
    measures: Mapping[Measure, float]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Measure:
    """Something that machines can be compared by.  ``order`` puts what most readers want first: DDP on all devices."""

    order: tuple[int, ...]
    label: str
    unit: str
    direction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``measures``: those that most machines have come first."""

    systems: tuple[System, ...]
    measures: tuple[Measure, ...]


def page_of(records: Sequence[RunRecord]) -> Page:
    """The page of ``records``, machines by name."""
    machines: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for record in records:
        machines[record.machine.name, record.machine.fingerprint].append(record)
    systems = tuple(_system(machines[key]) for key in sorted(machines))
    counts = Counter(measure for system in systems for measure in system.measures)
    return Page(systems=systems, measures=tuple(sorted(counts, key=lambda m: (-counts[m], m))))


def _system(records: Sequence[RunRecord]) -> System:
    shown = select(records, session=LAST)
    newest = max(shown, key=started)
    cases, curves = training_cases(shown), collective_curves(shown)
    outcomes = Counter(record.outcome for record in shown if record.outcome != "ok")
    names = Counter(accelerator.name for accelerator in newest.machine.accelerators)
    return System(
        name=newest.machine.name,
        accelerator=", ".join(f"{count} × {name}" for name, count in names.items()) or newest.machine.cpu_model,
        environment=LOCK_SENTENCES[newest.environment.lock_state],
        locked=newest.environment.lock_state == "match",
        newest=newest.started_at,
        lines=(machine_line(newest.machine), environment_line(newest.environment), run_line(shown)),
        not_measured=tuple(not_measured(shown)),
        outcomes=", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())),
        warnings=tuple(warnings_of(shown)),
        blocks=(*_blocks(cases, curves), *_sampled(shown), *_histories(records)),
        measures=dict(_measures(cases, curves)),
    )


# --- blocks -----------------------------------------------------------------------------------------------------


def _blocks(cases: Mapping[Case, Sequence[Group]], curves: Curves) -> Iterator[Block]:
    fits = {name: fitted(points_of(curve, "latency")) for name, curve in curves.items()}
    within_a_node = [name for name, curve in curves.items() if all(g.setting.nodes == 1 for g in curve.values())]
    all_reduce = next((fits[name] for name in within_a_node if name[0] == "all_reduce"), {})
    for case, groups in cases.items():
        if case.find_batch:
            (table,) = training_tables({case: groups})
            yield Block(name="batch", title=table.title, figures=(), table=table)
            continue
        yield from _case_blocks(case, groups, predicted_throughput(case, groups, all_reduce))
    for (operation, backend), curve in curves.items():
        yield _collective_block(operation, backend, curve, fits[operation, backend])


def _case_blocks(case: Case, groups: Sequence[Group], predicted: Mapping[int, float]) -> Iterator[Block]:
    rates = rates_table(case, groups)
    drawn = (figures.throughput(case, groups, predicted), figures.efficiency(case, groups))
    yield Block(name="rates", title=rates.title, figures=tuple(f for f in drawn if f), table=rates)
    parts, bars = parts_table(case, groups), figures.phases(case, groups)
    if parts is not None:
        yield Block(name="parts", title=parts.title, figures=(bars,) if bars else (), table=parts)
    over_nodes = nodes_table(case, groups)
    if over_nodes is not None:
        yield Block(name="nodes", title=over_nodes.title, figures=(), table=over_nodes)
    widest = {
        group.setting.strategy: group for group in groups if group.setting.devices > 1
    }  # groups come by ascending device count
    for group in widest.values():
        matrix = figures.memory(group)
        if matrix is not None and len(matrix[0].series[0].x) > 1:
            figure, table = matrix
            yield Block(name="memory", title=f"{table.title}, {case.name}", figures=(figure,), table=table)


def _collective_block(
    operation: str, backend: str, curve: Mapping[tuple[int, int], Group], fits: Mapping[int, Curve]
) -> Block:
    table = collective_table(operation, backend, curve)
    points = points_of(curve, "latency")
    drawn = {ranks: [(size, fit.seconds(size)) for size, _ in points[ranks]] for ranks, fit in fits.items()}
    latency = figures.latency(operation, curve, drawn)
    notes = [
        f"fit for {ranks} ranks: α {formats.seconds(fit.alpha_seconds)}, "
        f"1/β {formats.rate(fit.regimes[-1].bandwidth_bytes_per_second)}"
        for ranks, fit in fits.items()
    ]
    table = Table(
        title=table.title,
        columns=table.columns,
        numeric=table.numeric,
        rows=table.rows,
        note="; ".join([table.note or "", *notes]),
    )
    return Block(name=operation, title=table.title, figures=(latency, figures.bandwidth(operation, curve)), table=table)


def _sampled(records: Sequence[RunRecord]) -> Iterator[Block]:
    table = sampled_table(records)
    if table is not None:
        yield Block(name="sampled", title=table.title, figures=(), table=table)


def _histories(records: Sequence[RunRecord]) -> Iterator[Block]:
    """Throughput of each case over the machine's sessions, where there are several."""
    sessions: dict[str, list[RunRecord]] = defaultdict(list)
    for record in sorted(records, key=started):
        sessions[record.session_id].append(record)
    if len(sessions) < 2:
        return
    lines: dict[Case, dict[str, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
    rows: dict[Case, list[tuple[str, ...]]] = defaultdict(list)
    for own in sessions.values():
        first = own[0]
        for case, groups in training_cases(own).items():
            for group in groups:
                rate = group.median("throughput")
                if isnan(rate):
                    continue
                name = f"{setting_name(group, groups)} ×{group.setting.devices}"
                lines[case][name].append((first.started_at, rate))
                environment = f"torch {first.environment.torch}, {first.environment.fingerprint[:12]}"
                commit = (first.commit or formats.NOTHING)[:12]
                rows[case].append((first.started_at, commit, environment, name, formats.number(rate)))
    for case in sorted(lines):
        table = Table(
            title=f"History: {case.name}",
            columns=("session", "commit", "environment", "run", "samples/s"),
            numeric=(False, False, False, False, True),
            rows=tuple(rows[case]),
        )
        yield Block(name="history", title=table.title, figures=(figures.history(case, lines[case]),), table=table)


# --- comparison -------------------------------------------------------------------------------------------------


def _measures(cases: Mapping[Case, Sequence[Group]], curves: Curves) -> Iterator[tuple[Measure, float]]:
    for case, groups in cases.items():
        for group in groups:
            name = f"{setting_name(group, groups)} on {group.setting.devices}: {case.name}"
            place = (-STRATEGIES.index(group.setting.strategy), -group.setting.devices)
            for kind, (label, metric, denominator, unit, factor) in enumerate(COMPARED):
                value = group.median(metric, denominator)
                if not isnan(value):
                    measure = Measure(order=(kind, *place), label=f"{label}, {name}", unit=unit, direction="higher")
                    yield measure, rounded(value * factor)
    for (operation, backend), curve in curves.items():
        yield from _collective_measures(f"{operation.replace('_', '-')} over {backend}", curve)


def _collective_measures(name: str, curve: Mapping[tuple[int, int], Group]) -> Iterator[tuple[Measure, float]]:
    """Bandwidth of the largest and latency of the smallest message, for each number of ranks."""
    for ranks in sorted({ranks for _, ranks in curve}):
        sizes = [size for size, own in curve if own == ranks]
        for kind, (label, metric, size, unit, factor, direction) in enumerate(
            (
                ("Bus bandwidth", "busbw", max(sizes), "GB/s", 1e-9, "higher"),
                ("Latency", "latency", min(sizes), "µs", 1e6, "lower"),
            )
        ):
            measure = Measure(
                order=(len(COMPARED) + kind, 0, -ranks),
                label=f"{label}, {name}, {ranks} ranks, {formats.size(float(size))}",
                unit=unit,
                direction=direction,
            )
            yield measure, rounded(curve[size, ranks].median(metric) * factor)
