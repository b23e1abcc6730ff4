"""Judge the packages of a conda prefix against the lock.  Pure: values in, findings out, one function a check."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from bench_runner.environment.installed import InstalledPackage, InstalledPrefix
from bench_runner.environment.lockfile import Lock, LockedPackage, channel_name
from bench_runner.environment.remedies import create_beside
from bench_runner.finding import Finding, Status

MOST_EVIDENCE: Final = 50
OWN_PACKAGES: Final = frozenset({"bench-runner"})
CPU_BUILD: Final = re.compile(r"cpu[_.\w]*|.*\+cpu.*")
CUDA_BUILD: Final = re.compile(r"cuda[_.\w]*|.*\+cu\d.*")
TORCH_PACKAGES: Final = ("pytorch", "libtorch", "pytorch-cpu", "pytorch-gpu", "torch")
CORE_PACKAGES: Final = re.compile(
    r"python|pytorch(-\w+)?|libtorch|torchvision|numpy|mkl|libblas|openblas|libopenblas|llvm-openmp|intel-openmp"
    r"|_openmp_mutex|nccl|cudnn|libcudnn|cudatoolkit|pytorch-cuda|cuda-\w+|libcu\w+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageCase:
    """A prefix and the part of the lock that is for its platform."""

    installed: InstalledPrefix
    lock: Lock
    locked: tuple[LockedPackage, ...]

    @property
    def pairs(self) -> Iterable[tuple[LockedPackage, InstalledPackage]]:
        """Packages of one name in both; of a repeated name each one."""
        by_name = {package.name: package for package in self.locked}
        return ((by_name[p.name], p) for p in self.installed.packages if p.name in by_name)

    @property
    def rebuild(self) -> str:
        return create_beside(self.installed.prefix, self.lock.path)


def package_findings(installed: InstalledPrefix, lock: Lock, platform: str) -> list[Finding]:
    """Every check below, in the order in which a reader should see them; passes are one finding each."""
    locked = lock.conda_packages(platform)
    case = PackageCase(installed=installed, lock=lock, locked=locked)
    return [check(case) for check in CHECKS]


def shown(lines: Iterable[str]) -> tuple[str, ...]:
    """Evidence, cut where it would bury the reader; the last line says how much was cut."""
    every = tuple(lines)
    if len(every) <= MOST_EVIDENCE:
        return every
    return (*every[:MOST_EVIDENCE], f"… and {len(every) - MOST_EVIDENCE} more")


def unreadable_records(case: PackageCase) -> Finding:
    """conda-meta files that cannot be read: their packages count as missing."""
    bad = case.installed.unreadable
    return _finding(
        "environment.packages.unreadable",
        [record.reason for record in bad],
        f"{len(bad)} package records cannot be read",
        "every package record can be read",
        case,
    )


def cpu_build(case: PackageCase) -> Finding:
    """A CPU build of torch where the lock has CUDA: no driver can help, so this comes before anything about drivers."""
    check = "environment.packages.cpu-build"
    wanted = [p for p in case.locked if p.name in TORCH_PACKAGES and CUDA_BUILD.fullmatch(p.build)]
    if not wanted:
        return Finding(check=check, status="skip", message="the lock has no CUDA build of torch")
    wrong = [p for p in case.installed.packages if p.name in TORCH_PACKAGES and CPU_BUILD.fullmatch(p.build)]
    if not wrong:
        return Finding(check=check, status="pass", message="torch is no CPU build")
    return Finding(
        check=check,
        status="fail",
        message="torch is a CPU build, but the lock has CUDA; no driver can change that",
        expected=wanted[0].label,
        actual=wrong[0].label,
        evidence=shown(f"{p.record}: {p.label}" for p in wrong),
        remedy=case.rebuild,
    )


def missing_packages(case: PackageCase) -> Finding:
    present = {package.name for package in case.installed.packages}
    missing = [package for package in case.locked if package.name not in present]
    return _finding(
        "environment.packages.missing",
        [f"{package.label}: not installed" for package in missing],
        f"{len(missing)} of {len(case.locked)} locked packages are missing",
        f"all {len(case.locked)} locked packages are there",
        case,
    )


def duplicate_records(case: PackageCase) -> Finding:
    """Two records of one package: an update broke off, and both packages' files may be there, mixed."""
    counts = Counter(package.name for package in case.installed.packages)
    twice = [p for p in case.installed.packages if counts[p.name] > 1]
    return _finding(
        "environment.packages.duplicate",
        [f"{p.record}: {p.label}" for p in twice],
        f"{sum(1 for count in counts.values() if count > 1)} packages are recorded twice",
        "no package is recorded twice",
        case,
    )


def other_versions(case: PackageCase) -> Finding:
    return _differing(case, "version", "another version", lambda locked, present: locked.version != present.version)


def other_builds(case: PackageCase) -> Finding:
    """The same version in another build: other compiler, other CUDA, other BLAS."""
    return _differing(
        case,
        "build",
        "another build of the same version",
        lambda locked, present: (
            locked.version == present.version and bool(present.build) and locked.build != present.build
        ),
    )


