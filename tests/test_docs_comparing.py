"""docs/comparing.md held to the code: its commands exist, with the options it names; its sample of a table is real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench_runner.cli import main
from bench_runner.report.comparison import COLUMNS

TEXT = (Path(__file__).parent.parent / "docs" / "comparing.md").read_text(encoding="utf-8")
COMMANDS = sorted({line.strip() for line in TEXT.splitlines() if line.startswith("    bench-runner ")})


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_their_options_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.split()[1:]
    name = words[:2] if words[0] == "baseline" else words[:1]
    assert main([*name, "--help"]) == 0
    shown = capsys.readouterr().out
    for option in re.findall(r"--[a-z-]+", command):
        assert option in shown


def test_the_sample_table_has_the_columns_of_the_real_one() -> None:
    (heading,) = [line for line in TEXT.splitlines() if line.startswith("    metric ")]
    assert re.split(r"\s{2,}| (?=candidate|change|sees|verdict)", heading.strip()) == list(COLUMNS)
