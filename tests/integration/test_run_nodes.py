"""``bench-runner run --nodes 2`` from end to end: real torchrun and gloo, two nodes without a folder in common."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench_runner.store import read_tree
from tests.integration.launching import eventually
from tests.integration.test_machine_links import ADDRESSES, two_namespaces
from tests.integration.test_run import environment, left_behind, tree

__all__ = ["tree"]  # the fixture
pytest.importorskip("torch")
pytestmark = pytest.mark.slow
PORT = 29713
PROFILE = """
description = "one device of each node"
strategies = ["ddp"]
[[training]]
workload = "mlp"
batch = 2
steps = {steps}
warmup_steps = 1
phase_steps = 2
[[collective]]
operation = "all_reduce"
message_bytes = [1024]
calls = 10
"""


@contextmanager
def node(tree: Path, endpoint: str, *more: str, prefix: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """One node's call; its output goes to files beside the tree."""
    options = ["--profile", "tiny.toml", "--env", "existing", "--devices", "1", "--device", "cpu", "--nodes", "2"]
    command = [*prefix, sys.executable, "-m", "bench_runner", "run", *options, "--rdzv-endpoint", endpoint, *more]
    with (tree.parent / "out").open("w") as out, (tree.parent / "err").open("w") as err:
        # A node that is killed leaves its folder; node 0's asv needs a short path for its socket.
        variables = {**environment(tree), **({} if "--machine" in more else {"TMPDIR": str(tree.parent)})}
        process = subprocess.Popen(command, cwd=tree, env=variables, stdout=out, stderr=err, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def other_tree(tree: Path, folder: Path) -> Path:
    (folder / "home").mkdir(parents=True)
    shutil.copytree(tree, folder / "tree")
    return folder / "tree"


def said(tree: Path) -> str:
    return (tree.parent / "err").read_text()


def test_two_hosts_give_one_result(tree: Path, tmp_path: Path) -> None:
    (tree / "tiny.toml").write_text(PROFILE.format(steps=6))
    second = other_tree(tree, tmp_path / "second")
    endpoint = f"{ADDRESSES[0]}:{PORT}"
    with two_namespaces(1000) as (one, two):
        enter = [("ip", "netns", "exec", name) for name in (one, two)]
        with (
            node(second, endpoint, "--json", prefix=enter[1]) as follower,
            node(tree, endpoint, "--machine", "box", prefix=enter[0]) as first,
        ):
            codes = [first.wait(200), follower.wait(60)]
    assert codes == [0, 0], said(tree) + said(second)
    records, problems = read_tree(tree / "results" / "box" / "runs")
    assert problems == []
    placed = {(r.spec.nodes, r.spec.device_count, r.outcome) for r in records}
    assert placed == {(1, 1, "ok"), (1, 1, "skipped"), (2, 2, "ok")}
    over = [record for record in records if record.spec.nodes == 2]
    assert {record.spec.task.label for record in over} == {"mlp/fp32/b2", "all_reduce"}
    for record in over:
        assert [(r.rank, r.node, r.local_rank, r.device) for r in record.ranks] == [(0, 0, 0, 0), (1, 1, 0, 0)]
    report = (tree.parent / "out").read_text()
    assert "Over nodes: mlp" in report
    assert "all-reduce over gloo across 2 nodes" in report
    assert json.loads((second.parent / "out").read_text()) == {
        "schema": "bench-runner/node/1",
        "node_rank": 1,
        "nodes": 2,
        "launches": 1,
    }
    assert list((second / "results").iterdir()) == [], "node 0 alone stores"
    assert left_behind(tree) == []
    assert left_behind(second) == []


@pytest.mark.parametrize("dying", [0, 1])
def test_a_node_killed_in_the_middle_ends_the_run_everywhere(tree: Path, tmp_path: Path, dying: int) -> None:
    (tree / "tiny.toml").write_text(PROFILE.format(steps=10_000_000))
    second = other_tree(tree, tmp_path / "second")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    with node(second, endpoint, "--node-rank", "1") as follower, node(tree, endpoint, "--machine", "box") as first:
        session = tree / ".bench-runner" / "session"

        def training() -> bool:
            files = list(session.glob("launch-0/ddp-2x1/attempt-*/rank-1.jsonl"))
            assert first.poll() is None, said(tree)
            return any('"state": "case"' in path.read_text() for path in files)

        eventually(training)
        nodes = [first, follower]
        nodes[dying].send_signal(signal.SIGKILL)
        survivor = nodes[1 - dying]
        assert survivor.wait(100) == 3
    last = said(second if dying == 0 else tree).splitlines()[-1]
    assert last.startswith("bench-runner: error: ")
    assert ("node 0 (127.0.0.1" if dying == 0 else "node 1 (") in last
    assert "has gone" in last
    eventually(lambda: left_behind(tree) == [] == left_behind(second))
    if dying == 1:
        records, _ = read_tree(tree / "results" / "box" / "runs")
        assert {(r.spec.nodes, r.failure) for r in records if r.spec.nodes == 2} == {(2, "lost-node")}
