"""Which of the stored records a report is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from bench_runner.errors import UsageError
from bench_runner.record import RunRecord

LAST: Final = "last"
ALL: Final = "all"


def started(record: RunRecord) -> datetime:
    """When a run began; records with a time that cannot be read count as the oldest."""
    try:
        moment = datetime.fromisoformat(record.started_at)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def select(records: Sequence[RunRecord], *, machines: Sequence[str] = (), session: str = ALL) -> list[RunRecord]:
    """The records of ``machines`` (all if empty) and of one session: an id or the beginning of one, ``last`` for the
    newest session of each machine, or ``all``.  Raises UsageError naming what there is when nothing is left."""
    names = list(dict.fromkeys(record.machine.name for record in records))
    absent = [name for name in machines if name not in names]
    if absent:
        raise UsageError(f"machine {absent[0]!r}: no results; there are results of {_listed(names)}")
    chosen = [record for record in records if not machines or record.machine.name in machines]
    if session == ALL:
        return chosen
    if session == LAST:
        newest: dict[str, RunRecord] = {}
        for record in chosen:
            known = newest.setdefault(record.machine.name, record)
            if started(record) > started(known):
                newest[record.machine.name] = record
        wanted = {(name, record.session_id) for name, record in newest.items()}
        return [record for record in chosen if (record.machine.name, record.session_id) in wanted]
    sessions = sorted({record.session_id for record in chosen})
    found = [s for s in sessions if s == session] or [s for s in sessions if s.startswith(session)]
    if len(found) != 1:
        what = "no such session" if not found else "several sessions begin so"
        raise UsageError(f"session {session!r}: {what}; there are {_listed(found or sessions)}")
    return [record for record in chosen if record.session_id == found[0]]


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"
