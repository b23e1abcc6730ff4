"""asv's command and selections as data, the values in asv's form, and the following of its progress."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench_runner.analysis.metrics import MetricValue
from bench_runner.asv_plugin import machine_of
from bench_runner.asv_run import AsvRun, Progress, register_machine
from bench_runner.capacity import Capacity
from bench_runner.errors import StoreError
from bench_runner.profile import load
from bench_runner.suite import asv_value


def asv_run(**changes: object) -> AsvRun:
    fields: dict = {
        "root": Path("/tree"),
        "folder": Path("/tree/.bench-runner/session"),
        "machine": "box",
        "commit": "c" * 40,
        "locked": False,
        "append": False,
        "pairs": (("single", 1), ("ddp", 2)),
        "profile": load("quick"),
        "capacity": Capacity(kind="cpu", count=2, reason="test"),
        "variables": {},
        **changes,
    }
    return AsvRun(**fields)


def test_the_command_word_for_word():
    command = asv_run(pairs=(("single", 1),)).command()
    metrics = r"(training\.Training\.track_(throughput|time_per_sample|step_time)|memory\.Memory\.track_peak_rss)"
    assert command == [
        *(sys.executable, "-m", "asv", "run", "--machine", "box", "--launch-method", "forkserver", "--record-samples"),
        *("-E", "existing", "--set-commit-hash", "c" * 40),
        *("--bench", rf"^{metrics}\('single', 1, 'mlp/fp32/b64'\)$"),
        *("--bench", rf"^{metrics}\('single', 1, 'transformer\-tiny/fp32/b8'\)$"),
    ]


def test_the_locked_environment_is_asked_for_with_the_commit():
    command = asv_run(locked=True, append=True).command()
    assert command[command.index("-E") : command.index("-E") + 3] == ["-E", "conda-lock", f"{'c' * 40}^!"]
    assert "--append-samples" in command
    assert "--set-commit-hash" not in command


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("training.Training.track_throughput('ddp', 2, 'mlp/fp32/b64')", True),
        ("memory.Memory.track_peak_rss('ddp', 2, 'mlp/fp32/b64')", True),
        (
            "memory.Memory.track_peak_allocated('ddp', 2, 'mlp/fp32/b64')",
            False,
        ),  # torch's allocator counts no CPU memory
        ("training.Training.track_exposed_communication('ddp', 2, 'mlp/fp32/b64')", True),
        ("training.Training.track_exposed_communication('single', 1, 'mlp/fp32/b64')", False),
        ("training.Training.track_throughput('ddp', 2, 'mlp/fp32/b640')", False),
        ("training.Training.track_throughput('ddp', 22, 'mlp/fp32/b64')", False),
        ("training.Training.track_throughput('ddp', 2, 'resnet50/fp32/b64')", False),
        ("collectives.Collectives.track_latency('all_reduce', 2, 1024)", True),
        ("collectives.Collectives.track_latency('all_reduce', 2, 1073741824)", False),  # not on a CPU
        ("collectives.Collectives.track_latency('all_gather', 2, 1024)", False),
    ],
)
def test_the_selections_meet_just_what_is_measured(name, wanted):
    assert any(re.search(regex, name) for regex in asv_run().selections()) == wanted


def test_energy_is_asked_for_on_devices_alone():
    name = "training.Training.track_energy_per_sample('single', 1, 'mlp/fp32/b64')"
    on_cuda = asv_run(capacity=Capacity(kind="cuda", count=2, reason="test"))
    assert any(re.search(regex, name) for regex in on_cuda.selections())
    assert not any(re.search(regex, name) for regex in asv_run().selections())


def test_a_count_that_asv_has_no_parameter_for_is_all():
    run = asv_run(pairs=(("ddp", 6),), capacity=Capacity(kind="cuda", count=6, reason="test"))
    assert all("'all'" in regex for regex in run.selections())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (MetricValue(metric="peak_rss", value=5), 5.0),
        # A mean of 20 values: ten block means, whose median is not fooled by two modes.
        (
            MetricValue(metric="latency", value=2.5, statistic="mean", series=(1.0, 4.0) * 10),
            {"samples": [2.5] * 10, "number": 1},
        ),
        (
            MetricValue(metric="throughput", value=16.0, statistic="mean", series=(0.5, 0.5), numerator=8.0),
            {"samples": [16.0, 16.0], "number": 1},
        ),
        (
            MetricValue(metric="step_time", value=2.0, statistic="median", series=(1.0, 2.0, 3.0)),
            {"samples": [1.0, 2.0, 3.0], "number": 1},
        ),
        (MetricValue(metric="latency_p99", value=4.0, statistic="p99", series=(1.0, 4.0)), 4.0),
    ],
)
def test_values_in_asvs_form(value, expected):
    assert asv_value(value) == expected


def test_progress_is_followed_line_by_line(tmp_path):
    path, events = tmp_path / "progress.jsonl", []
    progress = Progress(path, events.append)
    progress.read()
    path.write_text('{"event": "launch"}\n{"event"')
    progress.read()
    assert events == [{"event": "launch"}]
    with path.open("a") as file:
        file.write(': "done"}\n')
    progress.read()
    assert events == [{"event": "launch"}, {"event": "done"}]


def test_the_machine_is_registered_beside_those_that_asv_knows(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    known = {"version": 1, "other": {"machine": "other", "arch": "x"}}
    (tmp_path / ".asv-machine.json").write_text(json.dumps(known))
    entry: dict[str, str | int] = {"machine": "box", "gpu": "none", "num_gpu": 0}
    register_machine(entry, tmp_path / "results", tmp_path)
    stored = json.loads((tmp_path / ".asv-machine.json").read_text())
    assert stored == {**known, "box": entry}
    assert json.loads((tmp_path / "results" / "box" / "machine.json").read_text()) == {**entry, "version": 1}


def test_a_damaged_machine_file_is_named_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".asv-machine.json").write_text("{")
    with pytest.raises(StoreError, match=r"asv-machine\.json: unreadable"):
        register_machine({"machine": "box"}, tmp_path / "results", tmp_path)
    assert (tmp_path / ".asv-machine.json").read_text() == "{"


def test_without_a_home_asv_is_given_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "absent"))
    register_machine({"machine": "box"}, tmp_path / "results", tmp_path)
    assert (tmp_path / ".asv-machine.json").exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["run", "--machine", "box", "-E", "existing"], "box"),
        (["run", "--machine=box"], "box"),
        (["run", "-m", "box"], "box"),
        (["run", "--machine"], None),
        (["run"], None),
    ],
)
def test_the_machine_on_asvs_command_line(arguments, name):
    assert machine_of(arguments) == name


def test_machines_that_register_at_the_same_moment_are_all_known(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    names = [f"n{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: register_machine({"machine": name}, tmp_path / "results", tmp_path), names))
    known = json.loads((tmp_path / ".asv-machine.json").read_text())
    assert set(known) == {*names, "version"}
