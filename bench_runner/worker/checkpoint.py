"""Save and load a training's state and take the times: on rank 0 the saving, on every rank the loading.

One checkpoint is the model without its wrapper, the optimizer and the gradient scaler, in one file by ``torch.save``.
It is read as data (``weights_only``) and mapped to the rank's own device.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any, Final

import torch

from bench_runner.spec import CHECKPOINT_FOLDER, Checkpoint, RunSpec, Training
from bench_runner.worker import memory
from bench_runner.worker.devices import Device
from bench_runner.worker.failures import DiskFull, WrongValues
from bench_runner.worker.group import Group
from bench_runner.worker.training import Trainer

_NAME: Final = "checkpoint.pt"
_STEPS: Final = 2
"""Steps before the first save, so that the optimizer has its moments."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TORCH_WRITER: Final = ("PytorchStreamWriter", "unexpected pos", "file write failed")


def save(state: dict[str, Any], path: Path) -> None:
    """Write the state beside ``path``, flushed to the disk, and give it its name.  Raises DiskFull."""
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _disk_full(state, path, os.strerror(error.errno or 0)) from error
    except RuntimeError as error:  # torch's writer tells neither the file nor the errno
        if not any(words in str(error) for words in _TORCH_WRITER):
            raise
        raise _disk_full(state, path, str(error).splitlines()[0]) from error
    temporary.replace(path)


def _disk_full(state: dict[str, Any], path: Path, said: str) -> DiskFull:
    free = shutil.disk_usage(path.parent).free
    needed = sum(tensor.numel() * tensor.element_size() for tensor in state["model"].values())
    return DiskFull(
        f"a checkpoint of {needed / 1e6:.1f} MB and its optimizer state cannot be written to {path.parent}, with"
        f" {free / 1e6:.1f} MB free ({said}); make room there, or set TMPDIR to another disk"
    )


def load(path: Path, device: Device) -> dict[str, Any]:
    """The state, on ``device``."""
    state: dict[str, Any] = torch.load(path, map_location=device.torch, weights_only=True)
    return state


def differences(saved: Any, loaded: Any) -> int:
    """How many tensors of two states are not the same, bit for bit."""
    if isinstance(saved, torch.Tensor):
        return 0 if torch.equal(saved, loaded) else 1
    if isinstance(saved, dict):
        return sum(differences(value, loaded[key]) for key, value in saved.items())
    if isinstance(saved, list | tuple):
        return sum(differences(one, other) for one, other in zip(saved, loaded, strict=True))
    return 0


def measure(spec: RunSpec, task: Checkpoint, device: Device, group: Group, directory: Path) -> dict[str, Any]:
    """Save and load ``task.repeats`` times in a folder in ``directory``, which is removed afterwards.

    Fields of ``RankSamples``.  Peaks of memory are those since the training's last step.  Raises DiskFull, WrongValues
    when what a rank loaded is not what it holds, and what the trainer raises.
    """
    training = Training(workload=task.workload, batch=task.batch)
    trainer = Trainer(spec, training, device, group)
    for _ in range(_STEPS):
        trainer.step()
    trainer.checked_loss()
    trainer.forget_batch()
    folder = directory / CHECKPOINT_FOLDER
    folder.mkdir(exist_ok=True)
    try:
        memory.start_case(device)
        return _repeat(trainer, task, device, group, folder / _NAME)
    finally:
        if group.ranks.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _repeat(trainer: Trainer, task: Checkpoint, device: Device, group: Group, path: Path) -> dict[str, Any]:
    save_seconds: list[float] = []
    load_seconds: list[float] = []
    size = 0
    for _ in range(task.repeats):
        group.barrier()
        if group.ranks.rank == 0:
            save_seconds.append(_timed(device, lambda: save(trainer.state(), path)))
        group.barrier()
        load_seconds.append(_timed(device, lambda: trainer.restore(load(path, device))))
        size = path.stat().st_size
        group.barrier()  # nobody saves while another still loads
    wrong = differences(trainer.state(), load(path, device))
    group.barrier()
    if wrong:
        raise WrongValues(f"{wrong} tensors came out of the checkpoint otherwise than they went in")
    return {
        "save_seconds": save_seconds,
        "load_seconds": load_seconds,
        "checkpoint_bytes": size,
        "parameters": trainer.parameters,
    }


def _timed(device: Device, call: Any) -> float:
    """Seconds of the call and of all that it asked of the device."""
    device.synchronize()
    begin = time.perf_counter_ns()
    call()
    device.synchronize()
    return (time.perf_counter_ns() - begin) / 1e9
