"""torch's flight recorder: which collectives each rank has issued, read from JSON and compared over ranks.  Pure.

A dump is what ``_dump_fr_trace_json`` (or NCCL's own) gives of one process: a ring of the last collectives, each with
its number in its process group, and per group the number of the last one enqueued.  The number at which the ranks of a
group part says who is behind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench_runner.doctor.desync import rank_list, ranks_do

LARGEST_DUMP_BYTES: Final = 64 << 20
_MOST_ENTRIES: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTrace:
    """One process group in one process: the number of the last collective it issued, and those still known by number,
    each as operation and sizes."""

    name: str
    last: int
    calls: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desync:
    """What the ranks' traces of one group say.  ``fault`` is a name of ``faults.FAULTS``."""

    fault: str
    message: str
    evidence: tuple[str, ...]


def parse_trace(document: bytes) -> dict[str, GroupTrace]:
    """The process groups of one dump by name; none for anything that is no dump."""
    try:
        read: Any = json.loads(document[:LARGEST_DUMP_BYTES])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(read, dict):
        return {}
    entries = read.get("entries")
    calls: dict[str, dict[int, str]] = {}
    for entry in entries[-_MOST_ENTRIES:] if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("is_p2p") is not True:
            number = _whole(entry.get("collective_seq_id"))
            if number:
                calls.setdefault(_group_name(entry), {})[number] = _call(entry)
    return {name: GroupTrace(name=name, last=max(known), calls=known) for name, known in calls.items()}


def _group_name(entry: Mapping[str, Any]) -> str:
    names = entry.get("process_group")
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return " ".join(names)[:200]
    return str(entry.get("pg_id"))[:200]


def _call(entry: Mapping[str, Any]) -> str:
    sizes = entry.get("input_sizes")
    shown = f" of {json.dumps(sizes)[:100]}" if isinstance(sizes, list) and sizes else ""
    return f"{str(entry.get('profiling_name'))[:100]}{shown}"


def _whole(value: object) -> int | None:
    """torch writes some numbers as numbers and some as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def compare_traces(traces: Mapping[int, Mapping[str, GroupTrace]]) -> Desync | None:
    """The first group in which the ranks have parted, else that all wait in the same collective; None when fewer than
    two ranks told of the same group.  ``traces``: rank to what ``parse_trace`` gave."""
    together: Desync | None = None
    for name in dict.fromkeys(name for groups in traces.values() for name in groups):
        group = {rank: groups[name] for rank, groups in traces.items() if name in groups}
        if len(group) < 2:
            continue
        found = _mismatch(name, group) or _behind(name, group)
        if found is not None:
            return found
        together = together or _all_in(name, group)
    return together


def _lines(group: Mapping[int, GroupTrace]) -> tuple[str, ...]:
    return tuple(
        f"flight recorder: rank {rank} issued collective {trace.last} last, {trace.calls[trace.last]}"
        for rank, trace in sorted(group.items())
    )


def _mismatch(name: str, group: Mapping[int, GroupTrace]) -> Desync | None:
    """The first number under which the ranks issued different operations, of those that all still know."""
    common = set.intersection(*(set(trace.calls) for trace in group.values()))
    for number in sorted(common):
        if len({trace.calls[number].split(" of ")[0] for trace in group.values()}) > 1:
            said = tuple(
                f"flight recorder: rank {r}'s collective {number}: {t.calls[number]}" for r, t in sorted(group.items())
            )
            message = f"the ranks issued different operations as collective {number} of group {name}"
            return Desync(fault="collective-mismatch", message=message, evidence=said)
    return None


def _behind(name: str, group: Mapping[int, GroupTrace]) -> Desync | None:
    most = max(trace.last for trace in group.values())
    behind = [rank for rank, trace in group.items() if trace.last < most]
    if not behind:
        return None
    ahead = [rank for rank in group if rank not in behind]
    least = min(group[rank].last for rank in behind)
    missing = group[ahead[0]].calls.get(least + 1, "one that is no longer recorded")
    message = (
        f"{ranks_do(behind, 'is', 'are')} behind in group {name}: never issued collective {least + 1}, {missing}, which"
        f" {rank_list(ahead)} did"
    )
    return Desync(fault="uneven-batches", message=message, evidence=_lines(group))


def _all_in(name: str, group: Mapping[int, GroupTrace]) -> Desync:
    last = max(trace.last for trace in group.values())
    message = f"{rank_list(list(group))} have all issued the same collectives of group {name}, up to {last}"
    return Desync(fault="device-or-link", message=message, evidence=_lines(group))
