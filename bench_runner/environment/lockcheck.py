"""Judge the lock file itself: against environment.yml, and against what such a lock must hold.  Pure: values in.

The hash of what was asked (content_hash) tells every change of environment.yml, also one that the lock still satisfies;
that is why satisfiability is a check of its own.  Match specs are read by py-rattler.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from bench_runner.environment.checks_packages import (
    CORE_PACKAGES,
    CPU_BUILD,
    CUDA_BUILD,
    TORCH_PACKAGES,
    mixed_channel_finding,
    shown,
)
from bench_runner.environment.lockfile import Lock, LockedPackage, channel_name
from bench_runner.environment.lockspec import LockSource
from bench_runner.environment.remedies import lock_anew
from bench_runner.environment.satisfy import is_met, records_of, spec_name, virtual_records, what_is_there
from bench_runner.finding import Finding, Status

STALE_CHECKS: Final = frozenset(
    {
        "environment.lock.content-hash",
        "environment.lock.specs",
        "environment.lock.platform",
        "environment.lock.unreadable",
        "environment.lock.source",
    }
)
"""When one of these fails, the lock does not belong to environment.yml: wrong input, not a drifted environment."""

CUDA_RUNTIME: Final = re.compile(
    r"cuda-(version|cudart|nvrtc|runtime|libraries)|cudatoolkit|cudnn|nccl|libcu(blas|dnn).*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCase:
    """The lock's packages for one platform, and what it was made from if that is there."""

    lock: Lock
    source: LockSource | None
    platform: str
    packages: tuple[LockedPackage, ...]

    @property
    def relock(self) -> str:
        path = self.source.path if self.source else self.lock.path.parent / "environment.yml"
        return lock_anew(path, self.source.virtual_path if self.source else None, self.lock.path)

    @property
    def torch(self) -> tuple[LockedPackage, ...]:
        return tuple(package for package in self.packages if package.name in TORCH_PACKAGES)

    @property
    def wants_cuda(self) -> bool | None:
        """By environment.yml: True, False (a CPU build is asked for), or None where it does not say."""
        specs = self.source.specs if self.source else ()
        asked = [spec for spec in specs if spec_name(spec) in TORCH_PACKAGES]
        if any(re.search(r"cuda|gpu", spec) for spec in asked) or any(spec_name(s) == "cuda-version" for s in specs):
            return True
        return False if any("cpu" in spec for spec in asked) else None


def lock_findings(lock: Lock, source: LockSource | None, platform: str) -> list[Finding]:
    """Every check of the lock, for one platform."""
    packages = tuple(package for package in lock.packages if package.platform == platform)
    if not packages:
        return [
            Finding(
                check="environment.lock.platform",
                status="fail",
                message=f"the lock has no packages for {platform}",
                expected=platform,
                actual=", ".join(lock.platforms),
                remedy=f"add {platform} to the platforms of environment.yml and lock anew, or name another --lock",
            )
        ]
    case = LockCase(lock=lock, source=source, platform=platform, packages=packages)
    return [check(case) for check in CHECKS]


def content_hash(case: LockCase) -> Finding:
    """Whether environment.yml and the virtual packages are those that were locked."""
    check = "environment.lock.content-hash"
    if case.source is None:
        message = f"{', '.join(case.lock.sources) or 'its source'} does not lie beside the lock"
        return Finding(check=check, status="skip", message=message)
    if case.source.pip_specs:
        return Finding(
            check=check, status="skip", message="environment.yml has pip entries: their hash needs a network"
        )
    accepted = case.source.content_hashes.get(case.platform, frozenset())
    actual = case.lock.content_hash.get(case.platform, "none")
    if actual in accepted:
        return Finding(check=check, status="pass", message=f"the lock was made from {case.source.path.name} as it is")
    return Finding(
        check=check,
        status="fail",
        message=f"the lock is stale: {case.source.path.name} or its virtual packages were changed since",
        expected=min(accepted, default=f"{case.platform} among its platforms"),
        actual=actual,
        evidence=(
            str(case.source.path),
            str(case.source.virtual_path or "no virtual-packages.yaml"),
            str(case.lock.path),
        ),
        remedy=case.relock,
    )


