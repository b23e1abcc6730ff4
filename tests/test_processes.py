"""The process table, as text and for real."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.processes import (
    LAUNCH_ID_VARIABLE,
    Process,
    descendants,
    parse_stat,
    process_table,
    processes_of_launch,
    rank_processes,
    read_process,
    send_signal,
)

SLEEP = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(100)"]


@given(
    st.text(st.characters(exclude_characters="\n\0"), max_size=15),
    st.integers(min_value=1, max_value=1 << 22),
    st.integers(min_value=0),
)
def test_a_name_may_hold_brackets_and_spaces(name: str, pid: int, ticks: int) -> None:
    stat = f"{pid} ({name}) S 17 " + " ".join(["0"] * 17) + f" {ticks} 0 0\n"
    assert parse_stat(stat) == Process(pid, 17, name, "S", ticks)


def test_descendants_come_parents_first_and_without_strangers() -> None:
    table = [Process(pid, parent, "p", "S", 0) for pid, parent in ((4, 3), (2, 1), (3, 2), (9, 8), (5, 2))]
    assert [process.pid for process in descendants(1, table)] == [2, 3, 5, 4]
    assert descendants(7, table) == []


def test_a_circle_in_a_table_read_while_it_changed_ends() -> None:
    table = [Process(2, 3, "p", "S", 0), Process(3, 2, "p", "S", 0), Process(4, 2, "p", "S", 0)]
    assert {process.pid for process in descendants(2, table)} == {2, 3, 4}


def test_this_process_is_in_the_table() -> None:
    own = read_process(os.getpid())
    assert own is not None
    assert own.parent == os.getppid()
    assert not own.gone
    assert own.pid in {process.pid for process in process_table()}


@pytest.mark.parametrize("rank", [None, "1"])
def test_a_process_is_found_by_its_launch_and_rank(rank: str | None) -> None:
    launch_id = uuid.uuid4().hex
    variables = {LAUNCH_ID_VARIABLE: launch_id, **({"RANK": rank} if rank else {})}
    with subprocess.Popen(SLEEP, env=variables, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (found,) = processes_of_launch(launch_id)
        assert found.pid == child.pid
        assert {number: one.pid for number, one in rank_processes(launch_id).items()} == (
            {1: child.pid} if rank else {}
        )
        assert processes_of_launch(launch_id[:-1]) == []
        assert send_signal(found, signal.SIGKILL)
        child.wait()
        assert child.returncode == -signal.SIGKILL
    assert processes_of_launch(launch_id) == []
    assert not send_signal(found, signal.SIGKILL)


def test_a_later_process_of_the_same_number_is_not_hit() -> None:
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        real = read_process(child.pid)
        assert real is not None
        assert not send_signal(real._replace(started_ticks=real.started_ticks - 1), signal.SIGKILL)
        assert child.poll() is None
        child.kill()


def test_a_kernel_without_process_descriptors_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as child:
        process = read_process(child.pid)
        assert process is not None
        assert send_signal(process, signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
        assert not send_signal(process, signal.SIGKILL)
