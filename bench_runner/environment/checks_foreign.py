"""Judge an environment that conda does not manage (venv, uv, system Python) against the lock, as far as that goes.

Versions alone can be compared: wheels are other builds of the same sources, with other CUDA libraries.  So nothing here
ever says that such an environment is the locked one.  Pure: values in, findings out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from bench_runner.environment.checks_packages import CORE_PACKAGES, CPU_BUILD, CUDA_BUILD, TORCH_PACKAGES, shown
from bench_runner.environment.distributions import Distribution, normalize
from bench_runner.environment.lockfile import Lock
from bench_runner.environment.remedies import create_beside
from bench_runner.environment.summary import Kind
from bench_runner.finding import Finding

WHEEL_NAMES: Final = {
    "pytorch": "torch",
    "matplotlib-base": "matplotlib",
    "pyarrow-core": "pyarrow",
    "nccl": "nvidia-nccl-cu",
    "cudnn": "nvidia-cudnn-cu",
}
"""Names of wheels where they are not conda's; the last two have CUDA's major version behind them."""

_KINDS: Final[dict[Kind, str]] = {
    "venv": "a virtual environment (venv, virtualenv or uv)",
    "system": "a system Python",
    "conda": "a conda prefix",
}


def foreign_findings(
    prefix: Path, kind: Kind, distributions: tuple[Distribution, ...], lock: Lock | None, platform: str
) -> list[Finding]:
    """What can be said without conda's records."""
    return [
        not_conda(prefix, kind, lock),
        wheel_cpu_build(prefix, distributions, lock, platform),
        wheel_versions(prefix, distributions, lock, platform),
    ]


def not_conda(prefix: Path, kind: Kind, lock: Lock | None) -> Finding:
    lock_path = lock.path if lock else Path("conda-lock.yml")
    return Finding(
        check="environment.prefix",
        status="warn",
        message=f"{prefix} is {_KINDS[kind]}, no conda prefix: it cannot be the locked environment, and its files "
        "have no records to be checked against",
        expected="a conda prefix made from the lock",
        actual=_KINDS[kind],
        evidence=(f"{prefix / 'conda-meta'} is not there",),
        remedy=create_beside(prefix, lock_path, "locked"),
    )


def wheel_cpu_build(prefix: Path, distributions: tuple[Distribution, ...], lock: Lock | None, platform: str) -> Finding:
    """A CPU wheel of torch where the lock has CUDA, said before anything about drivers."""
    check = "environment.packages.cpu-build"
    locked = lock.conda_packages(platform) if lock else ()
    wanted = [p for p in locked if p.name in TORCH_PACKAGES and CUDA_BUILD.fullmatch(p.build)]
    torch = next((d for d in distributions if d.name == "torch"), None)
    if not wanted or torch is None or lock is None:
        message = "no lock for CUDA to compare with" if not wanted else "torch is not installed"
        return Finding(check=check, status="skip", message=message)
    if not CPU_BUILD.fullmatch(torch.version):
        return Finding(check=check, status="pass", message=f"torch {torch.version} is no CPU build")
    return Finding(
        check=check,
        status="warn",
        message="torch is a CPU build, but the lock has CUDA; no driver can change that",
        expected=wanted[0].label,
        actual=f"torch {torch.version}",
        evidence=(str(torch.info),),
        remedy=create_beside(prefix, lock.path, "locked"),
    )


def wheel_versions(prefix: Path, distributions: tuple[Distribution, ...], lock: Lock | None, platform: str) -> Finding:
    """Versions of wheels against those of the locked packages of the same sources."""
    check = "environment.packages.versions"
    if lock is None:
        return Finding(check=check, status="skip", message="no lock to compare versions with")
    present = {re.sub(r"-cu\d\d$", "-cu", d.name): d.version for d in distributions}
    same = 0
    lines: list[str] = []
    core_first = sorted(lock.conda_packages(platform), key=lambda package: not CORE_PACKAGES.fullmatch(package.name))
    for package in core_first:
        version = present.get(WHEEL_NAMES.get(package.name, normalize(package.name)))
        if version is None:
            continue
        if version.partition("+")[0] == package.version:
            same += 1
        else:
            lines.append(f"{package.name}: locked {package.version}, installed {version}")
    if not lines:
        message = f"{same} distributions have their locked version; that they are the locked builds is not known"
        return Finding(check=check, status="pass" if same else "skip", message=message)
    return Finding(
        check=check,
        status="warn",
        message=f"{len(lines)} of {same + len(lines)} distributions that are locked too have another version",
        expected="the lock's versions",
        actual=lines[0],
        evidence=shown(lines),
        remedy=create_beside(prefix, lock.path, "locked"),
    )
