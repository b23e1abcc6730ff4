"""What is measured on which machine, and the reason for what is not."""

from pathlib import Path

import pytest

from bench_runner.capacity import Capacity
from bench_runner.plan import counts_to_run, placed, placements, plan, resolve_count, skip_reason
from bench_runner.profile import Profile, TrainingCase, load
from bench_runner.spec import Checkpoint, Collective, Training


def cpu(count: int) -> Capacity:
    return Capacity(kind="cpu", count=count, reason="test")


def cuda(count: int) -> Capacity:
    return Capacity(kind="cuda", count=count, reason="test")


def profile_of(*trainings: Training) -> Profile:
    return Profile(name="p", source=Path("p.toml"), training=tuple(TrainingCase(training=t) for t in trainings))


@pytest.mark.parametrize(
    ("capacity", "asked", "counts"),
    [
        (cpu(2), None, (1, 2)),
        (cpu(1), None, (1,)),
        (cuda(8), None, (1, 2, 4, 8)),
        (cuda(6), None, (1, 2, 4, 6)),
        (cpu(24), None, (1, 2, 4, 8, 16, 24)),
        (cuda(8), (3, "all", 8), (3, 8)),
    ],
)
def test_device_counts_are_1_2_4_and_all(capacity, asked, counts):
    assert counts_to_run(asked, capacity) == counts


@pytest.mark.parametrize(
    ("strategy", "count", "capacity", "asked", "reason"),
    [
        ("single", 1, cpu(2), None, None),
        ("single", 2, cpu(2), None, "single-device training uses one device"),
        ("data_parallel", 1, cpu(2), None, "DataParallel needs a CUDA device"),
        ("data_parallel", 2, cuda(2), None, None),
        ("ddp", 4, cuda(2), None, "needs 4 devices; this machine has 2 cuda devices"),
        ("ddp", 4, cuda(2), (4,), "needs 4 devices; this machine has 2 cuda devices"),
        ("ddp", 4, cpu(2), None, "needs 4 devices; this machine has 2 cores to use"),
        ("ddp", 4, cpu(2), (4,), None),  # more ranks than cores, asked for by number
    ],
)
def test_skips_have_a_reason(strategy, count, capacity, asked, reason):
    assert skip_reason(strategy, count, capacity, asked) == reason


def test_collectives_belong_to_ddp_and_need_two_ranks():
    quick = load("quick")
    assert not any(isinstance(case.spec.task, Collective) for case in plan(quick, "single", 1, cpu(2)))
    by_label = {case.label: case for case in plan(quick, "ddp", 1, cpu(2))}
    assert by_label["all_reduce"].skip == "a collective needs at least two ranks"
    assert {case.label: case.skip for case in plan(quick, "ddp", 2, cpu(2))}["all_reduce"] is None


def test_checkpoints_belong_to_single_and_ddp_on_one_node_and_not_to_the_quick_profile():
    standard = load("standard")
    for strategy, count, expected in (("single", 1, 2), ("ddp", 2, 2), ("data_parallel", 2, 0), ("ddp", "2x2", 0)):
        planned = [c for c in plan(standard, strategy, count, cuda(2)) if isinstance(c.spec.task, Checkpoint)]
        assert len(planned) == expected
        assert all(case.skip is None for case in planned)
    assert not load("quick").checkpoints


def test_message_sizes_go_further_on_an_accelerator():
    def largest(capacity: Capacity) -> int:
        task = {case.label: case for case in plan(load("quick"), "ddp", 2, capacity)}["all_reduce"].spec.task
        assert isinstance(task, Collective)
        return max(task.message_bytes)

    assert (largest(cpu(2)), largest(cuda(2))) == (64 << 20, 1 << 30)


def test_cases_for_other_devices_and_precisions_are_skipped():
    skips = {case.label: case.skip for case in plan(load("full"), "ddp", 2, cpu(2))}
    assert skips["transformer-124m/bf16/b8"] == "the profile measures it on cuda and xpu only"
    profile = profile_of(Training(workload="mlp", batch=8, precision="fp16"))
    assert plan(profile, "single", 1, cpu(1))[0].skip == "fp16 training needs an accelerator"


def test_a_global_batch_that_cannot_be_divided_is_a_skip_and_no_crash():
    profile = profile_of(Training(workload="mlp", batch=8, scaling="strong"))
    (case,) = plan(profile, "ddp", 3, cuda(3))
    assert case.skip == "batch 8: a global batch (strong scaling) must be divisible by the 3 devices"
    assert case.label == "mlp/fp32/g8"


@pytest.mark.parametrize(
    ("nodes", "capacity", "asked", "expected"),
    [
        (2, cuda(8), None, ("2x4", "2x8")),
        (2, cpu(1), None, ("2x1",)),
        (4, cuda(2), None, ("2x1", "2x2", "4x2")),
        (6, cuda(8), None, ("2x4", "2x8", "4x2", "4x8", "6x1", "6x8")),
        (2, cuda(8), (1, "all"), ("2x1", "2x8")),
        (8, cuda(4), (4,), ("2x4", "4x4", "8x4")),
    ],
)
def test_placements_are_whole_nodes_and_as_many_devices_as_one_node_has(nodes, capacity, asked, expected):
    assert placements(nodes, capacity, asked) == expected


def test_a_placement_is_nodes_by_devices():
    assert placed(4) == (1, 4)
    assert placed("2x4") == (2, 4)
    assert resolve_count("2x4", cuda(8)) == "2x4"
    assert resolve_count("all", cuda(8)) == 8


def test_over_nodes_ddp_alone_is_planned_and_its_specs_say_so():
    quick = load("quick")
    cases = plan(quick, "ddp", "2x1", cpu(2))
    assert {(case.spec.nodes, case.spec.device_count, case.skip) for case in cases} >= {(2, 2, None)}
    assert any(isinstance(case.spec.task, Collective) and case.skip is None for case in cases)
    reasons = {case.skip for case in plan(quick, "data_parallel", "2x1", cuda(2))}
    assert reasons == {"only DDP spans several nodes"}
    assert {case.skip for case in plan(quick, "ddp", "2x4", cpu(2))} >= {
        "needs 4 devices; this machine has 2 cores to use"
    }