def specs_satisfied(case: LockCase) -> Finding:
    """Every dependency that environment.yml names is in the lock, in a version and build that it allows."""
    check = "environment.lock.specs"
    if case.source is None:
        return Finding(check=check, status="skip", message="environment.yml does not lie beside the lock")
    records = records_of(case.packages)
    unmet = [
        f"{case.source.path.name} asks {spec}: {what_is_there(spec, records)}"
        for spec in case.source.specs
        if not is_met(spec, records)
    ]
    return _finding(
        check,
        unmet,
        f"the lock does not give {len(unmet)} of the dependencies that environment.yml asks for",
        f"the lock gives all {len(case.source.specs)} dependencies that environment.yml asks for",
        case,
        expected=case.source.path.name,
    )


def depends_satisfied(case: LockCase) -> Finding:
    """Every dependency of every package is in the lock or a virtual package: nothing was dropped or swapped."""
    records = records_of(case.packages)
    declared = case.source.virtual_packages if case.source else None
    platform_declares = None if declared is None else declared.get(case.platform, {})
    virtual = virtual_records(platform_declares, case.packages, case.platform)
    unmet = [
        f"{package.label} needs {spec}: {what_is_there(spec, records)}"
        for package in case.packages
        if package.manager == "conda"
        for spec in package.depends
        if not is_met(spec, virtual if spec.startswith("__") else records)
    ]
    return _finding(
        "environment.lock.depends",
        unmet,
        f"{len(unmet)} dependencies of locked packages are not in the lock",
        "every dependency of every locked package is in the lock",
        case,
    )


def duplicates(case: LockCase) -> Finding:
    counts = Counter((package.manager, package.name) for package in case.packages)
    twice = [p for p in case.packages if counts[p.manager, p.name] > 1]
    return _finding(
        "environment.lock.duplicates",
        [f"{package.label} from {package.url}" for package in twice],
        f"{len({package.name for package in twice})} packages are in the lock twice",
        "no package is in the lock twice",
        case,
    )


def hosts(case: LockCase) -> Finding:
    """All packages of one channel come from one host, and the channel is one that the lock names."""
    by_channel: dict[str, Counter[str]] = defaultdict(Counter)
    for package in case.packages:
        if package.manager == "conda":
            by_channel[channel_name(package.channel)][_host(package)] += 1
    named = {channel_name(channel) for channel in case.lock.channels}
    bad: list[str] = []
    for package in case.packages:
        name = channel_name(package.channel)
        if package.manager != "conda":
            continue
        if name not in named:
            bad.append(f"{package.label}: channel {package.channel} is not among {', '.join(case.lock.channels)}")
        elif _host(package) != by_channel[name].most_common(1)[0][0]:
            bad.append(f"{package.label}: {package.url} is not on the host of its channel's other packages")
    return _finding(
        "environment.lock.hosts",
        bad,
        f"{len(bad)} packages come from a host or channel of their own",
        "every package comes from its channel's one host",
        case,
        expected=", ".join(case.lock.channels),
    )


def hashes(case: LockCase) -> Finding:
    """Every package has a sha256; md5 alone does not prove an archive."""
    weak = [package.label for package in case.packages if package.sha256 is None]
    return _finding(
        "environment.lock.hashes",
        weak,
        f"{len(weak)} packages are locked without sha256",
        f"all {len(case.packages)} packages are locked with sha256",
        case,
        status="warn",
    )


