"""Verify an environment: gather from the lock, the prefix and a trial run, then judge.  Prints nothing.

Works without conda, without a GPU, and when the environment's torch cannot be imported: this side imports none of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench_runner.environment.checks_files import file_findings
from bench_runner.environment.checks_foreign import foreign_findings
from bench_runner.environment.checks_loaded import LoadedCase, loaded_findings
from bench_runner.environment.checks_packages import package_findings
from bench_runner.environment.checks_pip import PipCase, pip_findings
from bench_runner.environment.checks_surroundings import surroundings_findings
from bench_runner.environment.distributions import (
    Distribution,
    read_distributions,
    recorded_files,
    site_packages_folders,
)
from bench_runner.environment.files import Mode, check_files, unowned_files
from bench_runner.environment.host import host_platform
from bench_runner.environment.installed import InstalledPackage, InstalledPrefix, read_installed
from bench_runner.environment.loaded import DEADLINE_SECONDS, probe_loaded
from bench_runner.environment.lockcheck import lock_findings
from bench_runner.environment.lockfile import Lock
from bench_runner.environment.lockspec import read_source
from bench_runner.environment.remedies import create_beside
from bench_runner.environment.shadows import read_surroundings
from bench_runner.environment.summary import cuda_of, prefix_kind
from bench_runner.errors import UnreadableError, UsageError
from bench_runner.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """``findings`` in the order in which they were made; ``seconds`` that each part took, by its name."""

    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]


def verify_environment(
    prefix: Path,
    lock: Lock | None,
    mode: Mode = "full",
    *,
    python: Path | None = None,
    environ: Mapping[str, str] | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Verification:
    """Judge ``prefix`` against ``lock`` and against itself.

    ``python`` is what the trial run starts (default: the prefix's own) and ``environ`` its variables (default: those
    at hand).  ``deadline_seconds`` ends a trial run that hangs.  Raises UsageError for a prefix that is no folder.
    """
    if not prefix.is_dir():
        raise UsageError(f"--prefix {prefix}: no such folder")
    prefix = prefix.absolute()
    variables = dict(os.environ if environ is None else environ)
    clock = _Clock()
    with clock.part("lock"):
        findings = _lock(lock)
    gathered = _gather(prefix, clock)
    with clock.part("packages"):
        findings += _packages(gathered, lock)
    if gathered.installed is not None:
        with clock.part("files"):
            findings += _files(gathered, lock, mode)
    surroundings = read_surroundings(prefix, variables)
    findings += surroundings_findings(surroundings, cuda_of(gathered.versions))
    with clock.part("trial run"):
        loaded = probe_loaded(python or prefix / "bin" / "python", variables, deadline_seconds)
    findings += loaded_findings(
        LoadedCase(
            prefix=prefix,
            loaded=loaded,
            versions=gathered.versions,
            locked=_locked_versions(lock),
            owned=gathered.owned(lock),
            variables=variables,
            remedy=_rebuild(prefix, lock),
        )
    )
    return Verification(findings=tuple(findings), seconds=clock.seconds)


def environment_findings(
    prefix: Path, lock: Lock | None, mode: Mode = "full", python: Path | None = None
) -> list[Finding]:
    """The findings of ``verify_environment``."""
    return list(verify_environment(prefix, lock, mode, python=python).findings)


class _Clock:
    """Seconds that the parts took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathered:
    """What was read of a prefix.  ``recorded`` are the files that each distribution's own record names."""

    prefix: Path
    installed: InstalledPrefix | None
    distributions: tuple[Distribution, ...]
    recorded: Mapping[str, tuple[Path, ...]]

    @property
    def packages(self) -> tuple[InstalledPackage, ...]:
        return self.installed.packages if self.installed else ()

    @property
    def versions(self) -> dict[str, str]:
        """Name to ``version=build`` of conda packages, and to the version of other distributions."""
        found = {d.name: d.version for d in self.distributions}
        return found | {p.name: f"{p.version}={p.build}" for p in self.packages}

    def owned(self, lock: Lock | None) -> frozenset[str] | None:
        """Real paths of the libraries that packages brought: of locked ones, if there is a lock."""
        if self.installed is None:
            return None
        root = os.path.realpath(self.prefix)
        locked = _locked_versions(lock)
        packages = [package for package in self.packages if package.name in locked or not locked]
        return frozenset(os.path.realpath(f"{root}/{f.path}") for p in packages for f in p.files if ".so" in f.path)


def _gather(prefix: Path, clock: _Clock) -> _Gathered:
    with clock.part("records"):
        installed = read_installed(prefix) if prefix_kind(prefix) == "conda" else None
        distributions = read_distributions(prefix)
        owned = {str(prefix / folder) for p in (installed.packages if installed else ()) for folder in p.distributions}
        recorded: dict[str, tuple[Path, ...]] = {}
        for distribution in distributions if installed else ():
            if distribution.installer == "conda" or (str(distribution.info) in owned and not distribution.installer):
                continue
            try:
                recorded[distribution.name] = recorded_files(distribution)
            except UnreadableError:
                recorded[distribution.name] = ()  # without its record nothing is known to lie over conda's files
    return _Gathered(prefix=prefix, installed=installed, distributions=distributions, recorded=recorded)


def _lock(lock: Lock | None) -> list[Finding]:
    if lock is None:
        return [Finding(check="environment.lock", status="skip", message="no lock file: nothing to compare with")]
    try:
        source = read_source(lock)
    except UnreadableError as error:
        return [
            Finding(
                check="environment.lock.source",
                status="fail",
                message=str(error),
                expected="a readable environment.yml",
                actual="not readable",
                evidence=(str(error),),
                remedy="repair the file, then lock anew: see docs/environment.md",
            )
        ]
    return lock_findings(lock, source, host_platform())


def _packages(gathered: _Gathered, lock: Lock | None) -> list[Finding]:
    """Conda's packages against the lock, and distributions against both."""
    findings: list[Finding] = []
    prefix = gathered.prefix
    if gathered.installed is None:
        kind = prefix_kind(prefix)
        findings += foreign_findings(prefix, kind, gathered.distributions, lock, host_platform())
        message = "files skipped: no conda records to check them against"
        findings.append(Finding(check="environment.files", status="skip", message=message))
    elif lock is not None and host_platform() in lock.platforms:
        findings += package_findings(gathered.installed, lock, host_platform())
    files = {str(prefix / file.path): p.name for p in gathered.packages for file in p.files}
    overlaid = {
        name: tuple(sorted({files[str(path)] for path in paths if str(path) in files}))
        for name, paths in gathered.recorded.items()
    }
    case = PipCase(
        prefix=prefix,
        distributions=gathered.distributions,
        packages=gathered.packages,
        overlaid=overlaid,
        rebuild=_rebuild(prefix, lock),
    )
    return findings + pip_findings(case)


def _files(gathered: _Gathered, lock: Lock | None, mode: Mode) -> list[Finding]:
    prefix = gathered.prefix
    report = check_files(prefix, gathered.packages, mode)
    by_pip = {os.path.relpath(path, prefix) for paths in gathered.recorded.values() for path in paths}
    unowned = unowned_files(prefix, gathered.packages, site_packages_folders(prefix))
    return file_findings(report, tuple(path for path in unowned if path not in by_pip), _rebuild(prefix, lock))


def _locked_versions(lock: Lock | None) -> dict[str, str]:
    packages = lock.conda_packages(host_platform()) if lock else ()
    return {package.name: f"{package.version}={package.build}" for package in packages}


def _rebuild(prefix: Path, lock: Lock | None) -> str:
    return create_beside(prefix, lock.path if lock else Path("conda-lock.yml"))
