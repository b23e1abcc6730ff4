"""All results as one tidy pandas frame: a row for each metric value, and one for each run that gave none.

The columns are described in docs/metrics.md.  Types are the same for every frame, the empty one included, and a frame
written by ``write_frame`` and read by ``read_frame`` is equal to what it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from bench_runner.analysis.efficiency import efficiencies
from bench_runner.analysis.intervals import summarise
from bench_runner.analysis.metrics import METRICS, MetricValue, metric_values
from bench_runner.record import RunRecord
from bench_runner.spec import Collective, Training
from bench_runner.store import Problem, read_sources

_TEXT: Final = "string"
_WHOLE: Final = "Int64"
_REAL: Final = "float64"
_FLAG: Final = "boolean"
_TIME: Final = "datetime64[us, UTC]"

RECORD_COLUMNS: Final[dict[str, str]] = {
    "source": _TEXT,
    "record_id": _TEXT,
    "session_id": _TEXT,
    "launch_id": _TEXT,
    "launch_index": _WHOLE,
    "started_at": _TIME,
    "machine": _TEXT,
    "fingerprint": _TEXT,
    "accelerator": _TEXT,
    "environment": _TEXT,
    "lock_sha256": _TEXT,
    "lock_state": _TEXT,
    "torch": _TEXT,
    "cuda": _TEXT,
    "nccl": _TEXT,
    "commit": _TEXT,
    "profile": _TEXT,
    "measurement_version": _WHOLE,
    "device_kind": _TEXT,
    "strategy": _TEXT,
    "devices": _WHOLE,
    "nodes": _WHOLE,
    "workload": _TEXT,
    "precision": _TEXT,
    "scaling": _TEXT,
    "data": _TEXT,
    "per_device_batch": _WHOLE,
    "global_batch": _WHOLE,
    "backend": _TEXT,
    "threads": _WHOLE,
    "scheduler": _TEXT,
    "oversubscribed": _FLAG,
}
VALUE_COLUMNS: Final[dict[str, str]] = {
    "operation": _TEXT,
    "bytes": _WHOLE,
    "metric": _TEXT,
    "rank": _WHOLE,
    "device": _WHOLE,
    "denominator": _TEXT,
    "value": _REAL,
    "unit": _TEXT,
    "direction": _TEXT,
    "q25": _REAL,
    "q75": _REAL,
    "ci_low": _REAL,
    "ci_high": _REAL,
    "n": _WHOLE,
    "outcome": _TEXT,
    "reason": _TEXT,
    "failure": _TEXT,
}
COLUMNS: Final[dict[str, str]] = {**RECORD_COLUMNS, **VALUE_COLUMNS}
FrameFormat = Literal["csv", "parquet"]


def load_frame(
    results: str | Path | Iterable[str | Path] = "results",
    *,
    on_problem: Callable[[Problem], None] | None = None,
) -> pd.DataFrame:
    """Every result under ``results`` (a folder, a file, or several of them) as a frame.

    What cannot be read is given to ``on_problem``; without it each is a ``UserWarning``.  The rest is always read.
    """
    places = [results] if isinstance(results, str | Path) else list(results)
    found, problems = read_sources(Path(place) for place in places)
    for problem in problems:
        if on_problem is None:
            warnings.warn(str(problem), stacklevel=2)
        else:
            on_problem(problem)
    return frame_of([record for _, record in found], [str(path) for path, _ in found])


def frame_of(records: Sequence[RunRecord], sources: Sequence[str] | None = None) -> pd.DataFrame:
    """The frame of ``records``; ``sources`` names the file of each."""
    derived = efficiencies(records)
    values: list[MetricValue] = []
    owners: list[int] = []
    bare: list[dict[str, Any]] = []
    bare_owners: list[int] = []
    for owner, record in enumerate(records):
        own = [*metric_values(record), *derived.get(record.record_id, ())]
        values += own
        owners += [owner] * len(own)
        missing = list(_rows_without_value(record))
        bare += missing
        bare_owners += [owner] * len(missing)
    per_record = _record_columns(records, sources or [""] * len(records))
    parts = _concatenated(_value_columns(values), bare, len(values))
    order = np.argsort(np.array(owners + bare_owners, dtype=np.int64), kind="stable")
    owned = np.array(owners + bare_owners, dtype=np.int64)[order]
    columns: dict[str, Any] = {name: per_record[name].take(owned) for name in RECORD_COLUMNS}
    columns.update({name: parts[name].take(order) for name in VALUE_COLUMNS})
    return pd.DataFrame(columns, columns=list(COLUMNS), copy=False)


def _rows_without_value(record: RunRecord) -> Iterable[dict[str, Any]]:
    """What a run did not give, with the reason: the run itself, or message sizes whose result was wrong."""
    operation = record.spec.task.operation if isinstance(record.spec.task, Collective) else None
    if record.outcome != "ok":
        yield {
            "operation": operation,
            "outcome": record.outcome,
            "reason": record.reason,
            "failure": record.failure,
        }
        return
    for size in sorted({size for rank in record.ranks for size in rank.wrong_values}):
        ranks = [str(rank.rank) for rank in record.ranks if size in rank.wrong_values]
        yield {
            "operation": operation,
            "bytes": size,
            "outcome": "failed",
            "reason": f"wrong values at {size} bytes on rank {', '.join(ranks)}",
            "failure": "wrong-values",
        }


def _array(values: Sequence[Any], dtype: str) -> pd.api.extensions.ExtensionArray:
    if dtype == _TIME:
        # A time that cannot be read becomes "not a time"; the record as such is sound.
        times = pd.to_datetime(pd.Series(values, dtype="object"), utc=True, errors="coerce", format="ISO8601")
        return times.astype(_TIME).array
    if dtype == _TEXT:
        values = [value or None for value in values]
    return pd.array(values, dtype=dtype)  # type: ignore[call-overload, no-any-return]


def _record_columns(records: Sequence[RunRecord], sources: Sequence[str]) -> dict[str, Any]:
    """The columns that all rows of a record share, with one entry a record."""
    rows = [_record_row(record, source) for record, source in zip(records, sources, strict=True)]
    return {
        name: _array([row[place] for row in rows], dtype) for place, (name, dtype) in enumerate(RECORD_COLUMNS.items())
    }


def _record_row(record: RunRecord, source: str) -> tuple[Any, ...]:
    """In the order of ``RECORD_COLUMNS``."""
    spec, machine, environment = record.spec, record.machine, record.environment
    task = spec.task if isinstance(spec.task, Training) else None
    rank = record.ranks[0] if record.ranks else None
    return (
        source,
        record.record_id,
        record.session_id,
        record.launch_id,
        record.launch_index,
        record.started_at,
        machine.name,
        machine.fingerprint,
        " + ".join(dict.fromkeys(accelerator.name for accelerator in machine.accelerators)),
        environment.fingerprint,
        environment.lock_sha256,
        environment.lock_state,
        environment.torch,
        environment.cuda,
        environment.nccl,
        record.commit,
        record.profile,
        record.measurement_version,
        spec.device_kind,
        spec.strategy,
        spec.device_count,
        spec.nodes,
        None if isinstance(spec.task, Collective) else spec.task.workload,
        task and task.precision,
        task and task.scaling,
        task and task.data,
        task and task.per_device_batch(spec.device_count),
        task and task.global_batch(spec.device_count),
        rank and rank.backend,
        rank and rank.settings.threads,
        rank and rank.settings.scheduler,
        any(each.settings.oversubscribed for each in record.ranks) if record.ranks else None,
    )


def _value_columns(values: Sequence[MetricValue]) -> dict[str, list[Any]]:
    """The columns of the metric values, with one entry a value."""
    summary = summarise(values)
    metrics = [METRICS[value.metric] for value in values]
    return {
        "operation": [value.operation for value in values],
        "bytes": [value.bytes for value in values],
        "metric": [value.metric for value in values],
        "rank": [value.rank for value in values],
        "device": [value.device for value in values],
        "denominator": [value.denominator for value in values],
        "value": [value.value for value in values],
        "unit": [metric.unit for metric in metrics],
        "direction": [metric.direction for metric in metrics],
        "q25": summary.q25.tolist(),
        "q75": summary.q75.tolist(),
        "ci_low": summary.ci_low.tolist(),
        "ci_high": summary.ci_high.tolist(),
        "n": [count or None for count in summary.samples.tolist()],
        "outcome": ["ok"] * len(values),
        "reason": [None] * len(values),
        "failure": [None] * len(values),
    }


def _concatenated(columns: dict[str, list[Any]], bare: Sequence[dict[str, Any]], count: int) -> dict[str, Any]:
    """The columns of the values with the rows that have none behind them."""
    empty = {_REAL: np.nan}
    return {
        name: _array(columns[name][:count] + [row.get(name, empty.get(dtype)) for row in bare], dtype)
        for name, dtype in VALUE_COLUMNS.items()
    }


# --- files ------------------------------------------------------------------------------------------------------


def write_frame(frame: pd.DataFrame, path: Path, file_format: FrameFormat) -> None:
    """Write a frame to a file; raises OSError."""
    if file_format == "parquet":
        frame.to_parquet(path, index=False)
    else:
        path.write_text(csv_text(frame), encoding="utf-8", newline="")


def csv_text(frame: pd.DataFrame) -> str:
    """The frame as CSV; reals with as many digits as it takes to read the same ones again."""
    text: str = frame.to_csv(index=False)
    # A carriage return in a name or a reason is put into quotes only where it is part of the lines' end.
    return frame.to_csv(index=False, lineterminator="\r\n") if "\r" in text else text


def read_frame(path: Path, file_format: FrameFormat) -> pd.DataFrame:
    """Read what ``write_frame`` wrote."""
    if file_format == "parquet":
        return pd.read_parquet(path)
    # Times and reals are read as text first: not every pandas parses reals to the nearest one by itself.
    types = {name: _TEXT if dtype in (_TIME, _REAL) else dtype for name, dtype in COLUMNS.items()}
    frame = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])
    frame["started_at"] = pd.to_datetime(frame["started_at"], utc=True, format="ISO8601").astype(_TIME)
    return frame.astype({name: _REAL for name, dtype in COLUMNS.items() if dtype == _REAL})