def pip_entries(case: LockCase) -> Finding:
    """A lock of two ecosystems: pip's wheels bring their own CUDA libraries and lie over conda's files."""
    pip = [f"{package.label} from pip" for package in case.packages if package.manager == "pip"]
    pip += [f"{spec} in environment.yml's pip section" for spec in (case.source.pip_specs if case.source else ())]
    return _finding(
        "environment.lock.pip",
        pip,
        f"{len(pip)} packages are locked for pip beside conda's",
        "all packages are conda's",
        case,
        status="warn",
    )


def mixed_channels(case: LockCase) -> Finding:
    core = [(p.label, p.channel) for p in case.packages if p.manager == "conda" and CORE_PACKAGES.fullmatch(p.name)]
    return mixed_channel_finding("environment.lock.mixed-channels", core, case.relock)


def torch_build(case: LockCase) -> Finding:
    """One build of torch, CUDA's or the CPU's, that fits what environment.yml asks for and what lies beside it."""
    check = "environment.lock.torch-build"
    cpu = [package.label for package in case.torch if CPU_BUILD.fullmatch(package.build)]
    cuda = [package.label for package in case.torch if CUDA_BUILD.fullmatch(package.build)]
    runtime = [package.label for package in case.packages if CUDA_RUNTIME.fullmatch(package.name)]
    if not case.torch:
        return Finding(check=check, status="skip", message="the lock has no torch")
    if cpu and (cuda or case.wants_cuda):
        return _finding(check, cpu, "a lock for GPUs holds a CPU build of torch", "", case, expected="a build cuda*")
    if cpu and runtime:
        message = "a lock for the CPU holds CUDA's libraries: gigabytes that nothing uses"
        return _finding(check, runtime, message, "", case, status="warn", expected="no CUDA packages")
    return Finding(check=check, status="pass", message=f"torch is {', '.join(cuda or cpu or [case.torch[0].label])}")


def cuda_declared(case: LockCase) -> Finding:
    """A CUDA lock needs ``__cuda``: declared when it was solved, required by torch, and the build pinned."""
    check = "environment.lock.cuda-declared"
    cuda = [package for package in case.torch if CUDA_BUILD.fullmatch(package.build)]
    if not cuda:
        return Finding(check=check, status="skip", message="the lock has no CUDA build of torch")
    faults: list[str] = []
    if not any(spec.split()[0] == "__cuda" for package in cuda for spec in package.depends):
        faults.append(f"none of {', '.join(package.label for package in cuda)} requires __cuda")
    if case.source is not None:
        if "__cuda" not in (case.source.virtual_packages or {}).get(case.platform, {}):
            faults.append(f"{case.source.virtual_path or 'virtual-packages.yaml (absent)'} does not declare __cuda")
        if not case.wants_cuda:
            faults.append(f"{case.source.path.name} does not pin a CUDA build of torch")
    return _finding(
        check,
        faults,
        "the lock is for GPUs but does not say so: solved anew on a machine without one it turns into a CPU lock",
        "__cuda is declared and required, and the CUDA build is pinned",
        case,
        expected='__cuda in virtual-packages.yaml, "pytorch * cuda*" in environment.yml',
    )


def _finding(
    check: str,
    evidence: list[str],
    message: str,
    good: str,
    case: LockCase,
    *,
    status: Status = "fail",
    expected: str = "none",
) -> Finding:
    if not evidence:
        return Finding(check=check, status="pass", message=good)
    return Finding(
        check=check,
        status=status,
        message=message,
        expected=expected,
        actual=evidence[0],
        evidence=shown(evidence),
        remedy=case.relock,
    )


def _host(package: LockedPackage) -> str:
    parts = urlsplit(package.url)
    return f"{parts.scheme}://{parts.netloc}"


CHECKS: Final[tuple[Callable[[LockCase], Finding], ...]] = (
    content_hash,
    specs_satisfied,
    depends_satisfied,
    duplicates,
    hosts,
    hashes,
    torch_build,
    cuda_declared,
    pip_entries,
    mixed_channels,
)
