"""From results to the values of a report's tables; text.py, markdown.py and html.py only render them.

Several launches of one case are one row: the median over the launches, and as ``spread`` the distance from the fastest
to the slowest launch relative to that median.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from bench_runner.analysis.efficiency import DDP_ONE, SINGLE
from bench_runner.analysis.frame import frame_of
from bench_runner.environment.info import EnvironmentInfo
from bench_runner.machine.info import MachineInfo
from bench_runner.record import RunRecord
from bench_runner.report import formats

STRATEGY_NAMES: Final = {"single": "single", "data_parallel": "DataParallel", "ddp": "DDP"}
STRATEGY_ORDER: Final = {name: place for place, name in enumerate(STRATEGY_NAMES)}
LATENCIES: Final = ("latency", "latency_p50", "latency_p99", "latency_max_over_ranks")
PHASES: Final = ("data", "forward", "backward", "optimizer")
LOCK_SENTENCES: Final = {
    "match": "the locked environment",
    "drift": "NOT as locked: the environment differs from its lock",
    "not-locked": "not the locked environment",
    "no-lock": "not the locked environment (no lock file)",
    "unknown": "not verified against a lock",
}
CASE_COLUMNS: Final = ["workload", "precision", "scaling", "data", "batch"]
SETTING_COLUMNS: Final = ["devices", "strategy", "nodes", "threads", "scheduler", "backend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text.  ``numeric`` says for each column whether it holds numbers (and is set flush right)."""

    title: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One machine in one environment: its description, tables, what gave no numbers and why, and warnings."""

    machine: str
    lines: tuple[str, ...]
    tables: tuple[Table, ...]
    not_measured: tuple[str, ...]
    warnings: tuple[str, ...]


def sections(records: Sequence[RunRecord]) -> list[Section]:
    """The report of ``records``, one section for each machine and environment, in the order they first appear."""
    groups: dict[tuple[str, str, str], list[RunRecord]] = defaultdict(list)
    for record in records:
        key = (record.machine.name, record.machine.fingerprint, record.environment.fingerprint)
        groups[key].append(record)
    return [_section(group) for group in groups.values()]


def _section(records: Sequence[RunRecord]) -> Section:
    frame = frame_of(records)
    newest = max(records, key=lambda record: record.started_at)
    return Section(
        machine=newest.machine.name,
        lines=(machine_line(newest.machine), environment_line(newest.environment), _run_line(records)),
        tables=(*training_tables(frame), *collective_tables(frame)),
        not_measured=tuple(not_measured(records)),
        warnings=tuple(warnings_of(records)),
    )


# --- what it ran on ---------------------------------------------------------------------------------------------


def machine_line(machine: MachineInfo) -> str:
    names = Counter(accelerator.name for accelerator in machine.accelerators)
    devices = ", ".join(f"{count} × {name}" for name, count in names.items()) or "no accelerator"
    driver = f", driver {machine.driver_version}" if machine.driver_version else ""
    memory = formats.size(float(machine.memory_bytes))
    return f"Machine {machine.name}: {devices}{driver}; {machine.cores_allowed} cores, {memory}; {machine.cpu_model}"


def environment_line(environment: EnvironmentInfo) -> str:
    parts = [f"Python {environment.python}"]
    versions = (("torch", environment.torch), ("CUDA", environment.cuda), ("NCCL", environment.nccl))
    parts += [f"{name} {version}" for name, version in versions if version]
    return f"Environment: {LOCK_SENTENCES[environment.lock_state]} ({environment.kind}); {', '.join(parts)}"


def _run_line(records: Sequence[RunRecord]) -> str:
    sessions = len({record.session_id for record in records})
    first, last = min(r.started_at for r in records), max(r.started_at for r in records)
    commits = sorted({record.commit[:12] for record in records if record.commit})
    profiles = sorted({record.profile for record in records if record.profile})
    parts = [f"Runs: {len(records)} in {sessions} session{'s' if sessions > 1 else ''}", f"{first} to {last}"]
    if profiles:
        parts.append(f"profile {', '.join(profiles)}")
    if commits:
        shown = ", ".join(commits[:3]) + (f" and {len(commits) - 3} more" if len(commits) > 3 else "")
        parts.append(f"commit {shown}")
    return "; ".join(parts)


# --- training ---------------------------------------------------------------------------------------------------


def training_tables(frame: pd.DataFrame) -> list[Table]:
    """A table of rates and one of the step's parts for each case.

    A case fixes workload, precision, scaling, data and the batch that is held, so that strategies at the same device
    count stand beside each other at equal global batch and at no other.
    """
    rows = frame[frame["workload"].notna() & (frame["outcome"] == "ok")]
    rows = rows.assign(batch=rows["per_device_batch"].where(rows["scaling"] == "weak", rows["global_batch"]))
    tables: list[Table] = []
    for (workload, precision, scaling, data, batch), group in rows.groupby(CASE_COLUMNS, sort=True, dropna=False):
        name = case_name(str(workload), str(precision), str(scaling), str(data), str(batch))
        tables.append(_rates_table(name, group))
        phases = _phases_table(name, group)
        if phases is not None:
            tables.append(phases)
    return tables


def case_name(workload: str, precision: str, scaling: str, data: str, batch: str) -> str:
    held = f"{batch} per device" if scaling == "weak" else f"{batch} in all (strong scaling)"
    return f"{workload}, {precision}, batch {held}" + (", data loader" if data == "loader" else "")


def _settings(group: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """The rows of each strategy and device count, by devices and then strategy; unlike settings are told apart."""
    ordered = group.assign(place=group["strategy"].map(STRATEGY_ORDER))
    for (_, _, devices, strategy, *rest), rows in ordered.groupby(
        ["devices", "place", *SETTING_COLUMNS], sort=True, dropna=False
    ):
        same = ordered[(ordered["devices"] == devices) & (ordered["strategy"] == strategy)]
        name = STRATEGY_NAMES[str(strategy)]
        if len(same) > len(rows):
            nodes, threads, scheduler, backend = rest
            name += f" (nodes {nodes}, threads {threads}, {scheduler}, {backend})"
        yield name, rows


def _launches(rows: pd.DataFrame, metric: str, denominator: str | None = None) -> pd.Series:
    chosen = rows["metric"] == metric
    if denominator is not None:
        chosen &= rows["denominator"] == denominator
    return rows.loc[chosen, "value"]


def _median(rows: pd.DataFrame, metric: str, denominator: str | None = None) -> float:
    return float(_launches(rows, metric, denominator).median())


def _spread(rows: pd.DataFrame, metric: str) -> float:
    values = _launches(rows, metric)
    return float((values.max() - values.min()) / values.median()) if len(values) > 1 else float("nan")


def memory_cell(rows: pd.DataFrame) -> str:
    """Smallest and largest over devices (ranks on a CPU), of the median over launches; idle cells are left out."""
    cells = rows[(rows["metric"] == "peak_allocated") & (rows["value"] > 0)]
    keys = ["rank", "device"]
    if cells.empty:
        cells, keys = rows[rows["metric"] == "peak_rss"], ["rank"]
    if cells.empty:
        return formats.NOTHING
    values = cells.groupby(keys)["value"].median()
    return formats.span(formats.size(float(values.min())), formats.size(float(values.max())))


def _rates_table(name: str, group: pd.DataFrame) -> Table:
    rows = []
    for strategy, settings in _settings(group):
        rate = _median(settings, "throughput")
        batch = _median(settings, "largest_batch")
        rows.append(
            (
                strategy,
                str(settings["devices"].iloc[0]),
                str(settings["global_batch"].iloc[0]),
                formats.number(rate) if batch != batch else f"largest batch {batch:.0f}",
                formats.number(_median(settings, "throughput_per_device")),
                formats.percent(_spread(settings, "throughput")),
                formats.percent(_median(settings, "efficiency", SINGLE)),
                formats.percent(_median(settings, "efficiency", DDP_ONE)),
                memory_cell(settings),
            )
        )
    launches = int(group["launch_id"].nunique() / max(1, len(rows)) + 0.5)
    on_cpu = (group["device_kind"] == "cpu").all()
    return Table(
        title=f"Training: {name}",
        columns=(
            "strategy",
            "devices",
            "batch",
            "samples/s",
            "per device",
            "spread",
            "eff. vs single",
            "eff. vs DDP-1",
            "RSS per rank" if on_cpu else "memory per device",
        ),
        numeric=(False, *[True] * 8),
        rows=tuple(rows),
        note=f"median of {launches} launches; spread: slowest to fastest launch" if launches > 1 else None,
    )


def _phases_table(name: str, group: pd.DataFrame) -> Table | None:
    rows = []
    for strategy, settings in _settings(group):
        parts = [_median(settings, metric) for metric in ("step_time", *(f"phase_{p}" for p in PHASES))]
        exposed = _median(settings, "exposed_communication")
        if any(part == part for part in parts[1:]):
            cells = [formats.seconds(part) for part in (*parts, exposed)]
            rows.append((strategy, str(settings["devices"].iloc[0]), *cells))
    if not rows:
        return None
    return Table(
        title=f"Parts of a step: {name}",
        columns=("strategy", "devices", "step", *PHASES, "exposed comm."),
        numeric=(False, *[True] * 7),
        rows=tuple(rows),
        note="parts from a pass of their own with a synchronisation after each; exposed: step − step without sync",
    )


# --- collectives ------------------------------------------------------------------------------------------------


def collective_tables(frame: pd.DataFrame) -> list[Table]:
    """A table for each operation and backend: bytes by ranks."""
    rows = frame[frame["operation"].notna() & frame["bytes"].notna() & (frame["outcome"] == "ok")]
    tables = []
    for (operation, backend), group in rows.groupby(["operation", "backend"], sort=True, dropna=False):
        cells = []
        for (size, ranks), cell in group.groupby(["bytes", "devices"], sort=True):
            times = [formats.seconds(_median(cell, metric)) for metric in LATENCIES]
            rates = [formats.number(_median(cell, metric) / 1e9, 3) for metric in ("algbw", "busbw")]
            spread = formats.percent(_spread(cell, "latency"))
            cells.append((formats.size(float(str(size))), str(ranks), *times, *rates, spread))
        over = backend if isinstance(backend, str) else "an unknown backend"
        tables.append(
            Table(
                title=f"{str(operation).replace('_', '-')} over {over}",
                columns=(
                    "size",
                    "ranks",
                    "latency",
                    "p50",
                    "p99",
                    "slowest rank",
                    "algbw GB/s",
                    "busbw GB/s",
                    "spread",
                ),
                numeric=(True,) * 9,
                rows=tuple(cells),
                note="latency: mean over calls and ranks",
            )
        )
    return tables


# --- what gave no numbers, and doubts ---------------------------------------------------------------------------


def not_measured(records: Iterable[RunRecord]) -> list[str]:
    """A line for each reason, with the runs it holds for."""
    groups: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for record in records:
        if record.outcome != "ok":
            groups[record.outcome, record.reason or ""].append(record)
        sizes = sorted({size for rank in record.ranks for size in rank.wrong_values})
        if sizes and record.outcome == "ok":
            shown = ", ".join(formats.size(float(size)) for size in sizes)
            groups["failed", f"wrong values at {shown}"].append(record)
    order = {"failed": 0, "timeout": 1, "skipped": 2}
    lines = []
    for (outcome, reason), group in sorted(groups.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        where: dict[str, set[int]] = defaultdict(set)
        for record in group:
            where[record.spec.strategy].add(record.spec.device_count)
        runs = "; ".join(
            f"{STRATEGY_NAMES[strategy]} on {', '.join(map(str, sorted(counts)))}"
            for strategy, counts in sorted(where.items(), key=lambda item: STRATEGY_ORDER[item[0]])
        )
        tasks = sorted({record.spec.task.label for record in group})
        what = tasks[0] if len(tasks) == 1 else f"{len(tasks)} cases"
        lines.append(f"{outcome} {len(group)} ×, {runs} ({what}): {reason}")
    return lines


def warnings_of(records: Iterable[RunRecord]) -> list[str]:
    """The records' warnings, equal ones folded, and what a reader must know before believing the numbers."""
    records = list(records)
    counts = Counter(
        f"{record.spec.label}: {warning}" for record in records for warning in dict.fromkeys(record.warnings)
    )
    lines = [text if count == 1 else f"{text} ({count} ×)" for text, count in counts.items()]
    crowded = sorted({r.spec.label for r in records if any(rank.settings.oversubscribed for rank in r.ranks)})
    lines += [f"{label}: more ranks than cores; its numbers say little" for label in crowded]
    unread = dict.fromkeys(reason for record in records for reason in record.machine.not_read)
    return [*lines, *(f"not read: {reason}" for reason in unread)]
