from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench_runner.machine.sampling import DeviceSampling, SamplingSummary, Spread
from bench_runner.record import RunRecord
from bench_runner.report import markdown, tables, text
from bench_runner.report.table import Table
from bench_runner.report.tables import Section
from tests import builders


def one_section(records: Sequence[RunRecord]) -> Section:
    (section,) = tables.sections(records)
    return section


def table(section: Section, beginning: str) -> list[dict[str, str]]:
    (found,) = [t for t in section.tables if t.title.startswith(beginning)]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def single(seconds: float = 0.1, **changes: Any) -> RunRecord:
    return builders.training_record(strategy="single", devices=1, seconds=seconds, **changes)


def test_training_table_has_rates_efficiencies_and_memory() -> None:
    memory = (
        builders.device_memory(0, peak_allocated_bytes=3 * builders.GIB),
        builders.device_memory(1, peak_allocated_bytes=2 * builders.GIB),
    )
    records = [
        single(0.1),
        builders.training_record(devices=1, seconds=0.11),
        builders.training_record(devices=2, seconds=0.125, rank_changes={"memory": memory}),
        builders.training_record(strategy="data_parallel", devices=2, seconds=0.2, rank_changes={"memory": memory}),
    ]
    rows = table(one_section(records), "Training: mlp, fp32, batch 8 per device")
    assert [(r["strategy"], r["devices"], r["batch"]) for r in rows] == [
        ("single", "1", "8"),
        ("DDP", "1", "8"),
        ("DataParallel", "2", "16"),
        ("DDP", "2", "16"),
    ]
    assert [r["samples/s"] for r in rows] == ["80.00", "72.73", "80.00", "128.0"]
    assert [r["eff. vs single"] for r in rows] == ["–", "90.9%", "50.0%", "80.0%"]
    assert [r["eff. vs DDP-1"] for r in rows] == ["–", "–", "55.0%", "88.0%"]
    assert [r["RSS per rank"] for r in rows] == ["500 MiB", "500 MiB", "2–3 GiB", "2–3 GiB"]
    assert [r["spread"] for r in rows] == ["–"] * 4


def test_launches_are_one_row_with_median_and_spread() -> None:
    records = builders.launches(3, lambda index: single((0.1, 0.2, 0.4)[index]))
    section = one_section(records)
    (row,) = table(section, "Training")
    assert row["samples/s"] == "40.00"
    assert row["spread"] == "150.0%"
    assert section.tables[0].note == "median of 3 launches; spread: slowest to fastest launch"


def test_strategies_share_a_table_only_at_equal_batches() -> None:
    records = [
        builders.training_record(devices=2),
        builders.training_record(strategy="data_parallel", devices=2, task={"batch": 16}),
        builders.training_record(devices=2, task={"batch": 16, "scaling": "strong"}),
        builders.training_record(strategy="data_parallel", devices=2, task={"batch": 16, "scaling": "strong"}),
    ]
    found = {t.title: [row[0] for row in t.rows] for t in one_section(records).tables}
    assert found == {
        "Training: mlp, fp32, batch 16 in all (strong scaling)": ["DataParallel", "DDP"],
        "Training: mlp, fp32, batch 16 per device": ["DataParallel"],
        "Training: mlp, fp32, batch 8 per device": ["DDP"],
    }


def test_unlike_settings_are_rows_of_their_own() -> None:
    loud = {"settings": builders.settings(scheduler="other", threads=2)}
    records = [builders.training_record(), builders.training_record(rank_changes=loud)]
    names = [row["strategy"] for row in table(one_section(records), "Training")]
    assert names == ["DDP (threads 1, batch, gloo)", "DDP (threads 2, other, gloo)"]


