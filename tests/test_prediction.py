"""DDP predicted past what was measured: made machines whose truth is known, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner import store
from bench_runner.analysis.model import bucket_bytes, evenly, predict_ddp_step, ring_seconds
from bench_runner.analysis.prediction import median_error, predictions
from bench_runner.cli import main
from bench_runner.record import RunRecord
from tests import builders

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "schemas" / "predict-1.json").read_text())
SIZES = tuple(1 << exponent for exponent in range(10, 28))
FORWARD, BACKWARD, OPTIMIZER = 0.010, 0.020, 0.005
ALPHA, BETA = 2e-6, 1 / 50e9
PARAMETERS = 25_000_000


def ring_of(count: int) -> dict[int, float]:
    return {size: ring_seconds(count, size, ALPHA, BETA) for size in SIZES}


def truth(count: int) -> float:
    """The step of a machine that is as the model takes it, its all-reduce a ring."""
    return predict_ddp_step(
        forward_seconds=FORWARD,
        backward_seconds=BACKWARD,
        optimizer_seconds=OPTIMIZER,
        buckets=bucket_bytes(evenly(4 * PARAMETERS)),
        all_reduce_seconds=lambda size: ring_seconds(count, size, ALPHA, BETA),
    ).step_seconds


def measured(counts: tuple[int, ...], slowdown: float = 1.0) -> list[RunRecord]:
    changes = {
        "phase_seconds": {"forward": (FORWARD,), "backward": (BACKWARD,), "optimizer": (OPTIMIZER,), "data": (0.0,)},
        "parameters": PARAMETERS,
    }
    machine = builders.machine("box", gpus=8)
    single = builders.training_record(
        strategy="single", devices=1, seconds=FORWARD + BACKWARD + OPTIMIZER, machine=machine, rank_changes=changes
    )
    records = [single]
    for count in counts:
        step = slowdown * truth(count)
        records.append(builders.training_record(devices=count, seconds=step, machine=machine, rank_changes=changes))
        calls = {size: [[seconds] * 3] * count for size, seconds in ring_of(count).items()}
        records.append(builders.collective_record(devices=count, seconds=calls, machine=machine))
    return records


def test_a_machine_like_the_model_is_met_at_counts_that_were_left_out() -> None:
    (case,) = predictions(measured((2, 4, 8)), [])
    assert case.measured_devices == (2, 4, 8)
    assert [row.devices for row in case.rows] == [2, 4, 8]
    assert all(row.held_out for row in case.rows)
    assert median_error([case]) == pytest.approx(0.0, abs=0.02)
    assert case.warnings == (
        "one launch: the interval holds the algorithms' difference only; run --launches 5 gives the rest",
    )


def test_the_slow_down_that_was_measured_stays() -> None:
    (fast,), (slow,) = predictions(measured((8,)), [64]), predictions(measured((8,), slowdown=1.2), [64])
    assert slow.slowdown == pytest.approx(1.2, rel=0.01)
    assert slow.rows[-1].step_seconds == pytest.approx(1.2 * fast.rows[-1].step_seconds, rel=0.01)
    assert fast.rows[0].error == pytest.approx(0.0, abs=1e-9)
    assert not fast.rows[0].held_out


def test_far_counts_are_said_to_be_a_guess() -> None:
    (case,) = predictions(measured((2,)), [1, 4096])
    assert any("2048 times what was measured" in line for line in case.warnings)
    assert any("one device count was measured (2)" in line for line in case.warnings)
    one = case.rows[0]
    assert (one.devices, one.exposed_seconds) == (1, 0.0)
    assert one.efficiency == pytest.approx(1.0)
    assert case.rows[-1].low_seconds <= case.rows[-1].step_seconds <= case.rows[-1].high_seconds


def test_launches_widen_the_interval() -> None:
    records = measured((2,))
    again = [
        replace(
            record,
            record_id=f"{record.record_id}-2",
            launch_index=1,
            ranks=tuple(
                replace(rank, step_seconds=tuple(1.1 * second for second in rank.step_seconds)) for rank in record.ranks
            ),
        )
        for record in records
        if record.spec.strategy == "single"
    ]
    (case,) = predictions([*records, *again], [8])
    row = case.rows[-1]
    assert row.low_seconds < 0.95 * row.step_seconds < row.step_seconds < 0.95 * row.high_seconds


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 1000), st.integers(2, 1000))
def test_more_devices_are_never_more_efficient(first: int, second: int) -> None:
    few, many = sorted((first, second))
    (case,) = predictions(measured((2,)), [few, many])
    rows = {row.devices: row for row in case.rows}
    assert rows[many].efficiency <= rows[few].efficiency * (1 + 1e-9)
    assert rows[many].throughput == pytest.approx(many * case.per_device_batch / rows[many].step_seconds)


@pytest.mark.parametrize("without", ["single", "ddp", "all_reduce"])
def test_nothing_is_predicted_from_half_of_what_it_takes(without: str) -> None:
    records = [
        record
        for record in measured((2,))
        if not (without == "single" and record.spec.strategy == "single")
        and not (without == "ddp" and record.spec.strategy == "ddp" and record.ranks[0].step_seconds)
        and not (without == "all_reduce" and record.ranks[0].collective_seconds)
    ]
    assert predictions(records, [64]) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.write(measured((2, 8)), tmp_path, label="run")
    assert main(["predict", "--devices", "64,512", "--results", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert [row["devices"] for row in document["cases"][0]["rows"]] == [2, 8, 64, 512]
    assert main(["predict", "--devices", "64", "--results", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "Assumptions" in text


def test_bad_counts_and_too_little_to_go_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for counts in ("0", "-1", "64,", "many", "99999999", "1e3"):
        assert main(["predict", "--devices", counts, "--results", str(tmp_path)]) == 2
    store.write(measured(()), tmp_path, label="run")
    capsys.readouterr()
    assert main(["predict", "--devices", "64", "--results", str(tmp_path)]) == 3
    assert "nothing to predict from" in capsys.readouterr().err
