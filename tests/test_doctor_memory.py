"""Who holds memory where: rules over made-up matrices, and the gathering over real processes and a made-up driver."""

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.cli import main
from bench_runner.doctor.document import fault_of
from bench_runner.doctor.memory import MemoryProbe, RankMemory, probe_job, resident_bytes
from bench_runner.doctor.memory_rules import judge_memory, judge_skew
from bench_runner.doctor.memory_skew import Growth, SkewProbe
from bench_runner.doctor.watch import WatchPlan
from bench_runner.machine.memory import DeviceUse
from bench_runner.processes import read_process

MIB = 1 << 20
GIB = 1 << 30


def probe(
    *rows: dict[int, int | None], devices: int | None = 2, resident: tuple[int, ...] = (), **changes
) -> MemoryProbe:
    """One row a rank: MiB by device."""
    ranks = tuple(
        RankMemory(
            rank=rank,
            pid=100 + rank,
            resident_bytes=(resident[rank] if resident else 500) * MIB,
            device_bytes={device: None if held is None else held * MIB for device, held in row.items()},
        )
        for rank, row in enumerate(rows)
    )
    values = {
        "devices": devices,
        "strangers": 0,
        "samples": 3,
        "seconds": 3.0,
        "exit_code": 0,
        "ended": True,
        **changes,
    }
    return MemoryProbe(ranks=ranks, **values)


@pytest.mark.parametrize(
    ("case", "fault", "words"),
    [
        (probe({0: 4000}, {1: 4000}), None, ""),
        (probe({0: 4000}, {0: 450, 1: 4000}), "foreign-device", "rank 1 holds memory on device 0 too"),
        (probe({0: 4000}, {0: 450, 1: 4000}), "foreign-device", "as much as a context"),
        (probe({0: 4000}, {0: 2000, 1: 4000}), "foreign-device", "torch.load without map_location"),
        (probe({0: 4000}, {0: None, 1: 4000}), "foreign-device", "does not tell"),
        (probe({0: 4000}, {0: 4000}), "one-device", "ranks 0, 1 all compute on device 0, and 1 others stand empty"),
        (probe({0: 9000}, {1: 4000}, {2: 4000}, devices=3), "skew", "rank 0 holds 9000 MiB"),
        (probe({}, {}, devices=None, resident=(500, 900)), "host-skew", "rank 1 holds 900 MiB"),
        (probe({}, {}, devices=None, exit_code=1), "job-failed", "exit code 1"),
        (probe(devices=None), "no-ranks", "no process"),
    ],
)
def test_matrix_gets_its_verdict(case: MemoryProbe, fault: str | None, words: str) -> None:
    findings = judge_memory(case)
    assert fault_of(findings) == fault
    assert any(words in finding.message for finding in findings)


def test_data_parallel_is_expected_to_be_skewed() -> None:
    findings = judge_memory(probe({0: 8000, 1: 4000}))
    assert fault_of(findings) is None
    assert "doctor.memory.data-parallel" in {finding.check for finding in findings}


def test_what_is_unknown_is_said_and_is_not_zero() -> None:
    for case, words in [
        (probe({}, {}, devices=None), "no driver"),
        (probe({}, {}, strangers=2), "not known here"),
        (probe({}, {}), "no rank was seen"),
    ]:
        assert any(f.status == "skip" and words in f.message for f in judge_memory(case))


@given(
    st.lists(st.dictionaries(st.integers(0, 3), st.none() | st.integers(0, 90_000), max_size=4), max_size=5),
    st.none() | st.integers(0, 4),
)
def test_any_matrix_is_judged(rows: list[dict[int, int | None]], devices: int | None) -> None:
    assert judge_memory(probe(*rows, devices=devices))


def test_resident_memory_of_this_process() -> None:
    assert resident_bytes([os.getpid()]) > 5 * MIB
    assert resident_bytes([999_999_999]) == 0


