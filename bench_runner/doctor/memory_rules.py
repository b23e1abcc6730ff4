"""What the process × device matrix of a job means: pure rules."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Final

from bench_runner.doctor.desync import rank_list, ranks_do
from bench_runner.doctor.faults import probe_finding
from bench_runner.doctor.memory import MemoryProbe, RankMemory
from bench_runner.doctor.memory_skew import Growth, SkewProbe
from bench_runner.finding import Finding

_MIB: Final = 1 << 20
CONTEXT_BYTES: Final = 700 * _MIB
"""A CUDA context alone takes some hundred MiB on a device, depending on device and driver; more than this is data."""

_SKEW: Final = 1.2
_HOST_SKEW: Final = 1.5
_HOST_SKEW_BYTES: Final = 256 * _MIB
_finding = partial(probe_finding, "memory")


def judge_memory(probe: MemoryProbe) -> list[Finding]:
    """All findings of one job."""
    findings: list[Finding] = []
    if probe.ended and probe.exit_code:
        message = f"the job ended with exit code {probe.exit_code}: {probe.last_words}"
        remedy = "`bench-runner doctor watch -- COMMAND` says why"
        findings.append(_finding("job-failed", "fail", message, remedy=remedy))
    if not probe.ranks:
        remedy = "the job must run for some seconds at least"
        return [
            *findings,
            _finding("no-ranks", "fail", "no process was seen long enough to be measured", remedy=remedy),
        ]
    if any(rank.device_bytes for rank in probe.ranks):
        findings += _one_device(probe) or _foreign(probe)
        findings += _data_parallel(probe)
        findings += _skew(probe)
    else:
        findings.append(_unknown(probe))
    findings += _host(probe)
    if not any(finding.status in ("warn", "fail") for finding in findings):
        findings.append(
            _finding("matrix", "pass", "no rank holds memory where it should not", evidence=matrix_lines(probe))
        )
    return findings


def matrix_lines(probe: MemoryProbe) -> tuple[str, ...]:
    """The matrix, one line a rank."""
    return tuple(_line(rank) for rank in probe.ranks)


def _line(rank: RankMemory) -> str:
    cells = [
        f"device {device}: {'?' if held is None else f'{held / _MIB:.0f} MiB'}"
        for device, held in sorted(rank.device_bytes.items())
    ]
    host = f"resident {rank.resident_bytes / _MIB:.0f} MiB"
    helpers = [f"helpers {rank.helper_bytes / _MIB:.0f} MiB"] if rank.helper_bytes else []
    return f"rank {rank.rank} (pid {rank.pid}): " + ", ".join([*cells, host, *helpers])


def _unknown(probe: MemoryProbe) -> Finding:
    if probe.devices is None:
        return _finding("devices", "skip", "no driver tells of devices here: resident memory alone is judged")
    if probe.strangers:
        message = (
            f"the driver lists {probe.strangers} processes by PIDs that are not known here, as in a container: "
            "which rank holds what is unknown; run it on the host, or with --pid=host"
        )
        return _finding("devices", "skip", message)
    return _finding("devices", "skip", "no rank was seen on any device")


def _own(rank: RankMemory) -> int | None:
    """The device that a rank computes on: the one on which it holds most."""
    known = {device: held for device, held in rank.device_bytes.items() if held is not None}
    return max(sorted(known), key=lambda device: known[device]) if known else None


def _one_device(probe: MemoryProbe) -> list[Finding]:
    """Several ranks on one device while others stand empty."""
    owners: dict[int, list[int]] = {}
    for rank in probe.ranks:
        own = _own(rank)
        if own is not None:
            owners.setdefault(own, []).append(rank.rank)
    if len(probe.ranks) < 2 or (probe.devices or 0) < 2 or len(owners) != 1:
        return []
    device, ranks = next(iter(owners.items()))
    if len(ranks) < 2:
        return []
    message = f"{rank_list(ranks)} all compute on device {device}, and {(probe.devices or 0) - 1} others stand empty"
    remedy = "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first, and use 'cuda' without a number after it"
    return [_finding("one-device", "fail", message, evidence=matrix_lines(probe), remedy=remedy)]


def _foreign(probe: MemoryProbe) -> list[Finding]:
    """Memory of a rank on another rank's device."""
    if len(probe.ranks) < 2:
        return []
    extra: dict[int, dict[int, int | None]] = {}
    for rank in probe.ranks:
        others = {device: held for device, held in rank.device_bytes.items() if device != _own(rank)}
        if others:
            extra[rank.rank] = others
    if not extra:
        return []
    amounts = [held for held_on in extra.values() for held in held_on.values() if held is not None]
    devices = sorted({device for held_on in extra.values() for device in held_on})
    size = f"{sum(amounts) / _MIB:.0f} MiB in all" if amounts else "how much the driver does not tell"
    on = f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"
    message = f"{ranks_do(list(extra), 'holds', 'hold')} memory on {on} too, which other ranks compute on: {size}"
    if amounts and max(amounts) > CONTEXT_BYTES:
        message += "; more than a context: most likely torch.load without map_location"
        remedy = "load with torch.load(path, map_location='cpu'), see `bench-runner doctor checkpoint FILE`"
    else:
        message += "; as much as a context: no set_device before the first use of CUDA, or a pinned-memory thread"
        remedy = (
            "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything touches CUDA, and give the"
            " process group its device_id; with pin_memory=True give DataLoader pin_memory_device too"
        )
    return [_finding("foreign-device", "warn", message, evidence=matrix_lines(probe), remedy=remedy)]


