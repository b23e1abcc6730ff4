"""Judgement on measured links: right values first, then what they give against what they should give."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from bench_runner.analysis.model import Regime
from bench_runner.finding import Finding
from bench_runner.machine.known_links import GB, known_machine, nvlink_rate, pcie_rate
from bench_runner.machine.links import Copy, LinkMeasurement, Series
from bench_runner.machine.nvml import NvmlDevice

# Pinned copies reach some 85 % of a PCIe link's rate, rings some 80 % of the NVLinks'.
_PCIE_SHARE: Final = 0.70
_RING_SHARE: Final = 0.70
_PAIR_SHARE: Final = 0.80
_COPY_SHARE: Final = 0.80
_P2P_REMEDY: Final = (
    "switch IOMMU translation and ACS off (bench-runner verify --only machine names them); until then "
    "export NCCL_P2P_DISABLE=1"
)


def judge_links(measured: LinkMeasurement, devices: Sequence[NvmlDevice] = ()) -> list[Finding]:
    """Every check over the measurement; ``devices`` are those measured, in the order of their logical indices."""
    findings = [_failure(name, reason) for name, reason in (measured.failures or {}).items()]
    findings += [_series(series, measured.device_count) for series in measured.series]
    # Processes on shared cores differ by the scheduler's mood: pairs are compared where links differ, on devices.
    if measured.device_kind != "cpu":
        findings += _pairs(measured.series)
        findings += [_host_copy(copy, devices) for copy in measured.copies if None in (copy.source, copy.target)]
        findings += _device_copies([copy for copy in measured.copies if None not in (copy.source, copy.target)])
        findings.append(_expected_busbw(measured, devices))
    if not findings:
        message = "one process on a CPU has no links to measure"
        findings.append(Finding(check="links.all_reduce", status="skip", message=message))
    return findings


def _failure(name: str, reason: str) -> Finding:
    return Finding(
        check=f"links.{name}",
        status="fail",
        message=f"the links could not be measured: {reason}",
        expected="the measurement ends by itself",
        actual=reason,
        evidence=(reason,),
        remedy="bench-runner doctor startup  (looks for the pair or the subset of devices that fails)",
    )


def _check_name(series: Series, count: int) -> str:
    over_all = series.name == "all_reduce" and len(series.ranks) == count
    return "links.all_reduce" if over_all else f"links.{series.name}.{'-'.join(map(str, series.ranks))}"


def regime_text(regime: Regime) -> str:
    """``1024 to 65536 B: α 12.1 ± 0.3 µs, β⁻¹ 2.35 ± 0.02 GB/s``."""
    alpha_error, beta_error = regime.alpha_error_seconds, regime.beta_error_seconds_per_byte
    latency = f"α {regime.alpha_seconds * 1e6:.1f}" + (f" ± {alpha_error * 1e6:.1f}" if alpha_error is not None else "")
    beta = regime.beta_seconds_per_byte
    if beta <= 0:
        return f"{regime.low_bytes} to {regime.high_bytes} B: {latency} µs, no part that grows with the size"
    rate = 1 / beta / GB
    spread = f" ± {rate * beta_error / beta:.3g}" if beta_error is not None else ""
    return f"{regime.low_bytes} to {regime.high_bytes} B: {latency} µs, 1/β {rate:.3g}{spread} GB/s"


def _series(series: Series, count: int) -> Finding:
    check = _check_name(series, count)
    who = f"{series.name} over ranks {', '.join(map(str, series.ranks))}"
    if series.wrong:
        sizes = ", ".join(map(str, series.wrong))
        return Finding(
            check=check,
            status="fail",
            message=f"{who} gave wrong values at {sizes} bytes; no latency is given for them",
            expected="the sum every rank can predict",
            actual=f"wrong at {len(series.wrong)} of {len(series.wrong) + len(series.seconds)} sizes",
            evidence=(f"sizes with wrong values: {sizes}",),
            remedy=_P2P_REMEDY,
        )
    bandwidth = series.bandwidth_bytes_per_second
    curve = series.curve
    if bandwidth is None or curve is None:
        return Finding(check=check, status="skip", message=f"{who}: too few sizes")
    smallest = min(series.seconds)
    message = (
        f"{who}: {series.seconds[smallest] * 1e6:.1f} µs at {smallest} B, {bandwidth / GB:.3g} GB/s at "
        f"{max(series.seconds)} B, values right"
    )
    lines = tuple(regime_text(regime) for regime in curve.regimes)
    return Finding(check=check, status="pass", message=message, actual=f"{bandwidth / GB:.3g} GB/s", evidence=lines)


def _pairs(series: Sequence[Series]) -> list[Finding]:
    """Pairs that are slower than the others of their kind; nothing to compare with fewer than three."""
    found = []
    for name in ("send", "all_reduce"):
        rates = {s.ranks: s.bandwidth_bytes_per_second for s in series if s.name == name and len(s.ranks) == 2}
        known = {ranks: rate for ranks, rate in rates.items() if rate is not None}
        if len(known) < 3:
            continue
        middle = median(known.values())
        slow = {ranks: rate for ranks, rate in known.items() if rate < _PAIR_SHARE * middle}
        lines = tuple(f"ranks {a} and {b}: {rate / GB:.3g} GB/s" for (a, b), rate in (slow or known).items())
        if not slow:
            message = f"{name}: all {len(known)} pairs give about the same"
            found.append(Finding(check=f"links.pairs.{name}", status="pass", message=message, evidence=lines))
            continue
        worst = min(slow, key=lambda ranks: slow[ranks])
        found.append(
            Finding(
                check=f"links.pairs.{name}",
                status="warn",
                message=f"{name}: {len(slow)} of {len(known)} pairs are slower than the others, ranks {worst[0]} and "
                f"{worst[1]} the slowest",
                expected=f"about {middle / GB:.3g} GB/s",
                actual=f"{slow[worst] / GB:.3g} GB/s",
                evidence=lines,
                remedy="nvidia-smi topo -m && nvidia-smi nvlink -s",
            )
        )
    return found


def _host_copy(copy: Copy, devices: Sequence[NvmlDevice]) -> Finding:
    to_device = copy.source is None
    index = copy.target if copy.source is None else copy.source
    check = f"links.{'host-to-device' if to_device else 'device-to-host'}.{index}"
    what = f"{'host to' if to_device else 'from'} device {index}{'' if to_device else ' to host'}"
    if not copy.right:
        return _wrong_copy(check, what)
    rate = copy.bandwidth_bytes_per_second
    device = devices[index] if index is not None and index < len(devices) else None
    limit = pcie_rate(device.pcie_generation_max, device.pcie_width_max) if device else None
    message = f"{what}: {rate / GB:.3g} GB/s"
    if device is None or limit is None:
        return Finding(
            check=check, status="pass", message=f"{message}; the PCIe link is not known", actual=f"{rate / GB:.3g} GB/s"
        )
    link = f"PCIe {device.pcie_generation_max} × {device.pcie_width_max}: {limit / GB:.3g} GB/s"
    if rate >= _PCIE_SHARE * limit:
        return Finding(check=check, status="pass", message=f"{message} of {link}", actual=f"{rate / GB:.3g} GB/s")
    return Finding(
        check=check,
        status="warn",
        message=f"{message}, far below {link}",
        expected=f"at least {_PCIE_SHARE * limit / GB:.3g} GB/s",
        actual=f"{rate / GB:.3g} GB/s",
        evidence=(link, f"in use now: generation {device.pcie_generation}, {device.pcie_width} lanes (less when idle)"),
        remedy="nvidia-smi -q -d PCIE; run on the device's own NUMA node (nvidia-smi topo -m, numactl)",
    )


def _wrong_copy(check: str, what: str) -> Finding:
    return Finding(
        check=check,
        status="fail",
        message=f"a copy {what} delivers wrong values",
        expected="the values that were sent",
        actual="others",
        evidence=(what,),
        remedy=_P2P_REMEDY,
    )


def _device_copies(copies: Sequence[Copy]) -> list[Finding]:
    """Copies between devices: right values by pair, then slow pairs among those with the same kind of access."""
    if not copies:
        return []
    wrong = [copy for copy in copies if not copy.right]
    findings = [
        _wrong_copy(
            f"links.copy.{copy.source}-{copy.target}",
            f"from device {copy.source} to {copy.target} (peer access: {copy.peer_access})",
        )
        for copy in wrong
    ]
    slow = []
    for access in (True, False, None):
        group = [copy for copy in copies if copy.right and copy.peer_access is access]
        middle = median(copy.bandwidth_bytes_per_second for copy in group) if group else 0.0
        slow += [copy for copy in group if copy.bandwidth_bytes_per_second < _COPY_SHARE * middle]
    lines = tuple(
        f"{c.source} → {c.target}: {c.bandwidth_bytes_per_second / GB:.3g} GB/s, peer access {c.peer_access}"
        for c in (slow or copies)
    )
    rates = [copy.bandwidth_bytes_per_second for copy in copies]
    if not slow:
        message = f"copies between devices: {min(rates) / GB:.3g} to {max(rates) / GB:.3g} GB/s"
        return [*findings, Finding(check="links.copies", status="pass", message=message, evidence=lines)]
    first = slow[0]
    findings.append(
        Finding(
            check="links.copies",
            status="warn",
            message=f"{len(slow)} copies between devices are slower than the others of their kind",
            expected=f"about {median(rates) / GB:.3g} GB/s",
            actual=f"{first.bandwidth_bytes_per_second / GB:.3g} GB/s from {first.source} to {first.target}",
            evidence=lines,
            remedy="nvidia-smi topo -m && nvidia-smi nvlink -s",
        )
    )
    return findings


def _expected_busbw(measured: LinkMeasurement, devices: Sequence[NvmlDevice]) -> Finding:
    """The all-reduce over all against NVLink's rate and against what such machines are known to give."""
    check = "links.expected"
    whole = next((s for s in measured.series if s.name == "all_reduce" and len(s.ranks) == measured.device_count), None)
    rate = whole.bandwidth_bytes_per_second if whole else None
    counts = [sum(device.nvlinks) for device in devices if device.nvlinks]
    limit = nvlink_rate(devices[0].name, min(counts)) if counts and len(counts) == len(devices) else None
    if rate is None or limit is None:
        return Finding(check=check, status="skip", message="no NVLinks, or no all-reduce, to hold against each other")
    known = known_machine(devices[0].name, measured.device_count)
    published = f"published for 8 × {known.name}: {known.busbw_bytes_per_second / GB:.3g} GB/s" if known else None
    link = f"{min(counts)} NVLinks: {limit / GB:.3g} GB/s a direction"
    evidence = (link, *([published] if published else []))
    message = f"all-reduce busbw {rate / GB:.3g} GB/s over {link}"
    # Two devices of an NVSwitch box, or bridged pairs, have all links between them: the limit holds for any number.
    if rate >= _RING_SHARE * limit:
        return Finding(check=check, status="pass", message=message, actual=f"{rate / GB:.3g} GB/s", evidence=evidence)
    return Finding(
        check=check,
        status="warn",
        message=f"{message}: less than such links give",
        expected=f"at least {_RING_SHARE * limit / GB:.3g} GB/s",
        actual=f"{rate / GB:.3g} GB/s",
        evidence=evidence,
        remedy="env | grep NCCL_  (NCCL_P2P_DISABLE left over?); nvidia-smi nvlink -s; NCCL_DEBUG=INFO tells more",
    )
