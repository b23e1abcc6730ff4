"""Which Python runs the workers, over stand-ins for interpreters: shell scripts that answer the probe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench_runner import interpreter
from bench_runner.errors import LaunchError
from bench_runner.interpreter import Unsuitable, WorkerPython, find_worker_python, probe


def make_python(directory: Path, answer: str, name: str = "python") -> str:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


WITH_TORCH = """echo '{"python": "3.12.8", "torch": "2.7.1"}'"""
WITHOUT = """echo '{"python": "3.12.8", "torch": null}'"""


@pytest.fixture
def no_torch_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a login node: the running Python has no torch."""
    monkeypatch.setattr(interpreter, "_running", lambda: None)


def test_the_one_that_was_named_is_taken(tmp_path: Path) -> None:
    path = make_python(tmp_path, WITH_TORCH)
    expected = WorkerPython(path=path, python_version="3.12.8", torch_version="2.7.1", source="explicit")
    assert find_worker_python(path, {}) == expected
    assert find_worker_python(None, {"BENCH_RUNNER_PYTHON": path}) == expected
    assert find_worker_python("python", {"PATH": str(tmp_path)}) == expected


def test_one_that_was_named_and_does_not_do_is_an_error_and_nothing_else_is_tried(tmp_path: Path) -> None:
    good = make_python(tmp_path / "bin", WITH_TORCH)
    bad = make_python(tmp_path, WITHOUT)
    with pytest.raises(LaunchError, match=f"python = {bad}: it has no torch"):
        find_worker_python(bad, {"BENCH_RUNNER_PYTHON": good, "VIRTUAL_ENV": str(tmp_path)})
    with pytest.raises(LaunchError, match="BENCH_RUNNER_PYTHON = /no/python: it cannot be started: No such file"):
        find_worker_python(None, {"BENCH_RUNNER_PYTHON": "/no/python"})


@pytest.mark.usefixtures("no_torch_here")
def test_the_active_environment_comes_before_the_path(tmp_path: Path) -> None:
    conda = make_python(tmp_path / "conda" / "bin", WITH_TORCH)
    other = make_python(tmp_path / "path", WITH_TORCH, "python3")
    environ = {"CONDA_PREFIX": str(tmp_path / "conda"), "PATH": str(tmp_path / "path")}
    assert (find_worker_python(None, environ).path, find_worker_python(None, environ).source) == (conda, "environment")
    make_python(tmp_path / "conda" / "bin", WITHOUT)
    assert (find_worker_python(None, environ).path, find_worker_python(None, environ).source) == (other, "path")


@pytest.mark.usefixtures("no_torch_here")
def test_when_there_is_none_all_that_was_tried_is_named_with_the_remedy(tmp_path: Path) -> None:
    bare = make_python(tmp_path, WITHOUT)
    with pytest.raises(LaunchError) as caught:
        find_worker_python(None, {"PATH": str(tmp_path)})
    message = str(caught.value)
    assert f"{bare}: it has no torch" in message
    assert f"{sys.executable} -m pip install torch" in message
    assert "BENCH_RUNNER_PYTHON" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("exit 3", "it is no working Python (exit code 3)"),
        ("echo hello", "it is no working Python (exit code 0)"),
        ("echo '[]'", "it is no working Python (exit code 0)"),
        ("""echo '{"python": "x", "torch": null}'""", "it is no working Python (exit code 0)"),
        ("""echo '{"python": "3.10.1", "torch": "2.7.1"}'""", "it is Python 3.10.1, and 3.11 or newer is needed"),
        (WITHOUT, "it has no torch"),
    ],
)
def test_an_interpreter_that_does_not_do_says_why(tmp_path: Path, answer: str, reason: str) -> None:
    path = make_python(tmp_path, answer)
    assert probe(path, "path") == Unsuitable(path=path, reason=reason)


def test_one_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "PROBE_SECONDS", 0.3)
    path = make_python(tmp_path, "sleep 100; echo")
    assert probe(path, "path") == Unsuitable(path=path, reason="it did not answer within 0 s")


def test_this_python_answers_the_probe_as_it_is() -> None:
    found = probe(sys.executable, "path")
    running = interpreter._running()
    if running is None:
        assert found == Unsuitable(path=sys.executable, reason="it has no torch")
    else:
        assert isinstance(found, WorkerPython)
        assert (found.torch_version, found.python_version) == (running.torch_version, running.python_version)
