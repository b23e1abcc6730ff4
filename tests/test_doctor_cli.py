"""The doctor's commands as a user calls them."""

import json
from pathlib import Path

import jsonschema
import pytest

from bench_runner.cli import main

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "schemas" / "doctor-1.json").read_text())
LOGS = Path(__file__).parent / "data" / "doctor" / "logs"


def test_log_with_a_fault_exits_with_1_and_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "log", str(LOGS / "rank_dies.log"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["fault"] == "rank-died"


def test_healthy_log_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "log", str(LOGS / "healthy.log")]) == 0
    assert "verdict: pass" in capsys.readouterr().out


def test_log_that_is_not_there_exits_with_2_and_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "log", str(tmp_path / "no.log")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "no.log" in captured.err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "log", "--help"]) == 0
    assert "Example: bench-runner doctor log" in capsys.readouterr().out
