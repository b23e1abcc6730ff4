"""Records of what was lost with a node."""

from __future__ import annotations

from collections.abc import Sequence

from bench_runner.record import RunRecord


def without_lost(records: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """The records without those of cases that were lost with a node and measured later, when the session went on."""
    measured = {(r.spec.label, r.launch_index) for r in records if r.failure != "lost-node"}
    return tuple(r for r in records if r.failure != "lost-node" or (r.spec.label, r.launch_index) not in measured)
