"""Train a workload under a strategy and take the times of its steps."""

from __future__ import annotations

import gc
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from bench_runner.errors import UsageError
from bench_runner.machine.energy import energy_counter
from bench_runner.spec import RunSpec, Training
from bench_runner.worker import workloads
from bench_runner.worker.data import BatchSource, DeviceBatch, LoaderBatches
from bench_runner.worker.devices import Device, Marks, time_repeated
from bench_runner.worker.failures import LossNotFinite
from bench_runner.worker.group import Group

PHASES: Final = ("data", "forward", "backward", "optimizer")
AUTOCAST: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """One workload set up under one strategy; ``step`` trains on the next batch.

    Each rank runs the same seed for the model's weights and a seed of its own for its data.
    """

    def __init__(self, spec: RunSpec, task: Training, device: Device, group: Group) -> None:
        torch.manual_seed(spec.seed)
        workload = workloads.build(task.workload)
        self.device = device
        self.group = group
        self.workload = workload
        self._autocast_type = AUTOCAST.get(task.precision)
        module = workload.model.to(device.torch).train()
        self.parameters = sum(parameter.numel() for parameter in module.parameters())
        if self.parameters == 0:
            raise UsageError(f"workload {task.workload}: the model has no parameters to train")
        self.model = wrap(module, spec, device)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        # fp16 gradients underflow without scaling; bf16 has float32's range and needs none.
        self._scaler = torch.amp.GradScaler(device.kind, enabled=task.precision == "fp16")
        torch.manual_seed(spec.seed + 1 + group.ranks.rank)
        self.source: BatchSource | None = _source(spec, task, workload, device, group)
        self.loss = torch.zeros(())

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._autocast_type is None:
            return nullcontext()
        return torch.autocast(self.device.kind, dtype=self._autocast_type)

    def forward(self, inputs: Any, target: Any) -> torch.Tensor:
        """Gradients cleared, then the loss of one batch."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            self.loss = self.workload.loss(self.model(inputs), target)
        return self.loss

    def backward(self, loss: torch.Tensor) -> None:
        self._scaler.scale(loss).backward()

    def update(self) -> None:
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def next_batch(self) -> tuple[Any, Any]:
        """The next ``(inputs, target)`` on the device."""
        assert self.source is not None, "the batch was forgotten"
        return self.source.next()

    def forget_batch(self) -> None:
        """Let go of everything whose size depends on the batch."""
        self._optimizer.zero_grad(set_to_none=True)
        self.source = None
        self.loss = torch.zeros(())

    def step(self) -> None:
        """One whole training step, asynchronous where the device is."""
        inputs, target = self.next_batch()
        self.backward(self.forward(inputs, target))
        self.update()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: the model without its wrapper, so that it fits under every strategy."""
        wrapped = isinstance(self.model, DataParallel | DistributedDataParallel)
        module: nn.Module = self.model.module if wrapped else self.model
        return {
            "model": module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``state`` gave."""
        wrapped = isinstance(self.model, DataParallel | DistributedDataParallel)
        module: nn.Module = self.model.module if wrapped else self.model
        module.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])

    def phases(self) -> list[float]:
        """One step with a synchronisation after each phase: seconds of data, forward, backward, optimizer."""
        marks = Marks(self.device, len(PHASES) + 1)
        self.device.synchronize()
        marks.mark()
        inputs, target = self.next_batch()
        self._end_phase(marks)
        loss = self.forward(inputs, target)
        self._end_phase(marks)
        self.backward(loss)
        self._end_phase(marks)
        self.update()
        self._end_phase(marks)
        return marks.seconds()

    def _end_phase(self, marks: Marks) -> None:
        self.device.synchronize()
        marks.mark()

    def checked_loss(self) -> float:
        """The last step's loss as a number.  Raises LossNotFinite."""
        loss = float(self.loss.detach().float().item())
        if not math.isfinite(loss):
            raise LossNotFinite(f"the loss is {loss}")
        return loss


def wrap(module: nn.Module, spec: RunSpec, device: Device) -> nn.Module:
    """The module under the strategy: itself, or inside DataParallel or DistributedDataParallel."""
    if spec.strategy == "ddp":
        return DistributedDataParallel(module, device_ids=None if device.is_cpu else [device.index])
    if spec.strategy == "data_parallel":
        return DataParallel(module, device_ids=list(range(spec.device_count)))
    return module


def _source(spec: RunSpec, task: Training, workload: workloads.Workload, device: Device, group: Group) -> BatchSource:
    # DataParallel takes the global batch in its one process and scatters it over the devices.
    samples = task.per_device_batch(spec.device_count)
    if spec.strategy == "data_parallel":
        samples = task.global_batch(spec.device_count)
    if task.data == "loader":
        return LoaderBatches(
            workload,
            samples,
            device,
            rank=group.ranks.rank,
            ranks=group.size,
            workers=task.loader_workers,
            seed=spec.seed,
        )
    return DeviceBatch(workload, samples, device)


def driven_uuids(spec: RunSpec, device: Device) -> list[str | None]:
    """The devices that this process computes on: none on a CPU, all of them under DataParallel."""
    if device.is_cpu:
        return []
    count = spec.device_count if spec.strategy == "data_parallel" else 1
    return [Device(device.kind, device.index + place).uuid() for place in range(count)]


def measure(spec: RunSpec, task: Training, device: Device, group: Group) -> dict[str, Any]:
    """Warm up, then time whole steps, phases and steps without gradient communication, each in a pass of its own.

    Returns fields of ``RankSamples``.  Raises LossNotFinite, WorkloadUnavailable, UsageError, and whatever the model
    raises.
    """
    trainer = Trainer(spec, task, device, group)
    for _ in range(task.warmup_steps):
        trainer.step()
    first_loss = trainer.checked_loss() if task.warmup_steps else None
    gc.collect()
    with energy_counter(driven_uuids(spec, device)) as joules:
        group.barrier()
        before = joules()
        step_seconds, loop_seconds = time_repeated(device, trainer.step, task.steps)
        after = joules()
    last_loss = trainer.checked_loss()

    phase_seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}
    group.barrier()
    for _ in range(task.phase_steps):
        for phase, seconds in zip(PHASES, trainer.phases(), strict=True):
            phase_seconds[phase].append(seconds)

    no_sync_step_seconds: list[float] = []
    if isinstance(trainer.model, DistributedDataParallel) and group.size > 1 and task.phase_steps:
        group.barrier()
        with trainer.model.no_sync():
            no_sync_step_seconds, _ = time_repeated(device, trainer.step, task.phase_steps)
    return {
        "step_seconds": step_seconds,
        "loop_seconds": loop_seconds,
        # The counter starts again with the driver; a negative difference says nothing.
        "loop_energy_joules": after - before if before is not None and after is not None and after >= before else None,
        "phase_seconds": phase_seconds if task.phase_steps else {},
        "no_sync_step_seconds": no_sync_step_seconds,
        "first_loss": first_loss,
        "last_loss": last_loss,
        "parameters": trainer.parameters,
    }
