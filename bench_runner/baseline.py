"""Frozen baselines: ``results/baselines/NAME.jsonl``, records copied from anywhere, made to be committed.

A baseline is never overwritten unasked: what a gate is held against must not move by accident.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_runner import store
from bench_runner.errors import StoreError, UsageError
from bench_runner.record import RunRecord

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSummary:
    """What ``baseline list`` shows of one."""

    name: str
    path: str
    records: int
    launches: int
    machines: tuple[str, ...]
    commits: tuple[str, ...]
    newest: str | None
    unreadable: tuple[str, ...]


def baseline_path(results: Path, name: str) -> Path:
    """Where the baseline ``name`` stands; UsageError for a name that is not a plain one."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"baseline name {name!r}: use letters, digits, '_', '-' and '.', 64 at most")
    return results / store.BASELINES_FOLDER / f"{name}{store.SUFFIX}"


def baseline_names(results: Path) -> list[str]:
    """The names of all baselines under the results folder."""
    folder = results / store.BASELINES_FOLDER
    if not folder.is_dir():
        return []
    return sorted(path.stem for path in folder.glob(f"*{store.SUFFIX}") if _NAME.fullmatch(path.stem))


def freeze(results: Path, name: str, records: Sequence[RunRecord], *, replace: bool = False) -> Path:
    """Write the baseline, whole or not at all.  UsageError if it exists and ``replace`` was not asked for."""
    path = baseline_path(results, name)
    if not records:
        raise UsageError(f"baseline {name}: nothing was selected to freeze")
    if not any(record.outcome == "ok" for record in records):
        raise UsageError(
            f"baseline {name}: none of the {len(records)} selected records is ok, so there is nothing to compare with"
        )
    content = b"".join(store.to_line(record) + b"\n" for record in records)
    temporary = path.with_name(f".{name}-{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        if replace:
            temporary.replace(path)
        else:
            # The name is taken first, so that two writers cannot both have it; then the whole file goes there.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            temporary.replace(path)
    except FileExistsError as error:
        raise UsageError(f"baseline {name}: {path} exists; choose another name, or give --replace") from error
    except OSError as error:
        raise StoreError(f"baseline {name}: {path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def summaries(results: Path) -> list[BaselineSummary]:
    """All baselines, by name."""
    return [_summary(results, name) for name in baseline_names(results)]


def _summary(results: Path, name: str) -> BaselineSummary:
    path = baseline_path(results, name)
    records, problems = store.read_file(path)
    return BaselineSummary(
        name=name,
        path=str(path),
        records=len(records),
        launches=len({record.launch_id for record in records}),
        machines=tuple(sorted({record.machine.name for record in records})),
        commits=tuple(sorted({(record.commit or "-")[:12] for record in records})),
        newest=max((record.started_at for record in records), default=None),
        unreadable=tuple(str(problem) for problem in problems),
    )
