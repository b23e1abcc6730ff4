"""What differs between two sides besides the numbers: machine, environment, commit.  Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from bench_runner.analysis.asv_results import AsvResult
from bench_runner.analysis.metrics import median
from bench_runner.machine.info import MachineInfo
from bench_runner.machine.sampling import DeviceSampling
from bench_runner.record import RunRecord

Subject = Literal["machine", "environment", "commit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is unlike; ``-`` stands for not known or not there, several values are separated by commas."""

    subject: Subject
    name: str
    baseline: str
    candidate: str


def _gpus(machine: MachineInfo) -> str | None:
    names = [gpu.name for gpu in machine.accelerators]
    counted = [f"{names.count(name)} x {name}" for name in sorted(set(names))]
    return "; ".join(counted) or None


def _of_gpus(read: Callable[[object], object]) -> Callable[[RunRecord], str | None]:
    def values(record: RunRecord) -> str | None:
        seen = {str(value) for gpu in record.machine.accelerators if (value := read(gpu)) is not None}
        return "; ".join(sorted(seen)) or None

    return values


def _accelerator(name: str) -> Callable[[RunRecord], str | None]:
    return _of_gpus(lambda gpu: getattr(gpu, name))


Reading = tuple[Subject, str, Callable[[RunRecord], object]]

_READ: Final[tuple[Reading, ...]] = (
    ("machine", "name", lambda r: r.machine.name),
    ("machine", "GPUs", lambda r: _gpus(r.machine)),
    ("machine", "driver", lambda r: r.machine.driver_version),
    ("machine", "driver's CUDA", lambda r: r.machine.driver_cuda_version),
    ("machine", "power limit (W)", _accelerator("power_limit_watts")),
    ("machine", "SM clock limit (MHz)", _accelerator("sm_clock_max_mhz")),
    ("machine", "throttled by", lambda r: _throttled(r)),
    ("machine", "PCIe generation", _accelerator("pcie_generation")),
    ("machine", "PCIe width", _accelerator("pcie_width")),
    ("machine", "MIG", _accelerator("mig")),
    ("machine", "CPU", lambda r: r.machine.cpu_model),
    ("machine", "cores allowed", lambda r: r.machine.cores_allowed),
    ("machine", "NUMA nodes", lambda r: r.machine.numa_nodes),
    ("machine", "kernel", lambda r: r.machine.kernel),
    ("machine", "container", lambda r: r.machine.container),
    ("machine", "fingerprint", lambda r: r.machine.fingerprint),
    ("environment", "kind", lambda r: r.environment.kind),
    ("environment", "lock", lambda r: (r.environment.lock_sha256 or "")[:12] or None),
    ("environment", "lock state", lambda r: r.environment.lock_state),
    ("environment", "python", lambda r: r.environment.python),
    ("environment", "torch", lambda r: r.environment.torch),
    ("environment", "CUDA", lambda r: r.environment.cuda),
    ("environment", "NCCL", lambda r: r.environment.nccl),
    ("environment", "cuDNN", lambda r: r.environment.cudnn),
    ("commit", "commit", lambda r: (r.commit or "")[:12] or None),
)


def differences(baseline: Sequence[RunRecord], candidate: Sequence[RunRecord]) -> list[Difference]:
    """What is unlike between the two sides, the important first.  Nothing if one side is empty."""
    if not baseline or not candidate:
        return []
    read = [*_READ, *_packages((*baseline, *candidate)), *_variables((*baseline, *candidate))]
    told = [(subject, name, _seen(baseline, value), _seen(candidate, value)) for subject, name, value in read]
    return [*_unlike(told), *_clock_difference(baseline, candidate)]


