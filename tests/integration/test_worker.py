"""The real worker over the real torchrun and gloo: what it measures, and how it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench_runner.launch import LaunchPlan, run
from bench_runner.launch_verdict import CaseResult
from bench_runner.processes import processes_of_launch
from bench_runner.spec import OPERATIONS, Collective, RunSpec, Strategy, Training

USERS = """
import torch
from torch import nn

def _parts(model, loss=None):
    loss = loss or (lambda output, target: nn.functional.mse_loss(output, target))
    return model, loss, lambda n, device: (torch.randn(n, 4, device=device), torch.randn(n, 2, device=device))

def good():
    return _parts(nn.Linear(4, 2))

def raises():
    raise ValueError("no such data set")

def nonsense():
    return 42

def not_finite():
    return _parts(nn.Linear(4, 2), lambda output, target: output.sum() * float("nan"))

def too_large():
    model, loss, batch = _parts(nn.Linear(4, 2))
    return model, loss, lambda n, device: (torch.empty(1 << 58), torch.empty(1))

def only_rank_1_raises():
    import os
    if os.environ["RANK"] == "1":
        raise RuntimeError("rank 1 alone")
    return good()
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module with factories, on the workers' path."""
    (tmp_path / "users_models.py").write_text(USERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def launch(folder: Path, strategy: Strategy, devices: int, *tasks: Training | Collective) -> tuple[CaseResult, ...]:
    plan = LaunchPlan(
        specs=tuple(
            RunSpec(strategy=strategy, device_kind="cpu", device_count=devices, task=task, deadline_seconds=240)
            for task in tasks
        ),
        python=sys.executable,
        directory=folder / "launch",
        options={"largest_batch": 16},
        startup_deadline_seconds=240,
    )
    results = run(plan)
    assert processes_of_launch(plan.launch_id) == []
    return results


def small(workload: str, **changes: object) -> Training:
    fields: dict = {"workload": workload, "batch": 2, "steps": 4, "warmup_steps": 1, "phase_steps": 2, **changes}
    return Training(**fields)


@pytest.mark.usefixtures("users")
def test_two_ranks_measure_trainings_and_collectives(tmp_path: Path) -> None:
    tasks = [
        small("mlp"),
        small("mlp", data="loader"),
        small("mlp", batch=4, scaling="strong"),
        small("users_models:good"),
        small("resnet50"),
        *(Collective(operation=name, message_bytes=(1024, 40_000), calls=12, warmup_calls=2) for name in OPERATIONS),
        small("mlp", find_batch=True),
    ]
    results = launch(tmp_path, "ddp", 2, *tasks)
    by_label = {result.spec.task.label: result for result in results}
    assert by_label["mlp/fp32/b2"].outcome == "ok", by_label["mlp/fp32/b2"]
    for label in ("mlp/fp32/b2", "mlp/fp32/b2/loader0", "mlp/fp32/g4", "users_models:good/fp32/b2"):
        first, second = by_label[label].ranks
        assert (first["rank"], second["rank"]) == (0, 1)
        assert len(first["step_seconds"]) == 4
        assert all(seconds > 0 for seconds in first["step_seconds"])
        assert first["loop_seconds"] == pytest.approx(sum(first["step_seconds"]), rel=0.2, abs=0.01)
        assert {phase: len(times) for phase, times in first["phase_seconds"].items()} == dict.fromkeys(
            ("data", "forward", "backward", "optimizer"), 2
        )
        assert len(first["no_sync_step_seconds"]) == 2
        assert first["backend"] == "gloo"
        assert first["peak_rss_bytes"] > 50 << 20
        assert first["settings"]["scheduler"] == "batch"
        assert first["settings"]["omp_num_threads"] == "1"
    for name in OPERATIONS:
        for rank in by_label[name].ranks:
            assert rank["wrong_values"] == []
            assert {size: len(times) for size, times in rank["collective_seconds"].items()} == {"1024": 12, "40000": 12}
    skipped = by_label["resnet50/fp32/b2"]
    if skipped.outcome != "ok":  # where torchvision is installed and fits torch it is measured
        assert skipped.outcome == "skipped"
        assert str(skipped.reason).startswith("resnet50 needs torchvision")
    found = by_label["mlp/fp32/b2/find"].ranks[0]
    assert (found["largest_batch"], found["smallest_failing_batch"]) == (16, None)
    assert by_label["mlp/fp32/b2"].runtime is not None
    assert by_label["mlp/fp32/b2"].runtime["torch"]


@pytest.mark.slow
@pytest.mark.usefixtures("users")
def test_failures_of_a_users_code_are_named_and_the_other_cases_kept(tmp_path: Path) -> None:
    names = ("raises", "nonsense", "not_finite", "too_large", "absent", "good")
    results = launch(tmp_path, "single", 1, *(small(f"users_models:{name}") for name in names))
    seen = {result.spec.task.label.split(":")[1].split("/")[0]: result for result in results}  # type: ignore[union-attr]
    assert {name: result.outcome for name, result in seen.items()} == {**dict.fromkeys(names, "failed"), "good": "ok"}
    assert {name: result.failure for name, result in seen.items()} == {
        "raises": "exception",
        "nonsense": "exception",
        "not_finite": "loss-not-finite",
        "too_large": "out-of-memory",
        "absent": "exception",
        "good": None,
    }
    assert "no such data set" in str(seen["raises"].reason)
    assert "users_models.py" in str(seen["raises"].traceback)
    assert "must return (model, loss, batch), not int" in str(seen["nonsense"].reason)
    assert "has no function absent" in str(seen["absent"].reason)


@pytest.mark.slow
@pytest.mark.usefixtures("users")
def test_one_rank_that_raises_is_the_cause_and_the_next_case_is_measured(tmp_path: Path) -> None:
    bad, good = launch(tmp_path, "ddp", 2, small("users_models:only_rank_1_raises"), small("users_models:good"))
    assert (bad.outcome, bad.failure, bad.failed_rank) == ("failed", "exception", 1)
    assert "rank 1 alone" in str(bad.reason)
    assert good.outcome == "ok"


@pytest.mark.slow
def test_the_largest_batch_is_found_under_a_memory_limit(tmp_path: Path) -> None:
    plan = LaunchPlan(
        specs=(
            RunSpec(
                strategy="single",
                device_kind="cpu",
                device_count=1,
                task=Training(workload="transformer-tiny", batch=4, find_batch=True),
                deadline_seconds=240,
            ),
        ),
        python=sys.executable,
        directory=tmp_path / "launch",
        options={"memory_limit_bytes": 200 << 20, "largest_batch": 4096},
    )
    (result,) = run(plan)
    assert result.outcome == "ok", result
    (rank,) = result.ranks
    assert 0 < rank["largest_batch"] < rank["smallest_failing_batch"] <= 4096
