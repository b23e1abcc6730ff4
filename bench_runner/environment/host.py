"""What the machine at hand offers to conda packages: its platform and virtual packages, as conda counts them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bench_runner.environment.lockfile import LockedPackage
from bench_runner.environment.reading import load_json, read_bounded
from bench_runner.errors import EnvironmentBuildError

_PLATFORMS: Final = {
    ("Linux", "x86_64"): "linux-64",
    ("Linux", "aarch64"): "linux-aarch64",
    ("Linux", "ppc64le"): "linux-ppc64le",
    ("Darwin", "x86_64"): "osx-64",
    ("Darwin", "arm64"): "osx-arm64",
}
_LARGEST_INDEX_BYTES: Final = 16 << 20
_OVERRIDES: Final = {"__cuda": "CONDA_OVERRIDE_CUDA", "__glibc": "CONDA_OVERRIDE_GLIBC"}


def host_platform() -> str:
    """conda's name of the machine at hand: ``linux-64``."""
    machine = (platform.system(), platform.machine())
    return _PLATFORMS.get(machine, "-".join(machine).lower())


def virtual_packages() -> dict[str, str]:
    """Virtual packages of this machine, name to version; ``CONDA_OVERRIDE_CUDA`` and alike count, as with conda.

    Raises EnvironmentBuildError for an override that is no version.
    """
    from rattler import VirtualPackage, VirtualPackageOverrides
    from rattler.exceptions import DetectVirtualPackageError

    try:
        found = VirtualPackage.detect(VirtualPackageOverrides.from_env())
    except DetectVirtualPackageError as error:
        raise EnvironmentBuildError(f"virtual packages of this machine: {' '.join(str(error).split())}") from error
    generic = [package.into_generic() for package in found]
    return {package.name.normalized: str(package.version) for package in generic}


def unmet_requirements(packages: Iterable[LockedPackage], offered: Mapping[str, str]) -> list[str]:
    """What the packages ask of the machine and it does not have, one line each."""
    return [
        line
        for name, spec, package in sorted(
            {
                (name, spec.strip(), package.label)
                for package in packages
                for name, _, spec in (depends.partition(" ") for depends in package.depends)
                if name.startswith("__")
            }
        )
        if (line := _unmet(name, spec, package, offered.get(name))) is not None
    ]


def unmet_constraints(packages: Iterable[tuple[LockedPackage, Path]], offered: Mapping[str, str]) -> list[str]:
    """As ``unmet_requirements``, of what unpacked packages say themselves: conda-lock drops ``constrains``."""
    lines: list[str] = []
    for package, folder in packages:
        path = folder / "info" / "index.json"
        index = load_json(read_bounded(path, _LARGEST_INDEX_BYTES, "package index"), path, "package index")
        constrains = index.get("constrains") if isinstance(index, dict) else None
        for text in constrains if isinstance(constrains, list) else ():
            name, _, spec = str(text).partition(" ")
            if name.startswith("__") and name in offered:
                line = _unmet(name, spec.strip(), package.label, offered[name])
                lines.extend([line] if line else [])
    return lines


def _unmet(name: str, spec: str, package: str, offered: str | None) -> str | None:
    from rattler import Version, VersionSpec
    from rattler.exceptions import InvalidVersionSpecError

    wanted = f"{name} {spec}".strip()
    # conda-lock joins the build to some specs ("12.9 *"); the version is what comes first.
    version = spec.split(" ")[0] if spec else "*"
    if offered is not None:
        try:
            if VersionSpec(version).matches(Version(offered)):
                return None
        except InvalidVersionSpecError as error:
            return f"{package} needs {wanted}, which cannot be read: {' '.join(str(error).split())}"
    has = f"has {name} {offered}" if offered is not None else f"has no {name}"
    override = _OVERRIDES.get(name)
    remedy = f"; {override}=VERSION builds it for another machine" if override else ""
    return f"{package} needs {wanted}, this machine {has}{remedy}"
