"""Judge what pip, or another installer of wheels, put into an environment.  Pure: values in, findings out."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_runner.environment.checks_packages import shown
from bench_runner.environment.distributions import Distribution, normalize
from bench_runner.environment.installed import InstalledPackage
from bench_runner.environment.remedies import pip_uninstall
from bench_runner.finding import Finding, Status

OWN_DISTRIBUTION: Final = "bench-runner"
WHEEL_INSTALLERS: Final = frozenset({"pip", "uv", "poetry", "pdm"})
_CUDA_WHEEL: Final = re.compile(r"nvidia-(?P<what>[a-z-]+)-cu(?P<major>\d\d)")
_TORCH_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")
_TAG: Final = re.compile(r"(?:cuda|cu)(\d\d)\.?(\d)|(cpu)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipCase:
    """Distributions of an environment beside its conda packages (none in a venv).

    ``overlaid`` maps a distribution's name to conda packages whose files pip's own record of it claims.
    """

    prefix: Path
    distributions: tuple[Distribution, ...]
    packages: tuple[InstalledPackage, ...]
    overlaid: Mapping[str, tuple[str, ...]]
    rebuild: str

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    @property
    def conda_distributions(self) -> dict[str, tuple[str, InstalledPackage]]:
        """Normalized distribution name to (version, conda package) as conda's records have it."""
        found: dict[str, tuple[str, InstalledPackage]] = {}
        for package in self.packages:
            for folder in package.distributions:
                name, _, version = folder.rpartition("/")[2].rpartition(".")[0].partition("-")
                found[normalize(name)] = (version.partition("-")[0], package)
        return found

    @property
    def from_pip(self) -> tuple[Distribution, ...]:
        """Distributions that no conda package brought, or that another installer has put in its place.

        Some conda packages carry an INSTALLER that says pip: it counts as theirs while it is as they brought it.
        """
        owned: dict[str, str | None] = {}
        for package in self.packages:
            brought = {file.path: file.sha256 for file in package.files}
            owned |= {str(self.prefix / d): brought.get(f"{d}/INSTALLER") for d in package.distributions}
        return tuple(
            d
            for d in self.distributions
            if d.name != OWN_DISTRIBUTION
            and (str(d.info) not in owned or (d.installer in WHEEL_INSTALLERS and not _says(d, owned[str(d.info)])))
        )


def _says(distribution: Distribution, sha256: str | None) -> bool:
    """Whether the hash is of an INSTALLER file with this distribution's installer."""
    texts = (distribution.installer, f"{distribution.installer}\n")
    return any(hashlib.sha256(text.encode()).hexdigest() == sha256 for text in texts)


def pip_over_conda(case: PipCase) -> Finding:
    """A wheel laid over a conda package: two versions' files mixed, and conda's record now wrong."""
    check = "environment.pip.over-conda"
    if not case.packages:
        return Finding(check=check, status="skip", message="no conda packages here")
    conda = case.conda_distributions
    over: list[tuple[Distribution, str]] = [
        (d, f"{d.name}: {d.installer or 'an installer'} put {d.version} over conda's {conda[d.name][1].label}")
        for d in case.from_pip
        if d.name in conda
    ]
    over += [
        (d, f"{d.name} {d.version}: its wheel wrote over files of {', '.join(case.overlaid[d.name])}")
        for d in case.from_pip
        if d.name not in conda and case.overlaid.get(d.name)
    ]
    if not over:
        return Finding(check=check, status="pass", message="no conda package was overwritten by a wheel")
    return Finding(
        check=check,
        status="fail",
        message=f"{len(over)} wheels lie over conda packages",
        expected="conda's packages alone",
        actual=over[0][1],
        evidence=shown(line for _, line in over),
        remedy=case.rebuild,
    )


def beside_conda(case: PipCase) -> Finding:
    """Wheels beside conda's packages: not in the lock, so not in the next environment built from it."""
    check = "environment.pip.beside-conda"
    if not case.packages:
        return Finding(check=check, status="skip", message="no conda packages here")
    conda = case.conda_distributions
    beside = [d for d in case.from_pip if d.name not in conda and not case.overlaid.get(d.name)]
    return _finding(
        check,
        [f"{d.name} {d.version} ({d.installer or 'installer not named'}): {d.info}" for d in beside],
        f"{len(beside)} distributions are there that no conda package brought",
        "every distribution is a conda package's",
        remedy=pip_uninstall(case.python, [d.name for d in beside]),
        status="warn",
    )


def one_nccl(case: PipCase) -> Finding:
    """Several nvidia-nccl wheels share one folder: the last one installed is the NCCL of all."""
    found = [d for d in case.distributions if d.name.startswith("nvidia-nccl-")]
    return _finding(
        "environment.pip.nccl",
        [f"{d.name} {d.version}: {d.info}" for d in found] if len(found) > 1 else [],
        f"{len(found)} NCCL wheels write to the same folder",
        "at most one NCCL wheel",
        remedy=pip_uninstall(case.python, [d.name for d in found]) + "  # then install torch anew",
    )


