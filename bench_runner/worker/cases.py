"""Carry out one case by its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench_runner.spec import Checkpoint, Collective, RunSpec
from bench_runner.worker import checkpoint, collectives, find_batch, training
from bench_runner.worker.devices import Device
from bench_runner.worker.group import Group


def carry_out(spec: RunSpec, device: Device, group: Group, options: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The measured fields of ``RankSamples``.  ``directory`` is the launch's own."""
    if isinstance(spec.task, Collective):
        return collectives.measure(spec.task, device, group)
    if isinstance(spec.task, Checkpoint):
        return checkpoint.measure(spec, spec.task, device, group, directory)
    if spec.task.find_batch:
        return find_batch.measure(spec, spec.task, device, group, options)
    return training.measure(spec, spec.task, device, group)
