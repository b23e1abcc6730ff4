"""Addresses, interfaces, what goes to gloo and NCCL, and what a node refuses to measure in."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.errors import LaunchError, UsageError
from bench_runner.launch import LaunchPlan, environment
from bench_runner.launch_cause import Exit
from bench_runner.nodes import addresses
from bench_runner.nodes.cluster import CLUSTER_VARIABLE, Cluster
from bench_runner.nodes.leader import exits_of, logs_of
from bench_runner.nodes.lost import without_lost
from bench_runner.nodes.membership import Membership
from bench_runner.nodes.taking_part import _python, settled
from bench_runner.spec import Collective, RunSpec
from tests import builders


def test_the_loopback_is_everybodys_own() -> None:
    assert addresses.resolve("127.0.0.1") == "127.0.0.1"
    assert addresses.is_own("127.0.0.1")
    assert addresses.interface_towards("127.0.0.1") == "lo"
    assert not addresses.is_own("192.0.2.77")


@pytest.mark.parametrize("host", ["a" * 80, "a..b"])
def test_what_is_no_name_is_one_line(host: str) -> None:
    with pytest.raises(UsageError, match="no name of a host; name node 0 by an address"):
        addresses.resolve(host)


def test_an_own_address_is_found_with_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(family=socket.AF_INET, address="10.0.0.5")
    monkeypatch.setattr(addresses.psutil, "net_if_addrs", lambda: {"ib0": [entry]})
    monkeypatch.setattr(addresses, "own_address_towards", lambda _: "10.0.0.5")
    assert addresses.is_own("10.0.0.5")
    assert addresses.interface_towards("10.0.0.1") == "ib0"


def test_the_node_with_the_address_is_node_0() -> None:
    here = Membership(nodes=2, host="127.0.0.1", port=1)
    assert settled(here).node_rank == 0
    elsewhere = Membership(nodes=2, host="192.0.2.77", port=1)
    assert settled(elsewhere).node_rank is None
    assert settled(Membership(nodes=2, host="127.0.0.1", port=1, node_rank=1)).node_rank == 1


def plan(**changes: Any) -> LaunchPlan:
    task = Collective(operation="all_reduce", message_bytes=(4,))
    spec = RunSpec(strategy="ddp", device_kind="cpu", device_count=4, nodes=2, task=task)
    return LaunchPlan(specs=(spec,), python="python", directory=Path("d"), rendezvous="h:1", **changes)


def test_gloo_and_nccl_get_the_interface_unless_the_user_has_chosen() -> None:
    chosen = environment({}, plan(interface="ib0"), 8)
    assert (chosen["GLOO_SOCKET_IFNAME"], chosen["NCCL_SOCKET_IFNAME"]) == ("ib0", "=ib0")
    users = environment({"NCCL_SOCKET_IFNAME": "^docker"}, plan(interface="ib0"), 8)
    assert (users["GLOO_SOCKET_IFNAME"], users["NCCL_SOCKET_IFNAME"]) == ("ib0", "^docker")
    assert "GLOO_SOCKET_IFNAME" not in environment({}, plan(), 8)


def test_node_0_follows_all_ranks_and_another_its_own() -> None:
    cluster = Cluster(nodes=2, host="h", hub_host="127.0.0.1", hub_port=1, token="t", counts=("2x2",))
    assert list(plan(cluster=cluster).followed) == [0, 1, 2, 3]
    assert list(plan(node_rank=1).followed) == [2, 3]
    assert Cluster.from_environment({CLUSTER_VARIABLE: cluster.to_text()}) == cluster
    assert Cluster.from_environment({}) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_whatever_another_node_says_of_its_end_is_exits_and_logs(said: Any) -> None:
    assert all(isinstance(found, Exit) and found.pid == 0 for found in exits_of(said))
    assert all(isinstance(rank, int) and isinstance(log, str) for rank, log in logs_of(said).items())


def test_exits_and_logs_are_read() -> None:
    assert exits_of([{"rank": 3, "code": -9, "pid": 77}, 5, {}]) == [Exit(rank=3, code=-9, pid=0)]
    assert logs_of({"3": "log", "x": "y", "4": 5}) == {3: "log"}


def test_no_node_measures_in_another_environment_than_the_locked_one(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="not built here; `bench-runner env create "):
        _python(SimpleNamespace(python=None), tmp_path / "prefix")  # type: ignore[arg-type]
    (tmp_path / "prefix" / "bin").mkdir(parents=True)
    (tmp_path / "prefix" / "bin" / "python").touch()
    assert _python(SimpleNamespace(python=None), tmp_path / "prefix") == str(tmp_path / "prefix/bin/python")  # type: ignore[arg-type]


def test_what_was_lost_and_measured_later_is_not_counted() -> None:
    lost = builders.failed_record(reason="node 1 has gone", failure="lost-node")
    later = builders.training_record()
    other = builders.failed_record(reason="node 1 has gone", failure="lost-node", launch_index=1)
    assert without_lost([lost, later, other]) == (later, other)
