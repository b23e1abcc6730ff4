"""Specs: validation names the field, and JSON brings back the same spec."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.errors import SpecError
from bench_runner.spec import (
    BUILT_IN_WORKLOADS,
    OPERATIONS,
    Checkpoint,
    Collective,
    RunSpec,
    Training,
)


def spec(**changes: object) -> RunSpec:
    fields: dict = {
        "strategy": "ddp",
        "device_kind": "cpu",
        "device_count": 2,
        "task": Training(workload="mlp", batch=8),
    }
    return RunSpec(**{**fields, **changes})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Training(workload="mpl", batch=8), "workload"),
        (lambda: Training(workload="no/such:thing", batch=8), "workload"),
        (lambda: Training(workload="mlp", batch=0), "batch"),
        (lambda: Training(workload="mlp", batch=True), "batch"),
        (lambda: Training(workload="mlp", batch=2.5), "batch"),
        (lambda: Training(workload="mlp", batch=8, precision="fp8"), "precision"),
        (lambda: Training(workload="mlp", batch=8, steps=0), "steps"),
        (lambda: Training(workload="mlp", batch=8, warmup_steps=-1), "warmup_steps"),
        (lambda: Training(workload="mlp", batch=8, scaling="strange"), "scaling"),
        (lambda: Training(workload="mlp", batch=8, data="disk"), "data"),
        (lambda: Collective(operation="all_red", message_bytes=(4,)), "operation"),
        (lambda: Collective(operation="all_reduce", message_bytes=()), "message_bytes"),
        (lambda: Collective(operation="all_reduce", message_bytes=(6,)), "message_bytes"),
        (lambda: spec(device_count=0), "device_count"),
        (lambda: spec(device_count=-1), "device_count"),
        (lambda: spec(strategy="dpp"), "strategy"),
        (lambda: spec(strategy="single"), "device_count"),
        (lambda: spec(device_count=3, nodes=2), "device_count"),
        (lambda: spec(strategy="data_parallel", nodes=2), "nodes"),
        (lambda: spec(deadline_seconds=0), "deadline_seconds"),
        (lambda: spec(deadline_seconds=float("nan")), "deadline_seconds"),
        (lambda: spec(seed=-1), "seed"),
        (
            lambda: spec(strategy="data_parallel", task=Collective(operation="all_reduce", message_bytes=(4,))),
            "strategy",
        ),
        (lambda: spec(device_count=3, task=Training(workload="mlp", batch=8, scaling="strong")), "batch"),
    ],
)
def test_an_impossible_value_is_refused_and_its_field_named(make, field):
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} = ")
    assert caught.value.exit_code == 2


def test_weak_and_strong_scaling_give_both_batches():
    weak = Training(workload="mlp", batch=8)
    assert (weak.per_device_batch(4), weak.global_batch(4)) == (8, 32)
    strong = Training(workload="mlp", batch=8, scaling="strong")
    assert (strong.per_device_batch(4), strong.global_batch(4)) == (2, 8)


def test_world_size_is_the_number_of_processes():
    assert spec(device_count=4).world_size == 4
    assert spec(device_count=4, strategy="data_parallel").world_size == 1


def test_a_changed_setting_is_another_label():
    labels = {
        Training(workload="mlp", batch=8).label,
        Training(workload="mlp", batch=16).label,
        Training(workload="mlp", batch=16, scaling="strong").label,
        Training(workload="mlp", batch=8, precision="bf16").label,
        Training(workload="mlp", batch=8, data="loader").label,
        Training(workload="mlp", batch=8, data="loader", loader_workers=2).label,
        Training(workload="mlp", batch=8, find_batch=True).label,
    }
    assert len(labels) == 7


trainings = st.builds(
    Training,
    workload=st.sampled_from([*BUILT_IN_WORKLOADS, "my.module:factory"]),
    batch=st.integers(1, 1 << 20),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    scaling=st.just("weak"),
    data=st.sampled_from(["device", "loader"]),
    steps=st.integers(1, 1000),
)
collectives = st.builds(
    Collective,
    operation=st.sampled_from(OPERATIONS),
    message_bytes=st.lists(st.integers(1, 1 << 28).map(lambda n: 4 * n), min_size=1, max_size=5).map(tuple),
)


checkpoints = st.builds(
    Checkpoint, workload=st.sampled_from([*BUILT_IN_WORKLOADS, "my.module:factory"]), repeats=st.integers(1, 100)
)


@pytest.mark.parametrize("changes", [{"strategy": "data_parallel"}, {"device_count": 2, "nodes": 2}])
def test_a_checkpoint_is_measured_under_single_and_ddp_on_one_node(changes):
    with pytest.raises(SpecError, match="a checkpoint is measured"):
        spec(task=Checkpoint(workload="mlp"), **changes)


@given(task=st.one_of(trainings, collectives, checkpoints), devices=st.integers(1, 64), seed=st.integers(0, 1 << 31))
def test_json_brings_back_the_same_spec(task, devices, seed):
    before = spec(task=task, device_count=devices, seed=seed)
    assert RunSpec.from_json(json.loads(json.dumps(before.to_json()))) == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["strategy", "task", "device_count", "nodes", "more"]), json_values))
def test_any_other_document_is_a_spec_error(document):
    with pytest.raises(SpecError):
        RunSpec.from_json(document)
