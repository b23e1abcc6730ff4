"""Records for tests: every function gives a complete value with sensible defaults; name what the test is about.

from tests import builders
record = builders.training_record(strategy="ddp", devices=2, step_seconds=[[0.1] * 10, [0.2] * 10])
record = builders.collective_record(devices=2, seconds={1024: [[1e-4] * 5, [2e-4] * 5]})
record = builders.failed_record(strategy="data_parallel", outcome="skipped", reason="needs a CUDA device")
records = builders.launches(5, lambda i: builders.training_record(seconds=0.1 + 0.001 * i))
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench_runner.environment.info import EnvironmentInfo
from bench_runner.machine.info import Accelerator, MachineInfo
from bench_runner.record import DeviceMemory, ProcessSettings, RankSamples, RunRecord
from bench_runner.spec import Checkpoint, Collective, RunSpec, Training

MIB = 1 << 20
GIB = 1 << 30


def accelerator(index: int = 0, **changes: Any) -> Accelerator:
    fields: dict[str, Any] = {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-00000000-0000-0000-0000-{index:012d}",
        "pci_bus_id": f"0000:{0x18 + index:02X}:00.0",
        "memory_bytes": 80 * GIB,
        "power_limit_watts": 700.0,
    }
    return Accelerator(**{**fields, **changes})


def machine(name: str = "box", *, gpus: int = 0, **changes: Any) -> MachineInfo:
    fields: dict[str, Any] = {
        "name": name,
        "fingerprint": f"machine-{name}",
        "hostname": f"{name}.example",
        "kernel": "6.1.0",
        "cpu_model": "Test CPU @ 2.00GHz",
        "cores_allowed": 8,
        "memory_bytes": 64 * GIB,
        "accelerators": tuple(accelerator(index) for index in range(gpus)),
        "driver_version": "570.86.15" if gpus else None,
        "driver_cuda_version": "12.8" if gpus else None,
    }
    return MachineInfo(**{**fields, **changes})


def environment(**changes: Any) -> EnvironmentInfo:
    fields: dict[str, Any] = {
        "fingerprint": "environment-a",
        "kind": "conda",
        "prefix": "/opt/env",
        "python": "3.12.8",
        "lock_sha256": "ab" * 32,
        "lock_state": "match",
        "torch": "2.7.1",
        "cuda": "12.8",
        "nccl": "2.26.2",
        "packages": {"pytorch": "2.7.1=cuda128_mkl_py312_300", "numpy": "2.2.6=py312h_0"},
    }
    return EnvironmentInfo(**{**fields, **changes})


def settings(**changes: Any) -> ProcessSettings:
    fields: dict[str, Any] = {
        "threads": 1,
        "interop_threads": 1,
        "cores": (0,),
        "scheduler": "batch",
        "omp_num_threads": "1",
    }
    return ProcessSettings(**{**fields, **changes})


def device_memory(device: int = 0, **changes: Any) -> DeviceMemory:
    fields: dict[str, Any] = {
        "device": device,
        "uuid": f"GPU-00000000-0000-0000-0000-{device:012d}",
        "peak_allocated_bytes": 900 * MIB,
        "peak_reserved_bytes": 1000 * MIB,
        "process_used_bytes": 1500 * MIB,
        "device_used_bytes": 1600 * MIB,
        "device_total_bytes": 80 * GIB,
    }
    return DeviceMemory(**{**fields, **changes})


def rank_samples(rank: int = 0, step_seconds: Sequence[float] = (), **changes: Any) -> RankSamples:
    """One rank on one host.  ``loop_seconds`` follows the steps unless given."""
    fields: dict[str, Any] = {
        "rank": rank,
        "local_rank": rank,
        "node": 0,
        "host": "box.example",
        "pid": 4000 + rank,
        "device": rank,
        "settings": settings(cores=(rank,)),
        "backend": "gloo",
        "step_seconds": tuple(step_seconds),
        "loop_seconds": sum(step_seconds) if step_seconds else None,
        "peak_rss_bytes": 500 * MIB,
    }
    return RankSamples(**{**fields, **changes})


def training_spec(strategy: str = "ddp", devices: int = 2, **changes: Any) -> RunSpec:
    """Changes to fields of ``RunSpec`` or of ``Training``, by name."""
    spec_fields = {"device_kind": "cpu", **{k: changes.pop(k) for k in _SPEC_FIELDS if k in changes}}
    task = Training(**{"workload": "mlp", "batch": 8, "steps": 10, **changes})
    return RunSpec(strategy=strategy, device_count=devices, task=task, **spec_fields)  # type: ignore[arg-type]


def collective_spec(devices: int = 2, sizes: Sequence[int] = (1024,), **changes: Any) -> RunSpec:
    spec_fields = {"device_kind": "cpu", **{k: changes.pop(k) for k in _SPEC_FIELDS if k in changes}}
    task = Collective(**{"operation": "all_reduce", "message_bytes": tuple(sizes), **changes})
    return RunSpec(strategy="ddp", device_count=devices, task=task, **spec_fields)


_SPEC_FIELDS = ("device_kind", "nodes", "seed", "deadline_seconds")


def record(spec: RunSpec, ranks: Sequence[RankSamples] = (), *, launch_index: int = 0, **changes: Any) -> RunRecord:
    """A record of ``spec``; every identity is derived from spec and launch index, so that equal calls are equal."""
    name = f"{spec.label.replace('/', '-')}-{launch_index}"
    fields: dict[str, Any] = {
        "session_id": "session-a",
        "launch_id": f"launch-{name}",
        "launch_index": launch_index,
        "started_at": f"2026-11-01T10:{launch_index % 60:02d}:00Z",
        "duration_seconds": 2.5,
        "spec": spec,
        "machine": machine(),
        "environment": environment(),
        "outcome": "ok",
        "commit": "c0ffee" + "0" * 34,
        "profile": "quick",
        "ranks": tuple(ranks),
    }
    fields.update(changes)
    if "record_id" not in changes:
        # Two records that differ anywhere have different identities, as real ones do.
        fields["record_id"] = "record-" + hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:16]
    return RunRecord(**fields)


def training_record(
    *,
    strategy: str = "ddp",
    devices: int = 2,
    seconds: float = 0.1,
    step_seconds: Sequence[Sequence[float]] | None = None,
    rank_changes: Mapping[str, Any] | None = None,
    task: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """A training; ``step_seconds`` has one series a rank, else every step of every rank takes ``seconds``."""
    spec = training_spec(strategy, devices, **(task or {}))
    series = step_seconds or [[seconds] * 10] * spec.world_size
    ranks = [rank_samples(rank, steps, **(rank_changes or {})) for rank, steps in enumerate(series)]
    return record(spec, ranks, **changes)


def collective_record(
    *,
    devices: int = 2,
    seconds: Mapping[int, Sequence[Sequence[float]]] | None = None,
    operation: str = "all_reduce",
    **changes: Any,
) -> RunRecord:
    """A collective; ``seconds`` maps the message size to one series of call times a rank."""
    times = seconds or {1024: [[1e-4] * 10] * devices, MIB: [[1e-3] * 10] * devices}
    ranks = [
        rank_samples(rank, collective_seconds={size: tuple(series[rank]) for size, series in times.items()})
        for rank in range(devices)
    ]
    return record(collective_spec(devices, tuple(times), operation=operation), ranks, **changes)


def checkpoint_record(
    *,
    strategy: str = "ddp",
    devices: int = 2,
    save_seconds: Sequence[float] = (0.2, 0.3, 0.4),
    load_seconds: Sequence[Sequence[float]] | None = None,
    **changes: Any,
) -> RunRecord:
    """A checkpoint; ``load_seconds`` has one series a rank."""
    task = Checkpoint(workload="mlp", repeats=len(save_seconds))
    spec = RunSpec(strategy=strategy, device_kind="cpu", device_count=devices, task=task)  # type: ignore[arg-type]
    loads = load_seconds or [[0.1] * len(save_seconds)] * devices
    ranks = [
        rank_samples(
            rank,
            save_seconds=tuple(save_seconds) if rank == 0 else (),
            load_seconds=tuple(series),
            checkpoint_bytes=3 * MIB,
        )
        for rank, series in enumerate(loads)
    ]
    return record(spec, ranks, **changes)


def failed_record(
    *,
    strategy: str = "ddp",
    devices: int = 2,
    outcome: str = "failed",
    reason: str = "rank 1 raised RuntimeError: boom",
    task: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """A record without samples."""
    return record(training_spec(strategy, devices, **(task or {})), outcome=outcome, reason=reason, **changes)


def launches(count: int, build: Callable[[int], RunRecord]) -> list[RunRecord]:
    """``count`` repeats of one launch: ``build`` gives the record of each index, the identities are set here."""
    return [
        replace(
            build(index),
            launch_index=index,
            record_id=f"{build(index).record_id}-repeat-{index}",
            launch_id=f"launch-repeat-{index}",
        )
        for index in range(count)
    ]
