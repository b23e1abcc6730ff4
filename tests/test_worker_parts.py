"""The worker's parts that need no second rank: clocks, cores, workloads, memory, libraries, the search for a batch."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.errors import DeviceError, UsageError
from bench_runner.spec import OPERATIONS, RunSpec, Training
from bench_runner.worker import collectives, devices, failures, find_batch, memory, runtime, settings, workloads
from bench_runner.worker.data import LoaderBatches
from bench_runner.worker.group import Group, Ranks
from bench_runner.worker.training import Trainer

CPU = devices.Device("cpu", 0)
ALONE = Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1, node=0)


def alone() -> Group:
    return Group(CPU, ALONE, wanted=False, timeout_seconds=10)


def spec(task: Training) -> RunSpec:
    return RunSpec(strategy="single", device_kind="cpu", device_count=1, task=task)


def test_every_call_is_timed_and_the_loops_clock_agrees():
    seconds, loop_seconds = devices.time_repeated(CPU, lambda: time.sleep(0.01), 5)
    assert len(seconds) == 5
    assert all(second >= 0.01 for second in seconds)
    assert math.isclose(sum(seconds), loop_seconds, rel_tol=0.05, abs_tol=0.002)


@pytest.mark.parametrize(
    ("cores", "local_rank", "per_rank", "share"),
    [
        ([0, 1], 0, 1, [0]),
        ([0, 1], 1, 1, [1]),
        ([0, 1], 2, 1, [0]),  # oversubscribed: round again
        ([2, 3, 8, 9], 1, 2, [8, 9]),
        ([5], 0, 4, [5]),
    ],
)
def test_each_rank_gets_cores_of_its_own(cores, local_rank, per_rank, share):
    assert settings.share_of_cores(cores, local_rank, per_rank) == share


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(DeviceError, match=r"^cuda: torch .* finds no usable device"):
        devices.select("cuda", 0, 1)


@pytest.mark.parametrize("name", ["mlp", "transformer-tiny"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_workload_learns(name, precision):
    """Forward, backward and update are wired up: the loss on one batch falls."""
    trainer = Trainer(
        spec(Training(workload=name, batch=4, precision=precision)),
        Training(workload=name, batch=4, precision=precision),
        CPU,
        alone(),
    )
    for group in trainer._optimizer.param_groups:
        group["lr"] = 0.1
    trainer.step()
    before = trainer.checked_loss()
    for _ in range(8):
        trainer.step()
    assert trainer.checked_loss() < before


def test_the_124m_preset_has_the_size_of_gpt2():
    with torch.device("meta"):
        model = workloads.Transformer(**workloads.TRANSFORMERS["124m"])
    assert 123.5e6 < sum(p.numel() for p in model.parameters()) < 125e6


def test_a_transformer_does_not_see_the_future():
    model = workloads.Transformer(layers=1, width=16, heads=2, vocabulary=10, positions=6).eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    changed = tokens.clone()
    changed[0, -1] = 9
    assert torch.allclose(model(tokens)[0, :-1], model(changed)[0, :-1], atol=1e-6)


USERS = {
    "no_tuple": ("def factory():\n    return 3\n", "must return (model, loss, batch), not int"),
    "nonsense": ("def factory():\n    return 1, 2, 3\n", "must be a Module and two functions, not (int, int, int)"),
    "absent": ("", "has no function factory"),
}


@pytest.mark.parametrize("case", USERS)
def test_a_users_factory_is_checked(case, tmp_path, monkeypatch):
    source, message = USERS[case]
    (tmp_path / f"users_{case}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as caught:
        workloads.build(f"users_{case}:factory")
    assert message in str(caught.value)


def test_a_users_module_that_is_not_there_is_named():
    with pytest.raises(UsageError, match="there is no module nowhere on the Python path"):
        workloads.build("nowhere:factory")


def test_a_model_without_parameters_is_refused(tmp_path, monkeypatch):
    (tmp_path / "users_empty.py").write_text(
        "import torch\ndef factory():\n    return torch.nn.ReLU(), torch.sum, torch.ones\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    task = Training(workload="users_empty:factory", batch=1)
    with pytest.raises(UsageError, match="no parameters"):
        Trainer(spec(task), task, CPU, alone())


@given(ranks=st.integers(1, 5), samples=st.integers(1, 4), epochs=st.integers(1, 2))
def test_loader_shards_are_even_disjoint_and_differ_from_epoch_to_epoch(ranks, samples, epochs):
    workload = workloads.Workload(
        model=torch.nn.Linear(1, 1),
        loss=lambda output, target: output.sum(),
        batch=lambda n, device: (torch.arange(n, dtype=torch.float32).unsqueeze(1), torch.arange(n)),
    )
    sources = [
        LoaderBatches(workload, samples, CPU, rank=rank, ranks=ranks, workers=0, seed=3) for rank in range(ranks)
    ]
    seen: list[list[int]] = []
    for _ in range(epochs):
        epoch: list[int] = []
        for source in sources:
            for _ in range(LoaderBatches.STEPS_PER_EPOCH):
                _, target = source.next()
                assert len(target) == samples
                epoch += target.tolist()
        assert sorted(epoch) == list(range(samples * ranks * LoaderBatches.STEPS_PER_EPOCH))
        seen.append(epoch)
    assert epochs == 1 or seen[0] != seen[1]


@given(fits=st.integers(0, 5000), first=st.integers(1, 6000), limit=st.integers(1, 6000))
def test_the_search_finds_the_largest_batch(fits, first, limit):
    tried: list[int] = []

    def attempt(batch: int) -> find_batch.Trial:
        tried.append(batch)
        return "fits" if batch <= fits else "fails"

    good, bad = find_batch.largest_that_fits(attempt, first, limit)
    assert good <= min(fits, limit)
    assert all(batch <= limit for batch in tried)
    if bad is None:
        assert good == limit
    else:
        assert fits < bad <= limit
        assert bad - good <= max(1, good // 64)
    assert len(tried) <= 40


def test_the_search_stops_where_a_step_takes_too_long():
    def attempt(batch: int) -> find_batch.Trial:
        return "slow" if batch >= 100 else "fits"

    assert find_batch.largest_that_fits(attempt, 8, 1 << 16) == (128, None)


def test_out_of_memory_is_told_from_other_errors():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert failures.classify(caught.value)[0] == "out-of-memory"
    assert failures.classify(MemoryError())[0] == "out-of-memory"
    assert failures.classify(RuntimeError("shape mismatch"))[0] == "exception"
    assert failures.classify(failures.LossNotFinite("the loss is nan"))[0] == "loss-not-finite"
    assert failures.classify(SystemExit(3)) == ("exit", "a worker called sys.exit(3)")
    assert failures.classify(ValueError("two\nlines")) == ("exception", "ValueError: two")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_checked_pattern_is_right_for_every_operation_and_sees_one_wrong_element(operation, size):
    """Play all ranks in one process: what each must receive is computed from what each sent."""
    ranks = [Ranks(rank=r, local_rank=r, world_size=size, local_world_size=size, node=0) for r in range(size)]
    made = []
    for rank in ranks:
        group = Group(CPU, rank, wanted=False, timeout_seconds=1)
        group.backend = "played"
        made.append(collectives.Buffers(operation, 4096, CPU, group))
    for buffers in made:
        buffers.fill()
    full = torch.stack([buffers.full for buffers in made])
    shards = torch.cat([buffers.shard for buffers in made])
    for rank, buffers in enumerate(made):
        if operation == "all_reduce":
            buffers.full = full.sum(0)
        elif operation == "broadcast":
            buffers.full = full[0].clone()
        elif operation == "all_gather":
            buffers.full = shards.clone()
        else:
            buffers.shard = full.sum(0)[rank * buffers.part : (rank + 1) * buffers.part].clone()
        assert buffers.correct()
        target = buffers.shard if operation == "reduce_scatter" else buffers.full
        target[7] += 1
        assert not buffers.correct()


def test_memory_of_this_process_on_each_device():
    assert memory.own_bytes([{10: 5, 11: 6}, {11: 7}], 10) == [5, 0]
    # In a container the driver lists the host's PIDs: not listed anywhere is unknown, not zero.
    assert memory.own_bytes([{10: 5}, {11: 7}], 99) == [None, None]
    assert memory.own_bytes([None, {10: 3}], 10) == [None, 3]
    assert memory.own_bytes([{10: None}], 10) == [None]


def test_the_peak_of_resident_memory_is_that_of_the_case():
    code = """
