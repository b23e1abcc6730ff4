"""The environment in every record: which packages, locked or not, and what the workers really loaded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from bench_runner.environment.distributions import (
    Distribution,
    list_distributions,
    normalize,
    site_packages_folders,
)
from bench_runner.environment.host import host_platform
from bench_runner.environment.info import EnvironmentInfo, LoadedLibrary, LockState
from bench_runner.environment.installed import InstalledPackage, is_conda_prefix, read_installed
from bench_runner.environment.lockfile import Lock, read_lock

Kind = Literal["conda", "venv", "system"]

OWN_DISTRIBUTION: Final = "bench-runner"
"""Installed beside the locked packages by whoever runs the suite, and no drift."""

PACKAGES_THAT_MATTER: Final = re.compile(
    r"python|pytorch|torch|torchvision|libtorch|triton|numpy|mkl|intel-openmp|llvm-openmp|_openmp_mutex|libgomp"
    r"|lib(c|lap)?(ack|blas)|(lib)?openblas|cuda-(version|cudart|nvrtc|runtime)|cudnn|libcudnn|nccl|gloo|libmagma|rccl"
    r"|libcu(blas|sparse|solver|fft)|cudatoolkit|nvidia-[\w-]+|asv|asv-runner|asv_runner|bench-runner|pandas|scipy"
)
VARIABLES_THAT_MATTER: Final = re.compile(
    r"(NCCL|CUDA|CUDNN|CUBLAS|OMP|GOMP|MKL|KMP|OPENBLAS|TORCH|PYTORCH|TORCHINDUCTOR|GLOO|TP|UCX|ROCR|HIP|NVIDIA)_\w+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME|ATEN_CPU_CAPABILITY"
)
_NOT_STORED: Final = re.compile(r"\w*(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)\w*|TORCHELASTIC_\w+")
_LONGEST_VALUE: Final = 2048
_CUDA_TAG: Final = re.compile(r"(?:cuda|cu)(\d{2})(\d)(?!\d)")


def describe(prefix: Path | str, lock: Lock | Path | str | None) -> EnvironmentInfo:
    """Describe an environment without starting its Python: 0.2 s for a prefix of 300 packages.

    ``lock`` is the lock file, read already or not; ``None`` or an absent file gives ``no-lock``.  ``match`` rests on
    the packages' records (name, version, build, hash) and on the names of what lies in site-packages; whether files
    were changed since is ``bench-runner verify``'s question.  Raises UnreadableError for a damaged lock.
    """
    prefix = Path(prefix)
    read = _read(lock)
    kind = prefix_kind(prefix)
    distributions = list_distributions(prefix)
    installed = read_installed(prefix, with_files=False) if kind == "conda" else None
    conda = installed.packages if installed else ()
    state: LockState = "unknown"
    if read is None or host_platform() not in read.platforms:
        state = "no-lock"
    elif installed is None:
        state = "not-locked"
    elif not installed.unreadable:
        state = "match" if _matches(prefix, conda, distributions, read) else "drift"
    versions = _versions(conda, distributions)
    python = python_version(prefix, conda)
    matter = {name: version for name, version in versions.items() if PACKAGES_THAT_MATTER.fullmatch(name)}
    return EnvironmentInfo(
        fingerprint=_fingerprint(kind, python, versions),
        kind=kind,
        prefix=str(prefix),
        python=python,
        lock_sha256=read.sha256 if read else None,
        lock_state=state,
        torch=_plain(versions.get("torch") or versions.get("pytorch") or versions.get("libtorch")),
        cuda=cuda_of(versions),
        nccl=_first(versions, r"nccl|nvidia-nccl-cu\d+"),
        cudnn=_first(versions, r"cudnn|libcudnn|nvidia-cudnn-cu\d+"),
        packages=matter,
        variables=relevant_variables(os.environ),
    )


def with_runtime(info: EnvironmentInfo, runtime: Mapping[str, Any]) -> EnvironmentInfo:
    """Add what a worker reported of itself: what ran goes before what is installed.

    ``runtime`` has the keys torch, cuda, nccl, cudnn, python, prefix, libraries (name, path, version each) and
    variables; an absent or empty one leaves the description as it is.  A worker that ran in another prefix than the
    one described takes the lock's verdict away.
    """
    changes: dict[str, Any] = {
        key: runtime[key] for key in ("torch", "cuda", "nccl", "cudnn", "python") if isinstance(runtime.get(key), str)
    }
    if runtime.get("libraries"):
        changes["libraries"] = tuple(
            LoadedLibrary(name=str(entry["name"]), path=str(entry["path"]), version=entry.get("version"))
            for entry in runtime["libraries"]
        )
    if runtime.get("variables") is not None:
        changes["variables"] = relevant_variables(runtime["variables"])
    ran_in = runtime.get("prefix")
    if isinstance(ran_in, str) and Path(ran_in).resolve() != Path(info.prefix).resolve():
        changes |= {"prefix": ran_in, "kind": prefix_kind(Path(ran_in)), "lock_state": "unknown"}
    return dataclasses.replace(info, **changes)


def prefix_kind(prefix: Path) -> Kind:
    """``conda`` if conda's records are there, ``venv`` for venv, virtualenv and uv, else ``system``."""
    if is_conda_prefix(prefix):
        return "conda"
    return "venv" if (prefix / "pyvenv.cfg").is_file() else "system"


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change NCCL, CUDA, OpenMP, BLAS and torch; secrets and per-launch values are left out."""
    return {
        name: str(environ[name])[:_LONGEST_VALUE]
        for name in sorted(environ)
        if VARIABLES_THAT_MATTER.fullmatch(name) and not _NOT_STORED.fullmatch(name)
    }


def python_version(prefix: Path, conda: tuple[InstalledPackage, ...] = ()) -> str:
    """The version of the prefix's Python, without running it; only ``3.12`` where no more can be read, or empty."""
    if prefix.resolve() == Path(sys.prefix).resolve():
        return platform.python_version()
    for package in conda:
        if package.name == "python":
            return package.version
    config = prefix / "pyvenv.cfg"
    if config.is_file():
        match = re.search(r"^version(?:_info)?\s*=\s*([\d.]+\d)", config.read_text(errors="replace"), re.MULTILINE)
        if match:
            return match[1]
    folders = site_packages_folders(prefix)
    return folders[0].parent.name.removeprefix("python") if folders else ""


