from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bench_runner
from bench_runner import store
from bench_runner.analysis.frame import COLUMNS, FrameFormat, frame_of, load_frame, read_frame, write_frame
from bench_runner.record import RunRecord
from tests import builders

FORMATS: tuple[FrameFormat, ...] = ("csv", "parquet")


def some_records() -> list[RunRecord]:
    return [
        builders.training_record(strategy="single", devices=1, seconds=0.1),
        builders.training_record(
            seconds=0.125,
            machine=builders.machine(gpus=2),
            rank_changes={"memory": (builders.device_memory(0), builders.device_memory(1, process_used_bytes=None))},
        ),
        builders.collective_record(),
        builders.failed_record(strategy="data_parallel", outcome="skipped", reason="needs a CUDA device"),
        builders.failed_record(reason='rank 1 raised KeyError: "a, b"\nand more', failure="exception"),
    ]


def test_columns_and_types_are_the_same_for_every_frame() -> None:
    for frame in (frame_of([]), frame_of(some_records()), frame_of(some_records()[3:])):
        assert list(frame.columns) == list(COLUMNS)
        assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == COLUMNS
        assert isinstance(frame.index, pd.RangeIndex)
    assert len(frame_of([])) == 0


def test_a_row_says_where_its_value_comes_from() -> None:
    record = builders.training_record(devices=2, seconds=0.1, launch_index=3, machine=builders.machine("a100", gpus=2))
    frame = frame_of([record], ["results/a100/runs/x.jsonl"])
    row = frame[frame["metric"] == "throughput"].iloc[0].to_dict()
    assert row["value"] == pytest.approx(160)
    expected = {
        "source": "results/a100/runs/x.jsonl",
        "record_id": record.record_id,
        "session_id": "session-a",
        "launch_index": 3,
        "started_at": pd.Timestamp("2026-11-01T10:03:00Z"),
        "machine": "a100",
        "fingerprint": "machine-a100",
        "accelerator": "NVIDIA H100 80GB HBM3",
        "environment": "environment-a",
        "lock_state": "match",
        "torch": "2.7.1",
        "measurement_version": 1,
        "device_kind": "cpu",
        "strategy": "ddp",
        "devices": 2,
        "nodes": 1,
        "workload": "mlp",
        "precision": "fp32",
        "scaling": "weak",
        "data": "device",
        "per_device_batch": 8,
        "global_batch": 16,
        "backend": "gloo",
        "threads": 1,
        "scheduler": "batch",
        "oversubscribed": False,
        "unit": "samples/s",
        "direction": "higher",
        "n": 10,
        "outcome": "ok",
    }
    assert {name: row[name] for name in expected} == expected
    assert pd.isna(row["bytes"])
    assert pd.isna(row["reason"])


def test_collective_rows_have_operation_bytes_and_no_workload() -> None:
    frame = frame_of([builders.collective_record()])
    rows = frame[frame["metric"] == "busbw"]
    assert rows["bytes"].tolist() == [1024, builders.MIB]
    assert rows["operation"].unique().tolist() == ["all_reduce"]
    assert rows["workload"].isna().all()
    assert rows["global_batch"].isna().all()


def test_memory_rows_have_rank_and_device() -> None:
    frame = frame_of(some_records())
    cells = frame[frame["metric"] == "process_used"][["rank", "device", "value"]]
    assert cells.to_dict("records") == [
        {"rank": 0, "device": 0, "value": 1500 * builders.MIB},
        {"rank": 1, "device": 0, "value": 1500 * builders.MIB},
    ]


def test_efficiency_names_its_denominator() -> None:
    single, *_ = some_records()
    frame = frame_of([single, builders.training_record(devices=2, seconds=0.125)])
    rows = frame[frame["metric"] == "efficiency"]
    assert rows[["denominator", "value"]].to_numpy().tolist() == [["single", pytest.approx(0.8)]]


def test_runs_that_gave_nothing_are_rows_with_their_reason() -> None:
    frame = frame_of(some_records())
    rows = frame[frame["outcome"] != "ok"]
    assert rows[["strategy", "outcome", "failure"]].fillna("-").to_numpy().tolist() == [
        ["data_parallel", "skipped", "-"],
        ["ddp", "failed", "exception"],
    ]
    assert rows["reason"].str.startswith(("needs a CUDA", "rank 1 raised")).all()
    assert rows["value"].isna().all()
    assert rows["metric"].isna().all()


