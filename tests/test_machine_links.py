"""Links: what the ranks send becomes series, and series become findings.  All values made up."""

# ruff: noqa: E501 - a table reads best with one situation a line

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bench_runner.finding import Finding
from bench_runner.machine.checks_links import judge_links, regime_text
from bench_runner.machine.known_links import GB, known_machine, nvlink_rate, pcie_rate
from bench_runner.machine.links import Copy, LinkMeasurement, Series, parse_copies, parse_series
from bench_runner.machine.verify import visible_devices
from tests.test_machine_checks import device

SIZES = (1024, 65536, 1 << 20, 1 << 28)


def series(name: str = "all_reduce", ranks: tuple[int, ...] = (0, 1), rate: float = 10 * GB, **changes: Any) -> Series:
    """20 µs, and then bytes at ``rate`` through each link."""
    factor = 1.0 if name == "send" else 2 * (len(ranks) - 1) / len(ranks)
    seconds = {size: 2e-5 + factor * size / rate for size in SIZES}
    return dataclasses.replace(Series(name=name, ranks=ranks, factor=factor, seconds=seconds), **changes)


def told(rank: int, seconds: dict[str, list[float]], **pairs: Any) -> dict[str, Any]:
    return {"rank": rank, "all_reduce": {"seconds": seconds, "wrong": []}, "pairs": pairs}


def test_the_slowest_rank_of_each_call_counts() -> None:
    ranks = [told(0, {"1024": [1.0, 2.0], "2048": [5.0]}), told(1, {"1024": [3.0, 1.0], "2048": [4.0]})]
    (found,) = parse_series(ranks, 2)
    assert (found.name, found.ranks, found.factor) == ("all_reduce", (0, 1), 1.0)
    assert found.seconds == {1024: 2.5, 2048: 5.0}
    assert found.bandwidth_bytes_per_second == 2048 / 5.0


def test_pairs_are_put_in_order_and_a_round_trip_is_halved() -> None:
    pair = {"send": {"seconds": {"4": [2.0]}, "wrong": []}, "all_reduce": {"seconds": {"4": [3.0]}, "wrong": [8]}}
    ranks = [told(r, {"4": [1.0]}, **{"10-2": pair} if r else {"0-10": pair, "0-2": pair}) for r in range(2)]
    found = parse_series(ranks, 11)
    assert [(s.name, s.ranks) for s in found] == [
        ("all_reduce", tuple(range(11))),
        ("send", (0, 2)),
        ("all_reduce", (0, 2)),
        ("send", (0, 10)),
        ("all_reduce", (0, 10)),
        ("send", (10, 2)),
        ("all_reduce", (10, 2)),
    ]
    assert found[1].seconds == {4: 1.0}
    assert found[2].wrong == (8,)
    assert found[0].factor == pytest.approx(20 / 11)


def test_copies_are_read() -> None:
    host = {"device": 1, "bytes": 100, "to_device": [1.0, 2.0, 4.0], "to_host": [5.0], "right": True}
    pair = {"source": 0, "target": 1, "bytes": 100, "seconds": [10.0], "right": False, "peer_access": True}
    found = parse_copies([{"host": [host], "pairs": [pair]}])
    assert found == (
        Copy(source=None, target=1, bandwidth_bytes_per_second=50.0, right=True),
        Copy(source=1, target=None, bandwidth_bytes_per_second=20.0, right=True),
        Copy(source=0, target=1, bandwidth_bytes_per_second=10.0, right=False, peer_access=True),
    )


def gpus(*found: Series, copies: tuple[Copy, ...] = (), count: int = 2, **changes: Any) -> LinkMeasurement:
    return LinkMeasurement(device_kind="cuda", device_count=count, series=found, copies=copies, **changes)


def copy(source: int | None, target: int | None, rate: float, **changes: Any) -> Copy:
    return dataclasses.replace(
        Copy(source=source, target=target, bandwidth_bytes_per_second=rate, right=True), **changes
    )


