"""The batch script word for word, Slurm's answers, and what many nodes come to."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.cli import main
from bench_runner.errors import LaunchError, UsageError
from bench_runner.finding import Finding
from bench_runner.report.verification import verify_line
from bench_runner.slurm import task
from bench_runner.slurm.job import JobState, Lines, TaskResult, parse_job, parse_submission, read_tasks
from bench_runner.slurm.outcome import exit_code, job_document, job_text, node_outcomes
from bench_runner.slurm.script import JobRequest, batch_script, command_line
from tests.integration import slurm_cluster

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "schemas" / "slurm-1.json").read_text())

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=bench-runner-run
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=1
#SBATCH --partition=gpu
#SBATCH --time=01:30:00
#SBATCH --gpus-per-node=h100:8
#SBATCH --output="/home/me/suite/.bench-runner/slurm/run-1/job.log"
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --requeue
set -euo pipefail
cd /home/me/suite
# After a requeue the same job begins again: what an earlier try left must not be taken for this one's.
rm -f /home/me/suite/.bench-runner/slurm/run-1/task-*
exec srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 \
/opt/env/bin/python -m bench_runner.slurm.task --folder /home/me/suite/.bench-runner/slurm/run-1 -- \
run --nodes 4 --profile standard --machine 'a b'
"""


def request(**changes: Any) -> JobRequest:
    fields: dict[str, Any] = {
        "kind": "run",
        "nodes": 4,
        "root": Path("/home/me/suite"),
        "folder": Path("/home/me/suite/.bench-runner/slurm/run-1"),
        "python": "/opt/env/bin/python",
        "arguments": ("--profile", "standard", "--machine", "a b"),
    }
    return JobRequest(**{**fields, **changes})


def test_the_script_word_for_word() -> None:
    assert batch_script(request(partition="gpu", time="01:30:00", gpus_per_node="h100:8")) == SCRIPT


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arguments": ("--launches", "5")}, ["run", "--nodes", "4", "--launches", "5"]),
        ({"arguments": (), "as_json": True}, ["run", "--nodes", "4", "--json"]),
        ({"arguments": ("--json",), "each": True}, ["run", "--json"]),
        ({"kind": "verify", "arguments": ("--quick",)}, ["verify", "--json", "--quick"]),
        ({"kind": "gate", "arguments": ("--baseline", "b", "--json")}, ["gate", "--json", "--baseline", "b"]),
    ],
)
def test_what_each_task_runs(changes: dict[str, Any], words: list[str]) -> None:
    assert command_line(request(**changes)) == words


def test_only_those_that_measure_by_themselves_get_a_tree_of_their_own() -> None:
    kinds = {"together": request(), "each": request(each=True), "verify": request(kind="verify")}
    assert {name: "--own-tree" in batch_script(made) for name, made in kinds.items()} == {
        "together": False,
        "each": True,
        "verify": False,
    }
    assert "--own-tree" in batch_script(request(kind="gate"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"partition": "a b"}, "--partition a b"),
        ({"partition": "a\n#SBATCH --uid=0"}, "--partition a"),
        ({"partition": "-x"}, "--partition -x"),
        ({"gpus_per_node": "8;rm"}, "--gpus-per-node 8;rm"),
        ({"nodelist": '"'}, '--nodelist "'),
        ({"constraint": "$(id)"}, "--constraint $(id)"),
        ({"time": "soon"}, "--time soon"),
        ({"nodes": 0}, "--nodes 0"),
        ({"folder": Path("/a%b")}, "/a%b"),
        ({"folder": Path('/a"b')}, '/a"b'),
    ],
)
def test_what_sbatch_might_misread_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as raised:
        request(**changes)
    assert str(raised.value).startswith(named)


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)))
def test_bash_hands_every_argument_on_as_it_was(arguments: list[str]) -> None:
    """The script's last command with srun replaced by a program that says its arguments."""
    script = batch_script(request(root=Path("/"), arguments=tuple(arguments)))
    said = 'srun() { printf "%s\\0" "$@"; }\n' + script.replace("exec srun", "srun").replace("rm -f", "true")
    done = subprocess.run(["bash", "-c", said], capture_output=True, check=True)
    words = done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    assert words[words.index("--") + 1 :] == ["run", "--nodes", "4", *arguments]


