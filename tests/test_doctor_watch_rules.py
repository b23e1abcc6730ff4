"""Telling the faults of a watched job apart, over made-up outcomes; and the reading of stacks and processes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.doctor.document import fault_of
from bench_runner.doctor.dump import Stack, may_trace, parse_faulthandler, parse_py_spy
from bench_runner.doctor.job import RankProcess, Seen, find_ranks
from bench_runner.doctor.logfile import text_log
from bench_runner.doctor.logs import summarise
from bench_runner.doctor.stacks import Frame, enclosing_loops, rank_guard, wait_of
from bench_runner.doctor.watch import WatchOutcome, WatchPlan
from bench_runner.doctor.watch_rules import judge_watch
from bench_runner.doctor.watching import require_method
from bench_runner.errors import SpecError, UsageError
from bench_runner.finding import Finding
from bench_runner.processes import Process

SITE = "/opt/env/lib/python3.11/site-packages/torch"
PROGRAM = """\
def main():
    for x in train:
        loss(x).backward()
        if rank == 0 and save:
            barrier()
    for x in val:
        all_reduce(x)
    barrier()
    wait_for_file()
"""


def frames(line: int, *library: tuple[str, str]) -> tuple[Frame, ...]:
    """The user's line in train.py, and the library's frames below it, innermost first."""
    inner = tuple(Frame(function=function, file=f"{SITE}/{file}", line=1) for function, file in library)
    return (*inner, Frame(function="main", file="/srv/train.py", line=line))


BACKWARD = frames(3, ("_engine_run_backward", "autograd/graph.py"), ("backward", "autograd/__init__.py"))
GUARDED = frames(5, ("barrier", "distributed/distributed_c10d.py"), ("wrapper", "distributed/c10d_logger.py"))
VALIDATION = frames(7, ("all_reduce", "distributed/distributed_c10d.py"))
AFTER = frames(8, ("barrier", "distributed/distributed_c10d.py"))
LOADER = frames(2, ("Queue.get", "x.py"), ("_MultiProcessingDataLoaderIter._try_get_data", "utils/data/dataloader.py"))
START = frames(
    1, ("barrier", "distributed/distributed_c10d.py"), ("init_process_group", "distributed/distributed_c10d.py")
)
ELSEWHERE = frames(9)


def outcome(
    *stacks: tuple[Frame, ...] | None, ended: str = "hang", code: int | None = None, **states: str
) -> WatchOutcome:
    """``stacks``: one a rank, None for a rank that has gone."""
    ranks = tuple(
        RankProcess(rank=i, pid=100 + i, state=states.get(f"rank{i}", "S" if stack else "X"), helpers=(200 + i,))
        for i, stack in enumerate(stacks)
    )
    return WatchOutcome(
        ended=ended,  # type: ignore[arg-type]
        exit_code=code,
        seconds=99.0,
        quiet_seconds=8.0,
        ranks=ranks,
        world_size=len(stacks),
        stacks={100 + i: Stack(pid=100 + i, frames=stack or ()) for i, stack in enumerate(stacks)}
        | {200: Stack(pid=200, frames=frames(22)), 201: Stack(pid=201, frames=frames(22))},
        output=None,
        method="py-spy",
        root=99,
    )


def judged(result: WatchOutcome, log: str = "") -> list[Finding]:
    return judge_watch(result, summarise([text_log("output", log)]), {"/srv/train.py": PROGRAM})


@pytest.mark.parametrize(
    ("stacks", "fault", "words"),
    [
        ((BACKWARD, AFTER), "uneven-batches", "rank 0 still waits in a step of a loop that rank 1 has left"),
        ((AFTER, BACKWARD), "uneven-batches", "rank 1 still waits"),
        ((BACKWARD, VALIDATION), "uneven-batches", "rank 0 still waits"),
        ((VALIDATION, AFTER), "uneven-batches", "rank 0 still waits"),
        ((BACKWARD, None), "uneven-batches", "rank 1 ended without an error"),
        ((GUARDED, BACKWARD), "rank-0-only-collective", "if rank == 0 and save"),
        ((GUARDED, AFTER), "rank-0-only-collective", "if rank == 0 and save"),
        ((GUARDED, None), "rank-0-only-collective", "if rank == 0 and save"),
        ((BACKWARD, LOADER), "loader-stuck", "rank 1 waits for a data loader"),
        ((START, START), "rank-missing", "the world size is larger"),
        ((BACKWARD, ELSEWHERE), "straggler", "rank 1 is busy with something else"),
        ((START, ELSEWHERE), "straggler", "rank 1 is busy"),
        ((BACKWARD, BACKWARD), "device-or-link", "none is behind"),
        ((AFTER, AFTER, AFTER), "device-or-link", "none is behind"),
        ((ELSEWHERE, ELSEWHERE), "hang-unexplained", "do not say"),
        ((None, None), "hang-unexplained", "do not say"),
    ],
)
def test_where_the_ranks_stand_names_the_fault(
    stacks: tuple[tuple[Frame, ...] | None, ...], fault: str, words: str
) -> None:
    findings = judged(outcome(*stacks))
    assert fault_of(findings) == fault
    assert words in findings[0].message
    assert findings[0].evidence


def test_rank_that_never_came_is_named() -> None:
    result = outcome(START, START)
    absent = judged(WatchOutcome(**{name: getattr(result, name) for name in result.__slots__} | {"world_size": 3}))
    assert "rank 2 did not come" in absent[0].message


def test_loader_worker_line_is_in_the_evidence() -> None:
    findings = judged(outcome(BACKWARD, LOADER))
    assert "rank 1's loader worker: pid 201 at /srv/train.py:22 in main" in findings[0].evidence


def test_stopped_and_blocked_processes_come_before_stacks() -> None:
    assert "is stopped" in judged(outcome(BACKWARD, BACKWARD, rank1="T"))[0].message
    assert fault_of(judged(outcome(BACKWARD, BACKWARD, rank0="D"))) == "device-or-link"


def test_cause_in_the_output_comes_before_stacks() -> None:
    findings = judged(outcome(BACKWARD, BACKWARD), "[rank1]: torch.OutOfMemoryError: CUDA out of memory.")
    assert fault_of(findings) == "out-of-memory"


@pytest.mark.parametrize(
    ("code", "log", "fault"),
    [
        (0, "step 1 loss 0.5", None),
        (0, "step 1 loss: nan", "loss-not-finite"),
        (0, "Connection closed by peer, retrying", None),
        (None, "", None),
        (1, "no word", "rank-died"),
        (-9, "", "rank-died"),
        (1, "[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'x'", "rank-died"),
        (1, "EADDRINUSE", "port-taken"),
    ],
)
def test_job_that_ended(code: int | None, log: str, fault: str | None) -> None:
    assert fault_of(judged(outcome(ended="exit", code=code), log)) == fault


def test_time_that_is_up_is_no_fault() -> None:
    findings = judged(outcome(BACKWARD, ended="time-up"))
    assert [finding.status for finding in findings] == ["skip"]


def test_outermost_known_call_decides() -> None:
    assert wait_of(START).kind == "process-group"
    assert wait_of(GUARDED).kind == "barrier"
    assert wait_of(()).place is None


def test_blocks_of_a_program() -> None:
    assert rank_guard(PROGRAM, 5) == "rank == 0 and save"
    assert rank_guard(PROGRAM, 3) is None
    assert rank_guard("if self.is_main_process():\n    barrier()\nelse:\n    other()", 2) is not None
    assert rank_guard("if self.is_main_process():\n    barrier()\nelse:\n    other()", 4) is None
    assert enclosing_loops(PROGRAM, 5) == ((2, 5),)
    assert enclosing_loops(PROGRAM, 8) == ()


@given(st.text(max_size=200), st.integers(-3, 50))
def test_any_text_as_a_program(source: str, line: int) -> None:
    rank_guard(source, line)
    assert isinstance(enclosing_loops(source, line), tuple)


def process(pid: int, parent: int, *arguments: str, started: int = 0, **environment: str) -> Seen:
    return Seen(
        process=Process(pid, parent, "python", "S", started or pid), environment=environment, arguments=arguments
    )


def test_ranks_by_environment_with_helpers_below_them() -> None:
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    job = find_ranks(
        [
            process(1, 0),
            process(12, 1, RANK="1", **variables),
            process(11, 1, RANK="0", **variables),
            process(20, 11, RANK="0", **variables),
            process(21, 20, RANK="0", **variables),
        ]
    )
    assert [(rank.rank, rank.pid, rank.helpers) for rank in job.ranks] == [(0, 11, (20, 21)), (1, 12, ())]
    assert (job.world_size, job.all_here) == (2, True)


def test_one_node_of_several_knows_that_ranks_are_elsewhere() -> None:
    job = find_ranks([process(1, 0), process(2, 1, RANK="4", WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")])
    assert (job.world_size, job.all_here) == (4, False)


def test_spawned_ranks_by_their_order_and_a_single_process() -> None:
    spawn = "from multiprocessing.spawn import spawn_main; spawn_main(5)"
    job = find_ranks([process(1, 0), process(9, 1, spawn, started=1), process(3, 1, spawn, started=2), process(4, 1)])
    assert [(rank.rank, rank.pid) for rank in job.ranks] == [(0, 9), (1, 3)]
    assert [rank.pid for rank in find_ranks([process(1, 0), process(2, 1)]).ranks] == [1]
    assert find_ranks([]).ranks == ()


def test_py_spy_document() -> None:
    document = (
        b'[{"os_thread_id": 8, "thread_name": "MainThread", "frames": []}, {"os_thread_id": 7, "frames": '
        b'[{"name": "f", "filename": "/a.py", "line": 3, "module": null}]}]'
    )
    assert parse_py_spy(document, 7) == (Frame(function="f", file="/a.py", line=3),)
    assert parse_py_spy(b"Error: no", 7) == ()


def test_faulthandler_text() -> None:
    text = (
        'Thread 0x7f (most recent call first):\n  File "/t.py", line 1 in wait\n\nCurrent thread 0x7f0 (most recent'
        ' call first):\n  File "/a b.py", line 3 in f\n  File "/m.py", line 9 in <module>\n'
    )
    assert [str(frame) for frame in parse_faulthandler(text)] == ["/a b.py:3 in f", "/m.py:9 in <module>"]
    assert parse_faulthandler("") == ()


@given(st.text(max_size=300))
def test_any_text_as_stacks(text: str) -> None:
    assert isinstance(parse_faulthandler(text), tuple)
    assert isinstance(parse_py_spy(text.encode(), 1), tuple)


def test_who_may_trace() -> None:
    assert may_trace("CapEff:\t000001ffffffffff\n", "1")
    assert not may_trace("CapEff:\t0000000000000000\n", "1\n")
    assert may_trace("CapEff:\t0000000000000000\n", "0\n")


def test_plan_needs_a_command_or_a_pid() -> None:
    with pytest.raises(UsageError, match="name either"):
        WatchPlan()
    with pytest.raises(UsageError, match="name either"):
        WatchPlan(command=("true",), pid=1)
    with pytest.raises(SpecError, match="stacks"):
        require_method("gdb")
    assert require_method("auto") is None


def test_faulty_programs_are_all_there() -> None:
    assert len(list((Path(__file__).parent / "faulty").glob("*.py"))) >= 15