def one_cuda(case: PipCase) -> Finding:
    """Wheels for one major release of CUDA."""
    by_major: dict[str, list[str]] = defaultdict(list)
    for d in case.distributions:
        match = _CUDA_WHEEL.fullmatch(d.name)
        if match:
            by_major[match["major"]].append(f"{d.name} {d.version}")
    lines = [line for major in sorted(by_major) for line in by_major[major]] if len(by_major) > 1 else []
    fewest = min(by_major.values(), key=len, default=[])
    return _finding(
        "environment.pip.cuda",
        lines,
        f"wheels for CUDA {', '.join(sorted(by_major))} lie side by side",
        "CUDA wheels of one release at most",
        remedy=pip_uninstall(case.python, [line.partition(" ")[0] for line in fewest]),
    )


def one_pynvml(case: PipCase) -> Finding:
    """nvidia-ml-py's module is ``pynvml``; the package of that name is deprecated and writes over it."""
    names = {d.name: d.version for d in case.distributions}
    names |= {p.name: p.version for p in case.packages if p.name in ("pynvml", "nvidia-ml-py")}
    both = "pynvml" in names and "nvidia-ml-py" in names
    lines = [f"{name} {names[name]}" for name in ("nvidia-ml-py", "pynvml")] if both else []
    return _finding(
        "environment.pip.pynvml",
        lines,
        "pynvml and nvidia-ml-py are both there and share a module",
        "one NVML package at most",
        remedy=pip_uninstall(case.python, ["pynvml"])
        + f" && {case.python} -m pip install --force-reinstall nvidia-ml-py",
        status="warn",
    )


def repeated(case: PipCase) -> Finding:
    """One name twice in one folder: an update broke off, and which files are there is luck."""
    by_name: dict[tuple[Path, str], list[Distribution]] = defaultdict(list)
    for d in case.distributions:
        by_name[d.site_packages, d.name].append(d)
    twice = [d for group in by_name.values() if len(group) > 1 for d in group]
    return _finding(
        "environment.pip.repeated",
        [f"{d.name} {d.version}: {d.info}" for d in twice],
        f"{len({d.name for d in twice})} distributions are there in two versions",
        "every distribution is there once",
        remedy=case.rebuild,
    )


def torchvision_fits(case: PipCase) -> Finding:
    """torch 2.N goes with torchvision 0.(N + 15), both for the same CUDA (the table in torchvision's README)."""
    check = "environment.torch.torchvision"
    torch, vision = _torch_and_vision(case)
    if torch is None or vision is None:
        return Finding(check=check, status="skip", message="torch and torchvision are not both installed")
    faults: list[str] = []
    wanted = matching_torchvision(torch[0])
    if wanted is not None and not vision[0].startswith(f"{wanted}."):
        faults.append(f"torch {torch[0]} goes with torchvision {wanted}, not {vision[0]}")
    tags = (_cuda_tag(torch[1]), _cuda_tag(vision[1]))
    if None not in tags and tags[0] != tags[1]:
        faults.append(f"torch is built for {tags[0]}, torchvision for {tags[1]}")
    return _finding(
        check,
        [*faults, f"torch {torch[0]} {torch[1]}", f"torchvision {vision[0]} {vision[1]}"] if faults else [],
        "torchvision does not fit torch",
        f"torchvision {vision[0]} fits torch {torch[0]}",
        remedy=case.rebuild,
    )


def matching_torchvision(torch: str) -> str | None:
    """``0.25`` for torch 2.10; None before torch 2 and for what is no release."""
    match = _TORCH_RELEASE.match(torch)
    return f"0.{int(match[2]) + 15}" if match and match[1] == "2" else None


def pip_findings(case: PipCase) -> list[Finding]:
    """Every check of distributions."""
    return [check(case) for check in CHECKS]


def _torch_and_vision(case: PipCase) -> tuple[tuple[str, str] | None, tuple[str, str] | None]:
    """(version, build or local tag) of each: the distribution on disk, with conda's build where conda brought it."""
    conda = {package.name: package for package in case.packages}
    on_disk = {d.name: d for d in case.distributions}
    found: list[tuple[str, str] | None] = []
    for distribution, names in (("torch", ("pytorch", "libtorch")), ("torchvision", ("torchvision",))):
        package = next((conda[name] for name in names if name in conda), None)
        present = on_disk.get(distribution)
        if present is not None:
            version, _, tag = present.version.partition("+")
            same = package is not None and package.version == version
            found.append((version, package.build if same and package and not tag else tag))
        else:
            found.append((package.version, package.build) if package else None)
    return found[0], found[1]


def _cuda_tag(build: str) -> str | None:
    match = _TAG.search(build)
    return None if match is None else ("the CPU" if match[3] else f"CUDA {match[1]}.{match[2]}")


def _finding(
    check: str, evidence: list[str], message: str, good: str, *, remedy: str, status: Status = "fail"
) -> Finding:
    if not evidence:
        return Finding(check=check, status="pass", message=good)
    return Finding(
        check=check,
        status=status,
        message=message,
        expected=good,
        actual=evidence[0],
        evidence=shown(evidence),
        remedy=remedy,
    )


CHECKS: Final[tuple[Callable[[PipCase], Finding], ...]] = (
    pip_over_conda,
    beside_conda,
    one_nccl,
    one_cuda,
    one_pynvml,
    repeated,
    torchvision_fits,
)
