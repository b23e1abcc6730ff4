"""What every command owes its caller whatever happens: one line, the right exit code, no traceback, no harm."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bench_runner import cli, store
from bench_runner.cli import output
from bench_runner.report.files import write_text
from tests import builders

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    store.write([builders.training_record()], root, label="x")
    return root


def command(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    fields: dict = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120, "check": False, **more}
    return subprocess.run([sys.executable, "-m", "bench_runner", *arguments], **fields)


def test_a_defect_of_ours_is_one_line_and_never_looks_like_a_finding(monkeypatch, capsys, results):
    monkeypatch.setattr(store, "read_sources", lambda paths: 1 / 0)
    assert cli.main(["report", "--results", str(results), "--json"]) == 3
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("bench-runner: error: internal error: ZeroDivisionError")
    assert json.loads(captured.out)["exit_code"] == 3


@pytest.mark.parametrize(
    "arguments",
    [("report", "-o", ""), ("verify", "--prefix", ""), ("compare", "", "box"), ("run", "--machine=")],
)
def test_an_empty_value_is_refused(arguments, capsys):
    assert cli.main(list(arguments)) == 2
    assert "an empty value; is a shell variable not set?" in capsys.readouterr().err


def test_what_the_encoding_cannot_show_is_escaped(results):
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    done = command("verify", "--only", "environment", "--quick", env=environment)
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
    assert "verdict: " in done.stdout


def test_closed_streams_change_no_exit_code(results):
    code = f"exec {sys.executable} -m bench_runner report --results {results} >&-"
    done = subprocess.run(["sh", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_standard_output_is_one_line(results):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = command(
            "report", "--results", str(results), "--json", capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_link_is_followed_and_a_pipe_is_written_to(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    write_text(link, "first")
    assert link.is_symlink()
    assert target.read_text() == "first"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through")
    assert os.read(reading, 100) == b"through"
    os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_control_characters_of_data_are_shown_and_not_sent(capsys):
    output.note("a\x1b[31mb")
    assert capsys.readouterr().err == "a\\x1b[31mb\n"
