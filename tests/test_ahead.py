"""The order of the launches made ahead of asv, and how asv's processes wait for them."""

import fcntl
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench_runner import suite
from bench_runner.ahead import in_asvs_order
from bench_runner.capacity import Capacity, keep_capacity
from bench_runner.machine.gather import describe
from bench_runner.measure import Context
from bench_runner.profile import load

TWO_CORES = Capacity(kind="cpu", count=2, reason="two cores")


def context(folder: Path) -> Context:
    return Context(
        root=folder,
        results=folder / "results",
        session_id="1",
        launch_index=0,
        machine=describe("box"),
        python="/usr/bin/python3",
        capacity=TWO_CORES,
        profile=load("quick"),
    )


def test_launches_with_collectives_come_first_because_asv_sorts_its_benchmarks_by_name(tmp_path: Path) -> None:
    pairs: list[tuple[suite.Strategy, int | str]] = [("single", 1), ("ddp", 1), ("ddp", 2)]
    assert in_asvs_order(context(tmp_path), pairs) == [("ddp", 2), ("single", 1), ("ddp", 1)]


def test_launches_with_checkpoints_come_before_those(tmp_path: Path) -> None:
    pairs: list[tuple[suite.Strategy, int | str]] = [("data_parallel", 1), ("single", 1), ("ddp", 1), ("ddp", 2)]
    standard = replace(context(tmp_path), profile=load("standard"))
    assert in_asvs_order(standard, pairs) == [("single", 1), ("ddp", 1), ("ddp", 2), ("data_parallel", 1)]


def session_with_values(folder: Path) -> suite.Session:
    keep_capacity(folder / suite.CAPACITY_NAME, TWO_CORES)
    session = suite.Session(folder)
    place = session.launch_folder("ddp", 2, 0)
    place.mkdir(parents=True)
    (place / suite.VALUES_NAME).write_text(json.dumps({"mlp": {"outcome": "ok"}}))
    return session


def test_values_that_are_there_are_read_while_the_next_launch_holds_the_lock(tmp_path: Path) -> None:
    session = session_with_values(tmp_path)
    with (tmp_path / suite.LOCK_NAME).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert session.values("ddp", 2) == {"mlp": {"outcome": "ok"}}


def test_who_has_to_wait_says_so_and_goes_on_when_the_values_come_though_the_lock_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "die_with_parent", lambda: None)  # the test runner's parent is nobody's business
    session = session_with_values(tmp_path)
    place = session.launch_folder("ddp", 2, 0)
    hidden = place / "hidden"
    (place / suite.VALUES_NAME).rename(hidden)
    found: list[object] = []
    with (tmp_path / suite.LOCK_NAME).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: found.append(session.values("ddp", 2)))
        waiting.start()
        ends = time.monotonic() + 60
        while not (place / suite.ASKED_NAME).exists() and time.monotonic() < ends:
            time.sleep(0.01)
        assert (place / suite.ASKED_NAME).exists()
        assert not found
        hidden.rename(place / suite.VALUES_NAME)
        waiting.join(60)
    assert found == [{"mlp": {"outcome": "ok"}}]
