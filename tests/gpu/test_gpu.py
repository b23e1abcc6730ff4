"""The real thing on CUDA devices: run where there is one, skipped with the reason where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench_runner.launch import LaunchPlan, run
from bench_runner.processes import processes_of_launch
from bench_runner.spec import OPERATIONS, Collective, RunSpec, Strategy, Training


def cuda_devices() -> int:
    """Asked in a process of its own: a CUDA context in this one would be inherited by what it forks."""
    if not any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg")):
        return 0  # without a driver's node there is nothing to ask about, and asking costs seconds
    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    return int(done.stdout or 0)


DEVICES = cuda_devices()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICES == 0, reason="no CUDA device that torch can use"),
]


def launch(folder: Path, strategy: Strategy, devices: int, *tasks: Training | Collective):
    plan = LaunchPlan(
        specs=tuple(
            RunSpec(strategy=strategy, device_kind="cuda", device_count=devices, task=task, deadline_seconds=120)
            for task in tasks
        ),
        python=sys.executable,
        directory=folder / "launch",
    )
    results = run(plan)
    assert processes_of_launch(plan.launch_id) == []
    return results


@pytest.mark.parametrize("strategy", ["single", "data_parallel", "ddp"])
def test_training_on_one_device(tmp_path, strategy):
    tasks = [Training(workload="mlp", batch=64, precision=precision) for precision in ("fp32", "bf16", "fp16")]
    for result in launch(tmp_path, strategy, 1, *tasks):
        assert result.outcome == "ok", result
        (rank,) = result.ranks
        assert len(rank["step_seconds"]) == 30
        assert sum(rank["step_seconds"]) == pytest.approx(rank["loop_seconds"], rel=0.1)
        assert rank["loop_energy_joules"] is None or rank["loop_energy_joules"] >= 0
        own = next(row for row in rank["memory"] if row["device"] == rank["device"])
        assert 0 < own["peak_allocated_bytes"] <= own["peak_reserved_bytes"]
        assert own["uuid"].startswith("GPU-")
        assert own["device_total_bytes"] > 1 << 30
        assert result.runtime["cuda"]


def test_out_of_memory_is_an_outcome_and_the_next_case_is_measured(tmp_path):
    too_large = Training(workload="transformer-124m", batch=1 << 20)
    fine = Training(workload="mlp", batch=8)
    failed, measured = launch(tmp_path, "single", 1, too_large, fine)
    assert (failed.outcome, failed.failure) == ("failed", "out-of-memory")
    assert measured.outcome == "ok"


@pytest.mark.skipif(DEVICES < 2, reason="needs two CUDA devices")
def test_collectives_and_training_over_all_devices(tmp_path):
    collectives = [Collective(operation=name, message_bytes=(1024, 1 << 24), calls=20) for name in OPERATIONS]
    training, *rest = launch(tmp_path, "ddp", DEVICES, Training(workload="mlp", batch=64), *collectives)
    assert training.outcome == "ok", training
    assert len({rank["uuid"] for rank in training.ranks}) == DEVICES
    for result in rest:
        assert result.outcome == "ok", result
        assert all(rank["wrong_values"] == [] for rank in result.ranks)
        assert all(rank["backend"] == "nccl" for rank in result.ranks)
    # No rank may hold memory on another rank's device.
    for rank in training.ranks:
        for row in rank["memory"]:
            if row["device"] != rank["device"]:
                assert row["peak_allocated_bytes"] == 0