def other_hashes(case: PackageCase) -> Finding:
    """Name, version and build as locked, but not the same archive."""
    return _differing(
        case,
        "hash",
        "the same name, version and build, but another archive",
        lambda locked, present: _same_build(locked, present) and _other_archive(locked, present),
        of=lambda package: f"sha256 {package.sha256}" if package.sha256 else f"md5 {package.md5}",
    )


def other_channels(case: PackageCase) -> Finding:
    """From another channel than locked.  The same archive from a mirror is no fault; one without proof is."""
    check = "environment.packages.channel"
    moved = [
        (locked, present)
        for locked, present in case.pairs
        if _same_build(locked, present)
        and present.channel
        and channel_name(present.channel) != channel_name(locked.channel)
    ]
    lines = shown(
        f"{present.label}: locked from {locked.channel}, installed from {present.channel}" for locked, present in moved
    )
    if not moved:
        message = "every package comes from its locked channel or a mirror of it"
        return Finding(check=check, status="pass", message=message)
    proven = all(locked.sha256 and locked.sha256 == present.sha256 for locked, present in moved)
    local = any(present.channel.startswith("file:") for _, present in moved)
    if proven and not local:
        message = f"{len(moved)} packages come from another channel, as the same archives by sha256"
        return Finding(check=check, status="pass", message=message, evidence=lines)
    return Finding(
        check=check,
        status="warn" if proven else "fail",
        message=f"{len(moved)} packages come from another channel than locked"
        + (", a local one, whose hashes installers do not verify" if local else ""),
        expected=moved[0][0].channel,
        actual=moved[0][1].channel,
        evidence=lines,
        remedy=case.rebuild,
    )


def extra_packages(case: PackageCase) -> Finding:
    wanted = {package.name for package in case.locked} | OWN_PACKAGES
    extra = [package for package in case.installed.packages if package.name not in wanted]
    return _finding(
        "environment.packages.extra",
        [f"{package.label}: not in the lock" for package in extra],
        f"{len(extra)} packages are not in the lock",
        "no package is there that is not locked",
        case,
        status="warn",
    )


def mixed_channels(case: PackageCase) -> Finding:
    """The core (Python, torch, CUDA, BLAS, OpenMP) from several channels, which are not built to fit each other."""
    return mixed_channel_finding(
        "environment.packages.mixed-channels",
        [(p.label, p.channel) for p in case.installed.packages if CORE_PACKAGES.fullmatch(p.name) and p.channel],
        case.rebuild,
    )


def mixed_channel_finding(check: str, core: list[tuple[str, str]], remedy: str) -> Finding:
    """``core`` are labels and channels of the core packages."""
    names = sorted({channel_name(channel) for _, channel in core})
    if len(names) < 2:
        return Finding(check=check, status="pass", message="the core packages come from one channel")
    return Finding(
        check=check,
        status="warn",
        message=f"the core packages come from {len(names)} channels, which are not built to fit each other",
        expected="one channel",
        actual=", ".join(names),
        evidence=shown(f"{label}: {channel}" for label, channel in core),
        remedy=remedy,
    )


def _same_build(locked: LockedPackage, present: InstalledPackage) -> bool:
    return (locked.version, locked.build) == (present.version, present.build)


def _other_archive(locked: LockedPackage, present: InstalledPackage) -> bool:
    if locked.sha256 and present.sha256:
        return locked.sha256 != present.sha256
    return bool(locked.md5 and present.md5) and locked.md5 != present.md5


def _differing(
    case: PackageCase,
    what: str,
    message: str,
    differs: Callable[[LockedPackage, InstalledPackage], bool],
    of: Callable[[LockedPackage | InstalledPackage], str] = lambda package: f"{package.version} {package.build}",
) -> Finding:
    found = [(locked, present) for locked, present in case.pairs if differs(locked, present)]
    return _finding(
        f"environment.packages.{what}",
        [f"{locked.name}: locked {of(locked)}, installed {of(present)}" for locked, present in found],
        f"{len(found)} packages: {message}",
        f"no package is there as {message}",
        case,
        expected=", ".join(f"{locked.name} {of(locked)}" for locked, _ in found[:3]),
        actual=", ".join(f"{present.name} {of(present)}" for _, present in found[:3]),
    )


def _finding(
    check: str,
    evidence: list[str],
    message: str,
    good: str,
    case: PackageCase,
    *,
    status: Status = "fail",
    expected: str = "as in the lock",
    actual: str | None = None,
) -> Finding:
    """A pass that says ``good`` if there is no evidence, else the fault."""
    if not evidence:
        return Finding(check=check, status="pass", message=good)
    return Finding(
        check=check,
        status=status,
        message=message,
        expected=expected,
        actual=actual or f"{len(evidence)} differ",
        evidence=shown(evidence),
        remedy=case.rebuild,
    )


CHECKS: Final[tuple[Callable[[PackageCase], Finding], ...]] = (
    cpu_build,
    unreadable_records,
    duplicate_records,
    missing_packages,
    other_versions,
    other_builds,
    other_hashes,
    other_channels,
    extra_packages,
    mixed_channels,
)
