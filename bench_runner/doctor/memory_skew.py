"""Shows the classic skew on this machine: the same checkpoint loaded by every rank, with and without being mapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bench_runner.doctor.world import WorldPlan, last_line, run_world
from bench_runner.errors import LaunchError

MODULE: Final = "bench_runner.worker.doctor_memory"
DEFAULT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """By how many bytes one load made one rank grow, on the host and on each device."""

    rank: int
    resident_bytes: int
    device_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewProbe:
    """One ``Growth`` a rank for each way; ``checkpoint_bytes`` is the size of the tensors in the file."""

    device_kind: str
    checkpoint_bytes: int
    as_saved: tuple[Growth, ...]
    mapped: tuple[Growth, ...]


def probe_skew(
    device_kind: str, ranks: int, *, python: str, checkpoint_bytes: int = DEFAULT_BYTES, deadline_seconds: float = 120.0
) -> SkewProbe:
    """Run the probe; LaunchError when a rank did not come through."""
    plan = WorldPlan(
        module=MODULE,
        world_size=ranks,
        deadline_seconds=deadline_seconds,
        python=python,
        options={"device_kind": device_kind, "bytes": checkpoint_bytes},
    )
    with run_world(plan) as (outcome, _):
        said: dict[str, list[Growth]] = {"as-saved": [], "mapped": []}
        for rank in outcome.ranks:
            error = rank.last("error")
            if error is not None:
                raise LaunchError(f"the memory probe failed on rank {rank.rank}: {error['error']}")
            for event in rank.events:
                if event["kind"] == "load":
                    said[event["how"]].append(_growth(rank.rank, event))
        if len(said["mapped"]) < ranks:
            why = "not done in time" if outcome.timed_out else last_line(outcome.log) or "a rank ended early"
            raise LaunchError(f"the memory probe did not end on every rank: {why}")
    return SkewProbe(
        device_kind=device_kind,
        checkpoint_bytes=checkpoint_bytes,
        as_saved=tuple(said["as-saved"]),
        mapped=tuple(said["mapped"]),
    )


def _growth(rank: int, event: dict[str, Any]) -> Growth:
    return Growth(rank=rank, resident_bytes=event["resident"], device_bytes=tuple(event["devices"]))
