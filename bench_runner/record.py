"""The stored result of one measurement: everything needed to recompute, compare and distrust it.

History of the schema version
    1  2026-11  first version

History of the measurement version (it rises when the way of measuring changes, so that old and new numbers are not
compared)
    1  2026-11  first version
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from bench_runner.environment.info import EnvironmentInfo
from bench_runner.machine.info import MachineInfo
from bench_runner.machine.sampling import SamplingSummary
from bench_runner.spec import RunSpec

RECORD_SCHEMA: Final = "bench-runner/record/1"
MEASUREMENT_VERSION: Final = 1

Outcome = Literal["ok", "skipped", "failed", "timeout"]
Failure = Literal[
    "out-of-memory",
    "exception",
    "signal",
    "exit",
    "missing-rank",
    "lost-node",
    "wrong-values",
    "loss-not-finite",
    "deadline",
    "not-started",
    "disk-full",
]
Scheduler = Literal["batch", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory that one process holds on one device, in bytes: a cell of the process × device matrix.

    ``peak_allocated_bytes`` and ``peak_reserved_bytes`` are torch's caching allocator's, since the case began;
    ``process_used_bytes`` is the driver's account of that process on that device, ``device_used_bytes`` and
    ``device_total_bytes`` the driver's account of the whole device.  ``None``: not known, never zero.
    """

    device: int
    uuid: str | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    process_used_bytes: int | None = None
    device_used_bytes: int | None = None
    device_total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """What was done to a worker process before it measured; results with unlike settings are not compared."""

    threads: int
    interop_threads: int
    cores: tuple[int, ...]
    scheduler: Scheduler
    omp_num_threads: str | None = None
    oversubscribed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSamples:
    """The raw samples of one rank; times in seconds, one entry per step or call, in the order they were taken.

    ``phase_seconds`` has the keys data, forward, backward, optimizer, from a pass of its own with a synchronisation
    after each phase.  ``no_sync_step_seconds`` are DDP steps without gradient communication.  ``loop_seconds`` is an
    independent clock around all timed steps, ``loop_energy_joules`` what the devices that this rank drives took
    meanwhile (None: not every one of them has a counter).  ``collective_seconds`` maps the message size in bytes to
    call times.  ``wrong_values`` names the sizes whose result was wrong; no times are given for them.
    ``largest_batch`` is the largest per-device batch that fitted (``find_batch``), ``smallest_failing_batch`` the
    smallest that did not.  ``save_seconds`` (rank 0 alone) and ``load_seconds`` are those of a checkpoint of
    ``checkpoint_bytes`` in one file.
    """

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int
    device: int
    settings: ProcessSettings
    uuid: str | None = None
    backend: str | None = None
    step_seconds: tuple[float, ...] = ()
    loop_seconds: float | None = None
    loop_energy_joules: float | None = None
    phase_seconds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    no_sync_step_seconds: tuple[float, ...] = ()
    collective_seconds: dict[int, tuple[float, ...]] = field(default_factory=dict)
    wrong_values: tuple[int, ...] = ()
    first_loss: float | None = None
    last_loss: float | None = None
    parameters: int | None = None
    largest_batch: int | None = None
    smallest_failing_batch: int | None = None
    save_seconds: tuple[float, ...] = ()
    load_seconds: tuple[float, ...] = ()
    checkpoint_bytes: int | None = None
    memory: tuple[DeviceMemory, ...] = ()
    peak_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One measurement as stored.  ``ranks`` is empty unless ``outcome`` is ok (or partial samples were rescued).

    ``session_id`` is shared by all records of one ``bench-runner run``; ``launch_id`` by those of one launch of worker
    processes; ``launch_index`` counts the repeats of the same launch within a session, from 0: the unit of statistics.
    ``profile_text`` is the profile's file unless it is a built-in one, so that a gate can measure the same again.
    ``sampling`` is what NVML said of the devices meanwhile (clocks, power, throttling); None on a CPU.
    """

    record_id: str
    session_id: str
    launch_id: str
    launch_index: int
    started_at: str
    duration_seconds: float
    spec: RunSpec
    machine: MachineInfo
    environment: EnvironmentInfo
    outcome: Outcome
    reason: str | None = None
    failure: Failure | None = None
    traceback: str | None = None
    failed_rank: int | None = None
    commit: str | None = None
    profile: str | None = None
    profile_text: str | None = None
    ranks: tuple[RankSamples, ...] = ()
    warnings: tuple[str, ...] = ()
    sampling: SamplingSummary | None = None
    schema: str = RECORD_SCHEMA
    measurement_version: int = MEASUREMENT_VERSION

    def __post_init__(self) -> None:
        if self.outcome != "ok" and not self.reason:
            raise ValueError(f"record {self.record_id}: outcome {self.outcome} needs a reason")
        if self.outcome == "ok" and not self.ranks:
            raise ValueError(f"record {self.record_id}: outcome ok needs samples")