def test_size_with_wrong_values_is_a_row_with_its_reason() -> None:
    ranks = [
        builders.rank_samples(0, collective_seconds={1024: (0.1,)}, wrong_values=(2048,)),
        builders.rank_samples(1, collective_seconds={1024: (0.1,)}, wrong_values=(2048,)),
    ]
    frame = frame_of([builders.record(builders.collective_spec(sizes=(1024, 2048)), ranks)])
    (row,) = frame[frame["bytes"] == 2048].to_dict("records")
    assert (row["outcome"], row["failure"]) == ("failed", "wrong-values")
    assert row["reason"] == "wrong values at 2048 bytes on rank 0, 1"


def test_every_row_without_a_value_has_a_reason() -> None:
    frame = frame_of(some_records())
    assert frame.loc[frame["value"].isna(), "reason"].notna().all()
    assert np.isfinite(frame.loc[frame["outcome"] == "ok", "value"]).all()


def test_launches_are_rows_of_their_own() -> None:
    frame = frame_of(builders.launches(3, lambda index: builders.training_record(seconds=0.1 + index)))
    rows = frame[frame["metric"] == "step_time"]
    assert rows["launch_index"].tolist() == [0, 1, 2]
    assert rows["value"].tolist() == [0.1, 1.1, 2.1]
    assert rows["record_id"].nunique() == 3


def test_time_that_cannot_be_read_is_missing_and_the_record_stays() -> None:
    frame = frame_of([builders.training_record(started_at="yesterday"), builders.training_record()])
    assert frame["started_at"].isna().any()
    assert frame["started_at"].notna().any()


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("count", [0, 5])
def test_frame_written_and_read_again_is_equal(tmp_path: Path, file_format: FrameFormat, count: int) -> None:
    frame = frame_of(some_records()[:count], [f"results/{i}" for i in range(count)])
    path = tmp_path / "frame"
    write_frame(frame, path, file_format)
    pd.testing.assert_frame_equal(read_frame(path, file_format), frame)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
    seconds=st.floats(1e-9, 1e6),
    file_format=st.sampled_from(FORMATS),
)
def test_any_names_and_values_survive_the_round_trip(
    tmp_path: Path, text: str, seconds: float, file_format: FrameFormat
) -> None:
    records = [
        builders.training_record(seconds=seconds, machine=builders.machine(text), commit=text),
        builders.failed_record(reason=text),
    ]
    frame = frame_of(records)
    write_frame(frame, tmp_path / "frame", file_format)
    pd.testing.assert_frame_equal(read_frame(tmp_path / "frame", file_format), frame)


def test_carriage_return_in_a_name_is_no_end_of_a_line(tmp_path: Path) -> None:
    frame = frame_of([builders.training_record(machine=builders.machine("a\rb"))])
    write_frame(frame, tmp_path / "frame", "csv")
    pd.testing.assert_frame_equal(read_frame(tmp_path / "frame", "csv"), frame)


def test_load_frame_reads_trees_files_and_lists(tmp_path: Path) -> None:
    first = store.write(some_records()[:1], tmp_path / "a", label="x")
    store.write([builders.training_record(machine=builders.machine("other"))], tmp_path / "b", label="x")
    assert set(bench_runner.load_frame(tmp_path)["machine"]) == {"box", "other"}
    assert set(load_frame(str(first))["source"]) == {str(first)}
    assert set(load_frame([tmp_path / "a", str(tmp_path / "b")])["machine"]) == {"box", "other"}


def test_damaged_lines_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    path = store.write(some_records()[:1], tmp_path, label="x")
    path.write_bytes(path.read_bytes() + b'{"half')
    told: list[store.Problem] = []
    assert len(load_frame(tmp_path, on_problem=told.append)) > 0
    assert [problem.line for problem in told] == [2]
    with pytest.warns(UserWarning, match="damaged or cut off"):
        load_frame(tmp_path)