def test_nodes_stand_beside_one_node_and_beside_as_many_devices_within_one() -> None:
    def over(nodes: int, devices: int, seconds: float) -> RunRecord:
        record = builders.training_record(devices=devices, seconds=seconds)
        return replace(record, spec=replace(record.spec, nodes=nodes))

    # 8 samples a step and device: 80/s on one, 160/s on two of a node, 100/s on two of two nodes, 200/s on two and two.
    records = [over(1, 1, 0.1), over(1, 2, 0.1), over(2, 2, 0.16), over(2, 4, 0.16)]
    section = one_section(records)
    rows = table(section, "Over nodes")
    shown = [(r["nodes"], r["devices each"], r["vs one node"], r["vs within"]) for r in rows]
    assert shown == [("2", "1", "62.5%", "62.5%"), ("2", "2", "62.5%", "–")]
    names = [(row["strategy"], row["devices"]) for row in table(section, "Training")]
    assert names == [("DDP", "1"), ("DDP", "2"), ("DDP on 2 nodes", "2"), ("DDP on 2 nodes", "4")]


def test_collectives_across_nodes_are_a_table_of_their_own() -> None:
    across = builders.collective_record(devices=2)
    across = replace(across, spec=replace(across.spec, nodes=2))
    section = one_section([builders.collective_record(devices=2), across])
    titles = [found.title for found in section.tables]
    assert titles == ["all-reduce over gloo", "all-reduce over gloo across 2 nodes"]


def test_step_parts_are_shown_where_they_were_taken() -> None:
    phases = {"data": (0.001,), "forward": (0.02,), "backward": (0.05,), "optimizer": (0.01,)}
    taken = {"phase_seconds": phases, "no_sync_step_seconds": (0.08,)}
    (row,) = table(one_section([builders.training_record(rank_changes=taken)]), "Parts of a step")
    assert list(row.values()) == ["DDP", "2", "100 ms", "1.00 ms", "20.0 ms", "50.0 ms", "10.0 ms", "20.0 ms"]
    assert len(one_section([builders.training_record()]).tables) == 1


def test_collective_table_is_by_bytes_and_ranks() -> None:
    records = [
        builders.collective_record(devices=4, seconds={builders.MIB: [[0.001, 0.003]] * 4}),
        builders.collective_record(devices=2, seconds={1024: [[1e-4]] * 2, builders.MIB: [[0.001]] * 2}),
    ]
    rows = table(one_section(records), "all-reduce over gloo")
    assert [(r["size"], r["ranks"]) for r in rows] == [("1 KiB", "2"), ("1 MiB", "2"), ("1 MiB", "4")]
    assert rows[2] == {
        "size": "1 MiB",
        "ranks": "4",
        "latency": "2.00 ms",
        "p50": "2.00 ms",
        "p99": "3.00 ms",
        "slowest rank": "2.00 ms",
        "algbw GB/s": "0.524",
        "busbw GB/s": "0.786",
        "spread": "–",
    }


def test_reasons_are_folded_with_their_counts_worst_first() -> None:
    records = [
        *(
            builders.failed_record(strategy="data_parallel", devices=n, outcome="skipped", reason="needs a CUDA device")
            for n in (2, 4)
        ),
        builders.failed_record(outcome="timeout", reason="no end after 120 s"),
        builders.failed_record(devices=4, reason="rank 1 died"),
        builders.record(
            builders.collective_spec(sizes=(1024,)),
            [builders.rank_samples(rank, wrong_values=(1024,)) for rank in range(2)],
        ),
    ]
    assert one_section(records).not_measured == (
        "failed 1 ×, DDP on 4 (mlp/fp32/b8): rank 1 died",
        "failed 1 ×, DDP on 2 (all_reduce): wrong values at 1 KiB",
        "timeout 1 ×, DDP on 2 (mlp/fp32/b8): no end after 120 s",
        "skipped 2 ×, DataParallel on 2, 4 (mlp/fp32/b8): needs a CUDA device",
    )


