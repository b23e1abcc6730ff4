"""The doctor's rules for checkpoints, over made-up contents."""

from typing import Any

import pytest

from bench_runner.doctor.checkpoint import CheckpointProbe, probe_checkpoint
from bench_runner.doctor.checkpoint_rules import judge_checkpoint
from bench_runner.errors import UnreadableError

CONTENT: dict[str, Any] = {
    "top": ["model", "optimizer", "epoch"],
    "tensors": 4,
    "tensor_bytes": 1024,
    "storage_bytes": 1024,
    "devices": {"cpu": [4, 1024]},
    "not_finite": [],
    "keys": ["fc.weight", "fc.bias"],
    "bare": False,
    "optimizer": {"parameters": 2, "with_state": 2},
    "progress": ["epoch"],
}
MODEL: dict[str, Any] = {
    "parameters": 2,
    "wanted": 2,
    "missing": [],
    "unexpected": [],
    "matching": 2,
    "matching_without_prefixes": 2,
    "shapes": [],
}


def judged(model: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    probe = CheckpointProbe(path="last.pt", content={**CONTENT, **changes}, model=model)
    return {f.check.removeprefix("doctor.checkpoint."): f.status for f in judge_checkpoint(probe)}


def test_whole_checkpoint_has_no_finding() -> None:
    assert set(judged(MODEL).values()) == {"pass"}


@pytest.mark.parametrize(
    ("changes", "check", "status"),
    [
        ({"devices": {"cuda:0": [4, 1024]}}, "checkpoint-device", "warn"),
        ({"devices": {"cpu": [1, 8], "npu:3": [3, 1016]}}, "checkpoint-device", "warn"),
        ({"keys": ["module.fc.weight", "module.fc.bias"]}, "prefix", "warn"),
        ({"keys": ["_orig_mod.fc.weight"]}, "prefix", "warn"),
        ({"not_finite": ["fc.weight"]}, "not-finite", "fail"),
        ({"storage_bytes": 1 << 30}, "views", "warn"),
        ({"optimizer": None}, "resume-optimizer", "warn"),
        ({"progress": []}, "resume-progress", "warn"),
        ({"tensors": 0}, "empty", "fail"),
        ({"optimizer": None, "progress": [], "bare": True}, "resume", "pass"),
    ],
)
def test_content(changes: dict[str, Any], check: str, status: str) -> None:
    assert judged(**changes)[check] == status


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"missing": ["a"], "matching": 1}, "keys"),
        ({"unexpected": ["b"]}, "keys"),
        ({"shapes": ["fc.weight: file [10, 8], model [9, 8]"]}, "shapes"),
        ({"matching": 0, "missing": ["fc.weight", "fc.bias"], "unexpected": ["module.fc.weight"]}, "nothing-loads"),
        ({"parameters": 3}, "resume-parameters"),
    ],
)
def test_model(changes: dict[str, Any], check: str) -> None:
    assert judged({**MODEL, **changes})[check] == "fail"


def test_prefixes_that_the_model_has_too_are_no_fault() -> None:
    assert "prefix" not in judged(MODEL, keys=["module.fc.weight", "module.fc.bias"])


@pytest.mark.parametrize("reason", ["damaged", "foreign", "unsafe"])
def test_unreadable_has_its_remedy(reason: str) -> None:
    (finding,) = judge_checkpoint(CheckpointProbe(path="x.pt", unreadable={"reason": reason, "detail": "why"}))
    assert finding.check == f"doctor.checkpoint.{reason}"
    assert finding.remedy
    assert finding.message == "x.pt: why"


def test_error_beside_the_file_fails() -> None:
    (finding,) = judge_checkpoint(CheckpointProbe(path="x.pt", error="ModuleNotFoundError: train"))
    assert finding.check == "doctor.checkpoint.error"


def test_no_file_is_an_error_of_usage(tmp_path) -> None:
    with pytest.raises(UnreadableError, match=r"no\.pt: no file there"):
        probe_checkpoint(tmp_path / "no.pt", python="python")
    with pytest.raises(UnreadableError, match="a directory"):
        probe_checkpoint(tmp_path, python="python")
