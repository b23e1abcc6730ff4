"""Launches over several nodes with the stand-ins: what arrives at node 0, what a dead node means, none is left."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench_runner.errors import LaunchError, UsageError
from bench_runner.launch import LaunchPlan, run
from bench_runner.nodes import wire
from bench_runner.nodes.follower import tell_unable
from bench_runner.nodes.hub import PROTOCOL, Hub
from bench_runner.nodes.membership import Membership
from bench_runner.processes import process_table
from tests.integration.launching import STANDINS, Fault, eventually, left, make_plan, said

ROOT = Path(__file__).parent.parent.parent
Node = subprocess.Popen[str]


@pytest.fixture(autouse=True)
def standins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meeting").mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{STANDINS}:{ROOT}")
    monkeypatch.setenv("STANDIN_MEETING", str(tmp_path / "meeting"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a node that is killed leaves its folder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def member(nodes: int = 2, **changes: Any) -> Membership:
    fields = {"nodes": nodes, "host": "127.0.0.1", "port": free_port(), "node_rank": 0, "join_seconds": 60.0}
    return Membership(**{**fields, **changes})


def start(membership: Membership, *rank: str) -> Node:
    command = [sys.executable, "-m", "tests.integration.one_node", membership.endpoint, str(membership.nodes), *rank]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@contextmanager
def cluster(
    directory: Path, faults: list[Fault], *, nodes: int = 2, **changes: Any
) -> Iterator[tuple[LaunchPlan, list[Node]]]:
    """A plan for two ranks on each node, and the other nodes, which wait for it."""
    membership = member(nodes)
    others = [start(membership) for _ in range(nodes - 1)]
    try:
        with Hub(membership) as hub:
            assert hub.wait_for_nodes("cpu", 4, lambda _: None) == 2
            plan = make_plan(directory, faults, ranks=2 * nodes, **changes)
            specs = tuple(replace(spec, nodes=nodes) for spec in plan.specs)
            yield replace(plan, specs=specs, cluster=hub.cluster(("2x2",))), others
        for other in others:
            other.wait(60)
        assert left(plan) == []
    finally:
        for other in others:
            if other.poll() is None:
                other.kill()
            other.communicate()
    assert stray(directory) == []


def stray(directory: Path) -> list[str]:
    """Workers of this test on any node: they carry its meeting place in their environment."""
    mark = str(directory / "meeting").encode()
    found = []
    for process in process_table():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes()
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if mark in variables and b"standin_worker" in command and not process.gone:
            found.append(f"{process.pid} {process.name}")
    return found


def test_every_nodes_ranks_arrive_and_the_others_leave_when_it_is_over(tmp_path: Path) -> None:
    with cluster(tmp_path, [], nodes=3) as (plan, others):
        results = run(plan)
        again = run(replace(plan, directory=tmp_path / "again"))
    for result in (*results, *again):
        assert (result.outcome, result.reason) == ("ok", None)
        assert [sample["rank"] for sample in result.ranks] == [0, 1, 2, 3, 4, 5]
    assert len({sample["pid"] for sample in results[0].ranks}) == 6
    assert [other.returncode for other in others] == [0, 0]


@pytest.mark.parametrize(
    ("fault", "failure", "reason"),
    [
        ("sigkill", "signal", "rank 3 was killed by SIGKILL"),
        ("quit_with_3", "exit", "rank 3 exited with code 3"),
        ("raise_error", "exception", "rank 3: ValueError: no such batch"),
        ("uncaught", "exception", "rank 3: ValueError: not caught by the worker"),
    ],
)
def test_a_rank_that_dies_on_another_node_is_named_and_the_next_case_measured(
    tmp_path: Path, fault: str, failure: str, reason: str
) -> None:
    with cluster(tmp_path, [(3, "case-0", fault)]) as (plan, others):
        first, second = run(plan)
    assert (first.outcome, first.failure, first.failed_rank) == ("failed", failure, 3)
    assert str(first.reason).startswith(reason)
    assert (second.outcome, len(second.ranks)) == ("ok", 4)
    assert others[0].returncode == 0


def test_a_rank_that_hangs_on_another_node_meets_the_deadline_with_its_stacks(tmp_path: Path) -> None:
    with cluster(tmp_path, [(2, "case-0", "hang")], case_deadline_seconds=3.0) as (plan, _):
        first, second = run(plan)
    assert (first.outcome, first.failure, first.failed_rank) == ("timeout", "deadline", 2)
    assert "in hang" in str(first.traceback)
    assert second.outcome == "ok"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_node_that_dies_in_the_middle_ends_the_launch_and_the_run(tmp_path: Path, number: signal.Signals) -> None:
    kept = []
    with cluster(tmp_path, [(0, "case-0", "hang"), (3, "case-0", "hang")]) as (plan, others):
        begin = time.monotonic()

        def kill_once_all_are_at_it() -> None:
            eventually(lambda: all(said(plan.directory, rank, "case") for rank in range(4)))
            others[0].send_signal(number)

        wire.start_thread(kill_once_all_are_at_it, "killer")
        with pytest.raises(LaunchError, match=r"node 1 \(.*\) has gone"):
            run(plan, keep=kept.append)
        assert time.monotonic() - begin < 29, "it did not wait for the case's deadline"
    (only,) = kept
    assert (only.outcome, only.failure) == ("failed", "lost-node")
    assert str(only.reason).startswith("node 1 (")


def test_an_interrupted_launch_ends_on_every_node_and_the_run_can_go_on(tmp_path: Path) -> None:
    with cluster(tmp_path, [("all", "case-0", "wait_for_go")]) as (plan, others):
        interrupted = subprocess.Popen(
            [sys.executable, "-c", _RUN, str(tmp_path / "interrupted"), plan.cluster.to_text()],  # type: ignore[union-attr]
            cwd=ROOT,
        )
        eventually(lambda: all(said(tmp_path / "interrupted" / "launch", rank, "case") for rank in range(4)))
        interrupted.send_signal(signal.SIGINT)
        interrupted.wait(60)
        eventually(lambda: stray(tmp_path) == [])
        assert others[0].poll() is None
        assert [result.outcome for result in run(replace(plan, options={}))] == ["ok", "ok"]


_RUN = """
import sys
from dataclasses import replace
from pathlib import Path
from bench_runner.launch import run
from bench_runner.nodes.cluster import CLUSTER_VARIABLE, Cluster
from tests.integration.launching import make_plan
plan = make_plan(Path(sys.argv[1]), [["all", "case-0", "wait_for_go"]], ranks=4)
specs = tuple(replace(spec, nodes=2) for spec in plan.specs)
run(replace(plan, specs=specs, cluster=Cluster.from_environment({CLUSTER_VARIABLE: sys.argv[2]})))
"""


@contextmanager
def waiting(membership: Membership, *rank: str) -> Iterator[Node]:
    other = start(membership, *rank)
    try:
        yield other
    finally:
        if other.poll() is None:
            other.kill()
        other.wait()
        assert other.stderr is not None
        other.stderr.close()


def last_line(node: Node) -> str:
    node.wait(60)
    assert node.stderr is not None
    return node.stderr.read().splitlines()[-1]


def test_the_others_say_one_line_when_node_0_breaks_off(tmp_path: Path) -> None:
    membership = member()
    with waiting(membership) as other:
        with pytest.raises(UsageError, match="node 0 cuda"), Hub(membership) as hub:
            hub.wait_for_nodes("cuda", 2, lambda _: None)
        assert "broke the run off: node 1 (" in last_line(other)
        assert other.returncode == 3


def test_the_others_say_one_line_when_node_0_is_killed(tmp_path: Path) -> None:
    membership = member()
    hub = subprocess.Popen([sys.executable, "-c", _HUB, str(membership.port)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        with waiting(membership) as other:
            assert hub.stdout is not None
            assert hub.stdout.readline() == b"all are here\n"
            hub.kill()
            hub.wait()
            assert f"node 0 ({membership.endpoint}) has gone" in last_line(other)
            assert other.returncode == 3
    finally:
        hub.kill()
        hub.communicate()


_HUB = """
import sys, time
from bench_runner.nodes.follower import tell_unable
from bench_runner.nodes.hub import Hub
from bench_runner.nodes.membership import Membership
with Hub(Membership(nodes=2, host="127.0.0.1", port=int(sys.argv[1]), node_rank=0)) as hub:
    hub.wait_for_nodes("cpu", 2, lambda line: None)
    print("all are here", flush=True)
    time.sleep(600)
