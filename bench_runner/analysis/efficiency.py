"""Scaling efficiency: derived across the records of one session, because it needs a one-device run to divide by.

    weak     E = R_n / (n · R_1)   at equal per-device batch
    strong   E = T_1 / (n · T_n)   at equal global batch, which is R_n / (n · R_1) as well, R being samples per second

The denominator moves E by several points, so each one there is gives a value of its own, named in ``denominator``:
``single`` (plain, one device) and ``ddp-1`` (DDP with one rank).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from bench_runner.analysis.metrics import MetricValue, median, throughput
from bench_runner.record import RunRecord
from bench_runner.spec import Training

SINGLE: Final = "single"
DDP_ONE: Final = "ddp-1"

Key = tuple[object, ...]


def _key(record: RunRecord, task: Training) -> Key:
    """What has to be equal between the run and its denominator.  On one device both scalings hold the same batch."""
    settings = record.ranks[0].settings
    return (
        record.session_id,
        record.machine.fingerprint,
        record.environment.fingerprint,
        record.measurement_version,
        record.spec.device_kind,
        task.workload,
        task.precision,
        task.data,
        task.loader_workers,
        task.batch,
        settings.threads,
        settings.scheduler,
    )


def denominator_of(record: RunRecord) -> str | None:
    """The name under which a record serves as denominator, or None."""
    if record.spec.device_count != 1 or record.spec.strategy == "data_parallel":
        return None
    return SINGLE if record.spec.strategy == "single" else DDP_ONE


def efficiencies(records: Iterable[RunRecord]) -> dict[str, list[MetricValue]]:
    """``record_id`` → efficiency against each denominator that its session has.

    The denominator is the median over its launches.  A denominator has no efficiency against itself.
    """
    rates: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    candidates: list[tuple[RunRecord, Key, float]] = []
    for record in records:
        rate = throughput(record)
        if rate is None or not isinstance(record.spec.task, Training):
            continue
        key = _key(record, record.spec.task)
        candidates.append((record, key, rate))
        name = denominator_of(record)
        if name is not None:
            rates[key][name].append(rate)
    values: dict[str, list[MetricValue]] = {}
    for record, key, rate_value in candidates:
        own = denominator_of(record)
        found = [
            MetricValue(
                metric="efficiency",
                value=rate_value / (record.spec.device_count * median(ones)),
                denominator=name,
            )
            for name, ones in sorted(rates[key].items(), reverse=True)
            if name != own and own != SINGLE
        ]
        if found:
            values[record.record_id] = found
    return values
