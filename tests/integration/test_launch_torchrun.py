"""The launches of test_launch.py against the real torchrun and the real worker: what the stand-ins claim is so."""

from __future__ import annotations

import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from bench_runner.launch import LaunchPlan, run
from bench_runner.processes import processes_of_launch, rank_processes
from bench_runner.spec import Collective, RunSpec, Training
from tests.integration.launching import STANDINS, eventually, left, make_plan, said

# Not by importing it: that costs this process seconds and memory.
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def standin_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in worker alone: torchrun is the real one."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "standin_worker.py").symlink_to(STANDINS / "standin_worker.py")
    monkeypatch.setenv("PYTHONPATH", str(modules))


@needs_torch
@pytest.mark.usefixtures("standin_worker")
@pytest.mark.parametrize(
    ("fault", "failure", "reason"),
    [
        ("sigkill", "signal", "rank 1 was killed by SIGKILL"),
        ("uncaught", "exception", "rank 1: ValueError: not caught"),
    ],
)
def test_torchruns_report_names_the_rank(tmp_path: Path, fault: str, failure: str, reason: str) -> None:
    plan = make_plan(tmp_path, [(1, "case-0", fault), (0, "case-0", "echo")], cases=1)
    (only,) = run(plan)
    assert left(plan) == []
    assert (only.failure, only.failed_rank) == (failure, 1)
    assert str(only.reason).startswith(reason)


@needs_torch
@pytest.mark.usefixtures("standin_worker")
@pytest.mark.slow
def test_deaf_workers_and_their_runaways_are_ended_under_torchrun(tmp_path: Path) -> None:
    faults = [(0, "case-0", "deaf"), (1, "case-0", "runaway_and_hang")]
    plan = make_plan(tmp_path, faults, cases=1, case_deadline_seconds=3.0)
    (only,) = run(plan)
    assert left(plan) == []
    assert (only.outcome, only.failure) == ("timeout", "deadline")
    assert "in deaf" in str(only.traceback)


@needs_torch
@pytest.mark.slow
def test_the_real_worker_measures_a_training_and_a_collective(tmp_path: Path) -> None:
    tasks = (
        Training(workload="mlp", batch=8, steps=3, warmup_steps=1, phase_steps=1),
        Collective(operation="all_reduce", message_bytes=(1024,), calls=3, warmup_calls=1),
    )
    specs = tuple(RunSpec(strategy="ddp", device_kind="cpu", device_count=2, task=task) for task in tasks)
    plan = LaunchPlan(specs=specs, python=sys.executable, directory=tmp_path / "launch")
    training, collective = run(plan)
    assert processes_of_launch(plan.launch_id) == []
    assert (training.outcome, training.reason) == ("ok", None)
    assert (collective.outcome, collective.reason) == ("ok", None)
    assert [sample["rank"] for sample in training.ranks] == [0, 1]
    assert all(len(sample["step_seconds"]) == 3 for sample in training.ranks)
    assert training.runtime is not None
    assert training.runtime["torch"]


@needs_torch
@pytest.mark.usefixtures("standin_worker")
def test_the_rendezvous_listens_on_the_loopback_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    plan = make_plan(tmp_path, [("all", "case-0", "wait_for_go")], cases=1, port=port)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, plan)
        eventually(lambda: said(plan.directory, 0, "case"))
        ours = {process.pid for process in left(plan)}
        listening = {
            connection.laddr
            for connection in psutil.net_connections("inet")
            if connection.pid in ours and connection.status == psutil.CONN_LISTEN
        }
        (plan.directory / "go").touch()
        assert future.result(timeout=60)[0].outcome == "ok"
    assert listening == {("127.0.0.1", port)}


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_rank_killed_in_the_middle_of_training_is_named(tmp_path: Path, number: signal.Signals) -> None:
    task = Training(workload="mlp", batch=8, steps=10_000_000)
    spec = RunSpec(strategy="ddp", device_kind="cpu", device_count=2, task=task)
    plan = LaunchPlan(specs=(spec,), python=sys.executable, directory=tmp_path / "launch")
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, plan)
        eventually(lambda: all(said(plan.directory, rank, "case") for rank in (0, 1)))
        os.kill(rank_processes(plan.launch_id)[1].pid, number)
        (only,) = future.result(timeout=120)
    assert left(plan) == []
    assert (only.outcome, only.failure, only.failed_rank) == ("failed", "signal", 1)
    assert str(only.reason).startswith(f"rank 1 was killed by {number.name}")


@needs_torch
@pytest.mark.slow
def test_two_nodes_meet_at_the_rendezvous(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    task = Training(workload="mlp", batch=8, steps=3, warmup_steps=1, phase_steps=1)
    spec = RunSpec(strategy="ddp", device_kind="cpu", device_count=2, nodes=2, task=task)
    plans = [
        LaunchPlan(
            specs=(spec,),
            python=sys.executable,
            directory=tmp_path / str(node),
            node_rank=node,
            rendezvous=f"127.0.0.1:{port}",
        )
        for node in (0, 1)
    ]
    with ThreadPoolExecutor(2) as pool:
        ((first,), (second,)) = pool.map(run, plans)
    assert (first.outcome, first.reason, second.outcome, second.reason) == ("ok", None, "ok", None)
    assert [(s["rank"], s["node"], s["local_rank"]) for s in (*first.ranks, *second.ranks)] == [(0, 0, 0), (1, 1, 0)]
    assert not any(left(plan) for plan in plans)