def cuda_of(versions: Mapping[str, str]) -> str | None:
    """The CUDA version that torch was built for, from conda's build (``cuda129_…``) or the wheel's tag (``+cu129``)."""
    for name in ("torch", "pytorch", "libtorch"):
        match = _CUDA_TAG.search(versions.get(name, "").partition("+")[2] or versions.get(name, "").partition("=")[2])
        if match:
            return f"{match[1]}.{match[2]}"
    return None


def _read(lock: Lock | Path | str | None) -> Lock | None:
    if lock is None or isinstance(lock, Lock):
        return lock
    return read_lock(lock) if Path(lock).exists() else None


def _matches(prefix: Path, conda: tuple[InstalledPackage, ...], distributions: list[Distribution], lock: Lock) -> bool:
    """The same packages, by name, version, build and, where both have one, hash; nothing from pip beside them."""
    locked = {(p.name, p.version, p.build): p.sha256 for p in lock.conda_packages(host_platform())}
    present = {(p.name, p.version, p.build): p.sha256 for p in conda}
    if locked.keys() != present.keys() or len(present) != len(conda):
        return False
    if any(locked[key] and present[key] and locked[key] != present[key] for key in locked):
        return False
    owned = {(prefix / folder).resolve() for package in conda for folder in package.distributions}
    wanted = {(normalize(p.name), p.version) for p in lock.pip_packages(host_platform())}
    return all(
        d.name == OWN_DISTRIBUTION or (d.name, d.version) in wanted or d.info.resolve() in owned for d in distributions
    )


def _versions(conda: tuple[InstalledPackage, ...], distributions: list[Distribution]) -> dict[str, str]:
    """Conda packages as ``version=build``; distributions that conda does not name as their version."""
    found = {p.name: f"{p.version}={p.build}" for p in conda}
    known = {name.replace("_", "-").lower() for name in found}
    found |= {d.name: d.version for d in distributions if d.name not in known}
    return dict(sorted(found.items()))


def _fingerprint(kind: Kind, python: str, versions: Mapping[str, str]) -> str:
    """Over what is installed; neither where, nor this suite's own version."""
    installed = {name: version for name, version in versions.items() if name != OWN_DISTRIBUTION}
    text = json.dumps([kind, python, installed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(version: str | None) -> str | None:
    return version.partition("=")[0] if version else None


def _first(versions: Mapping[str, str], pattern: str) -> str | None:
    return next((_plain(versions[name]) for name in versions if re.fullmatch(pattern, name)), None)
