"""Checkpoints over the real worker: measured, a disk that is full, and a training that goes on from one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench_runner.launch import LaunchPlan, run  # noqa: E402
from bench_runner.launch_verdict import CaseResult  # noqa: E402
from bench_runner.processes import processes_of_launch  # noqa: E402
from bench_runner.spec import CHECKPOINT_FOLDER, Checkpoint, RunSpec, Strategy, Task, Training  # noqa: E402
from bench_runner.worker import checkpoint  # noqa: E402
from bench_runner.worker.devices import Device  # noqa: E402
from bench_runner.worker.failures import DiskFull, classify  # noqa: E402
from bench_runner.worker.group import Group, Ranks  # noqa: E402
from bench_runner.worker.training import Trainer  # noqa: E402

CPU = Device("cpu", 0)


def launch(folder: Path, strategy: Strategy, devices: int, *tasks: Task) -> tuple[CaseResult, ...]:
    plan = LaunchPlan(
        specs=tuple(
            RunSpec(strategy=strategy, device_kind="cpu", device_count=devices, task=task, deadline_seconds=240)
            for task in tasks
        ),
        python=sys.executable,
        directory=folder / "launch",
        startup_deadline_seconds=240,
    )
    results = run(plan)
    assert processes_of_launch(plan.launch_id) == []
    return results


def trainer(workload: str = "transformer-tiny", seed: int = 0) -> Trainer:
    task = Training(workload=workload, batch=2)
    spec = RunSpec(strategy="single", device_kind="cpu", device_count=1, task=task, seed=seed)
    ranks = Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1, node=0)
    return Trainer(spec, task, CPU, Group(CPU, ranks, wanted=False, timeout_seconds=10))


def losses(trained: Trainer, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        trained.step()
        found.append(trained.checked_loss())
    return found


def test_training_resumed_from_a_checkpoint_gives_the_same_losses_bit_by_bit(tmp_path: Path) -> None:
    whole = trainer()
    losses(whole, 3)
    checkpoint.save(whole.state(), tmp_path / "a.pt")
    expected = losses(whole, 3)
    resumed = trainer()
    different = losses(resumed, 1)  # weights and moments of its own, all of which the checkpoint replaces
    resumed.restore(checkpoint.load(tmp_path / "a.pt", CPU))
    assert losses(resumed, 3) == expected
    assert different[0] != expected[0]
    assert len(set(expected)) == 3


def test_without_the_optimizers_state_the_losses_are_others(tmp_path: Path) -> None:
    whole = trainer()
    losses(whole, 3)
    checkpoint.save(whole.state(), tmp_path / "a.pt")
    expected = losses(whole, 3)
    state = checkpoint.load(tmp_path / "a.pt", CPU)
    resumed = trainer()
    resumed.restore({**state, "optimizer": resumed.state()["optimizer"]})
    assert losses(resumed, 3) != expected


def test_changed_tensors_are_counted() -> None:
    state = {"a": [torch.ones(2), {"b": torch.zeros(1)}], "n": 3}
    assert checkpoint.differences(state, state) == 0
    assert checkpoint.differences(state, {"a": [torch.ones(2), {"b": torch.ones(1)}], "n": 3}) == 1


def test_full_disk_is_named_with_its_folder_and_is_an_outcome_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.pt.new").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=str(tmp_path)) as caught:
        checkpoint.save(trainer().state(), tmp_path / "a.pt")
    failure, message = classify(caught.value)
    assert failure == "disk-full"
    assert "make room" in message
    assert not (tmp_path / "a.pt").exists()


def test_two_ranks_save_once_and_load_each(tmp_path: Path) -> None:
    (result,) = launch(tmp_path, "ddp", 2, Checkpoint(workload="transformer-tiny", repeats=2))
    assert result.outcome == "ok", result.reason
    first, second = sorted(result.ranks, key=lambda rank: rank["rank"])
    assert [len(rank["save_seconds"]) for rank in (first, second)] == [2, 0]
    assert [len(rank["load_seconds"]) for rank in (first, second)] == [2, 2]
    assert first["checkpoint_bytes"] == second["checkpoint_bytes"] > 8 * first["parameters"]  # weights and momentum
    assert min(rank["peak_rss_bytes"] for rank in result.ranks) > 1 << 20
    assert not (tmp_path / "launch" / CHECKPOINT_FOLDER).exists()


@pytest.mark.slow
def test_full_disk_fails_its_case_alone_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "launch" / CHECKPOINT_FOLDER
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt.new").symlink_to("/dev/full")
    full, fine = launch(
        tmp_path, "ddp", 2, Checkpoint(workload="mlp", repeats=1), Training(workload="mlp", batch=2, steps=2)
    )
    assert (full.outcome, full.failure) == ("failed", "disk-full")
    assert str(folder) in (full.reason or "")
    assert fine.outcome == "ok"
    assert not folder.exists()