"""


def test_node_0_names_those_who_did_not_come() -> None:
    membership = member(nodes=3, join_seconds=1.0)
    with pytest.raises(LaunchError, match=r"node 1, 2 of 3 did not come .* within 1 s"), Hub(membership) as hub:
        hub.wait_for_nodes("cpu", 2, lambda _: None)


def test_a_node_that_cannot_take_part_says_so_and_nobody_waits_for_it() -> None:
    membership = member()
    telling = wire.start_thread(lambda: tell_unable(membership, "no device"), "unable")
    with pytest.raises(LaunchError, match=r"cannot take part: no device"), Hub(membership) as hub:
        hub.wait_for_nodes("cpu", 2, lambda _: None)
    telling.join(60)


def test_two_with_the_same_number_are_told(tmp_path: Path) -> None:
    membership = member(nodes=3)
    with (
        Hub(membership),
        waiting(membership, "2"),
        waiting(membership, "2") as second,
        waiting(membership, "2") as third,
    ):
        ended = eventually(lambda: next((node for node in (second, third) if node.poll() is not None), None))
        assert "node rank 2 is taken already" in last_line(ended)
        assert ended.returncode == 2


def test_a_port_that_somebody_has_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        membership = member(port=server.getsockname()[1])
        with pytest.raises(LaunchError, match="choose another port"):
            Hub(membership)


def test_an_address_of_another_machine_is_one_line() -> None:
    with pytest.raises(UsageError, match="is no address of this node"):
        Hub(member(host="192.0.2.77"))


STRANGE: list[tuple[str, Callable[[], bytes]]] = [
    ("no JSON", lambda: b"GET / HTTP/1.1\r\n\r\n"),
    ("no object", lambda: b"[1]\n"),
    ("no kind", lambda: b"{}\n"),
    ("another kind", lambda: b'{"kind": "rank", "rank": 0, "line": "x"}\n'),
    ("a wrong token", lambda: b'{"kind": "launch", "token": "0"}\n'),
    ("deep", lambda: b"[" * 100_000 + b"\n"),
]


@pytest.mark.parametrize("sent", [make for _, make in STRANGE], ids=[name for name, _ in STRANGE])
def test_a_stranger_is_turned_away_and_disturbs_nobody(sent: Callable[[], bytes]) -> None:
    membership = member()
    with Hub(membership) as hub, socket.create_connection((membership.host, membership.port), timeout=30) as stranger:
        stranger.sendall(sent())
        eventually(lambda: stranger.recv(1 << 16) == b"")
        with waiting(membership):
            assert hub.wait_for_nodes("cpu", 2, lambda _: None) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"protocol": "old"}, "same version"), ({"run_id": "slurm-1"}, "another run"), ({"nodes": 3}, "--nodes 2")],
)
def test_a_node_of_another_run_is_refused_with_the_reason(changes: dict[str, Any], why: str) -> None:
    import queue

    membership = member()
    inbox: wire.Inbox = queue.SimpleQueue()
    with Hub(membership):
        line = wire.Wire(socket.create_connection((membership.host, membership.port), timeout=30), inbox).start()
        told = {"protocol": PROTOCOL, "run_id": "bench-runner", "nodes": 2, "node_rank": 1, "host": "x", "count": 1}
        line.send("join", device_kind="cpu", **{**told, **changes})
        _, answer = inbox.get(timeout=30)
        line.close()
    assert isinstance(answer, dict)
    assert answer["kind"] == "refused"
    assert why in answer["why"]
