"""The doctor's stages of one workload, judged over made-up gradients."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.doctor.document import fault_of
from bench_runner.doctor.staged import StageOutcome, global_batch, stage_sizes
from bench_runner.doctor.staged_rules import judge_staged


def said(**changes: Any) -> dict[str, Any]:
    return {
        "loss": 1.0,
        "parameters": 4,
        "worst": 1e-7,
        "where": "body.weight",
        "ratio": 1.0,
        "not_finite": [],
        "missing": [],
        **changes,
    }


def stage(name: str, size: int = 1, **changes: Any) -> StageOutcome:
    return StageOutcome(stage=name, world_size=size, gradients={rank: said(**changes) for rank in range(size)})


GOOD = [stage("single"), stage("sampler"), stage("ddp-1")]


def test_stages_double_up_to_all() -> None:
    assert stage_sizes(1) == [("single", 1), ("sampler", 1), ("ddp-1", 1)]
    assert [name for name, _ in stage_sizes(6)] == ["single", "sampler", "ddp-1", "ddp-2", "ddp-4", "ddp-6"]


@given(st.integers(1, 24), st.integers(1, 9))
def test_every_stage_divides_the_global_batch(devices: int, per_device: int) -> None:
    batch = global_batch(devices, per_device)
    assert batch >= devices * per_device
    assert all(batch % size == 0 for _, size in stage_sizes(devices))


def test_equal_gradients_pass() -> None:
    findings = judge_staged([*GOOD, stage("ddp-2", 2)])
    assert {finding.status for finding in findings} == {"pass"}
    assert len(findings) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"worst": 0.5, "ratio": 0.5}, "a loss that sums over samples"),
        ({"worst": 0.2, "ratio": 0.97}, "most in body.weight"),
        ({"not_finite": ["head.bias"]}, "no numbers on ranks 0, 1"),
        ({"missing": ["head.bias"]}, "without a gradient on ranks 0, 1"),
    ],
)
def test_what_differs_is_named_by_its_stage(changes: dict[str, Any], words: str) -> None:
    findings = judge_staged([*GOOD, stage("ddp-2", 2, **changes), stage("ddp-4", 4)])
    assert fault_of(findings) == "ddp-2"
    assert words in findings[-1].message
    assert len(findings) == 4


def test_tolerance_is_the_callers() -> None:
    outcomes = [*GOOD, stage("ddp-2", 2, worst=0.01)]
    assert fault_of(judge_staged(outcomes)) == "ddp-2"
    assert fault_of(judge_staged(outcomes, tolerance=0.1)) is None


def test_known_error_has_its_own_remedy() -> None:
    error = (
        "rank 0: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    )
    findings = judge_staged([*GOOD[:2], StageOutcome(stage="ddp-1", world_size=1, gradients={}, error=error)])
    assert fault_of(findings) == "ddp-1"
    assert "find_unused_parameters" in (findings[-1].remedy or "")
    (other,) = judge_staged([StageOutcome(stage="single", world_size=1, gradients={}, error="KeyError: 'x'")])
    assert "one process first" in (other.remedy or "")
