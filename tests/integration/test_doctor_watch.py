"""``doctor watch`` over real processes: plain ones, and every faulty trainer under gloo."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench_runner.processes import processes_of_launch, read_process

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests" / "faulty"
MARK = "BENCH_RUNNER_LAUNCH_ID"  # every process of a job inherits it, so that those left behind can be found


@contextmanager
def job_environment(**more: str) -> Iterator[dict[str, str]]:
    """An environment whose processes are counted, and ended, when the test is over."""
    mark = f"doctor-watch-{os.getpid()}-{time.monotonic_ns()}"
    yield {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: mark, **more}
    left = processes_of_launch(mark)
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    assert left == [], "the watch left processes behind"


def watch(environment: dict[str, str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "bench_runner", "doctor", "watch", "--json", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
        cwd=FAULTY,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_job_that_ends_well_has_its_output_passed_on() -> None:
    with job_environment() as environment:
        code, document, said = watch(environment, "--", *python("print('hello'); print('loss: 0.5')"))
    assert (code, document["fault"], document["details"]["ended"]) == (0, None, "exit")
    assert "hello\nloss: 0.5\n" in said


def test_job_that_fails_without_a_word() -> None:
    with job_environment() as environment:
        code, document, _ = watch(environment, "--", *python("raise SystemExit(7)"))
    assert (code, document["fault"], document["details"]["exit_code"]) == (1, "rank-died", 7)
    (finding,) = document["findings"]
    assert "leaves with 7" in finding["remedy"]
    assert (finding["actual"], finding["evidence"][-1]) == ("exit code 7", "the job wrote nothing")


@pytest.mark.parametrize("method", ["py-spy", "faulthandler"])
def test_standstill_is_ended_with_stacks_and_the_job_killed_on_request(method: str, tmp_path: Path) -> None:
    program = tmp_path / "wait.py"
    program.write_text("import threading\ndef wait_for_ever():\n    threading.Event().wait()\nwait_for_ever()\n")
    with job_environment() as environment:
        arguments = ["--quiet", "2", "--kill", "--stacks", method, "--", sys.executable, str(program)]
        code, document, _ = watch(environment, *arguments)
    assert (code, document["fault"]) == (1, "hang-unexplained")
    assert document["details"]["killed"]
    (rank,) = document["details"]["ranks"]
    if method == "py-spy" and not rank["stack"]:
        assert any("py-spy" in line for line in document["findings"][0]["evidence"])  # not allowed here, and it says so
    else:
        assert any("wait_for_ever" in line for line in rank["stack"])


def test_hanging_job_is_left_alone_and_can_be_watched_by_its_pid(tmp_path: Path) -> None:
    with job_environment() as environment:
        output = tmp_path / "job.log"
        arguments = ["--quiet", "2", "--output", str(output), "--", *python("import time; time.sleep(600)")]
        _, document, _ = watch(environment, *arguments)
        pid = document["details"]["ranks"][0]["pid"]
        process = read_process(pid)
        assert process is not None
        assert not process.gone
        assert document["details"]["output"] == str(output)
        code, again, _ = watch(environment, "--quiet", "2", "--kill", "--pid", str(pid))
        assert (code, again["details"]["ended"]) == (1, "hang")


def test_busy_job_does_not_hang_and_the_watch_ends_by_its_own_time() -> None:
    with job_environment() as environment:
        arguments = ["--quiet", "2", "--max-seconds", "5", "--kill", "--", *python("while True: sum(range(1000))")]
        code, document, _ = watch(environment, *arguments)
    assert (code, document["verdict"], document["details"]["ended"]) == (0, "pass", "time-up")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_interrupt_and_termination_end_the_job_too(number: int, code: int) -> None:
    with job_environment() as environment:
        arguments = ["-m", "bench_runner", "doctor", "watch", "--", *python("import time; time.sleep(600)")]
        process = subprocess.Popen([sys.executable, *arguments], env=environment, stderr=subprocess.DEVNULL)
        ends = time.monotonic() + 30
        while len(processes_of_launch(environment[MARK])) < 2 and time.monotonic() < ends:
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(60) == code


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--", "/no/such/program"], 3, "/no/such/program"),
        ([], 2, "name either a command"),
        (["--pid", "999999999"], 2, "no such process"),
        (["--stacks", "gdb", "--", "true"], 2, "stacks"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], code: int, word: str) -> None:
    with job_environment() as environment:
        result, document, said = watch(environment, *arguments)
    assert result == code
    assert document["schema"] == "bench-runner/error/1"
    assert word in said
    assert said.count("\n") == 1


def trainer(name: str, ranks: int = 2) -> list[str]:
    """The command of a trainer: torchrun, or Python for those that start their own ranks."""
    if name in ("port_taken", "rank_missing"):
        return [sys.executable, f"{name}.py"]
    options = ["--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return [sys.executable, "-m", "torch.distributed.run", *options, "--local-addr", "127.0.0.1", f"{name}.py"]


VERDICTS = {
    "healthy": None,
    "no_set_epoch": None,  # nothing to see from outside: `doctor loader` finds it
    "uneven_loader": "uneven-batches",
    "uneven_then_exit": "uneven-batches",
    "uneven_then_validation": "uneven-batches",
    "rank0_barrier": "rank-0-only-collective",
    "rank_dies": "rank-died",
    "rank_killed": "rank-died",
    "rank_missing": "rank-missing",
    "checkpoint_device0": "checkpoint-device",
    "unused_parameters": "unused-parameters",
    "port_taken": "port-taken",
    "loader_stuck": "loader-stuck",
    "nan_on_one_rank": "loss-not-finite",
    "different_model": "different-model",
    "straggler": "straggler",
}


def test_every_faulty_trainer_is_run() -> None:
    assert {path.stem for path in FAULTY.glob("*.py")} == {*VERDICTS, "loaders", "workloads"}


@pytest.mark.slow
@pytest.mark.parametrize("name", VERDICTS)
def test_trainer_gets_its_verdict(name: str, tmp_path: Path) -> None:
    more = {"CHECKPOINT": str(tmp_path / "device0.pt")}
    if name == "checkpoint_device0":
        torch = pytest.importorskip("torch")
        from tests.integration.checkpoints import on_device

        on_device(tmp_path / "device0.pt", torch.nn.Linear(8, 1).state_dict())
    with socket.socket() as taken, socket.socket() as free, job_environment(**more) as environment:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))  # bound and not listening: nobody is given it, and torch can take it
        environment |= {"TAKEN_PORT": str(taken.getsockname()[1]), "FREE_PORT": str(free.getsockname()[1])}
        code, document, said = watch(environment, "--quiet", "8", "--kill", "--", *trainer(name))
    assert document["fault"] == VERDICTS[name], said
    assert code == (0 if VERDICTS[name] is None else 1)
    if name in ("uneven_loader", "rank0_barrier"):
        torch_core = pytest.importorskip("torch._C._distributed_c10d")
        recorded = [line for line in document["findings"][0]["evidence"] if line.startswith("flight recorder: rank")]
        assert len(recorded) == (2 if hasattr(torch_core, "_dump_fr_trace_json") else 0)


@pytest.mark.slow
def test_trainer_of_four_ranks_gets_its_verdict() -> None:
    with job_environment() as environment:
        arguments = ["--quiet", "10", "--kill", "--", *trainer("rank0_barrier", ranks=4)]
        code, document, said = watch(environment, *arguments)
    assert (code, document["fault"]) == (1, "rank-0-only-collective"), said
    assert "rank 0 waits" in document["findings"][0]["message"]
    assert document["details"]["world_size"] == 4
    assert [rank["rank"] for rank in document["details"]["ranks"]] == [0, 1, 2, 3]