H100S = tuple(device(index) for index in range(8))
PAIRS = [(0, 1), (0, 2), (1, 2)]
PEERS = tuple(copy(a, b, 300 * GB, peer_access=True) for a in range(3) for b in range(3) if a != b)
CASES: list[tuple[str, LinkMeasurement, str, str, tuple[str, ...], str]] = [
    ("right values", gpus(series()), "all_reduce", "pass", ("values right", "20.1 µs at 1024 B", "α 20.0", "1/β 10 ± "), ""),
    ("wrong values", gpus(series(wrong=(65536,))), "all_reduce", "fail", ("wrong values at 65536 bytes", "no latency"), "NCCL_P2P_DISABLE=1"),
    ("wrong values everywhere", gpus(series(wrong=SIZES, seconds={})), "all_reduce", "fail", ("4 of 4 sizes",), "ACS"),
    ("one size only", gpus(series(seconds={4: 1.0})), "all_reduce", "skip", ("too few sizes",), ""),
    ("pair with wrong values", gpus(series(ranks=(0, 1, 2)), series("send", (1, 2), wrong=(1024,)), count=3), "send.1-2", "fail", ("ranks 1, 2",), "NCCL_P2P_DISABLE"),
    ("a hang", gpus(failures={"ranks": "deadline of 120 s"}), "ranks", "fail", ("deadline of 120 s",), "doctor startup"),
    ("equal pairs", gpus(*(series("send", pair) for pair in PAIRS), count=3), "pairs.send", "pass", ("all 3 pairs",), ""),
    ("a slow pair", gpus(*(series("send", pair, 5 * GB if pair == (1, 2) else 20 * GB) for pair in PAIRS), count=3), "pairs.send", "warn", ("ranks 1 and 2", "5 GB/s", "20 GB/s"), "nvidia-smi topo -m"),
    ("host copy as it should be", gpus(copies=(copy(None, 0, 55 * GB),)), "host-to-device.0", "pass", ("PCIe 5 × 16: 63 GB/s",), ""),
    ("slow host copy", gpus(copies=(copy(None, 0, 12 * GB),)), "host-to-device.0", "warn", ("12 GB/s", "generation 1, 16 lanes"), "NUMA"),
    ("slow copy to the host", gpus(copies=(copy(1, None, 12 * GB),)), "device-to-host.1", "warn", ("from device 1 to host",), "nvidia-smi -q -d PCIE"),
    ("wrong host copy", gpus(copies=(copy(0, None, 55 * GB, right=False),)), "device-to-host.0", "fail", ("wrong values",), "IOMMU"),
    ("equal copies", gpus(copies=PEERS), "copies", "pass", ("300 to 300 GB/s",), ""),
    ("wrong copy", gpus(copies=(*PEERS[1:], copy(0, 1, 1 * GB, right=False, peer_access=True))), "copy.0-1", "fail", ("peer access: True", "wrong values"), "ACS"),
    ("slow copy", gpus(copies=(*PEERS[1:], copy(0, 1, 20 * GB, peer_access=True))), "copies", "warn", ("0 → 1: 20 GB/s",), "nvlink -s"),
    ("slow for lack of peer access is another kind", gpus(copies=(*PEERS[1:], copy(0, 1, 20 * GB, peer_access=False))), "copies", "pass", ("20 to 300 GB/s",), ""),
    ("busbw of eight H100", gpus(series(ranks=tuple(range(8)), rate=470 * GB), count=8), "expected", "pass", ("18 NVLinks: 450 GB/s", "published for 8 × H100"), ""),
    ("ring on eight H100", gpus(series(ranks=tuple(range(8)), rate=365 * GB), count=8), "expected", "pass", ("359 GB/s",), ""),
    ("eight H100 without peer-to-peer", gpus(series(ranks=tuple(range(8)), rate=25 * GB), count=8), "expected", "warn", ("25 GB/s", "450 GB/s"), "NCCL_P2P_DISABLE"),
]  # fmt: skip


def find(findings: list[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == f"links.{check}"]
    return found


@pytest.mark.parametrize(("name", "measured", "check", "status", "words", "remedy"), CASES, ids=[c[0] for c in CASES])
def test_situations(
    name: str, measured: LinkMeasurement, check: str, status: str, words: tuple[str, ...], remedy: str
) -> None:
    finding = find(judge_links(measured, H100S[: measured.device_count]), check)
    assert finding.status == status, finding
    text = " | ".join((finding.message, str(finding.expected), str(finding.actual), *finding.evidence))
    for word in words:
        assert word in text
    assert remedy in (finding.remedy or "")
    if status in ("warn", "fail"):
        assert finding.expected
        assert finding.actual
        assert finding.evidence


def test_processes_on_a_cpu_are_not_compared_with_each_other() -> None:
    slow = [series("send", pair, rate) for pair, rate in zip(PAIRS, (1 * GB, 20 * GB, 20 * GB), strict=True)]
    findings = judge_links(LinkMeasurement(device_kind="cpu", device_count=3, series=tuple(slow)))
    assert {finding.status for finding in findings} == {"pass"}


def test_a_single_process_has_no_links() -> None:
    (finding,) = judge_links(LinkMeasurement(device_kind="cpu", device_count=1))
    assert finding.status == "skip"


def test_expected_without_nvlinks_or_with_unknown_devices_is_skipped() -> None:
    whole = gpus(series(), count=2)
    assert find(judge_links(whole), "expected").status == "skip"
    plain = tuple(dataclasses.replace(d, nvlinks=None) for d in H100S[:2])
    assert find(judge_links(whole, plain), "expected").status == "skip"
    other = tuple(dataclasses.replace(d, name="GeForce") for d in H100S[:2])
    assert find(judge_links(whole, other), "expected").status == "skip"


def test_rates() -> None:
    assert pcie_rate(4, 16) == pytest.approx(31.5 * GB, rel=0.001)
    assert pcie_rate(None, 16) is None
    assert pcie_rate(9, 16) is None
    assert nvlink_rate("NVIDIA A100-SXM4-80GB", 12) == 300 * GB
    assert nvlink_rate("NVIDIA GB200", 18) == 900 * GB
    assert nvlink_rate("NVIDIA H100 80GB HBM3", 0) is None
    assert nvlink_rate("GeForce", 4) is None
    known = known_machine("NVIDIA A100-SXM4-80GB", 8)
    assert known is not None
    assert known.busbw_bytes_per_second == 230 * GB
    assert known_machine("NVIDIA A100-SXM4-80GB", 4) is None


def test_regime_without_a_part_that_grows() -> None:
    curve = series(seconds={1024: 1e-5, 2048: 1e-5}).curve
    assert curve is not None
    flat = dataclasses.replace(curve.regimes[0], beta_seconds_per_byte=0.0)
    assert "no part that grows" in regime_text(flat)


def test_visible_devices_are_in_logical_order() -> None:
    assert [d.index for d in visible_devices(H100S, {"CUDA_VISIBLE_DEVICES": "3,1"})] == [3, 1]
    assert visible_devices(H100S, {}) == H100S
    assert visible_devices((), {"CUDA_VISIBLE_DEVICES": "0"}) == ()
