"""What became of each case, from what the ranks said and how the processes ended."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bench_runner.launch_cause import Ending, Exit, exit_of_only_rank, last_line, parse_exits, signal_name, trace_in
from bench_runner.launch_verdict import case_results
from bench_runner.launch_watch import Stop
from bench_runner.rank_files import RankProgress
from bench_runner.spec import RunSpec, Training

# torchrun 2.13 about two ranks, the second killed with SIGKILL, the first in the collective with it; times, host and
# paths replaced.
REPORT = """\
E1130 20:00:00.000000 14424 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: -9) local_rank: 1
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
bench_runner.worker FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-30_20:00:01
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4000)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_20:00:00
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4001)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4001
=======================================================
"""
ECHO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
SPECS = tuple(
    RunSpec(strategy="ddp", device_kind="cpu", device_count=2, task=Training(workload="mlp", batch=n))
    for n in (1, 2, 3)
)


def rank(number: int, *events: dict[str, Any]) -> RankProgress:
    progress = RankProgress(rank=number)
    for event in events:
        progress.take(json.dumps({"at": 100.0, **event}).encode())
    assert progress.unreadable_lines == 0
    return progress


def begun(case: int, at: float = 100.0) -> dict[str, Any]:
    return {"event": "state", "state": "case", "case": case, "at": at}


def result(case: int, at: float = 101.0, **samples: Any) -> dict[str, Any]:
    return {"event": "result", "case": case, "samples": samples, "warnings": [], "at": at}


def error(message: str, at: float = 102.0, failure: str = "exception") -> dict[str, Any]:
    return {"event": "error", "case": 0, "failure": failure, "message": message, "traceback": "T", "at": at}


def ending(**changes: Any) -> Ending:
    supervised = {"reason": "ended", "exit_code": 1, "signal": None, "killed": []}
    fields: dict[str, Any] = {"started": 90.0, "ended": 110.0, "stop": None, "supervised": supervised}
    fields["exits"] = parse_exits(changes.get("agent_log", ""))
    return Ending(**{**fields, "agent_log": "", "rank_logs": {}, **changes})


def test_torchruns_report_is_read_with_the_first_failure_in_front() -> None:
    assert parse_exits(REPORT) == (Exit(rank=1, code=-9, pid=4001), Exit(rank=0, code=1, pid=4000))


def test_settled_cases_carry_their_own_times() -> None:
    ranks = [rank(0, begun(0), result(0, 101.0)), rank(1, begun(0, 100.5), result(0, 103.0))]
    (only,) = case_results(SPECS[:1], 0, ranks, ending())
    assert (only.outcome, only.duration_seconds) == ("ok", 3.0)
    assert only.started_at == "1970-01-01T00:01:40.000+00:00"


def test_a_death_explains_the_torn_connection_of_the_other() -> None:
    ranks = [rank(0, begun(0), error(ECHO)), rank(1, begun(0))]
    (first,) = case_results(SPECS, 0, ranks, ending(agent_log=REPORT))
    assert (first.failure, first.failed_rank) == ("signal", 1)


def test_a_rank_that_somebody_terminated_is_named() -> None:
    ranks = [rank(0, begun(0), error(ECHO)), rank(1, begun(0))]
    (first,) = case_results(SPECS, 0, ranks, ending(agent_log=REPORT.replace(": -9 ", ": -15 ")))
    assert (first.failure, first.failed_rank, first.reason) == ("signal", 1, "rank 1 was killed by SIGTERM")


def test_a_rank_that_somebody_terminated_is_named_when_nobody_said_a_word() -> None:
    log = REPORT.replace(": -9 ", ": -15 ").replace(": 1 (pid", ": -15 (pid")
    (first,) = case_results(SPECS, 0, [rank(0, begun(0)), rank(1, begun(0))], ending(agent_log=log))
    assert first.reason == "rank 1 was killed by SIGTERM"


def test_an_error_of_its_own_comes_before_an_earlier_echo() -> None:
    ranks = [rank(0, begun(0), error(ECHO, 101.0)), rank(1, begun(0), error("ValueError: no", 101.5))]
    (first,) = case_results(SPECS, 0, ranks, ending())
    assert (first.reason, first.failed_rank, first.traceback) == ("rank 1: ValueError: no", 1, "T")


def test_an_echo_without_a_cause_is_all_there_is_to_say() -> None:
    ranks = [rank(0, begun(0), error(ECHO)), rank(1, begun(0))]
    (first,) = case_results(SPECS, 0, ranks, ending())
    assert (first.failure, first.failed_rank) == ("exception", 0)


def test_what_the_supervisor_killed_did_not_die_of_itself() -> None:
    killed = [{"pid": 4001, "name": "python", "signal": "SIGKILL"}]
    supervised = {"reason": "interrupted", "exit_code": 1, "signal": None, "killed": killed}
    ranks = [rank(0, begun(0), error("ValueError: no")), rank(1, begun(0))]
    (first,) = case_results(SPECS, 0, ranks, ending(agent_log=REPORT, supervised=supervised))
    assert first.failed_rank == 0


def test_the_first_of_several_errors_is_the_cause() -> None:
    ranks = [rank(0, begun(0), error("late", 103.0)), rank(1, begun(0), error("early", 102.0, "out-of-memory"))]
    (first,) = case_results(SPECS, 0, ranks, ending())
    assert (first.reason, first.failure) == ("rank 1: early", "out-of-memory")


def test_only_the_case_at_hand_is_lost_once_cases_have_begun() -> None:
    ranks = [rank(n, begun(0), result(0), begun(1), error("no")) for n in (0, 1)]
    assert [one.outcome for one in case_results(SPECS, 0, ranks, ending())] == ["ok", "failed"]
    assert [one.spec for one in case_results(SPECS, 1, ranks, ending())] == [SPECS[1]]


def test_all_cases_are_lost_when_none_had_begun() -> None:
    ranks = [rank(0), rank(1)]
    log = "python: Error while finding module specification for 'torch.distributed.run'\n"
    results = case_results(SPECS, 0, ranks, ending(agent_log=log))
    assert [one.failure for one in results] == ["not-started"] * 3
    assert "Error while finding module specification" in str(results[0].reason)


def test_skipped_by_all_is_a_skip_and_by_some_a_failure() -> None:
    skip = {"event": "skipped", "case": 0, "reason": "torchvision is missing"}
    (only,) = case_results(SPECS[:1], 0, [rank(0, begun(0), skip), rank(1, begun(0), skip)], ending())
    assert (only.outcome, only.reason) == ("skipped", "torchvision is missing")
    (only,) = case_results(SPECS[:1], 0, [rank(0, begun(0), skip), rank(1, begun(0), result(0, rank=1))], ending())
    assert only.outcome == "failed"
    assert only.reason == "1 of 2 ranks measured and the others skipped: torchvision is missing"


def test_samples_of_a_case_that_failed_elsewhere_are_rescued() -> None:
    ranks = [rank(0, begun(0), result(0, rank=0)), rank(1, begun(0))]
    stop = Stop(kind="deadline", case=0, seconds=30.2)
    (first,) = case_results(
        SPECS, 0, ranks, ending(stop=stop, rank_logs={1: "Thread 0x1 (most recent call first):\n x"})
    )
    assert (first.outcome, first.failure, first.failed_rank) == ("timeout", "deadline", 1)
    assert first.reason == ("the deadline passed after 30 s (rank 0: has its result, rank 1: carrying out the case)")
    assert first.ranks == ({"rank": 0},)
    assert first.traceback == "rank 1:\nThread 0x1 (most recent call first):\n x"


def test_those_at_the_door_are_not_the_missing_ones() -> None:
    joining = {"event": "state", "state": "joining", "case": None}
    stop = Stop(kind="missing-rank", case=0, seconds=60.0)
    results = case_results(SPECS, 0, [rank(0, joining), rank(1)], ending(stop=stop))
    assert {one.reason for one in results} == {
        "rank 1 of 2 never joined the process group within 60 s (last seen: starting Python)"
    }
    results = case_results(SPECS, 0, [rank(0, joining), rank(1, joining)], ending(stop=stop))
    assert results[0].reason == (
        "ranks 0, 1 of 2 never joined the process group within 60 s "
        "(last seen: rank 0: joining the process group, rank 1: joining the process group)"
    )


def test_the_agents_own_death_and_the_supervisors_are_told_apart() -> None:
    ranks = [rank(0, begun(0)), rank(1, begun(0))]
    supervised = {"reason": "ended", "exit_code": None, "signal": 9, "killed": []}
    (first,) = case_results(SPECS, 0, ranks, ending(supervised=supervised))
    assert first.reason == "torchrun's agent was killed by SIGKILL"
    (first,) = case_results(SPECS, 0, ranks, ending(supervised=None))
    assert first.reason == "the supervisor of the workers was killed"


def test_the_exit_of_a_worker_without_an_agent_is_the_supervisors_to_tell() -> None:
    assert exit_of_only_rank({"exit_code": 3, "signal": None, "pid": 7}) == (Exit(rank=0, code=3, pid=7),)
    assert exit_of_only_rank({"exit_code": None, "signal": 11, "pid": 7}) == (Exit(rank=0, code=-11, pid=7),)
    assert exit_of_only_rank({"exit_code": None, "signal": None, "pid": None}) == ()
    assert exit_of_only_rank(None) == ()


def test_names_and_lines() -> None:
    assert (signal_name(11), signal_name(200)) == ("SIGSEGV", "signal 200")
    assert last_line("a\nValueError: b\n\n=====\n") == "ValueError: b"
    assert last_line("") == ""
    assert trace_in("noise\nTraceback (most recent call last):\n  x\nE: y\n") == (
        "Traceback (most recent call last):\n  x\nE: y"
    )
    assert trace_in("noise") is None


@given(st.text())
def test_any_log_can_be_read(log: str) -> None:
    ranks = [rank(0, begun(0)), rank(1, begun(0))]
    (first,) = case_results(SPECS, 0, ranks, ending(agent_log=log, rank_logs={0: log, 1: log}))
    assert first.outcome == "failed"
    assert first.reason
    assert "\n" not in first.reason


def test_ranks_with_unlike_versions_are_told() -> None:
    def with_torch(number: int, version: str) -> RankProgress:
        runtime = {"event": "runtime", "runtime": {"torch": version, "cuda": None}}
        return rank(number, runtime, *({"event": "state", "state": "case", "case": 0}, result(0)))

    def warnings_with(*versions: str) -> tuple[str, ...]:
        ranks = [with_torch(number, version) for number, version in enumerate(versions)]
        (only,) = case_results(SPECS[:1], 0, ranks, ending())
        return only.warnings

    assert warnings_with("2.7.1", "2.7.1") == ()
    assert warnings_with("2.7.1", "2.6.0") == ("ranks differ in torch: rank 0 2.7.1, rank 1 2.6.0",)
