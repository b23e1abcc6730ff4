"""``doctor staged`` over real processes: a right workload and wrong ones."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench_runner.cli import main  # noqa: E402
from bench_runner.worker.doctor_staged import compare, part  # noqa: E402


def test_gradients_are_compared_by_the_largest_relative_difference() -> None:
    reference = {"a": torch.tensor([1.0, -4.0]), "b": torch.zeros(2), "c": torch.ones(1)}
    found = compare({"a": torch.tensor([1.0, -3.0]), "b": torch.zeros(2)}, reference)
    assert (found["worst"], found["where"], found["missing"]) == (0.25, "a", ["c"])
    assert compare(reference, reference)["ratio"] == 1.0
    assert compare({**reference, "a": torch.tensor([float("nan"), 0.0])}, reference)["not_finite"] == ["a"]


def test_a_batch_is_divided_whatever_it_is_made_of() -> None:
    places = torch.tensor([0, 2])
    value = part({"x": (torch.arange(3), [torch.arange(3) * 2]), "name": "n"}, places)
    assert value["x"][0].tolist() == [0, 2]
    assert value["x"][1][0].tolist() == [0, 4]
    assert value["name"] == "n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "fault"), [("right", None), ("summed", "ddp-2"), ("nan_on_rank_1", "ddp-2"), ("unused", "ddp-1")]
)
def test_workload_gets_its_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, workload: str, fault: str | None
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    code = main(["doctor", "staged", "--workload", f"tests.faulty.workloads:{workload}", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["fault"], code) == (fault, 0 if fault is None else 1)


@pytest.mark.slow
def test_fault_of_the_fourth_rank_passes_every_smaller_stage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    arguments = ["--workload", "tests.faulty.workloads:nan_on_rank_3", "--devices", "4", "--deadline", "240", "--json"]
    code = main(["doctor", "staged", *arguments])
    document = json.loads(capsys.readouterr().out)
    assert (document["fault"], code) == ("ddp-4", 1)
    assert [stage["ranks"] for stage in document["details"]["stages"]] == [1, 1, 1, 2, 4]
    assert all(finding["status"] == "pass" for finding in document["findings"] if "ddp-4" not in finding["check"])
