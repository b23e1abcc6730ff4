"""Measure every case of a profile under one strategy and device count, and store what came out.

One launch of worker processes serves all of them.  Whatever happens, each case ends as a record.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from bench_runner import launch, store
from bench_runner.analysis.metrics import clock_warning
from bench_runner.analysis.trend import trend_warning
from bench_runner.capacity import Capacity
from bench_runner.environment.info import EnvironmentInfo
from bench_runner.environment.prefix import lock_path
from bench_runner.environment.summary import describe as describe_environment
from bench_runner.environment.summary import with_runtime
from bench_runner.errors import LaunchError, UnreadableError
from bench_runner.launch_verdict import CaseResult
from bench_runner.machine.info import MachineInfo
from bench_runner.machine.sampling import Sampler, SamplingSummary
from bench_runner.machine.stability import devices_used, only_used, unstable_reason
from bench_runner.nodes.cluster import Cluster
from bench_runner.plan import Planned, plan
from bench_runner.profile import Profile
from bench_runner.record import RankSamples, RunRecord
from bench_runner.snapshot import current_commit
from bench_runner.spec import Strategy

PARTIAL_NAME: Final = "complete-before-the-break.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all measurements of a session share.

    ``root`` is the source tree, ``results`` the results folder, ``python`` runs the workers.  ``asked_devices`` are
    the counts that were asked for by number, ``port`` is the rendezvous' (None: a free one), ``options`` go to the
    workers.  ``cluster`` are the other nodes, where there are some.
    """

    root: Path
    results: Path
    session_id: str
    launch_index: int
    machine: MachineInfo
    python: str
    capacity: Capacity
    profile: Profile
    asked_devices: tuple[int | str, ...] | None = None
    port: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    startup_deadline_seconds: float = 120.0
    cluster: Cluster | None = None


def measure(context: Context, strategy: Strategy, count: int | str, folder: Path) -> tuple[RunRecord, ...]:
    """Launch what can be measured, store a record for every case of the profile, and return the records.

    ``count`` is a number of devices, or 2x4 for four on each of two nodes.  ``folder`` takes the launch's files.  A
    measurement that is broken off stores the cases that were complete and leaves them in ``folder``; the next one for
    the same folder measures the rest.  Raises LaunchError when no process could be started or a node was lost,
    StoreError when the records could not be written.
    """
    known = _broken_off(folder)
    planned = plan(context.profile, strategy, count, context.capacity, context.asked_devices)
    remaining = [case for case in planned if case.label not in known]
    shared = _shared(context)
    environment = describe_environment(Path(context.python).parent.parent, lock_path(context.root))
    records = [_skipped(case, case.skip, environment, shared) for case in remaining if case.skip is not None]
    wanted = tuple(case.spec for case in remaining if case.skip is None)
    label = f"{strategy}-{count}"
    if wanted:
        attempt = launch.LaunchPlan(
            specs=wanted,
            python=context.python,
            directory=folder / f"attempt-{uuid.uuid4().hex[:8]}",
            options=context.options,
            port=context.port,
            launch_id=str(shared["launch_id"]),
            startup_deadline_seconds=context.startup_deadline_seconds,
            cluster=context.cluster,
        )
        results: list[CaseResult] = []
        with Sampler() if context.capacity.kind == "cuda" else nullcontext() as sampler:
            try:
                launch.run(attempt, keep=results.append)
                _require_all_nodes(results)
            except BaseException:
                kept = [_measured(result, environment, shared, sampler) for result in results]
                if kept:
                    store.write(kept, context.results, label=label)
                    _leave(folder, kept)
                raise
        records += [_measured(result, environment, shared, sampler) for result in results]
    if records:
        store.write(records, context.results, label=label)
    return (*known.values(), *records)


def _require_all_nodes(results: Sequence[CaseResult]) -> None:
    """Raise LaunchError if a node was lost: nothing more can be measured over all of them, whoever goes on."""
    lost = next((result for result in results if result.failure == "lost-node"), None)
    if lost is not None:
        raise LaunchError(f"{lost.reason}; the same command goes on from here")