def test_ranks_are_joined_with_the_drivers_list(tmp_path: Path) -> None:
    """Two real ranks; the driver's list shows rank 1 on both devices, and a process of the host's that is not here."""
    program = tmp_path / "rank.py"
    program.write_text(
        "import os, subprocess, sys, time\nif 'RANK' not in os.environ:\n    ranks ="
        " [subprocess.Popen([sys.executable, __file__], env={**os.environ, 'RANK': str(r), 'WORLD_SIZE': '2',\n      "
        f"       'LOCAL_WORLD_SIZE': '2'}}) for r in (0, 1)]\n    open({str(tmp_path / 'pids')!r}, 'w').write('"
        " '.join(str(r.pid) for r in ranks))\n    [r.wait() for r in ranks]\nelse:\n    time.sleep(5)\n"
    )

    def driver() -> tuple[DeviceUse, ...]:
        text = (tmp_path / "pids").read_text() if (tmp_path / "pids").exists() else ""
        first, second = (int(pid) for pid in text.split()) if len(text.split()) == 2 else (0, 0)
        return (
            DeviceUse(key="GPU 0", processes={first: 4 * GIB, second: 400 * MIB, 999_999_999: GIB}),
            DeviceUse(key="GPU 1", processes={second: 4 * GIB}),
        )

    result = probe_job(WatchPlan(command=(sys.executable, str(program)), max_seconds=60), driver)
    assert [(rank.rank, rank.device_bytes) for rank in result.ranks] == [
        (0, {0: 4 * GIB}),
        (1, {0: 400 * MIB, 1: 4 * GIB}),
    ]
    assert result.strangers >= 1
    assert (result.ended, result.exit_code) == (True, 0)
    assert all(read_process(rank.pid) is None for rank in result.ranks)
    assert fault_of(judge_memory(result)) == "foreign-device"


def test_command_on_a_machine_without_devices(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "import time; x = bytearray(50_000_000); time.sleep(60)"]
    code = main(["doctor", "memory", "--max-seconds", "2", "--kill", "--json", "--", *command])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["verdict"]) == (0, "pass")
    assert document["details"]["matrix"][0]["resident_bytes"] > 50_000_000
    assert read_process(document["details"]["matrix"][0]["pid"]) is None


def skew(kind: str, saved: list[tuple[int, ...]], mapped: list[tuple[int, ...]]) -> SkewProbe:
    """One tuple a rank, in MiB: resident, then each device."""

    def growths(rows: list[tuple[int, ...]]) -> tuple[Growth, ...]:
        return tuple(
            Growth(rank=rank, resident_bytes=row[0] * MIB, device_bytes=tuple(held * MIB for held in row[1:]))
            for rank, row in enumerate(rows)
        )

    return SkewProbe(device_kind=kind, checkpoint_bytes=64 * MIB, as_saved=growths(saved), mapped=growths(mapped))


def test_skew_of_a_checkpoint_is_told_with_and_without_mapping() -> None:
    (finding,) = judge_skew(skew("cuda", [(5, 64, 0), (5, 64, 0)], [(5, 64, 0), (5, 0, 64)]))
    assert finding.status == "pass"
    assert "64 MiB of memory on device 0 without map_location, 0 MiB with it" in finding.message
    assert "as saved, rank 1: device 0 +64 MiB, device 1 +0 MiB, resident +5 MiB" in finding.evidence
    (host,) = judge_skew(skew("cpu", [(66,), (65,)], [(1,), (0,)]))
    assert "66 MiB of resident memory without mmap=True, 1 MiB with it" in host.message


def test_mapping_that_does_nothing_fails() -> None:
    assert (
        fault_of(judge_skew(skew("cuda", [(5, 64, 0), (5, 64, 0)], [(5, 64, 0), (5, 64, 0)])))
        == "mapping-without-effect"
    )


def test_skew_probe_over_two_real_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["doctor", "memory", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [growth["rank"] for growth in document["details"]["as_saved"]] == [0, 1]
    assert all(growth["resident_bytes"] > 50 * MIB for growth in document["details"]["as_saved"])
    assert all(growth["resident_bytes"] < 30 * MIB for growth in document["details"]["mapped"])
