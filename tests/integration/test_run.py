"""``bench-runner run`` and the real asv in a copy of the tree, as a user has it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from bench_runner.processes import process_table
from bench_runner.record import RunRecord
from bench_runner.spec import Training
from bench_runner.store import read_tree

ROOT = Path(__file__).resolve().parent.parent.parent
PROFILE = """
description = "as small as can be"
[[training]]
workload = "mlp"
batch = 2
steps = 6
warmup_steps = 1
phase_steps = 2
[[collective]]
operation = "all_reduce"
message_bytes = [1024]
calls = 10
"""
COPIED = ("asv.conf.json", "benchmarks", "bench_runner", "conda-lock.yml", "environment.yml", "virtual-packages.yaml")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The suite without its results, without git, with a home folder of its own."""
    root = tmp_path / "tree"
    root.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    (root / "results").mkdir()
    (root / "tiny.toml").write_text(PROFILE)
    (tmp_path / "home").mkdir()
    return root


def environment(tree: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BENCH_RUNNER_", "ASV_"))}
    return {**kept, "HOME": str(tree.parent / "home"), "PYTHONPATH": str(tree), "TREE_OF_TEST": str(tree)}


def bench_runner(tree: Path, *arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench_runner", *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=timeout, check=False
    )


def asv(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asv", *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=280, check=False
    )


def left_behind(tree: Path) -> list[str]:
    """Processes that still carry this test's tree in their environment, the test's own aside."""
    mark = f"TREE_OF_TEST={tree}".encode()
    found = []
    for process in process_table():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue
        if mark in variables.split(b"\0") and not process.gone:
            found.append(f"{process.pid} {process.name}")
    return found


def asv_results(tree: Path) -> dict:
    (path,) = (path for path in (tree / "results" / "box").glob("*.json") if path.name != "machine.json")
    document = json.loads(path.read_text())
    return {
        name: dict(zip(document["result_columns"], values, strict=False))
        for name, values in document["results"].items()
    }


def run_tiny(tree: Path, *more: str) -> subprocess.CompletedProcess[str]:
    profile = str(tree / "tiny.toml")
    return bench_runner(tree, "run", "--profile", profile, "--machine", "box", "--env", "existing", *more)


def rates_of(record: RunRecord) -> list[float]:
    """Samples per second of each step of the slowest rank, by hand."""
    assert isinstance(record.spec.task, Training)
    slowest = max((rank.step_seconds for rank in record.ranks), key=sum)
    return [record.spec.task.global_batch(record.spec.device_count) / seconds for seconds in slowest]


def test_a_run_measures_stores_and_shows(tree: Path) -> None:
    done = run_tiny(tree, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "bench-runner/report/1"
    assert "ddp on 2" in done.stderr or len(os.sched_getaffinity(0)) == 1
    assert left_behind(tree) == []

    records, problems = read_tree(tree / "results" / "box" / "runs")
    assert problems == []
    outcomes = {(r.spec.strategy, r.spec.device_count, r.spec.task.label): r.outcome for r in records}
    assert outcomes["single", 1, "mlp/fp32/b2"] == "ok"
    assert outcomes["ddp", 1, "mlp/fp32/b2"] == "ok"
    skipped = [r for r in records if r.spec.strategy == "data_parallel"]
    assert skipped
    assert all(r.outcome == "skipped" and r.reason == "DataParallel needs a CUDA device" for r in skipped)
    assert len({r.session_id for r in records}) == 1
    record = next(r for r in records if r.outcome == "ok")
    assert record.environment.lock_sha256
    assert record.environment.lock_state == "not-locked"
    assert record.environment.torch
    assert record.commit

    # The contract with asv: an upgrade that changes its files is seen here.
    stored = asv_results(tree)["training.Training.track_throughput"]
    assert stored["params"][0] == ["'single'", "'data_parallel'", "'ddp'"]
    assert stored["version"] == "1"
    expected = [rates_of(r) for r in records if r.ranks and isinstance(r.spec.task, Training)]
    samples = [sample for sample in stored["samples"] if isinstance(sample, list)]
    assert sorted(samples) == [pytest.approx(rates) for rates in sorted(expected)]
    assert sorted(v for v in stored["result"] if v is not None and v == v) == [
        pytest.approx(median(rates)) for rates in sorted(expected, key=median)
    ]
    machine = json.loads((tree / "results" / "box" / "machine.json").read_text())
    assert machine["gpu"] == "none" or machine["num_gpu"] > 0
    assert machine["fingerprint"] == record.machine.fingerprint

    report = bench_runner(tree, "report")
    assert report.returncode == 0, report.stderr
    assert "Machine box" in report.stdout
    assert "DataParallel needs a CUDA device" in " ".join(report.stdout.split())

    shown = asv(tree, "show", "--machine", "box", record.commit[:8])
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "track_throughput" in shown.stdout
    published = asv(tree, "publish")
    assert published.returncode == 0, published.stdout + published.stderr
    assert (tree / ".asv" / "html" / "index.html").exists()

    other = json.loads((tree / "results" / "box" / "machine.json").read_text())
    other["fingerprint"] = "0" * 16
    (tree / "results" / "box" / "machine.json").write_text(json.dumps(other))
    refused = run_tiny(tree)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "0000000000000000" in refused.stderr
    assert record.machine.fingerprint in refused.stderr


def begin(tree: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "bench_runner", "run", "--profile", str(tree / "tiny.toml")),
            *("--machine", "box", "--env", "existing", "--device", "cpu", "--devices", "1"),
        ],
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, seconds: float = 200.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.1)