def asv_differences(baseline: Sequence[AsvResult], candidate: Sequence[AsvResult]) -> list[Difference]:
    """The same for results of asv: its machine entry, the environment's name and requirements, the commit."""
    if not baseline or not candidate:
        return []

    def facts(results: Sequence[AsvResult]) -> dict[tuple[Subject, str], str]:
        seen: dict[tuple[Subject, str], set[str]] = defaultdict(set)
        for result in results:
            for name, value in result.machine_facts.items():
                seen["machine", name].add(value)
            seen["environment", "name"].add(result.environment)
            seen["environment", "python"].add(result.python)
            for name, value in result.requirements.items():
                seen["environment", f"package {name}"].add(value)
            seen["commit", "commit"].add(result.commit[:12])
        return {key: ", ".join(sorted(values)) for key, values in seen.items()}

    left, right = facts(baseline), facts(candidate)
    return _unlike([(*key, left.get(key, "-"), right.get(key, "-")) for key in dict.fromkeys((*left, *right))])


def _unlike(told: Iterable[tuple[Subject, str, str, str]]) -> list[Difference]:
    return [
        Difference(subject=subject, name=name, baseline=left, candidate=right)
        for subject, name, left, right in told
        if left != right
    ]


CLOCK_TOLERANCE: Final = 0.02
"""Clocks that were sampled are never quite equal; less than this is no difference."""
THROTTLED_SHARE: Final = 0.05
"""A reason for throttling counts when it was there in this part of the samples of a device."""


def _clock_difference(baseline: Sequence[RunRecord], candidate: Sequence[RunRecord]) -> list[Difference]:
    """The SM clocks that the devices ran at, each side's middle over launches and devices."""
    left, right = _clock(baseline), _clock(candidate)
    if left is None or right is None or min(left, right) <= 0 or abs(left / right - 1) <= CLOCK_TOLERANCE:
        return []
    return [
        Difference(
            subject="machine", name="SM clock during the runs (MHz)", baseline=f"{left:.0f}", candidate=f"{right:.0f}"
        )
    ]


def _clock(records: Sequence[RunRecord]) -> float | None:
    clocks = [device.sm_clock_mhz.median for device in _sampled(records) if device.sm_clock_mhz is not None]
    return median(clocks) if clocks else None


def _throttled(record: RunRecord) -> str | None:
    shares = [share for device in _sampled([record]) for share in (device.throttle_share or {}).items()]
    return "; ".join(sorted({reason for reason, share in shares if share >= THROTTLED_SHARE})) or None


def _sampled(records: Iterable[RunRecord]) -> list[DeviceSampling]:
    return [device for record in records if record.sampling is not None for device in record.sampling.devices]


def _seen(records: Sequence[RunRecord], value: Callable[[RunRecord], object]) -> str:
    seen = {str(found) for record in records if (found := value(record)) is not None}
    return ", ".join(sorted(seen)) or "-"


def _packages(records: Iterable[RunRecord]) -> list[Reading]:
    names = sorted({name for record in records for name in record.environment.packages})
    return [("environment", f"package {name}", partial(_package, name)) for name in names]


def _package(name: str, record: RunRecord) -> str | None:
    return record.environment.packages.get(name)


def _variables(records: Iterable[RunRecord]) -> list[Reading]:
    names = sorted({name for record in records for name in record.environment.variables})
    return [("environment", f"variable {name}", partial(_variable, name)) for name in names]


def _variable(name: str, record: RunRecord) -> str | None:
    return record.environment.variables.get(name)


def pooled(records: Sequence[RunRecord], side: str) -> list[str]:
    """Warnings about a side whose launches do not all come from one machine, environment and commit."""
    kinds: tuple[tuple[str, Callable[[RunRecord], object]], ...] = (
        ("machines", lambda r: r.machine.name),
        ("machine fingerprints", lambda r: r.machine.fingerprint),
        ("environments", lambda r: r.environment.fingerprint),
        ("commits", lambda r: (r.commit or "-")[:12]),
    )
    warnings = []
    for name, read in kinds:
        values = sorted({str(read(record)) for record in records})
        if len(values) > 1:
            shown = ", ".join(values[:4]) + (", ..." if len(values) > 4 else "")
            warnings.append(f"the {side} holds {len(values)} {name}, compared as one: {shown}")
    return warnings
