"""The supervisor alone: whatever its command does, none of it is left, and the result says what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from bench_runner.launch import PACKAGE_ROOT
from bench_runner.processes import LAUNCH_ID_VARIABLE, processes_of_launch
from tests.integration.launching import eventually

HANG = ["sh", "-c", "sleep 100 & sleep 100"]
DEAF = ["sh", "-c", "trap '' TERM; sleep 100 & wait; sleep 100"]
RUNAWAY = ["sh", "-c", "(setsid sh -c '(trap \"\" TERM; sleep 100; sleep 100) &' &); sleep 0.2"]


def start(
    directory: Path, command: list[str], *, deadline: float = 60.0, launch_id: str = ""
) -> subprocess.Popen[bytes]:
    arguments = ["--parent", os.getpid(), "--deadline", deadline]
    arguments += ["--output", directory / "output", "--result", directory / "result"]
    return subprocess.Popen(
        [sys.executable, "-S", "-m", "bench_runner.supervisor", *map(str, arguments), "--", *command],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), LAUNCH_ID_VARIABLE: launch_id},
    )


def outcome(directory: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.wait(60) == 0
    return json.loads((directory / "result").read_bytes())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["true"], {"reason": "ended", "exit_code": 0, "signal": None, "killed": []}),
        (["sh", "-c", "exit 3"], {"reason": "ended", "exit_code": 3, "signal": None, "killed": []}),
        (["sh", "-c", "kill -SEGV $$"], {"reason": "ended", "exit_code": None, "signal": 11, "killed": []}),
        (["/no/such/program"], {"reason": "not-started", "error": "/no/such/program: No such file or directory"}),
        (["/etc"], {"reason": "not-started", "error": "/etc: Permission denied"}),
    ],
)
def test_the_end_of_the_command_is_told(tmp_path: Path, command: list[str], expected: dict[str, Any]) -> None:
    result = outcome(tmp_path, start(tmp_path, command))
    assert {key: result[key] for key in expected} == expected
    assert (result["schema"], result["left"]) == ("bench-runner/supervised/1", [])


def test_the_command_reads_nothing_and_writes_to_its_file(tmp_path: Path) -> None:
    outcome(
        tmp_path, start(tmp_path, ["sh", "-c", "cat; echo out; echo err >&2; ps -o sid= -p $$ | tr -d ' '; echo $$"])
    )
    *words, session, own = (tmp_path / "output").read_text().split()
    assert words == ["out", "err"]
    assert session == own, "a session of its own"


@pytest.mark.parametrize(("command", "how"), [(HANG, "SIGTERM"), (DEAF, "SIGKILL")])
def test_the_deadline_ends_everything(tmp_path: Path, command: list[str], how: str) -> None:
    launch_id = uuid.uuid4().hex
    result = outcome(tmp_path, start(tmp_path, command, deadline=0.5, launch_id=launch_id))
    assert processes_of_launch(launch_id) == []
    assert result["reason"] == "deadline"
    assert how in {killed["signal"] for killed in result["killed"]}


def test_what_a_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    launch_id = uuid.uuid4().hex
    result = outcome(tmp_path, start(tmp_path, RUNAWAY, launch_id=launch_id))
    assert processes_of_launch(launch_id) == []
    assert (result["reason"], result["exit_code"]) == ("ended", 0)
    assert result["killed"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_everything_and_is_named(tmp_path: Path, number: signal.Signals) -> None:
    launch_id = uuid.uuid4().hex
    process = start(tmp_path, DEAF, launch_id=launch_id)
    eventually(lambda: len(processes_of_launch(launch_id)) >= 3)
    began = time.monotonic()
    process.send_signal(number)
    result = outcome(tmp_path, process)
    assert processes_of_launch(launch_id) == []
    if number == signal.SIGUSR1:
        assert (result["reason"], result["interrupted_by"]) == ("done", None)
        assert {killed["signal"] for killed in result["killed"]} == {"SIGKILL"}
    else:
        assert (result["reason"], result["interrupted_by"]) == ("interrupted", number.name)
    assert result["seconds"] >= 0
    assert time.monotonic() - began < 60


def test_a_stopped_process_is_ended_too(tmp_path: Path) -> None:
    launch_id = uuid.uuid4().hex
    process = start(tmp_path, ["sh", "-c", "sleep 100 & kill -STOP $!; sleep 100"], launch_id=launch_id)
    eventually(lambda: any(one.state == "T" for one in processes_of_launch(launch_id)))
    process.terminate()
    outcome(tmp_path, process)
    assert processes_of_launch(launch_id) == []


def test_a_command_that_forks_on_and_on_is_ended(tmp_path: Path) -> None:
    launch_id = uuid.uuid4().hex
    fork_on = (
        "import os, time\nwhile True:\n    time.sleep(0.02)\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n"
    )
    result = outcome(
        tmp_path, start(tmp_path, [sys.executable, "-S", "-c", fork_on], deadline=0.5, launch_id=launch_id)
    )
    assert processes_of_launch(launch_id) == []
    assert result["left"] == []


def test_a_supervisor_whose_parent_has_gone_runs_nothing_on(tmp_path: Path) -> None:
    """The parent named is not the one it has: it must not wait for a death that has already happened."""
    launch_id = uuid.uuid4().hex
    arguments = ["--parent", "1", "--deadline", "60", "--output", tmp_path / "output", "--result", tmp_path / "result"]
    process = subprocess.Popen(
        [sys.executable, "-S", "-m", "bench_runner.supervisor", *map(str, arguments), "--", *DEAF],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), LAUNCH_ID_VARIABLE: launch_id},
    )
    assert outcome(tmp_path, process)["reason"] == "interrupted"
    assert processes_of_launch(launch_id) == []


def test_it_needs_all_of_its_options(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-S", "-m", "bench_runner.supervisor", "--deadline", "1", "--", "true"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr == "bench_runner.supervisor: missing --output, --parent, --result\n"
