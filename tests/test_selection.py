from typing import Any

import pytest

from bench_runner.analysis.selection import select, started
from bench_runner.errors import UsageError
from bench_runner.record import RunRecord
from tests import builders


def run(machine: str, session: str, day: int, **changes: Any) -> RunRecord:
    return builders.training_record(
        machine=builders.machine(machine), session_id=session, started_at=f"2026-11-{day:02d}T10:00:00Z", **changes
    )


RECORDS = [run("a", "abc1", 1), run("a", "abd2", 5), run("b", "xyz3", 2), run("a", "abd2", 4)]


def sessions(records: list[RunRecord]) -> list[tuple[str, str]]:
    return [(record.machine.name, record.session_id) for record in records]


def test_last_is_the_newest_session_of_each_machine_with_all_its_records() -> None:
    assert sessions(select(RECORDS, session="last")) == [("a", "abd2"), ("b", "xyz3"), ("a", "abd2")]


def test_all_machines_and_sessions_by_name_and_beginning() -> None:
    assert select(RECORDS) == RECORDS
    assert sessions(select(RECORDS, machines=["b"])) == [("b", "xyz3")]
    assert sessions(select(RECORDS, session="abc1")) == [("a", "abc1")]
    assert sessions(select(RECORDS, session="x")) == [("b", "xyz3")]
    exact = [run("a", "s1", 1), run("a", "s10", 2)]
    assert sessions(select(exact, session="s1")) == [("a", "s1")]


def test_what_is_not_there_is_named_with_what_is() -> None:
    with pytest.raises(UsageError, match=r"machine 'c': no results; there are results of a, b"):
        select(RECORDS, machines=["a", "c"])
    with pytest.raises(UsageError, match=r"session 'ab': several sessions begin so; there are abc1, abd2"):
        select(RECORDS, session="ab")
    with pytest.raises(UsageError, match=r"session 'q': no such session; there are abc1, abd2, xyz3"):
        select(RECORDS, session="q")


def test_times_that_cannot_be_read_are_the_oldest() -> None:
    odd = builders.training_record(started_at="soon")
    naive = builders.training_record(started_at="2026-11-01T10:00:00")
    assert started(odd) < started(naive) == started(RECORDS[0])
