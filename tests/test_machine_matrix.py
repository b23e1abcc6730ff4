"""The process × device matrix, its strays, and ranks that share a device."""

from __future__ import annotations

from pathlib import Path

from bench_runner.machine.matrix import RankProcess, duplicate_finding, memory_matrix, stray_finding
from bench_runner.machine.memory import DeviceUse
from tests.fakes.driver import GIB, FakeDriver

MIB = 1 << 20


def use(index: int, processes: dict[int, int | None] | None) -> DeviceUse:
    return DeviceUse(key=f"GPU-{index}", uuid=f"GPU-{index}", processes=processes)


RANKS = (RankProcess(rank=0, pid=100, uuid="GPU-0"), RankProcess(rank=1, pid=101, uuid="1"))


def test_every_rank_on_its_own_device() -> None:
    cells = memory_matrix([use(0, {100: GIB}), use(1, {101: 2 * GIB})], RANKS)
    assert [(cell.rank, cell.uuid, cell.own, cell.bytes_held) for cell in cells] == [
        (0, "GPU-0", True, GIB),
        (0, "GPU-1", False, 0),
        (1, "GPU-0", False, 0),
        (1, "GPU-1", True, 2 * GIB),
    ]
    assert stray_finding(cells).status == "pass"


def test_a_stray_context_on_device_0_is_named_with_its_size() -> None:
    cells = memory_matrix([use(0, {100: GIB, 101: 520 * MIB}), use(1, {101: GIB})], RANKS)
    finding = stray_finding(cells)
    assert finding.status == "warn"
    assert "rank 1" in finding.message
    assert finding.evidence == ("rank 1 holds 520 MiB on GPU-0",)
    assert "set_device" in (finding.remedy or "")


def test_a_stray_of_unknown_size_is_still_a_stray() -> None:
    cells = memory_matrix([use(0, {100: GIB, 101: None}), use(1, {101: GIB})], RANKS)
    assert stray_finding(cells).evidence == ("rank 1 holds unknown memory on GPU-0",)


def test_process_numbers_of_the_host_are_unknown_and_not_zero() -> None:
    # In the container rank 0 is process 100; on the host that number belongs to somebody on device 1.
    cells = memory_matrix([use(0, {9100: GIB}), use(1, {9101: GIB, 100: GIB})], RANKS)
    assert {(cell.matched, cell.bytes_held) for cell in cells} == {(False, None)}
    assert stray_finding(cells).status == "skip"


def test_a_list_that_cannot_be_read_is_unknown() -> None:
    cells = memory_matrix([use(0, {100: GIB}), use(1, None)], RANKS)
    assert [cell.bytes_held for cell in cells] == [GIB, None, None, None]
    finding = stray_finding(cells)
    assert finding.status == "pass"
    assert finding.evidence == ("rank 1: unknown, the driver's list does not name its process",)


def test_the_matrix_over_the_fake_driver(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, 2).process(0, 100, GIB).process(0, 101, 300 * MIB).process(1, 101, 2 * GIB)
    imports = (
        "from bench_runner.machine.memory import device_memory\n"
        "from bench_runner.machine.matrix import RankProcess, memory_matrix, stray_finding\n"
        f"uuids = {[driver.uuid(0), driver.uuid(1)]!r}\n"
        "ranks = [RankProcess(rank=rank, pid=100 + rank, uuid=uuid) for rank, uuid in enumerate(uuids)]"
    )
    finding = driver.ask("stray_finding(memory_matrix(device_memory(), ranks))", imports)
    assert finding["evidence"] == [f"rank 1 holds 300 MiB on {driver.uuid(0)}"]


def test_ranks_that_share_a_device() -> None:
    assert duplicate_finding(RANKS).status == "pass"
    assert duplicate_finding([RankProcess(rank=0, pid=1, uuid=None)]).status == "skip"
    same = [RankProcess(rank=rank, pid=rank, uuid="GPU-0") for rank in range(2)]
    finding = duplicate_finding(same)
    assert finding.status == "fail"
    assert finding.evidence == ("node 0, GPU-0: ranks 0, 1",)
    apart = [RankProcess(rank=rank, pid=rank, uuid="GPU-0", node=rank) for rank in range(2)]
    assert duplicate_finding(apart).status == "pass"