def _data_parallel(probe: MemoryProbe) -> list[Finding]:
    """One process on several devices: DataParallel's first device is fuller, as it must be."""
    if len(probe.ranks) != 1:
        return []
    held = [amount for amount in probe.ranks[0].device_bytes.values() if amount is not None]
    if len(held) < 2 or max(held) < _SKEW * median(held):
        return []
    message = (
        "one process on several devices, one of them fuller: DataParallel gathers there; DistributedDataParallel"
        " does not"
    )
    return [_finding("data-parallel", "pass", message, evidence=matrix_lines(probe))]


def _skew(probe: MemoryProbe) -> list[Finding]:
    """Ranks that hold unlike amounts on their own devices."""
    own = {rank.rank: rank.device_bytes.get(_own(rank) or 0) or 0 for rank in probe.ranks}
    if len(own) < 2 or max(own.values()) < _SKEW * median(own.values()) + CONTEXT_BYTES:
        return []
    fullest = max(own, key=lambda rank: own[rank])
    message = (
        f"rank {fullest} holds {own[fullest] / _MIB:.0f} MiB on its device, the median"
        f" {median(own.values()) / _MIB:.0f}"
    )
    remedy = "look for what one rank alone does on its device: gathering outputs, evaluating, keeping a second model"
    return [_finding("skew", "warn", message, evidence=matrix_lines(probe), remedy=remedy)]


def _host(probe: MemoryProbe) -> list[Finding]:
    resident = {rank.rank: rank.resident_bytes for rank in probe.ranks}
    if len(resident) < 2:
        return []
    fullest = max(resident, key=lambda rank: resident[rank])
    rest = median(amount for rank, amount in resident.items() if rank != fullest)
    if resident[fullest] < _HOST_SKEW * rest or resident[fullest] - rest < _HOST_SKEW_BYTES:
        return []
    message = (
        f"rank {fullest} holds {resident[fullest] / _MIB:.0f} MiB of the host's memory, the others"
        f" {rest / _MIB:.0f} MiB"
    )
    remedy = (
        "look for what one rank alone keeps: a checkpoint loaded in whole (torch.load with mmap=True), gathered objects"
    )
    return [_finding("host-skew", "warn", message, evidence=matrix_lines(probe), remedy=remedy)]


def judge_skew(probe: SkewProbe) -> list[Finding]:
    """Whether loading as saved shows the skew here, and mapping takes it away."""
    evidence = tuple(
        f"{how}, rank {growth.rank}: " + _growth_line(growth)
        for how, growths in (("as saved", probe.as_saved), ("mapped", probe.mapped))
        for growth in growths
    )
    size = probe.checkpoint_bytes / _MIB
    saved, mapped = _wasted(probe, probe.as_saved), _wasted(probe, probe.mapped)
    where = "resident memory" if probe.device_kind == "cpu" else "memory on device 0"
    mapping = "mmap=True" if probe.device_kind == "cpu" else "map_location"
    amounts = f"{saved / _MIB:.0f} MiB of {where} without {mapping}, {mapped / _MIB:.0f} MiB with it"
    message = f"a checkpoint of {size:.0f} MiB costs each rank up to {amounts}"
    if mapped > probe.checkpoint_bytes // 2:
        remedy = f"{mapping} has no effect here: update torch, and look at which file system the checkpoint lies on"
        return [_finding("mapping-without-effect", "fail", message, evidence=evidence, remedy=remedy)]
    return [_finding("checkpoint-skew", "pass", message, evidence=evidence)]


def _wasted(probe: SkewProbe, growths: tuple[Growth, ...]) -> int:
    """The most that a rank took where it need not: resident memory on the CPU, device 0 for every other rank."""
    if probe.device_kind == "cpu":
        return max(growth.resident_bytes for growth in growths)
    return max((growth.device_bytes[0] for growth in growths if growth.rank > 0), default=0)


def _growth_line(growth: Growth) -> str:
    devices = [f"device {index} +{held / _MIB:.0f} MiB" for index, held in enumerate(growth.device_bytes)]
    return ", ".join([*devices, f"resident +{growth.resident_bytes / _MIB:.0f} MiB"])