def _broken_off(folder: Path) -> dict[str, RunRecord]:
    """The records that earlier attempts in this folder completed and stored, by the label of their case."""
    path = folder / PARTIAL_NAME
    records, problems = store.read_file(path) if path.exists() else ([], [])
    if problems:
        raise UnreadableError(f"{problems[0]}; bench-runner run --fresh begins anew")
    return {record.spec.task.label: record for record in records}


def _leave(folder: Path, records: Sequence[RunRecord]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / PARTIAL_NAME).open("ab") as file:
        # What was lost with a node was never measured.
        kept = [record for record in records if record.failure != "lost-node"]
        file.writelines(store.to_line(record) + b"\n" for record in kept)


def _shared(context: Context) -> dict[str, Any]:
    """What all records of one launch have in common."""
    return {
        "session_id": context.session_id,
        "launch_id": uuid.uuid4().hex,
        "launch_index": context.launch_index,
        "machine": context.machine,
        "commit": current_commit(context.root),
        "profile": context.profile.name,
        "profile_text": context.profile.own_text,
    }


def _skipped(case: Planned, reason: str, environment: EnvironmentInfo, shared: dict[str, Any]) -> RunRecord:
    return RunRecord(
        record_id=uuid.uuid4().hex,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        duration_seconds=0.0,
        spec=case.spec,
        environment=environment,
        outcome="skipped",
        reason=reason,
        **shared,
    )


def _measured(
    result: CaseResult, environment: EnvironmentInfo, shared: dict[str, Any], sampler: Sampler | None
) -> RunRecord:
    return record_of(
        result, environment, {"record_id": uuid.uuid4().hex, "sampling": _window(sampler, result), **shared}
    )


def _window(sampler: Sampler | None, result: CaseResult) -> SamplingSummary | None:
    """What was sampled of the devices while this case ran."""
    if sampler is None:
        return None
    begin = datetime.fromisoformat(result.started_at).timestamp()
    return sampler.window(begin, begin + result.duration_seconds)


def record_of(result: CaseResult, environment: EnvironmentInfo, shared: dict[str, Any]) -> RunRecord:
    """The record of one case: samples validated, warnings drawn from them."""
    ranks = tuple(TypeAdapter(RankSamples).validate_python(samples) for samples in result.ranks)
    record = RunRecord(
        started_at=result.started_at,
        duration_seconds=result.duration_seconds,
        spec=result.spec,
        environment=with_runtime(environment, result.runtime or {}),
        outcome=result.outcome,
        reason=result.reason,
        failure=result.failure,
        traceback=result.traceback,
        failed_rank=result.failed_rank,
        ranks=ranks,
        warnings=result.warnings,
        **shared,
    )
    if record.sampling is not None:
        record = replace(record, sampling=only_used(record.sampling, devices_used(record)))
    return _judged(record)


def _judged(record: RunRecord) -> RunRecord:
    """A record with the warnings that its own samples give; wrong values make it a failure."""
    wrong = sorted({size for rank in record.ranks for size in rank.wrong_values})
    if record.outcome == "ok" and wrong:
        sizes = ", ".join(str(size) for size in wrong)
        reason = f"the result had wrong values at {sizes} bytes: no latency is given; see `bench-runner doctor startup`"
        return replace(record, outcome="failed", failure="wrong-values", reason=reason)
    warnings = list(record.warnings)
    clock = clock_warning(record)
    if clock:
        warnings.append(clock)
    if record.sampling is not None:
        unstable = unstable_reason(record.sampling)
        warnings += [*([f"unstable: {unstable}"] if unstable else []), *record.sampling.warnings]
    trends = {rank.rank: trend_warning(rank.step_seconds) for rank in record.ranks}
    warnings += [f"rank {rank}: {trend}" for rank, trend in trends.items() if trend]
    return replace(record, warnings=tuple(warnings))
