"""A fleet machine by machine: planted faults among two thousand, drift, unlike versions, who was never measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from bench_runner import store
from bench_runner.analysis.fleet import Fleet, survey
from bench_runner.analysis.fleet_nodes import drifted, nodes_of, slow_machines, unlike, unmeasured
from bench_runner.cli import main
from bench_runner.record import RunRecord
from tests import builders

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "schemas" / "fleet-1.json").read_text())
SIZES = (1024, 65536, 1 << 20, 1 << 24)


def named(record: RunRecord, name: str, what: str) -> RunRecord:
    return replace(record, record_id=f"{name}-{record.session_id}-{what}")


def results(name: str, factors: np.ndarray, **changes: object) -> list[RunRecord]:
    """What one machine measures: two trainings and an all-reduce, ``factors`` times the time that is usual."""
    machine = builders.machine(name, gpus=8)
    trainings = [
        named(
            builders.training_record(
                seconds=0.1 * float(factor), machine=machine, task={"workload": workload}, **changes
            ),
            name,
            workload,
        )
        for factor, workload in zip(factors, ("mlp", "transformer-tiny"), strict=False)
    ]
    calls = {size: [[1e-4 * float(factor)] * 3] * 2 for size, factor in zip(SIZES, factors[2:], strict=True)}
    return [
        *trainings,
        named(builders.collective_record(seconds=calls, machine=machine, **changes), name, "all-reduce"),
    ]


def judged(records: list[RunRecord], expected: tuple[str, ...] = ()) -> Fleet:
    fleet = survey(records)
    said = (*slow_machines(fleet), *fleet.findings, *unlike(records), *unmeasured(fleet, expected))
    return replace(fleet, findings=said)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_planted_faults_among_two_thousand_machines(seed: int) -> None:
    """One in a hundred is at fault; healthy ones differ by 1 % (a machine's own 0.7 %, each metric's another 0.7 %)."""
    random = np.random.default_rng(seed)
    machines = [f"n{index:04d}" for index in range(2000)]
    kinds = ["slower by 5 %", "slower by 20 %", "a metric missing", "another NCCL"]
    faulty = dict(zip(random.choice(machines, 20, replace=False), kinds * 5, strict=True))
    records: list[RunRecord] = []
    for name in machines:
        noise = np.exp(random.normal(0, 0.007) + random.normal(0, 0.007, 6))
        fault = faulty.get(name)
        slower = {"slower by 5 %": 1.05, "slower by 20 %": 1.2}.get(str(fault), 1.0)
        changes = {"environment": builders.environment(nccl="2.18.1")} if fault == "another NCCL" else {}
        own = results(name, slower * noise, **changes)
        records += own[:-1] if fault == "a metric missing" else own
    states = {node.name: node for node in nodes_of(judged(records))}
    named_as = {kind: [states[n].state for n, k in faulty.items() if k == kind] for kind in kinds}
    assert named_as["slower by 20 %"] == ["failed"] * 5
    assert named_as["slower by 5 %"].count("failed") >= 4
    assert named_as["a metric missing"] == ["suspect"] * 5
    assert named_as["another NCCL"] == ["suspect"] * 5
    false_alarms = [node for name, node in states.items() if name not in faulty and node.state != "ok"]
    assert len(false_alarms) < len(machines) / 200, false_alarms


def healthy(count: int = 8) -> list[RunRecord]:
    random = np.random.default_rng(7)
    return [r for i in range(count) for r in results(f"n{i}", np.exp(random.normal(0, 0.005, 6)))]


def test_a_machine_slower_in_everything_is_named_with_what_it_is_slowest_in() -> None:
    records = healthy() + results("slow", np.full(6, 1.08))
    (finding,) = slow_machines(survey(records))
    assert finding.message.startswith("slow: 8.")
    assert finding.status == "fail"
    assert finding.remedy.endswith("# on slow")
    assert len(finding.evidence) == 4


def test_a_version_of_its_own_is_named_and_a_fleet_in_two_halves_is_not() -> None:
    other = builders.environment(nccl="2.18.1")
    (finding,) = unlike([*healthy(), *results("odd", np.ones(6), environment=other)])
    assert finding.message == "odd: NCCL 2.18.1, where 8 machines of its kind have 2.26.2"
    halves = [replace(r, environment=other) if r.machine.name in ("n1", "n3", "n5") else r for r in healthy()]
    assert unlike(halves) == []


def sessions(factors: list[float]) -> list[RunRecord]:
    return [
        record
        for day, factor in enumerate(factors, 1)
        for record in results(
            "n0", np.full(6, factor), session_id=f"s{day:02d}", started_at=f"2026-11-{day:02d}T00:00:00Z"
        )
    ]


def test_a_machine_that_became_slower_is_named_and_one_that_varies_as_ever_is_not() -> None:
    (finding,) = drifted(sessions([1.0, 1.01, 0.99, 1.005, 0.995, 1.09]), threshold=0.03)
    assert finding.check == "fleet.drift"
    assert "9." in finding.message
    assert drifted(sessions([1.0, 1.05, 0.95, 1.04, 0.96, 1.06]), threshold=0.03) == []
    assert drifted(sessions([1.0, 1.01, 0.99, 1.09]), threshold=0.03) == []  # too few sessions to know its spread


def test_states_for_a_scheduler() -> None:
    fleet = judged(healthy() + results("slow", np.full(6, 1.3)), expected=("n0", "n99"))
    states = {node.name: node.state for node in nodes_of(fleet, ("n0", "n99"))}
    assert states == {**{f"n{i}": "ok" for i in range(8)}, "slow": "failed", "n99": "unmeasured"}
    assert {node.state for node in nodes_of(judged(healthy(2)))} == {"unjudged"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for record in healthy() + results("slow", np.full(6, 1.3)):
        store.write([record], tmp_path, label=record.record_id)
    return tmp_path


def test_the_command_for_schedulers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", str(folder), "--expect", "n[0-8],slow", "--format", "nodes"]) == 1
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [*(f"n{i}" for i in range(9)), "slow"]
    assert {line[0]: line[1] for line in lines}["n8"] == "unmeasured"
    assert all(len(line) == 3 for line in lines)
    assert main(["fleet", str(folder), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert {node["name"]: node["state"] for node in document["nodes"]}["slow"] == "failed"


def test_expected_names_from_a_file(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path_factory.mktemp("lists") / "hosts"
    path.write_text("# all of them\nn[0-7]\nslow  # known\n\nn12\n")
    assert main(["fleet", str(folder), "--expect", str(path), "--format", "nodes"]) == 1
    assert "n12\tunmeasured\texpected, and has no results" in capsys.readouterr().out
    path.write_bytes(b"\xff\xfe")
    assert main(["fleet", str(folder), "--expect", str(path)]) == 2
    assert main(["fleet", str(folder), "--expect", "n[1-"]) == 2
    assert main(["fleet", str(folder), "--json", "--format", "nodes"]) == 2


def test_few_machines_are_not_said_to_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.write(results("n0", np.ones(6)), tmp_path, label="run")
    assert main(["fleet", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "5 of a kind are needed to tell who stands out" in shown
    assert "verdict: nothing to judge" in shown