# Recorded from `scontrol --oneliner show job` of Slurm 22.05, shortened.
RUNNING = (
    "JobId=7 JobName=bench-runner-run UserId=root(0) Nice=0 JobState=RUNNING Reason=None Dependency=(null) Requeue=1 "
    "Restarts=1 ExitCode=0:0 Partition=all ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1,3] BatchHost=n1"
)


def test_a_job_is_read_from_scontrol() -> None:
    state = parse_job(RUNNING)
    assert state == JobState(state="RUNNING", reason="None", nodes="n[1,3]", restarts=1)
    assert state.words == "running on n[1,3] after 1 restart(s)"
    assert not state.finished
    pending = parse_job("JobId=8 JobState=PENDING Reason=Resources Restarts=0 NodeList=(null)")
    assert pending is not None
    assert pending.words == "pending (Resources)"
    failed = parse_job("JobId=8 JobState=NODE_FAIL Reason=NodeDown NodeList=n1")
    assert failed is not None
    assert failed.finished


@given(st.text(max_size=200))
def test_any_answer_is_a_state_or_none(text: str) -> None:
    state = parse_job(text)
    assert state is None or isinstance(state.words, str)


def test_a_submission_is_a_number() -> None:
    assert parse_submission("123\n") == "123"
    assert parse_submission("warning: full\n123;cluster\n") == "123"
    for text in ("", "sbatch: error", "12a"):
        with pytest.raises(LaunchError, match="no job's number"):
            parse_submission(text)


def test_lines_are_told_once_and_whole_and_from_the_beginning_of_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "task-0.err"
    lines = Lines(path)
    assert lines.read() == []
    path.write_text("one\ntw")
    assert lines.read() == ["one"]
    with path.open("a") as file:
        file.write("o\nthree\n")
    assert lines.read() == ["two", "three"]
    path.write_text("anew\n")
    assert lines.read() == ["anew"]


def result(rank: int, code: int | None, document: dict[str, Any] | None = None, said: str = "") -> TaskResult:
    return TaskResult(rank=rank, node=f"n{rank + 1}", exit_code=code, document=document, said=said)


FAILED = {"verdict": "fail", "findings": [{"status": "pass"}, {"status": "fail", "check": "c", "message": "m"}]}


@pytest.mark.parametrize(
    ("codes", "code"),
    [((0, 0), 0), ((0, 1), 1), ((1, None), 1), ((0, None), 3), ((0, 4), 4), ((4, 3), 3), ((2, 0), 3), ((0, -9), 3)],
)
def test_the_worst_node_gives_the_exit_code(codes: tuple[int | None, ...], code: int) -> None:
    outcomes = node_outcomes([result(rank, each) for rank, each in enumerate(codes)])
    assert exit_code(request(kind="verify", nodes=2), outcomes) == code


def test_of_one_run_over_all_nodes_node_0_gives_the_exit_code() -> None:
    for first, code in ((0, 0), (1, 1), (None, 3), (-15, 3), (130, 3)):
        assert exit_code(request(nodes=2), node_outcomes([result(0, first), result(1, 3)])) == code


def test_each_node_has_its_verdict_and_reason_in_text_and_document() -> None:
    tasks = [result(0, 0), result(1, 1, FAILED), result(2, None, None, "waiting"), result(3, 2, {"error": "no lock"})]
    outcomes = node_outcomes(tasks)
    asked = request(kind="verify")
    assert job_text(asked, "7", outcomes).splitlines() == [
        "  n2: fail: c: m",
        "  n3: not-carried-out: it left no result: its node died or the job was ended; last: waiting",
        "  n4: not-carried-out: no lock",
        "verify on 4 node(s), job 7: 1 fail, 2 not-carried-out, 1 pass",
    ]
    document = job_document(asked, "7", "COMPLETED", outcomes, tasks)
    jsonschema.validate(document, SCHEMA)
    assert [node["verdict"] for node in document["nodes"]] == ["pass", "fail", "not-carried-out", "not-carried-out"]


