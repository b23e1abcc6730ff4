"""``bench-runner report`` as a user calls it."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench_runner import cli, store
from bench_runner.analysis.frame import load_frame, read_frame
from tests import builders

ROOT = Path(__file__).parents[1]
OLDER = "bench-runner: 1 older session not shown; --session all shows all\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two sessions of the machine ``box`` and one of ``<b>``, which is read with one damaged line when asked for."""
    root = tmp_path / "results"
    old = builders.training_record(session_id="old", seconds=0.2, started_at="2026-10-01T10:00:00Z")
    store.write([old], root, label="x")
    store.write([builders.training_record(session_id="new"), builders.failed_record(session_id="new")], root, label="x")
    store.write([builders.training_record(machine=builders.machine("<b>"))], root, label="x")
    return root


def damage(results: Path) -> tuple[Path, int]:
    """Cut a line off behind the last one of a file; returns the file and the number of that line."""
    path = min((results / "box" / "runs").iterdir())
    sound = path.read_bytes()
    path.write_bytes(sound + b'{"schema": "bench-runner/rec')
    return path, sound.count(b"\n") + 1


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = cli.main(["report", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err.replace(OLDER, "")


def test_default_is_the_newest_session_of_each_machine_as_text(
    capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    code, out, err = run(capsys, "--results", results)
    assert (code, err) == (0, "")
    assert "Machine box" in out
    assert "Machine <b>" in out
    assert "failed 1 ×, DDP on 2 (mlp/fp32/b8): rank 1 raised RuntimeError: boom" in out
    assert out.count("160.0") == 2
    assert "80.00" in out
    assert "2026-10-01" not in out


def test_machine_and_session_narrow_it_down(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    _, out, _ = run(capsys, "--results", results, "--machine", "box", "--session", "old")
    assert "2026-10-01" in out
    assert "Machine <b>" not in out
    _, out, _ = run(capsys, "--results", results, "--machine", "box", "--session", "all")
    assert "3 in 2 sessions" in out


def test_results_may_be_one_file(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    (path,) = (results / store.machine_folder("<b>") / "runs").iterdir()
    code, out, _ = run(capsys, "--results", path)
    assert code == 0
    assert "Machine <b>" in out
    assert "Machine box" not in out


def test_damaged_file_is_named_the_rest_shown_and_the_code_is_2(
    capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    path, line = damage(results)
    code, out, err = run(capsys, "--results", results)
    assert code == 2
    assert f"not read: {path}:{line}: damaged or cut off" in err
    assert "Machine box" in out
    code, out, err = run(capsys, "--results", results, "--json")
    assert code == 2
    (problem,) = json.loads(out)["problems"]
    assert (problem["path"], problem["line"], problem["kind"]) == (str(path), line, "damaged")


@pytest.mark.parametrize("as_json", [False, True])
def test_no_results_is_one_clear_line_and_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, as_json: bool
) -> None:
    for folder, message in ((tmp_path, "no results to report"), (tmp_path / "absent", "no such folder")):
        code, out, err = run(capsys, "--results", folder, *(["--json"] if as_json else []))
        assert code == 2
        assert message in err
        assert err.count("\n") == 1
        assert (json.loads(out)["exit_code"] == 2) if as_json else (out == "")


def test_only_damaged_results_are_named_before_the_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{\n")
    code, _, err = run(capsys, "--results", tmp_path)
    assert code == 2
    assert [line.split(": ")[1] for line in err.splitlines()] == ["not read", "error"]


def test_csv_and_parquet_hold_all_sessions(capsys: pytest.CaptureFixture[str], results: Path, tmp_path: Path) -> None:
    whole = load_frame(results)
    assert set(whole["session_id"]) == {"old", "new", "session-a"}
    code, out, _ = run(capsys, "--results", results, "--format", "csv")
    (tmp_path / "stdout.csv").write_text(out)
    assert code == 0
    pd.testing.assert_frame_equal(read_frame(tmp_path / "stdout.csv", "csv"), whole)
    for name, file_format in (("x.csv", "csv"), ("x.parquet", "parquet")):
        code, out, err = run(capsys, "--results", results, "-o", tmp_path / name)
        assert (code, out) == (0, "")
        assert f"wrote {tmp_path / name}" in err
        pd.testing.assert_frame_equal(read_frame(tmp_path / name, file_format), whole)  # type: ignore[arg-type]


def test_file_name_or_format_decides(capsys: pytest.CaptureFixture[str], results: Path, tmp_path: Path) -> None:
    beginnings = {"x.md": "## ", "x.txt": "Machine ", "x.json": "{", "x.csv": "source,"}
    for name, beginning in beginnings.items():
        assert run(capsys, "--results", results, "-o", tmp_path / name)[0] == 0
        assert (tmp_path / name).read_text().startswith(beginning)
    assert run(capsys, "--results", results, "-o", tmp_path / "x.md", "--format", "text")[0] == 0
    assert (tmp_path / "x.md").read_text().startswith("Machine")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "pdf"], "--format pdf: must be one of text, markdown"),
        (["--format", "parquet"], "--format parquet: needs a file"),
        (["--json", "--format", "csv"], "--json and --format csv: choose one"),
        (["--machine", "nope"], "machine 'nope': no results; there are results of "),
        (["--session", "nope"], "session 'nope': no such session"),
        (["--bad"], "No such option"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], results: Path, arguments: list[str], message: str
) -> None:
    code, _, err = run(capsys, "--results", results, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_output_that_cannot_be_written_leaves_the_old_one(
    capsys: pytest.CaptureFixture[str], results: Path, tmp_path: Path
) -> None:
    code, _, err = run(capsys, "--results", results, "-o", tmp_path / "absent" / "x.md")
    assert code == 3
    assert "cannot be written: No such file or directory" in err
    code, _, err = run(capsys, "--results", results, "-o", tmp_path, "--format", "csv")
    assert code == 3
    assert "is a folder" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]


def test_json_is_the_one_thing_on_standard_output(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    code, out, err = run(capsys, "--results", results, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["schema"] == "bench-runner/report/1"
    assert {row["machine"] for row in document["rows"]} == {"box", "<b>"}
    assert {row["session_id"] for row in document["rows"]} == {"new", "session-a"}


def test_terminal_without_unicode_gets_ascii(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    for file_format in ("text", "markdown", "csv"):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
        monkeypatch.setattr(sys, "stdout", stdout)
        assert cli.main(["report", "--results", str(results), "--format", file_format]) == 0
        assert len(stdout.buffer.getvalue()) > 500  # type: ignore[attr-defined]
        monkeypatch.undo()


def test_program_in_a_process_of_its_own(results: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench_runner", "report", "--results", results],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        cwd=ROOT,
        env={"PYTHONIOENCODING": "utf-8", "PATH": "/usr/bin:/bin"},
    )
    assert (done.returncode, done.stderr.replace(OLDER, "")) == (0, "")
    assert done.stdout.startswith("Machine ")