def progress(tree: Path, event: str) -> int:
    path = tree / ".bench-runner" / "session" / "progress.jsonl"
    return path.read_text().count(f'"event": "{event}"') if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_broken_off_leaves_nothing_behind_and_goes_on(tree: Path, how: signal.Signals) -> None:
    child = begin(tree)
    try:
        wait_for(lambda: progress(tree, "done") >= 1 and progress(tree, "launch") >= 2)
        second = run_tiny(tree)  # two at once in one tree
        assert second.returncode == 2
        assert "another bench-runner run goes on in this tree" in second.stderr
        child.send_signal(how)
        child.wait(timeout=60)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    wait_for(lambda: left_behind(tree) == [])
    kept, problems = read_tree(tree / "results" / "box" / "runs")
    assert problems == []
    measured = [record for record in kept if record.outcome == "ok"]
    assert len(measured) == 1

    again = bench_runner(
        tree,
        *("run", "--profile", str(tree / "tiny.toml"), "--machine", "box", "--env", "existing"),
        *("--device", "cpu", "--devices", "1"),
    )
    assert again.returncode == 0, again.stderr
    assert "going on with the session" in again.stderr
    records, problems = read_tree(tree / "results" / "box" / "runs")
    assert problems == []
    assert len({record.session_id for record in records}) == 1
    labels = [(r.spec.strategy, r.spec.task.label) for r in records if r.outcome == "ok"]
    assert sorted(labels) == [("ddp", "mlp/fp32/b2"), ("single", "mlp/fp32/b2")]  # nothing measured twice
    assert measured[0].record_id in {record.record_id for record in records}


@pytest.mark.slow
def test_several_launches_are_repeated_in_turns_and_asv_gets_all_samples(tree: Path) -> None:
    done = run_tiny(tree, "--devices", "1", "--launches", "2")
    assert done.returncode == 0, done.stderr
    records, _ = read_tree(tree / "results" / "box" / "runs")
    ok = sorted((r for r in records if r.outcome == "ok"), key=lambda r: r.started_at)
    assert [r.launch_index for r in ok] == [0, 0, 1, 1]
    assert {r.spec.strategy for r in ok[:2]} == {r.spec.strategy for r in ok[2:]} == {"single", "ddp"}
    stored = asv_results(tree)["training.Training.track_step_time"]
    assert any(samples is not None and len(samples) == 12 for samples in stored["samples"] if isinstance(samples, list))


@pytest.mark.slow
def test_a_failing_workload_is_a_record_with_a_reason_and_asvs_failure(tree: Path) -> None:
    (tree / "broken.py").write_text("def factory():\n    raise ValueError('the data is gone')\n")
    (tree / "broken.toml").write_text('[[training]]\nworkload = "broken:factory"\nbatch = 2\n')
    base = ("--machine", "box", "--env", "existing", "--devices", "1")
    done = bench_runner(tree, "run", "--profile", str(tree / "broken.toml"), *base)
    assert done.returncode == 3, done.stderr
    assert "the data is gone" in done.stderr
    assert "Traceback" not in done.stderr
    records, _ = read_tree(tree / "results" / "box" / "runs")
    failed = [record for record in records if record.outcome == "failed"]
    assert failed
    assert all(record.reason and "the data is gone" in record.reason for record in failed)
    assert all(record.traceback and "broken.py" in record.traceback for record in failed)
    stored = asv_results(tree)["training.Training.track_throughput"]
    assert None in stored["result"]