def test_a_task_leaves_its_output_and_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    command = [sys.executable, "-m", "bench_runner.slurm.task", "--folder", str(tmp_path), "--", "baseline", "nothing"]
    done = subprocess.run(command, env=os.environ, check=False, timeout=100)
    assert done.returncode == 2
    (found,) = [each for each in read_tasks(tmp_path, 3) if each.exit_code is not None]
    assert (found.rank, found.node, found.exit_code) == (2, "n3", 2)
    assert found.said == "bench-runner: error: No such command 'nothing'."


def test_a_tree_of_its_own_has_the_sources_and_this_machines_results(tmp_path: Path) -> None:
    root, tree = tmp_path / "root", tmp_path / "tree"
    for name in (
        "bench_runner/a.py",
        ".asv/env/x",
        "results/n1/old.json",
        "results/n2/other.json",
        "results/baselines/b",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    task.copy_tree(root, tree, "n1")
    copied = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    assert copied == ["bench_runner/a.py", "results/baselines/b", "results/n1/old.json"]
    for name in ("machine.json", "new.json"):
        (tree / "results" / "n1" / name).write_text(name)
    task.bring_back(tree / "results", root / "results")
    assert sorted(path.name for path in (root / "results" / "n1").iterdir()) == ["machine.json", "new.json", "old.json"]
    assert (root / "results" / "n2" / "other.json").read_text() == "results/n2/other.json"


def test_results_are_named_after_the_node_unless_a_name_is_given() -> None:
    assert task.named(["run", "--json"], "n1") == ["run", "--machine", "n1", "--json"]
    assert task.named(["run", "--machine=box"], "n1") == ["run", "--machine=box"]


def test_dry_run_shows_the_script_and_submits_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["slurm", "run", "--nodes", "2", "--partition", "gpu", "--dry-run"]
    assert main([*arguments, "--", "--profile", "quick"]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --partition=gpu" in script
    assert script.rstrip().endswith("-- run --nodes 2 --profile quick")
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "bench-runner/slurm-script/1"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "--nodes", "2", "--", "--nodes", "3"], 2, "--nodes behind --"),
        (["run", "--nodes", "0", "--dry-run"], 2, "--nodes 0"),
        (["verify", "--nodes", "2", "--time", "x", "--dry-run"], 2, "--time x"),
        (["gate", "--nodes", "2", "--", "--baseline", "b"], 3, "sbatch, scontrol, scancel: not found"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["slurm", *arguments]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        ([("a", "pass", "fine")], "bench-runner verify: pass: 1 checks"),
        ([("a", "pass", "fine"), ("b", "warn", "odd")], "bench-runner verify: warn: b: odd"),
        (
            [("a", "fail", "x\ny"), ("b", "fail", "z"), ("c", "warn", "w")],
            r"bench-runner verify: fail: a: x\ny (and 1 more)",
        ),
    ],
)
def test_a_verification_in_one_line(findings: list[tuple[str, Any, str]], line: str) -> None:
    more = {"expected": "e", "actual": "a", "evidence": ("v",), "remedy": "r"}
    made = [Finding(check=check, status=status, message=message, **more) for check, status, message in findings]  # type: ignore[arg-type]
    assert verify_line({"machine": made}) == line
    long = [Finding(check="c", status="fail", message="m" * 500, **more)]  # type: ignore[arg-type]
    assert len(verify_line({"machine": long})) == 200


def test_one_line_and_json_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--one-line", "--json"]) == 2
    assert "choose one of the two" in capsys.readouterr().err


def test_where_slurm_is_required_its_tests_fail_instead_of_skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_cluster, "REQUIRED", False)
    with pytest.raises(pytest.skip.Exception, match="no root"):
        slurm_cluster.unavailable("no root")
    monkeypatch.setattr(slurm_cluster, "REQUIRED", True)
    with pytest.raises(pytest.fail.Exception, match="BENCH_RUNNER_REQUIRE names slurm, but no root"):
        slurm_cluster.unavailable("no root")