def test_warnings_are_folded_and_crowding_is_one() -> None:
    crowded = {"settings": builders.settings(oversubscribed=True)}
    records = [
        builders.training_record(warnings=("drifts",)),
        builders.training_record(warnings=("drifts",), launch_index=1, rank_changes=crowded),
        builders.training_record(machine=builders.machine(gpus=1, not_read=("NVML: code 999",))),
    ]
    assert one_section(records).warnings == (
        "ddp/2/mlp/fp32/b8: drifts (2 ×)",
        "ddp/2/mlp/fp32/b8: more ranks than cores; its numbers say little",
        "not read: NVML: code 999",
    )


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("match", "Environment: the locked environment (conda)"),
        ("not-locked", "Environment: not the locked environment (conda)"),
        ("drift", "Environment: NOT as locked"),
        ("no-lock", "Environment: not the locked environment (no lock file)"),
    ],
)
def test_environment_line_says_plainly_whether_it_is_locked(state: str, sentence: str) -> None:
    assert tables.environment_line(builders.environment(lock_state=state)).startswith(sentence)


def test_machine_line_counts_devices_of_each_kind() -> None:
    machine = builders.machine(
        "mixed",
        gpus=2,
        accelerators=(builders.accelerator(0), builders.accelerator(1, name="A100"), builders.accelerator(2)),
    )
    assert "2 × NVIDIA H100 80GB HBM3, 1 × A100, driver 570" in tables.machine_line(machine)
    assert "no accelerator" in tables.machine_line(builders.machine())


def test_machines_and_environments_are_sections() -> None:
    records = [
        single(machine=builders.machine("a")),
        single(machine=builders.machine("b")),
        single(machine=builders.machine("a"), environment=builders.environment(fingerprint="other")),
    ]
    assert [section.machine for section in tables.sections(records)] == ["a", "b", "a"]
    assert tables.sections([]) == []


# --- renderings

HOSTILE = "<script>alert(1)</script>|`x` [a](http://b.c) @someone \x1b[31m"


def hostile_section() -> Section:
    return Section(
        machine=HOSTILE,
        lines=(HOSTILE,),
        tables=(
            Table(title=HOSTILE, columns=("a b", "c"), numeric=(False, True), rows=((HOSTILE, "1"),), note=HOSTILE),
        ),
        not_measured=(HOSTILE,),
        warnings=(HOSTILE,),
    )


