"""From results to the values of a report's tables; text.py, markdown.py and html.py only render them.

Several launches of one case are one row: the median over the launches, and as ``spread`` the distance from the fastest
to the slowest launch relative to that median.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final

from bench_runner.analysis.efficiency import DDP_ONE, SINGLE
from bench_runner.analysis.node_scaling import node_scaling
from bench_runner.analysis.step_gap import gap_line, gaps
from bench_runner.analysis.summary import Case, Group, checkpoint_groups, collective_curves, training_cases
from bench_runner.environment.info import EnvironmentInfo
from bench_runner.machine.info import MachineInfo
from bench_runner.record import RunRecord
from bench_runner.report import formats
from bench_runner.report.sampled import UNSTABLE, is_unstable, sampled_table
from bench_runner.report.table import Table

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One machine in one environment: its description, tables, where DDP's steps go, what gave no numbers, warnings."""

    machine: str
    lines: tuple[str, ...]
    tables: tuple[Table, ...]
    not_measured: tuple[str, ...]
    warnings: tuple[str, ...]
    step_gaps: tuple[str, ...] = ()

    @property
    def lists(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The lists under the tables, those that have entries, each with its title."""
        named = (
            ("Where a DDP step goes", self.step_gaps),
            ("Not measured", self.not_measured),
            ("Warnings", self.warnings),
        )
        return tuple((title, entries) for title, entries in named if entries)


def sections(records: Sequence[RunRecord]) -> list[Section]:
    """The report of ``records``, one section for each machine and environment, in the order they first appear."""
    groups: dict[tuple[str, str, str], list[RunRecord]] = defaultdict(list)
    for record in records:
        key = (record.machine.name, record.machine.fingerprint, record.environment.fingerprint)
        groups[key].append(record)
    return [_section(group) for group in groups.values()]


def _section(records: Sequence[RunRecord]) -> Section:
    newest = max(records, key=lambda record: record.started_at)
    sampled = sampled_table(records)
    return Section(
        machine=newest.machine.name,
        lines=(machine_line(newest.machine), environment_line(newest.environment), run_line(records)),
        tables=(
            *training_tables(training_cases(records)),
            *(collective_table(*name, curve) for name, curve in collective_curves(records).items()),
            *(checkpoint_table(*named) for named in checkpoint_groups(records).items()),
            *([sampled] if sampled else []),
        ),
        step_gaps=tuple(step_gaps(records)),
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


def run_line(records: Sequence[RunRecord]) -> str:
    sessions = len({record.session_id for record in records})
    first, last = (moment[:19] for moment in (min(r.started_at for r in records), max(r.started_at for r in records)))
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


def training_tables(cases: Mapping[Case, Sequence[Group]]) -> list[Table]:
    """Tables of rates and of the step's parts for each case, or of the largest batch where that was looked for."""
    tables: list[Table] = []
    for case, groups in cases.items():
        if case.find_batch:
            tables.append(_batch_table(case, groups))
            continue
        tables.append(rates_table(case, groups))
        found = (nodes_table(case, groups), parts_table(case, groups))
        tables += [table for table in found if table is not None]
    return tables


def setting_name(group: Group, groups: Sequence[Group]) -> str:
    """The strategy; with its settings where the same strategy ran on as many devices with others."""
    setting = group.setting
    name = STRATEGY_NAMES[setting.strategy] + (f" on {setting.nodes} nodes" if setting.nodes > 1 else "")
    place = (setting.devices, setting.strategy, setting.nodes)
    alike = [g for g in groups if (g.setting.devices, g.setting.strategy, g.setting.nodes) == place]
    if len(alike) == 1:
        return name
    return f"{name} (threads {setting.threads}, {setting.scheduler}, {setting.backend})"


def row_name(group: Group, groups: Sequence[Group]) -> str:
    """``setting_name``, marked where a device was held back meanwhile."""
    name = setting_name(group, groups)
    return f"{name}, {UNSTABLE}" if is_unstable(group.records) else name


def memory_cell(group: Group) -> str:
    """Smallest and largest over devices (ranks on a CPU); idle cells are left out."""
    values = [value for value in group.matrix("peak_allocated").values() if value > 0]
    values = values or list(group.matrix("peak_rss").values())
    if not values:
        return formats.NOTHING
    return formats.span(formats.size(min(values)), formats.size(max(values)))


def rates_table(case: Case, groups: Sequence[Group]) -> Table:
    rows = [
        (
            row_name(group, groups),
            str(group.setting.devices),
            str(group.global_batch),
            formats.number(group.median("throughput")),
            formats.number(group.median("throughput_per_device")),
            formats.percent(group.spread("throughput")),
            formats.percent(group.median("efficiency", SINGLE)),
            formats.percent(group.median("efficiency", DDP_ONE)),
            memory_cell(group),
        )
        for group in groups
    ]
    launches = max(len(group.records) for group in groups)
    on_cpu = all(record.spec.device_kind == "cpu" for group in groups for record in group.records)
    return Table(
        title=f"Training: {case.name}",
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


def _batch_table(case: Case, groups: Sequence[Group]) -> Table:
    rows = [
        (row_name(group, groups), str(group.setting.devices), f"{group.median('largest_batch') or 0:.0f}")
        for group in groups
    ]
    return Table(
        title=f"Largest batch that fits: {case.workload}, {case.precision}",
        columns=("strategy", "devices", "samples per device"),
        numeric=(False, True, True),
        rows=tuple(rows),
    )


def nodes_table(case: Case, groups: Sequence[Group]) -> Table | None:
    """What several nodes give, beside one node and beside as many devices within one."""
    rows = [
        (
            str(found.nodes),
            str(found.per_node),
            str(found.nodes * found.per_node),
            formats.number(found.throughput),
            formats.percent(found.over_nodes),
            formats.percent(found.across),
        )
        for found in node_scaling(groups)
    ]
    if not rows:
        return None
    return Table(
        title=f"Over nodes: {case.name}",
        columns=("nodes", "devices each", "devices", "samples/s", "vs one node", "vs within"),
        numeric=(True,) * 6,
        rows=tuple(rows),
        note="DDP; vs one node: the same devices on one node, times the nodes; vs within: as many devices within one",
    )


def parts_table(case: Case, groups: Sequence[Group]) -> Table | None:
    rows = []
    for group in groups:
        parts = [group.median(f"phase_{phase}") for phase in PHASES]
        if not all(map(isnan, parts)):
            cells = (group.median("step_time"), *parts, group.median("exposed_communication"))
            rows.append((row_name(group, groups), str(group.setting.devices), *map(formats.seconds, cells)))
    if not rows:
        return None
    return Table(
        title=f"Parts of a step: {case.name}",
        columns=("strategy", "devices", "step", *PHASES, "exposed comm."),
        numeric=(False, *[True] * 7),
        rows=tuple(rows),
        note="parts from a pass of their own with a synchronisation after each; exposed: step − step without sync",
    )


# --- collectives ------------------------------------------------------------------------------------------------


def collective_table(operation: str, backend: str, curve: Mapping[tuple[int, int], Group]) -> Table:
    """Bytes by ranks."""
    rows = [
        (
            formats.size(float(size)),
            str(ranks),
            *(formats.seconds(group.median(metric)) for metric in LATENCIES),
            *(formats.number(group.median(metric) / 1e9, 3) for metric in ("algbw", "busbw")),
            formats.percent(group.spread("latency")),
        )
        for (size, ranks), group in curve.items()
    ]
    shaken = sorted({ranks for (_, ranks), group in curve.items() if is_unstable(group.records)})
    unstable = f"; {UNSTABLE} on {', '.join(map(str, shaken))} ranks" if shaken else ""
    return Table(
        title=f"{operation.replace('_', '-')} over {backend}",
        columns=("size", "ranks", "latency", "p50", "p99", "slowest rank", "algbw GB/s", "busbw GB/s", "spread"),
        numeric=(True,) * 9,
        rows=tuple(rows),
        note=f"latency: mean over calls and ranks{unstable}",
    )


# --- checkpoints ------------------------------------------------------------------------------------------------


def checkpoint_table(workload: str, groups: Sequence[Group]) -> Table:
    rows = [
        (
            row_name(group, groups),
            str(group.setting.devices),
            formats.size(group.median("checkpoint_size")),
            formats.seconds(group.median("save_time")),
            formats.seconds(group.median("load_time")),
            memory_cell(group),
        )
        for group in groups
    ]
    on_cpu = all(record.spec.device_kind == "cpu" for group in groups for record in group.records)
    memory = "RSS per rank" if on_cpu else "memory per device"
    return Table(
        title=f"Checkpoint: {workload}",
        columns=("strategy", "devices", "size", "save", "load", memory),
        numeric=(False, *[True] * 5),
        rows=tuple(rows),
        note="rank 0 saves, with fsync; load: the slowest rank, from the page cache; memory: peak meanwhile",
    )


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
        where: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for record in group:
            where[record.spec.strategy].add((record.spec.nodes, record.spec.device_count))
        runs = "; ".join(
            f"{STRATEGY_NAMES[strategy]} on {', '.join(_place(*place) for place in sorted(places))}"
            for strategy, places in sorted(where.items(), key=lambda item: STRATEGY_ORDER[item[0]])
        )
        tasks = sorted({record.spec.task.label for record in group})
        what = tasks[0] if len(tasks) == 1 else f"{len(tasks)} cases"
        lines.append(f"{outcome} {len(group)} ×, {runs} ({what}): {reason}")
    return lines


def _place(nodes: int, devices: int) -> str:
    return str(devices) if nodes == 1 else f"{nodes}x{devices // nodes}"


def step_gaps(records: Sequence[RunRecord]) -> list[str]:
    """A sentence for the newest DDP step of each case on several devices: of which parts it consists."""
    lines = {(gap.case, gap.devices, gap.nodes): gap_line(gap) for gap in gaps(records) if gap.devices > 1}
    return list(lines.values())


def warnings_of(records: Iterable[RunRecord]) -> list[str]:
    """The records' warnings, equal ones folded, and what a reader must know before believing the numbers."""
    records = list(records)
    counts = Counter(
        f"{record.spec.label}: {warning}" for record in records for warning in dict.fromkeys(record.warnings)
    )
    lines = [text if count == 1 else f"{text} ({count} ×)" for text, count in counts.items()]
    crowded = sorted({r.spec.label for r in records if any(rank.settings.oversubscribed for rank in r.ranks)})
    lines += [f"{label}: more ranks than cores; its numbers say little" for label in crowded]
    # On a host without a GPU nobody expects its library; on one with a GPU what it does not tell matters.
    with_gpu = [record for record in records if record.machine.accelerators or record.spec.device_kind != "cpu"]
    unread = dict.fromkeys(reason for record in with_gpu for reason in record.machine.not_read)
    return [*lines, *(f"not read: {reason}" for reason in unread)]
