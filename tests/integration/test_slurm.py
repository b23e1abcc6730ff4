"""``bench-runner slurm`` with the real Slurm: jobs of two and four nodes, a node that dies, a job that is cancelled."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench_runner.baseline import baseline_path
from bench_runner.nodes.slurm import parse_hosts
from bench_runner.store import read_tree
from tests.integration.launching import eventually
from tests.integration.slurm_cluster import SlurmCluster, slurm
from tests.integration.test_run import environment, left_behind, run_tiny, tree

__all__ = ["tree"]  # the fixture
pytest.importorskip("torch")
pytestmark = pytest.mark.slow
TINY = """
description = "a collective across nodes"
strategies = ["ddp"]
[[collective]]
operation = "all_reduce"
message_bytes = [1024]
calls = 10
"""
ENDLESS = """
description = "longer than any test"
strategies = ["ddp"]
[[training]]
workload = "mlp"
batch = 2
steps = 10000000
"""
SMALL = ("--profile", "tiny.toml", "--env", "existing", "--device", "cpu", "--devices", "1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm() as started:
        yield started


def start(cluster: SlurmCluster, tree: Path, *arguments: str) -> subprocess.Popen[str]:
    """``bench-runner slurm …``, its output in files beside the tree."""
    cluster.wait_until_idle()
    with (tree.parent / "out").open("w") as out, (tree.parent / "err").open("w") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "bench_runner", "slurm", *arguments],
            cwd=tree,
            env={**environment(tree), **cluster.environment, "TMPDIR": str(cluster.folder / "tmp")},
            stdout=out,
            stderr=err,
            text=True,
        )


def said(tree: Path) -> str:
    return (tree.parent / "err").read_text()


def finish(process: subprocess.Popen[str], tree: Path) -> int:
    try:
        return process.wait(200)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_two_nodes_measure_together_and_the_job_is_followed(cluster: SlurmCluster, tree: Path) -> None:
    (tree / "tiny.toml").write_text(TINY)
    arguments = (
        "run",
        "--nodes",
        "2",
        "--partition",
        "all",
        "--time",
        "10",
        "--json",
        "--",
        *SMALL,
        "--machine",
        "box",
    )
    assert finish(start(cluster, tree, *arguments), tree) == 0, said(tree)
    document = json.loads((tree.parent / "out").read_text())
    assert (document["schema"], document["state"], document["exit_code"]) == ("bench-runner/slurm/1", "COMPLETED", 0)
    assert [(node["node"], node["verdict"]) for node in document["nodes"]] == [("n1", "pass"), ("n2", "pass")]
    assert document["nodes"][0]["document"]["schema"] == "bench-runner/report/1"
    assert document["nodes"][1]["document"]["node_rank"] == 1
    for words in ("running on n[1-2]", "ddp on 2x1: 1 ok", "completed on n[1-2]"):
        assert words in said(tree)
    records, problems = read_tree(tree / "results" / "box" / "runs")
    assert problems == []
    (record,) = [record for record in records if record.spec.nodes == 2]
    assert [(rank.rank, rank.node, rank.local_rank) for rank in record.ranks] == [(0, 0, 0), (1, 1, 0)]
    assert left_behind(tree) == []


def test_four_nodes_are_verified_each_by_itself(cluster: SlurmCluster, tree: Path) -> None:
    process = start(cluster, tree, "verify", "--nodes", "4", "--json", "--", "--only", "machine")
    code = finish(process, tree)
    document = json.loads((tree.parent / "out").read_text())
    assert [node["node"] for node in document["nodes"]] == ["n1", "n2", "n3", "n4"]
    verdicts = {node["document"]["verdict"] for node in document["nodes"]}
    assert len(verdicts) == 1, "it is the same machine four times"
    assert code == document["exit_code"] == (1 if verdicts == {"fail"} else 0)


def test_wrong_usage_on_the_nodes_is_told_for_each(cluster: SlurmCluster, tree: Path) -> None:
    process = start(cluster, tree, "verify", "--nodes", "2", "--", "--prefix", "/nonexistent")
    assert finish(process, tree) == 3, said(tree)
    told = (tree.parent / "out").read_text()
    assert "n1: not-carried-out: --prefix /nonexistent: no such folder" in told
    assert "verify on 2 node(s)" in told


def test_each_node_passes_the_gate_in_a_tree_of_its_own(cluster: SlurmCluster, tree: Path) -> None:
    (tree / "tiny.toml").write_text("devices = [1]\n" + ENDLESS.replace("10000000", "4"))
    assert run_tiny(tree).returncode == 0
    freeze = [sys.executable, "-m", "bench_runner", "baseline", "set", "before", "box"]
    subprocess.run(freeze, cwd=tree, env=environment(tree), check=True, capture_output=True, timeout=100)
    assert baseline_path(tree / "results", "before").exists()
    gate = ("--baseline", "before", "--profile", "tiny.toml", "--env", "existing", "--launches", "1", "--no-verify")
    code = finish(start(cluster, tree, "gate", "--nodes", "2", "--json", "--", *gate), tree)
    document = json.loads((tree.parent / "out").read_text())
    assert code == document["exit_code"] == 4, said(tree)  # one launch cannot tell a change from chance
    assert [(node["node"], node["verdict"]) for node in document["nodes"]] == [
        ("n1", "inconclusive"),
        ("n2", "inconclusive"),
    ]
    for name in ("n1", "n2"):
        records, problems = read_tree(tree / "results" / name / "runs")
        assert problems == []
        assert {record.machine.name for record in records} == {name}
    assert left_behind(tree) == []


def test_ctrl_c_cancels_the_job_and_leaves_nothing(cluster: SlurmCluster, tree: Path) -> None:
    (tree / "tiny.toml").write_text(ENDLESS)
    process = start(cluster, tree, "run", "--nodes", "2", "--", *SMALL, "--machine", "box")
    eventually(lambda: "measuring" in said(tree) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert finish(process, tree) == 130, said(tree)
    assert "cancelled; its files are in" in said(tree)
    eventually(lambda: cluster.ask("squeue", "-h") == "")
    eventually(lambda: left_behind(tree) == [])


def test_a_job_cancelled_by_another_says_so(cluster: SlurmCluster, tree: Path) -> None:
    (tree / "tiny.toml").write_text(ENDLESS)
    process = start(cluster, tree, "run", "--nodes", "2", "--", *SMALL, "--machine", "box")
    eventually(lambda: "measuring" in said(tree) or process.poll() is not None)
    cluster.ask("scancel", *cluster.ask("squeue", "-h", "-o", "%i").split())
    assert finish(process, tree) == 3, said(tree)
    assert "cancelled" in said(tree)
    eventually(lambda: left_behind(tree) == [])


def test_a_node_that_dies_in_the_middle_has_the_job_requeued_and_it_goes_on(cluster: SlurmCluster, tree: Path) -> None:
    # Long enough that the node dies in its middle, on a quick machine too.
    (tree / "tiny.toml").write_text(TINY.replace("1024", str(4 << 20)).replace("calls = 10", "calls = 1000"))
    process = start(cluster, tree, "run", "--nodes", "2", "--", *SMALL, "--machine", "box")
    notes = tree / ".bench-runner" / "slurm"
    try:
        eventually(lambda: any("measuring" in path.read_text() for path in notes.glob("*/task-0.err")))
        cluster.kill_node("n2")
        assert finish(process, tree) == 0, said(tree)
    finally:
        cluster.start_node("n2")
        cluster.wait_until_idle()
    assert "after 1 restart(s)" in said(tree)
    assert "going on with the session" in said(tree)
    (last,) = [line for line in said(tree).splitlines() if ": completed on n[" in line]
    nodes = parse_hosts(last.split(" on ")[1].split()[0])
    assert len(nodes) == 2
    assert "n2" not in nodes
    assert left_behind(tree) == []
