"""The plan of a launch: the command and the environment, word for word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench_runner.errors import LaunchError
from bench_runner.launch import PACKAGE_ROOT, LaunchPlan, command, environment
from bench_runner.spec import Collective, RunSpec, Training


def spec(**changes: Any) -> RunSpec:
    fields: dict[str, Any] = {"strategy": "ddp", "device_kind": "cpu", "device_count": 2}
    return RunSpec(**{**fields, "task": Training(workload="mlp", batch=8), **changes})


def plan(*specs: RunSpec, **changes: Any) -> LaunchPlan:
    fields: dict[str, Any] = {"python": "/env/bin/python", "directory": Path("/runs/1"), "launch_id": "abc"}
    return LaunchPlan(specs=specs or (spec(),), **{**fields, **changes})


def test_the_command_of_one_node() -> None:
    assert command(plan(), Path("/runs/1")) == [
        "/env/bin/python",
        "-m",
        "bench_runner.worker.agent",
        "--nnodes=1",
        "--nproc-per-node=2",
        "--rdzv-backend=loopback",
        "--rdzv-endpoint=127.0.0.1:0",
        "--local-addr=127.0.0.1",
        "--rdzv-id=abc",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        "--log-dir=/runs/1/logs",
        "--redirects=3",
        "--module",
        "bench_runner.worker",
        "/runs/1/launch.json",
    ]


def test_the_command_of_the_second_of_two_nodes() -> None:
    two = plan(spec(device_count=8, nodes=2), node_rank=1, rendezvous="node-a:29400")
    words = command(two, Path("/runs/1"))
    assert words[2:9] == [
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=4",
        "--node-rank=1",
        "--rdzv-backend=static",
        "--rdzv-endpoint=node-a:29400",
        "--rdzv-id=bench-runner",
    ]
    assert "--local-addr=127.0.0.1" not in words
    assert two.ranks == range(4, 8)


def test_a_port_of_the_users_own_is_the_rendezvous() -> None:
    assert "--rdzv-endpoint=127.0.0.1:29511" in command(plan(port=29511), Path())


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("data_parallel", 2), ("ddp", 1)])
def test_a_process_that_is_the_only_one_needs_no_agent(strategy: str, devices: int) -> None:
    assert command(plan(spec(strategy=strategy, device_count=devices)), Path("/runs/1")) == [
        "/env/bin/python",
        "-u",
        "-m",
        "bench_runner.worker",
        "/runs/1/launch.json",
    ]


def test_the_environment_on_a_cpu() -> None:
    assert environment({"PATH": "/bin"}, plan(), cores=8) == {
        "PATH": "/bin",
        "BENCH_RUNNER_LAUNCH_ID": "abc",
        "PYTHONPATH": str(PACKAGE_ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


@pytest.mark.parametrize(
    "name",
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "PET_NNODES"],
)
def test_nothing_of_an_outer_launch_is_handed_on(name: str) -> None:
    assert name not in environment({name: "1"}, plan(), cores=2)


def test_what_the_user_set_stays() -> None:
    kept = environment({"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": "/mine"}, plan(), cores=2)
    assert kept["NCCL_DEBUG"] == "INFO"
    assert kept["CUDA_VISIBLE_DEVICES"] == "1"
    assert kept["PYTHONPATH"] == f"{PACKAGE_ROOT}:/mine"


@pytest.mark.parametrize(
    ("kind", "count", "cores", "options", "threads"),
    [
        ("cpu", 2, 64, {}, "1"),
        ("cpu", 2, 64, {"threads": 4}, "4"),
        ("cpu", 2, 64, {"cores_per_device": 3}, "3"),
        ("cuda", 8, 64, {}, "8"),
        ("cuda", 8, 4, {}, "1"),
        ("cuda", 8, 64, {"threads": 2}, "2"),
    ],
)
def test_threads_are_set_on_purpose(kind: str, count: int, cores: int, options: dict[str, Any], threads: str) -> None:
    one = plan(spec(device_kind=kind, device_count=count), options=options)
    assert environment({"OMP_NUM_THREADS": "99"}, one, cores)["OMP_NUM_THREADS"] == threads


def test_several_nodes_are_not_tied_to_the_loopback() -> None:
    two = plan(spec(nodes=2), rendezvous="node-a:29400")
    assert "GLOO_SOCKET_IFNAME" not in environment({}, two, cores=2)


def test_cases_of_one_launch_share_their_processes() -> None:
    both = plan(spec(), spec(task=Collective(operation="all_reduce", message_bytes=(1024,))))
    assert both.limits.case_seconds == (120.0, 120.0)
    with pytest.raises(LaunchError, match="one strategy and device count"):
        plan(spec(), spec(device_count=4))
    with pytest.raises(LaunchError, match="one strategy and device count"):
        LaunchPlan(specs=(), python="python", directory=Path())


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_an_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(LaunchError, match=f"port = {port}"):
        plan(port=port)


def test_several_nodes_need_a_rendezvous() -> None:
    with pytest.raises(LaunchError, match="nodes = 2"):
        plan(spec(nodes=2))