def full_records() -> list[RunRecord]:
    phases = dict.fromkeys(("data", "forward", "backward", "optimizer"), (0.0123,))
    return [
        *builders.launches(
            2,
            lambda i: builders.training_record(
                seconds=0.0001234, task={"batch": 8192}, rank_changes={"phase_seconds": phases}
            ),
        ),
        builders.training_record(
            strategy="data_parallel", devices=2, seconds=0.0001, task={"batch": 8192}, launch_index=1
        ),
        builders.training_record(strategy="single", devices=1, seconds=0.0001, task={"batch": 8192}),
        builders.collective_record(devices=4),
        builders.failed_record(reason="a reason that is long enough to need several lines " * 3),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", None])
def test_text_fits_80_columns_and_the_encoding(encoding: str | None) -> None:
    shown = text.render([*tables.sections(full_records()), hostile_section()], encoding=encoding)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert not any(line.endswith(" ") for line in shown.splitlines())
    assert "\x1b" not in shown
    assert shown.isascii() == (encoding != "utf-8")


def test_no_cell_of_the_text_is_cut_off() -> None:
    (section,) = tables.sections(full_records())
    shown = text.render([section])
    for part in section.tables:
        for row in part.rows:
            assert any(all(cell in line for cell in row) for line in shown.splitlines()), row


def test_long_names_are_folded_and_not_lost() -> None:
    wide = Table(title="t", columns=("name", "value"), numeric=(False, True), rows=(("x" * 200, "1"),))
    section = Section(machine="m", lines=(), tables=(wide,), not_measured=(), warnings=())
    shown = text.render([section])
    assert shown.count("x") == 200
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_markdown_leaves_foreign_text_as_text() -> None:
    shown = markdown.render([hostile_section()])
    assert "<script>" not in shown
    assert "@someone" not in shown
    assert "http://" not in shown
    assert "\x1b" not in shown
    (row,) = [line for line in shown.splitlines() if line.startswith("| &lt;script")]
    assert row.replace("\\|", "").count("|") == 3


def test_markdown_has_every_table_as_a_table() -> None:
    (section,) = tables.sections(full_records())
    shown = markdown.render([section])
    assert shown.startswith("## box\n")
    assert shown.count("\n| ---") == len(section.tables)
    assert "| DataParallel | 2 | 16384 | 163,800,000 |" in shown
    assert "### Not measured" in shown


def test_a_host_without_a_gpu_is_not_warned_of_its_missing_library():
    host = builders.machine(not_read=("NVML: library not found",))
    assert tables.warnings_of([builders.training_record(machine=host)]) == []


def test_a_ddp_step_is_told_by_its_parts():
    alone = {"no_sync_step_seconds": (0.02,) * 5}
    single = builders.training_record(strategy="single", devices=1, step_seconds=[[0.01] * 10])
    ddp = builders.training_record(step_seconds=[[0.03] * 10, [0.03] * 10], rank_changes=alone)
    lines = tables.step_gaps([single, ddp])
    assert len(lines) == 1
    assert lines[0].startswith(
        "mlp/fp32/b8 on 2 devices: step 30.00 ms = compute 10.00 ms, exposed communication 10.00"
    )


def sampled(clock: float, uuid: str = "GPU-0", **changes: Any) -> DeviceSampling:
    fields: dict[str, Any] = {
        "samples": 9,
        "sm_clock_mhz": Spread(minimum=clock - 100, median=clock, maximum=clock + 5),
        "power_watts": Spread(minimum=100, median=650.4, maximum=700),
        "temperature_celsius": Spread(minimum=40, median=60, maximum=71),
        "utilisation_percent": Spread(minimum=0, median=98, maximum=100),
        "throttle_share": {"idle": 0.1, "power-cap": 0.25},
    }
    return DeviceSampling(uuid=uuid, **{**fields, **changes})


def test_what_was_sampled_is_a_row_a_run() -> None:
    steady = SamplingSummary(devices=(sampled(1980), sampled(1950, "GPU-1", throttle_share={})))
    changes = {"loop_seconds": 1.0, "loop_energy_joules": 160.0}
    record = builders.training_record(sampling=steady, rank_changes=changes)
    section = one_section([record, single(0.1)])
    assert table(section, "What the devices did") == [
        {
            "run": record.spec.label,
            "clock MHz": "1950–1980",
            "power W": "650",
            "max. °C": "71",
            "load %": "98",
            "held back by": "power-cap 25%",
            "J per sample": "2.000",
        }
    ]
    assert "unstable" not in text.render([section])


def test_what_was_held_back_is_marked_on_its_rows() -> None:
    hot = SamplingSummary(devices=(sampled(1200, throttle_share={"thermal-hardware": 0.5}),))
    section = one_section([single(0.1, sampling=hot), builders.collective_record(sampling=hot)])
    assert [row["strategy"] for row in table(section, "Training")] == ["single, unstable"]
    assert [row["run"].endswith(", unstable") for row in table(section, "What the devices")] == [True, True]
    assert any("unstable on 2 ranks" in (found.note or "") for found in section.tables)


def test_what_was_not_read_of_a_device_is_no_number_and_no_sampling_is_no_table() -> None:
    blank = SamplingSummary(devices=(DeviceSampling(uuid="GPU-0", samples=1),))
    (row,) = table(one_section([single(0.1, sampling=blank)]), "What the devices")
    assert set(row.values()) == {row["run"], "–"}
    nothing = SamplingSummary(not_sampled="library not found")
    assert not any("devices did" in t.title for t in one_section([single(0.1, sampling=nothing)]).tables)


def test_checkpoints_are_a_table_for_each_workload() -> None:
    records = [builders.checkpoint_record(strategy="single", devices=1), builders.checkpoint_record()]
    (section,) = tables.sections(records)
    (table,) = [table for table in section.tables if table.title == "Checkpoint: mlp"]
    assert [row[:3] for row in table.rows] == [("single", "1", "3 MiB"), ("DDP", "2", "3 MiB")]
    assert [row[3:5] for row in table.rows] == [("300 ms", "100 ms")] * 2
