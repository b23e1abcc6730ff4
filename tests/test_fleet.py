"""Many machines held against each other: who stands out, what is missing, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner import store
from bench_runner.analysis.fleet import Fleet, FleetMetric, kind_of, newest_session, survey
from bench_runner.cli import main
from bench_runner.record import RunRecord
from tests import builders

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "schemas" / "fleet-1.json").read_text())


def node(name: str, seconds: float = 0.1, *, gpus: int = 8, **changes: Any) -> RunRecord:
    record = builders.training_record(seconds=seconds, machine=builders.machine(name, gpus=gpus), **changes)
    return replace(record, record_id=f"{name}-{record.session_id}-{record.launch_index}")


def fleet_of(seconds: list[float], **options: Any) -> Fleet:
    return survey([node(f"n{index:02d}", value) for index, value in enumerate(seconds)], **options)


def of(fleet: Fleet, name: str) -> FleetMetric:
    (metric,) = [metric for metric in fleet.metrics if metric.metric.name == name]
    return metric


HEALTHY = [0.100, 0.101, 0.099, 0.1005, 0.0995, 0.1015, 0.0985]


def test_the_slow_node_is_named_worst_first() -> None:
    fleet = fleet_of([*HEALTHY, 0.112, 0.150])
    failed = [finding for finding in fleet.findings if finding.check == "fleet.outlier"]
    assert [finding.message.partition(":")[0] for finding in failed if "step_time" in finding.message] == ["n08", "n07"]
    step = of(fleet, "step_time")
    assert (step.values[0].machine, step.values[0].outlier) == ("n08", "worse")
    assert fleet.metrics[0].worst >= fleet.metrics[-1].worst
    assert failed[0].remedy == "bench-runner verify --only machine --only links  # on n08"


def test_the_rule_by_hand() -> None:
    # Logs around ln 0.1; median 0.1, deviations 0, .00995, .01005, .00499, .00501, .01489, .01511: MAD .00995.
    step = of(fleet_of(HEALTHY), "step_time")
    assert step.middle == pytest.approx(0.1)
    assert step.spread == pytest.approx(1.4826 * 0.00995, rel=1e-3)
    assert [value.outlier for value in step.values] == [None] * 7


def test_a_machine_that_is_far_too_fast_is_a_warning() -> None:
    fleet = fleet_of([*HEALTHY, 0.05])
    assert {finding.check for finding in fleet.findings} == {"fleet.outlier.better"}
    assert of(fleet, "throughput").values[-1].outlier == "better"


def test_equal_machines_do_not_make_a_thousandth_an_outlier() -> None:
    assert fleet_of([0.1] * 8 + [0.1002]).findings == ()
    assert fleet_of([0.1] * 8 + [0.104], threshold=0.05).findings == ()
    assert len(fleet_of([0.1] * 8 + [0.104], threshold=0.02).findings) == 2


def test_too_few_machines_are_shown_and_not_judged() -> None:
    fleet = fleet_of([0.1, 0.1, 0.1, 0.2])
    assert fleet.findings == ()
    assert not of(fleet, "step_time").judged


def test_kinds_are_kept_apart() -> None:
    big = [node(f"n{index}", value) for index, value in enumerate(HEALTHY)]
    small = [node(f"m{index}", 10 * value, gpus=4) for index, value in enumerate(HEALTHY)]
    fleet = survey([*big, *small])
    assert fleet.findings == ()
    assert [len(machines) for machines in fleet.kinds.values()] == [7, 7]
    assert kind_of(builders.machine(gpus=8)) == "8 x NVIDIA H100 80GB HBM3"
    assert kind_of(builders.machine()) == "Test CPU @ 2.00GHz, 8 cores, no GPU"


def test_missing_metrics_are_findings() -> None:
    records = [node(f"n{index}", value) for index, value in enumerate(HEALTHY)]
    records[2] = node("n2", 0.1, rank_changes={"peak_rss_bytes": None})
    records[4] = replace(builders.collective_record(machine=builders.machine("n4", gpus=8)), record_id="n4")
    lacking = {f.message for f in survey(records).findings if f.check == "fleet.missing"}
    assert lacking == {
        "n2: no peak_rss of ddp/2/mlp/fp32/b8, which most machines of its kind have",
        "n4: no peak_rss, step_time, throughput of ddp/2/mlp/fp32/b8, which most machines of its kind have",
    }


def test_failures_are_findings() -> None:
    records = [node(f"n{index}", value) for index, value in enumerate(HEALTHY)]
    failed = builders.failed_record(machine=builders.machine("n3", gpus=8), reason="rank 1 was killed by SIGKILL")
    found = [f for f in survey([*records, failed]).findings if f.check == "fleet.failed"]
    assert [f.message for f in found] == ["n3: ddp/2/mlp/fp32/b8 failed in 1 launch(es): rank 1 was killed by SIGKILL"]


def test_only_the_newest_session_of_each_machine_counts() -> None:
    old = node("n0", 0.5, session_id="old", started_at="2026-10-01T00:00:00Z")
    new = node("n0", 0.1, session_id="new", started_at="2026-11-01T00:00:00Z")
    other = node("n1", 0.1, session_id="old", started_at="2026-10-01T00:00:00Z")
    assert {record.record_id for record in newest_session([new, old, other])} == {"n0-new-0", "n1-old-0"}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.05, 0.2), min_size=5, max_size=12), st.floats(0.01, 100))
def test_unit_and_order_do_not_matter(seconds: list[float], factor: float) -> None:
    def outliers(values: list[float], names: list[int]) -> set[tuple[str, str]]:
        records = [node(f"n{name}", value) for name, value in zip(names, values, strict=True)]
        step = of(survey(records), "step_time")
        near = [abs(abs(v.distance) - 3.5) < 1e-6 or abs(abs(v.change) - 0.05) < 1e-3 for v in step.values]
        return {(v.machine, str(v.outlier)) for v in step.values} if not any(near) else set()

    names = list(range(len(seconds)))
    plain = outliers(seconds, names)
    assert outliers(seconds[::-1], names[::-1]) == plain
    scaled = outliers([factor * value for value in seconds], names)
    assert not plain or not scaled or scaled == plain


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, value in enumerate([*HEALTHY, 0.15]):
        store.write([node(f"n{index}", value)], tmp_path, label="run")
    return tmp_path


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", str(folder), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["verdict"] == "fail"
    assert main(["fleet", str(folder)]) == 1
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "FAIL n7: step_time" in text
    assert "over 2 metrics" in text
    assert text.splitlines()[-1] == "verdict: fail (3 findings)"
    assert main(["fleet", str(folder), "--threshold", "80"]) == 0


def test_damaged_files_are_named_and_the_rest_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "n0" / "runs" / "bad.jsonl").write_text("{")
    assert main(["fleet", str(folder), "--json"]) == 2
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["unreadable"]) == 1
    assert "bad.jsonl" in captured.err


def test_an_empty_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", str(tmp_path)]) == 2
    assert "holds no results" in capsys.readouterr().err
    assert main(["fleet", str(tmp_path / "gone")]) == 2
    assert "no such folder" in capsys.readouterr().err