@pytest.mark.slow
def test_asv_run_by_hand(tree: Path) -> None:
    (tree / "quick.toml").write_text(PROFILE)
    variables = {**environment(tree), "BENCH_RUNNER_PROFILE": str(tree / "tiny.toml")}
    common = {"cwd": tree, "env": variables, "capture_output": True, "text": True, "timeout": 280}
    named = subprocess.run([sys.executable, "-m", "asv", "machine", "--yes", "--machine", "box"], **common)
    assert named.returncode == 0, named.stderr
    done = subprocess.run(
        [
            *(sys.executable, "-m", "asv", "run", "-E", "existing", "--set-commit-hash", "HEAD", "--machine", "box"),
            *("--bench", r"^training\..*throughput"),
        ],
        **common,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "n/a" in done.stdout  # skips are skips
    values = [v for v in asv_results(tree)["training.Training.track_throughput"]["result"] if v is not None and v == v]
    assert len(values) == (3 if len(os.sched_getaffinity(0)) > 1 else 2)
    records, _ = read_tree(tree / "results" / "box" / "runs")
    assert {record.machine.name for record in records} == {"box"}


@pytest.mark.slow
def test_the_largest_batch_is_looked_for_under_every_strategy(tree: Path) -> None:
    done = run_tiny(tree, "--devices", "1", "--find-batch", "--largest-batch", "64")
    assert done.returncode == 0, done.stderr
    records, _ = read_tree(tree / "results" / "box" / "runs")
    found = {r.spec.strategy: [rank.largest_batch for rank in r.ranks] for r in records if r.outcome == "ok"}
    assert found == {"single": [64], "ddp": [64]}
    assert "64" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--profile", "fast"), "profile fast: there is quick, standard, full, or name a .toml file"),
        (("--env", "conda"), "--env conda: must be one of auto, locked, existing"),
        (("--port", "0"), "port = 0: must be from 1 to 65535"),
        (("--launches", "0"), "launches = 0: must be from 1 to 1000"),
        (("--devices", "0"), "devices = 0"),
        (("--devices", "-1"), "devices = '-1'"),
        (("--devices", "x"), "devices = 'x'"),
        (("--device", "cuda"), "cuda"),
        (("--device", "tpu"), "device tpu: must be one of"),
        (("--machine", "../up", "--env", "existing"), "--machine ../up: must be letters"),
        (("--no-such-option",), "No such option: --no-such-option"),
        (("--python", "/nowhere/python"), "/nowhere/python"),
    ],
)
def test_bad_input_is_one_line_and_the_right_exit_code(tree: Path, arguments: tuple[str, ...], message: str) -> None:
    done = bench_runner(tree, "run", *arguments)
    assert done.returncode in (2, 3), done.stderr
    assert message in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("bench-runner: error: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_busy_port_is_named(tree: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run_tiny(tree, "--port", str(port))
    assert done.returncode == 3, done.stderr
    assert str(port) in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("bench-runner: error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_ends_the_run_with_one_line_and_keeps_what_there_was(tree: Path) -> None:
    runs = tree / "results" / "box" / "runs"
    runs.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(runs)], check=False)
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        done = run_tiny(tree, "--devices", "1")
        assert done.returncode == 3, done.stderr
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("bench-runner: error: ")
        assert "No space left on device" in last
        assert "Traceback" not in done.stderr
        assert left_behind(tree) == []
        records, problems = read_tree(runs)
        assert problems == []  # whole files or none
        assert all(record.outcome in ("skipped", "ok") for record in records)
    finally:
        subprocess.run(["umount", str(runs)], check=True)


@pytest.mark.slow
def test_results_that_cannot_be_written_are_one_line(tree: Path) -> None:
    runs = tree / "results" / "box" / "runs"
    runs.parent.mkdir(parents=True)
    runs.write_text("a file where the folder should be")
    done = run_tiny(tree, "--devices", "1")
    assert done.returncode == 3, done.stderr
    assert str(runs) in done.stderr
    assert "Traceback" not in done.stderr
    assert left_behind(tree) == []
