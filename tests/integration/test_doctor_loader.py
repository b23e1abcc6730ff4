"""``doctor loader`` over real processes and real loaders."""

import json
import os
from pathlib import Path

import pytest

from bench_runner.cli import main
from bench_runner.processes import process_table

FAULTY = Path(__file__).parents[1] / "faulty"


def doctor(capsys: pytest.CaptureFixture[str], factory: str, *options: str) -> tuple[int, dict]:
    code = main(["doctor", "loader", f"{FAULTY / factory}", "--json", *options])
    out = capsys.readouterr().out
    mine = [process for process in process_table() if process.parent == os.getpid() and not process.gone]
    assert mine == [], "a process was left"
    return code, json.loads(out)


def test_uneven_loader_is_told_with_its_batch(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = doctor(capsys, "uneven_loader.py:make_loader")
    assert (code, document["fault"]) == (1, "uneven-batches")
    assert document["details"]["batches"] == {"0": [6, 6], "1": [5, 5]}


def test_stream_not_divided_by_its_workers(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = doctor(capsys, "loaders.py:stream_not_divided_by_worker", "--epochs", "1")
    assert (code, document["fault"]) == (1, "duplicated-by-workers")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "code", "fault"),
    [
        ("healthy.py:make_loader", 0, None),
        ("loaders.py:healthy_stream", 0, None),
        ("loaders.py:healthy_own_files", 0, "overlap-unclear"),
        ("loaders.py:not_divided", 1, "overlap"),
        ("loaders.py:raises", 1, "error"),
        ("no_set_epoch.py:make_loader", 0, "same-order"),
    ],
)
def test_loader_gets_its_verdict(
    capsys: pytest.CaptureFixture[str], factory: str, code: int, fault: str | None
) -> None:
    result, document = doctor(capsys, factory)
    assert (result, document["fault"]) == (code, fault)


@pytest.mark.slow
def test_stuck_loader_ends_by_the_deadline_with_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = doctor(capsys, "loaders.py:stuck", "--deadline", "25")
    assert (code, document["fault"]) == (1, "not-finished")
    assert any("loaders.py" in line and "__iter__" in line for line in document["findings"][0]["evidence"])
    assert document["findings"][0]["evidence"][0].startswith("rank 0: 1 batches")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["loader", f"{FAULTY}/no_set_epoch.py:nothing_here"], ("no function nothing_here", "make_loader", "colon")),
        (["loader", f"{FAULTY}/no_set_epoch.py:FAULTY"], ("no_set_epoch", "no function")),
        (["loader", "no_such_module:make"], ("no module no_such_module", "PYTHONPATH")),
        (["loader", "os:getpid", "--world-size", "1"], ("must return a DataLoader",)),
        (["staged", "--workload", "no_such_module:make"], ("no module no_such_module",)),
        (["staged", "--workload", "os:gone"], ("module os", "no function gone")),
        (["staged", "--workload", "perceptron"], ("workload = 'perceptron'",)),
        (["startup", "--workload", "os:gone", "--devices", "1"], ("module os", "no function gone")),
    ],
)
def test_wrong_name_is_one_line_and_no_finding(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: tuple[str, ...]
) -> None:
    code = main(["doctor", *arguments])
    said = capsys.readouterr()
    assert code == 2
    lines = said.err.strip().splitlines()
    assert "Traceback" not in said.err
    assert all(word in lines[-1] for word in words), lines[-1]
    assert said.out == ""


def test_what_the_users_module_raises_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "needs.py").write_text("import not_installed_anywhere\ndef make_loader():\n    return []\n")
    code, document = doctor(capsys, f"{tmp_path}/needs.py:make_loader", "--world-size", "1")
    assert (code, document["fault"]) == (1, "error")
    assert any("not_installed_anywhere" in line for line in document["findings"][0]["evidence"])