from bench_runner.worker import memory
from bench_runner.worker.devices import Device
big = bytearray(200 << 20); del big
before = memory.peak_rss_bytes(); memory.start_case(Device("cpu", 0)); after = memory.peak_rss_bytes()
print(before - after > 150 << 20)
"""
    root = Path(__file__).resolve().parent.parent
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=120
    )
    assert out.stdout.strip() == "True"


def test_the_libraries_that_are_loaded_here_are_found():
    names = {library["name"] for library in runtime.describe("cpu")["libraries"]}
    assert any(name.startswith("libtorch_cpu.so") for name in names)


@given(st.text(max_size=300))
def test_any_memory_map_can_be_read(text):
    for library in runtime.mapped_libraries(text):
        assert library["path"] in text


def test_variables_that_change_results_are_kept_and_others_are_not():
    kept = runtime.telling_variables(
        {"NCCL_DEBUG": "INFO", "MKL_THREADING_LAYER": "GNU", "AWS_SECRET": "x", "OMP_NUM_THREADS": "1"}
    )
    assert kept == {"NCCL_DEBUG": "INFO", "MKL_THREADING_LAYER": "GNU"}  # the launch itself sets the threads


def test_the_quiet_settings_are_applied_and_reported():
    code = """
import json, os
from bench_runner.worker import settings
applied = settings.apply(0, 1, on_cpu=True, options={})
print(json.dumps([applied, sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0) == os.SCHED_BATCH]))
"""
    import json

    root = Path(__file__).resolve().parent.parent
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=120
    )
    applied, cores, batch = json.loads(out.stdout)
    assert applied["cores"] == cores
    assert len(cores) == 1
    assert applied["threads"] == 1
    assert (applied["scheduler"], batch) == ("batch", True)
    assert applied["oversubscribed"] is False
    assert os.sched_getscheduler(0) == os.SCHED_OTHER  # the test's own process is untouched


@pytest.mark.parametrize(
    ("text", "lacks_memory"),
    [
        ("could not create a primitive", True),
        ("could not execute a primitive", True),
        ("could not create a memory object", True),
        ("could not convert string to float: 'primitive'", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_onednn_without_memory_is_known_by_its_words(text: str, lacks_memory: bool) -> None:
    assert find_batch._is_onednn_without_memory(RuntimeError(text)) is lacks_memory
