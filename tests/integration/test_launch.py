"""Launches with real processes that die, hang, flood and run away: what is kept, what is said, and none is left."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench_runner.errors import LaunchError
from bench_runner.launch import PACKAGE_ROOT, LaunchPlan, run
from bench_runner.launch_verdict import CaseResult
from bench_runner.processes import processes_of_launch
from tests.integration.launching import STANDINS, Fault, eventually, left, make_plan, said


@pytest.fixture(autouse=True)
def standins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STANDINS))


def carry_out(plan: LaunchPlan) -> tuple[CaseResult, ...]:
    results = run(plan)
    assert left(plan) == []
    assert [result.spec for result in results] == list(plan.specs)
    return results


def test_a_good_launch_gives_every_ranks_samples_in_order(tmp_path: Path) -> None:
    first, second = carry_out(make_plan(tmp_path, []))
    assert (first.outcome, second.outcome) == ("ok", "ok")
    assert [sample["rank"] for sample in first.ranks] == [0, 1]
    assert first.ranks[0]["pid"] == second.ranks[0]["pid"], "one launch serves all cases"
    assert first.ranks[0]["threads"] == "1"
    assert first.runtime == {"rank": 0}
    assert (first.warnings, second.warnings) == (("warm",), ())
    assert first.started_at <= second.started_at
    assert first.started_at.endswith("+00:00")


@pytest.mark.parametrize(
    ("fault", "failure", "reason"),
    [
        ("sigkill", "signal", "rank 1 was killed by SIGKILL"),
        ("segfault", "signal", "rank 1 was killed by SIGSEGV"),
        ("quit_with_3", "exit", "rank 1 exited with code 3"),
        ("quit_with_0", "exit", "rank 1 ended without a result"),
        ("raise_error", "exception", "rank 1: ValueError: no such batch"),
        ("uncaught", "exception", "rank 1: ValueError: not caught by the worker"),
        ("out_of_memory", "out-of-memory", "rank 1: out of memory: tried to allocate 2 GiB"),
    ],
)
def test_a_rank_that_dies_fails_its_case_and_the_others_are_measured(
    tmp_path: Path, fault: str, failure: str, reason: str
) -> None:
    first, second, third = carry_out(make_plan(tmp_path, [(1, "case-1", fault)], cases=3))
    assert first.outcome == "ok"
    assert third.outcome == "ok"
    assert first.ranks[0]["pid"] != third.ranks[0]["pid"], "the third came from another launch"
    assert (second.outcome, second.failure, second.failed_rank) == ("failed", failure, 1)
    assert second.reason is not None
    assert second.reason.startswith(reason)
    if fault == "segfault":
        assert second.traceback is not None
        assert "string_at" in second.traceback


@pytest.mark.parametrize("fault", ["sigkill", "quit_with_3", "raise_error"])
def test_torn_connections_of_the_others_are_not_the_cause(tmp_path: Path, fault: str) -> None:
    faults: list[Fault] = [(1, "case-0", fault), (0, "case-0", "echo")]
    (only,) = carry_out(make_plan(tmp_path, faults, cases=1))
    assert only.failed_rank == 1
    assert "Connection closed" not in str(only.reason)


@pytest.mark.parametrize(
    ("fault", "failure", "reason"),
    [
        ("sigkill", "signal", "rank 0 was killed by SIGKILL"),
        ("segfault", "signal", "rank 0 was killed by SIGSEGV"),
        ("quit_with_3", "exit", "rank 0 exited with code 3"),
        ("quit_with_0", "exit", "rank 0 ended without a result"),
        ("raise_error", "exception", "rank 0: ValueError: no such batch"),
        ("uncaught", "exception", "rank 0: ValueError: not caught by the worker"),
        ("runaway_and_hang", "deadline", "the deadline passed after 2 s (rank 0: carrying out the case)"),
    ],
)
def test_a_worker_alone_is_watched_like_any_other(tmp_path: Path, fault: str, failure: str, reason: str) -> None:
    faults: list[Fault] = [(0, "case-1", fault)]
    if fault == "sigkill":
        faults.append((0, "leaving", "deaf"))
    limits = {"case_deadline_seconds": 2.0, "teardown_deadline_seconds": 0.5}
    plan = make_plan(tmp_path, faults, cases=3, ranks=1, strategy="single", **limits)
    first, second, third = carry_out(plan)
    assert (first.outcome, third.outcome) == ("ok", "ok")
    assert (second.failure, second.failed_rank) == (failure, 0)
    assert str(second.reason).startswith(reason)
    if fault in ("segfault", "runaway_and_hang"):
        assert ("string_at" if fault == "segfault" else "in hang") in str(second.traceback)


def test_a_failure_before_any_case_fails_all_of_them_at_once(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, [(0, "joining", "raise_error")], cases=3)
    results = carry_out(plan)
    assert {result.outcome for result in results} == {"failed"}
    assert len({result.reason for result in results}) == 1
    assert not list(plan.directory.glob("from-case-*")), "another try would end alike"


def test_a_rank_that_never_joins_is_named_with_what_it_did_last(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, [(1, "started", "hang")], startup_deadline_seconds=5.0)
    results = carry_out(plan)
    assert {(result.outcome, result.failure, result.failed_rank) for result in results} == {
        ("timeout", "missing-rank", 1)
    }
    expected = "rank 1 of 2 never joined the process group within 5 s (last seen: importing torch)"
    assert results[0].reason == expected


SLOW = pytest.mark.slow  # seconds of waiting for deadlines; a quicker sibling stays in the quick tests


@pytest.mark.parametrize(
    "fault", [pytest.param("hang", marks=SLOW), pytest.param("deaf", marks=SLOW), "runaway_and_hang"]
)
def test_a_hang_in_a_case_meets_its_deadline_and_shows_the_stack(tmp_path: Path, fault: str) -> None:
    plan = make_plan(tmp_path, [(1, "case-1", fault)], cases=3, case_deadline_seconds=2.5)
    first, second, third = carry_out(plan)
    assert (first.outcome, third.outcome) == ("ok", "ok")
    assert (second.outcome, second.failure, second.failed_rank) == ("timeout", "deadline", 1)
    assert "rank 0: has its result" in str(second.reason) or "rank 0: leaving" in str(second.reason)
    assert "rank 1: carrying out the case" in str(second.reason)
    assert "in hang" in str(second.traceback)


def test_a_hang_after_the_last_result_costs_no_result(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, [(1, "leaving", "deaf")], teardown_deadline_seconds=1.0)
    first, second = carry_out(plan)
    assert (first.outcome, second.outcome) == ("ok", "ok")
    assert any("had not ended" in warning for warning in second.warnings)


def test_a_runaway_grandchild_in_a_session_of_its_own_is_ended(tmp_path: Path) -> None:
    first, second = carry_out(make_plan(tmp_path, [(0, "case-0", "runaway")]))
    assert (first.outcome, first.failure) == ("failed", "signal")
    assert second.outcome == "ok"


def test_a_second_failure_in_the_relaunch_is_kept_apart(tmp_path: Path) -> None:
    faults: list[Fault] = [(0, "case-0", "raise_error"), (1, "case-2", "hang")]
    results = carry_out(make_plan(tmp_path, faults, cases=4, case_deadline_seconds=2.5))
    assert [result.outcome for result in results] == ["failed", "ok", "timeout", "ok"]
    assert [result.failed_rank for result in results] == [0, None, 1, None]


@pytest.mark.parametrize("moment", ["case-0", "after-0"])
def test_a_line_cut_off_by_death_costs_only_itself(tmp_path: Path, moment: str) -> None:
    results = carry_out(make_plan(tmp_path, [(1, moment, "cut_line")]))
    assert [result.outcome for result in results] == (["failed", "ok"] if moment == "case-0" else ["ok", "failed"])
    assert any("unreadable" in warning for result in results for warning in result.warnings)


def test_garbage_in_a_ranks_file_is_counted_and_passed_over(tmp_path: Path) -> None:
    first, _second = carry_out(make_plan(tmp_path, [(0, "case-0", "garbage")]))
    assert first.outcome == "ok"
    assert "rank 0: 4 unreadable lines in its file" in first.warnings


def test_huge_output_goes_to_files_and_is_read_from_the_end(tmp_path: Path) -> None:
    faults: list[Fault] = [(1, "case-0", "flood"), (1, "case-1", "uncaught")]
    first, second = carry_out(make_plan(tmp_path, faults))
    assert first.outcome == "ok"
    assert second.reason == "rank 1: ValueError: not caught by the worker"


def test_a_busy_port_is_named_with_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        plan = make_plan(tmp_path, [], port=port)
        with pytest.raises(LaunchError, match=rf"port = {port}: Address already in use by .* \(pid {os.getpid()}\)"):
            run(plan)
    assert left(plan) == []


def test_a_free_port_that_was_asked_for_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    plan = make_plan(tmp_path, [], port=port)
    assert {result.outcome for result in carry_out(plan)} == {"ok"}


def test_a_python_without_torch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty" / "torch"
    empty.mkdir(parents=True)
    (empty / "__init__.py").write_text("raise ImportError('no torch to be found')\n")
    monkeypatch.setenv("PYTHONPATH", str(empty.parent))
    results = carry_out(make_plan(tmp_path, []))
    assert {(result.outcome, result.failure) for result in results} == {("failed", "not-started")}
    assert "no torch to be found" in str(results[0].reason)


def test_a_python_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="not an executable file"):
        run(make_plan(tmp_path, [], python=str(tmp_path / "python")))


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="cannot be written"):
        run(make_plan(tmp_path / "file", []))


def test_a_directory_that_has_been_used_is_refused(tmp_path: Path) -> None:
    carry_out(make_plan(tmp_path, []))
    with pytest.raises(LaunchError, match="holds another launch's files"):
        run(make_plan(tmp_path, []))


def start_launch(tmp_path: Path, faults: str) -> tuple[subprocess.Popen[str], str]:
    launch_id = uuid.uuid4().hex
    variables = {**os.environ, "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{STANDINS}"}
    script = Path(__file__).with_name("launch_and_report.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), launch_id, faults],
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    )
    return process, launch_id


HANGS = '[["all", "case-0", "runaway_and_hang"]]'


def test_nothing_is_left_when_the_caller_is_killed(tmp_path: Path) -> None:
    process, launch_id = start_launch(tmp_path, HANGS)
    eventually(lambda: len(processes_of_launch(launch_id)) >= 6)
    process.kill()
    process.communicate()
    eventually(lambda: not processes_of_launch(launch_id))


def test_nothing_is_left_when_caller_and_supervisor_are_killed_together(tmp_path: Path) -> None:
    process, launch_id = start_launch(tmp_path, '[["all", "case-0", "hang"]]')
    eventually(lambda: all(said(tmp_path / "launch", rank, "case") for rank in (0, 1)))
    (supervisor,) = [one for one in processes_of_launch(launch_id) if one.parent == process.pid]
    process.send_signal(signal.SIGSTOP)  # so that it cannot clean up between the two
    os.kill(supervisor.pid, signal.SIGKILL)
    process.kill()
    process.communicate()
    eventually(lambda: not processes_of_launch(launch_id))


def test_the_workers_hold_no_pipe_of_the_caller(tmp_path: Path) -> None:
    process, launch_id = start_launch(tmp_path, HANGS)
    assert process.stdout is not None
    pipe = f"pipe:[{os.fstat(process.stdout.fileno()).st_ino}]"
    running = eventually(lambda: found if len(found := processes_of_launch(launch_id)) >= 6 else [])
    held = [str(link.readlink()) for one in running for link in Path(f"/proc/{one.pid}/fd").iterdir()]
    assert held
    assert pipe not in held
    process.kill()
    process.communicate()
    eventually(lambda: not processes_of_launch(launch_id))


@pytest.mark.parametrize(
    ("number", "state", "faults"),
    [
        (signal.SIGINT, None, "[]"),
        (signal.SIGINT, "started", '[["all", "started", "hang"]]'),
        (signal.SIGINT, "case", HANGS),
        pytest.param(signal.SIGINT, "leaving", '[["all", "leaving", "deaf"]]', marks=SLOW),
        (signal.SIGTERM, "case", HANGS),
        pytest.param(signal.SIGHUP, "case", HANGS, marks=SLOW),
    ],
)
def test_an_interrupt_ends_every_process_and_then_the_caller(
    tmp_path: Path, number: signal.Signals, state: str | None, faults: str
) -> None:
    process, launch_id = start_launch(tmp_path, faults)
    if state is None:
        eventually(lambda: processes_of_launch(launch_id))
    else:
        eventually(lambda: all(said(tmp_path / "launch", rank, state) for rank in (0, 1)))
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert processes_of_launch(launch_id) == []
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert output.startswith("interrupted ")
    else:
        assert (output, process.returncode) == ("", -number)


def test_an_interrupt_keeps_what_is_complete(tmp_path: Path) -> None:
    process, launch_id = start_launch(tmp_path, '[["all", "case-1", "hang"]]')
    eventually(lambda: said(tmp_path / "launch", 0, "case", 1))
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == ("interrupted ['ok']\n", 130)
    assert processes_of_launch(launch_id) == []


def test_results_are_handed_over_in_order(tmp_path: Path) -> None:
    kept: list[CaseResult] = []
    plan = make_plan(tmp_path, [(0, "case-1", "raise_error")], cases=3)
    assert run(plan, kept.append) == tuple(kept)


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, [("all", "case-0", "runaway_and_hang")], cases=1)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, plan)
        eventually(lambda: len(left(plan)) >= 6)
        supervisors = [one for one in left(plan) if one.parent == os.getpid()]
        assert len(supervisors) == 1
        os.kill(supervisors[0].pid, signal.SIGKILL)
        (only,) = future.result(timeout=60)
    assert left(plan) == []
    assert (only.outcome, only.failure) == ("failed", "signal")
    assert only.reason == "the supervisor of the workers was killed"


def test_a_supervisor_that_cannot_write_its_result_says_so(tmp_path: Path) -> None:
    (tmp_path / "launch" / "supervisor.json").mkdir(parents=True)
    first, second = carry_out(make_plan(tmp_path, [(1, "case-1", "quit_with_0")]))
    assert first.outcome == "ok"
    assert str(second.reason).startswith("the supervisor of the workers failed: IsADirectoryError")


@SLOW
def test_a_kernel_without_process_descriptors_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    results = carry_out(make_plan(tmp_path, [(1, "case-1", "deaf")], case_deadline_seconds=2.0))
    assert [result.outcome for result in results] == ["ok", "timeout"]
