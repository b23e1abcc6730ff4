"""``doctor startup`` over real processes, and its checks of values against a link that corrupts."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench_runner.cli import main  # noqa: E402
from bench_runner.worker import doctor_startup  # noqa: E402
from bench_runner.worker.devices import Device  # noqa: E402


@pytest.mark.parametrize(("error", "caught"), [(0.0, False), (1.0, True)])
def test_all_reduce_values_are_checked(monkeypatch: pytest.MonkeyPatch, error: float, caught: bool) -> None:
    def all_reduce(tensor: "torch.Tensor") -> None:
        """Rank 0 of 2: the other contributes twice as much; one element may be lost on the way."""
        tensor *= 3
        tensor[0] += error

    monkeypatch.setattr(doctor_startup.dist, "all_reduce", all_reduce)
    if caught:
        with pytest.raises(doctor_startup.WrongValuesError, match="1 of 1 values are wrong on rank 0"):
            doctor_startup.check_collectives(Device("cpu", 0), 0, 2)
    else:
        doctor_startup.check_collectives(Device("cpu", 0), 0, 2)


def test_device_is_checked_by_a_product() -> None:
    doctor_startup.check_device(Device("cpu", 0))


@pytest.mark.slow
def test_start_on_the_cpu_passes_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "startup", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [trial["stage"] for trial in document["details"]["trials"]] == [
        "devices", "devices", "pairs", "one-sample", "real-batch",
    ]  # fmt: skip
    assert document["verdict"] == "pass"


@pytest.mark.slow
def test_four_ranks_go_through_every_pair_and_growing_subsets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "startup", "--devices", "4", "--batch", "4", "--deadline", "240", "--json"]) == 0
    trials = json.loads(capsys.readouterr().out)["details"]["trials"]
    assert [trial["devices"] for trial in trials if trial["stage"] == "subsets"] == [[0, 1, 2], [0, 1, 2, 3]]
    assert sum(trial["stage"] == "pairs" for trial in trials) == 6
    assert [trial["stage"] for trial in trials[-2:]] == ["one-sample", "real-batch"]
    assert all(trial["devices"] == [0, 1, 2, 3] for trial in trials[-2:])


@pytest.mark.slow
def test_start_whose_factory_fails_is_named_by_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fails_to_make.py").write_text("def make():\n    raise RuntimeError('no weights today')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "startup", "--devices", "1", "--workload", "fails_to_make:make", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["fault"] == "one-sample"
    assert "no weights today" in document["findings"][-1]["message"]
    assert any("fails_to_make.py" in line for line in document["findings"][-1]["evidence"])


def test_device_that_is_not_there_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert main(["doctor", "startup", "--device", "cuda", "--devices", "1", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["fault"] == "devices"
    assert "finds no usable device" in document["findings"][0]["message"]
