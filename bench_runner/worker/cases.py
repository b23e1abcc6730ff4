"""Carry out one case by its kind."""

from __future__ import annotations

from typing import Any

from bench_runner.spec import RunSpec, Training
from bench_runner.worker import collectives, find_batch, training
from bench_runner.worker.devices import Device
from bench_runner.worker.group import Group


def carry_out(spec: RunSpec, device: Device, group: Group, options: dict[str, Any]) -> dict[str, Any]:
    """The measured fields of ``RankSamples``."""
    if not isinstance(spec.task, Training):
        return collectives.measure(spec.task, device, group)
    if spec.task.find_batch:
        return find_batch.measure(spec, spec.task, device, group, options)
    return training.measure(spec, spec.task, device, group)
