"""From a launch's results to stored records, with the launch itself played."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_runner import launch, store
from bench_runner.capacity import Capacity
from bench_runner.launch_verdict import CaseResult
from bench_runner.machine.sampling import DeviceSampling, SamplingSummary, Spread
from bench_runner.measure import Context, measure, record_of
from bench_runner.profile import load
from bench_runner.spec import Collective, RunSpec
from tests import builders

ROOT = Path(__file__).resolve().parent.parent


def samples(spec: RunSpec, **changes: object) -> tuple[dict, ...]:
    """Plain values as the ranks deliver them."""
    made = []
    for rank in range(spec.world_size):
        fields = {
            "rank": rank,
            "local_rank": rank,
            "node": 0,
            "host": "box",
            "pid": 100 + rank,
            "device": 0,
            "settings": {"threads": 1, "interop_threads": 1, "cores": [rank], "scheduler": "batch"},
        }
        if isinstance(spec.task, Collective):
            fields["collective_seconds"] = {"1024": [0.001, 0.002]}
        else:
            fields |= {"step_seconds": [0.01] * 40, "loop_seconds": 0.4}
        made.append({**fields, **changes})
    return tuple(made)


def result_of(spec: RunSpec, **changes: object) -> CaseResult:
    fields: dict = {
        "spec": spec,
        "outcome": "ok",
        "started_at": "2026-11-30T20:00:00.000+00:00",
        "duration_seconds": 1.0,
        "ranks": samples(spec),
        **changes,
    }
    return CaseResult(**fields)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(
        root=ROOT,
        results=tmp_path / "results",
        session_id="s" * 32,
        launch_index=3,
        machine=builders.machine(),
        python="/usr/bin/python3",
        capacity=Capacity(kind="cpu", count=2, reason="test"),
        profile=load("quick"),
    )


def stored(context: Context) -> list:
    records, problems = store.read_tree(context.results)
    assert problems == []
    return records


def test_every_case_is_a_record_measured_or_skipped(context, tmp_path, monkeypatch):
    launched = []

    def play(plan, keep):
        launched.append(plan)
        for spec in plan.specs:
            keep(result_of(spec))

    monkeypatch.setattr(launch, "run", play)
    records = measure(context, "ddp", 1, tmp_path / "work")
    outcomes = {record.spec.task.label: (record.outcome, record.reason) for record in records}
    assert outcomes == {
        "mlp/fp32/b64": ("ok", None),
        "transformer-tiny/fp32/b8": ("ok", None),
        "all_reduce": ("skipped", "a collective needs at least two ranks"),
    }
    assert len(launched) == 1
    assert {r.record_id for r in stored(context)} == {r.record_id for r in records}
    assert {(r.session_id, r.launch_index, r.profile) for r in records} == {("s" * 32, 3, "quick")}
    assert len({r.launch_id for r in records}) == 1


def test_what_can_not_be_measured_at_all_launches_nothing(context, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "run", lambda plan, keep: pytest.fail("launched"))
    records = measure(context, "data_parallel", 2, tmp_path / "work")
    assert {record.reason for record in records} == {"DataParallel needs a CUDA device"}
    assert len(stored(context)) == 2


def test_a_broken_off_launch_keeps_what_was_complete_and_only_the_rest_is_measured_next(context, tmp_path, monkeypatch):
    def broken_off(plan, keep):
        keep(result_of(plan.specs[0]))
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "run", broken_off)
    with pytest.raises(KeyboardInterrupt):
        measure(context, "ddp", 2, tmp_path / "work")
    (first,) = stored(context)
    assert first.spec.task.label == "mlp/fp32/b64"

    rest = []

    def play(plan, keep):
        rest.extend(spec.task.label for spec in plan.specs)
        for spec in plan.specs:
            keep(result_of(spec))

    monkeypatch.setattr(launch, "run", play)
    records = measure(context, "ddp", 2, tmp_path / "work")
    assert rest == ["transformer-tiny/fp32/b8", "all_reduce"]
    assert first.record_id in {record.record_id for record in records}
    assert len(records) == 3
    assert len(stored(context)) == 3


def spec_of(context: Context, label: str) -> RunSpec:
    from bench_runner.plan import plan

    return next(case.spec for case in plan(context.profile, "ddp", 2, context.capacity) if case.label == label)


def shared(context: Context) -> dict:
    return {
        "record_id": "r",
        "session_id": "s",
        "launch_id": "l",
        "launch_index": 0,
        "machine": context.machine,
    }


@pytest.fixture
def environment():
    return builders.environment()


def test_wrong_values_make_a_failure_and_no_latency(context, environment):
    spec = spec_of(context, "all_reduce")
    result = result_of(spec, ranks=samples(spec, wrong_values=[4096]))
    record = record_of(result, environment, shared(context))
    assert (record.outcome, record.failure) == ("failed", "wrong-values")
    assert "4096 bytes" in str(record.reason)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({}, None),
        ({"loop_seconds": 0.8}, "clock"),
        ({"step_seconds": [0.05, 0.04, 0.03] + [0.01] * 37, "loop_seconds": 0.49}, "rank 0:"),
    ],
)
def test_samples_that_are_not_to_be_trusted_carry_a_warning(context, environment, changes, warning):
    spec = spec_of(context, "mlp/fp32/b64")
    record = record_of(result_of(spec, ranks=samples(spec, **changes)), environment, shared(context))
    assert record.outcome == "ok"
    if warning is None:
        assert record.warnings == ()
    else:
        assert any(warning in text for text in record.warnings), record.warnings


def test_a_device_that_was_held_back_makes_the_run_unstable(context, environment):
    device = DeviceSampling(uuid="GPU-1", samples=10, throttle_share={"thermal-hardware": 0.5})
    summary = SamplingSummary(devices=(device,), warnings=("sampling: GPU-1: lost",))
    spec = spec_of(context, "mlp/fp32/b64")
    record = record_of(result_of(spec), environment, {**shared(context), "sampling": summary})
    assert any(text.startswith("unstable: GPU-1 was held back") for text in record.warnings)
    assert "sampling: GPU-1: lost" in record.warnings
    restored = store.parse_line(store.to_line(record))
    assert restored.sampling == summary


def test_a_device_that_idles_beside_the_run_is_not_in_its_sampling(context, environment):
    def at(uuid, clock):
        return DeviceSampling(uuid=uuid, samples=9, sm_clock_mhz=Spread(minimum=clock, median=clock, maximum=clock))

    summary = SamplingSummary(devices=(at("GPU-0", 1980), at("GPU-1", 210)))
    spec = spec_of(context, "mlp/fp32/b64")
    shares = {**shared(context), "sampling": summary}
    used = record_of(result_of(spec, ranks=samples(spec, uuid="GPU-0")), environment, shares)
    assert [device.uuid for device in used.sampling.devices] == ["GPU-0"]
    assert used.warnings == ()
    unknown = record_of(result_of(spec), environment, shares)
    assert unknown.sampling == summary
