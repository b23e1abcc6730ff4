"""Gather what the variables at hand put before the environment's own files: libraries, modules, another CUDA."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_runner.environment.distributions import site_packages_folders
from bench_runner.environment.reading import read_bounded
from bench_runner.errors import UnreadableError

TELLING_LIBRARY: Final = re.compile(
    r"lib(torch(_cpu|_cuda|_python)?|c10(_cuda)?|nccl|rccl|cudart|cudnn\w*|cublas(Lt)?|cusparse|cusolver|cufft|curand|nvrtc"
    r"|nvJitLink|cupti|mkl_\w+|openblas\w*|c?blas|lapack|gomp|omp|iomp5|stdc\+\+|gcc_s|python[\d.]+)([-.]\S*)?\.so([.\d]*)"
)
MOST_ENTRIES: Final = 20_000
_VERSION: Final = re.compile(r"\d+\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """A folder (or, for LD_PRELOAD, a file) that a variable names, with the telling files in it; none may be there."""

    variable: str
    entry: Path
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The variables at hand, as far as they reach into the environment ``prefix``."""

    prefix: Path
    shadows: tuple[Shadow, ...]
    active_prefix: str | None
    cuda_home: Path | None
    cuda_home_version: str | None


def read_surroundings(prefix: Path, environ: Mapping[str, str]) -> Surroundings:
    """Look into every folder that the variables put in front; one that cannot be read holds nothing."""
    shadows: list[Shadow] = []
    for entry in _entries(environ, "LD_LIBRARY_PATH", ":"):
        if not _inside(entry, prefix):
            files = tuple(name for name in _names(entry) if TELLING_LIBRARY.fullmatch(name))
            shadows.append(Shadow(variable="LD_LIBRARY_PATH", entry=entry, files=files))
    shadows += [
        Shadow(variable="LD_PRELOAD", entry=entry, files=(entry.name,))
        for entry in _entries(environ, "LD_PRELOAD", "[: ]")
        if not _inside(entry, prefix)
    ]
    own = {module for folder in site_packages_folders(prefix) for module in _modules(folder)}
    shadows += [
        Shadow(variable="PYTHONPATH", entry=entry, files=tuple(sorted(_modules(entry) & own)))
        for entry in _entries(environ, "PYTHONPATH", ":")
        if not _inside(entry, prefix)
    ]
    if environ.get("PYTHONHOME"):
        shadows.append(
            Shadow(variable="PYTHONHOME", entry=Path(environ["PYTHONHOME"]), files=("the standard library",))
        )
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    return Surroundings(
        prefix=prefix,
        shadows=tuple(shadows),
        active_prefix=environ.get("CONDA_PREFIX") or environ.get("VIRTUAL_ENV") or None,
        cuda_home=Path(home) if home else None,
        cuda_home_version=_cuda_version(Path(home)) if home else None,
    )


def _entries(environ: Mapping[str, str], variable: str, separator: str) -> list[Path]:
    return [Path(entry) for entry in re.split(separator, environ.get(variable, "")) if entry]


def _inside(path: Path, prefix: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(prefix))


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False))
    except OSError:
        return []  # a path that is not there shadows nothing


def _modules(folder: Path) -> set[str]:
    """Top-level modules of a folder that Python searches."""
    found: set[str] = set()
    for name in _names(folder):
        stem, dot, rest = name.partition(".")
        if (not dot and (folder / name / "__init__.py").is_file()) or rest == "py" or rest.endswith("so"):
            found.add(stem)
    return found - {"__pycache__", "setup", "conftest"}


def _cuda_version(home: Path) -> str | None:
    """From version.json or version.txt of a CUDA toolkit, else from the folder's name (``/usr/local/cuda-12.4``)."""
    for name in ("version.json", "version.txt"):
        try:
            text = read_bounded(home / name, 1 << 20, "CUDA's version").decode("utf-8", "replace")
        except UnreadableError:
            continue
        match = re.search(r'(?:"cuda"\s*:\s*\{[^}]*?"version"\s*:\s*"|CUDA Version )(\d+\.\d+)', text)
        if match:
            return match[1]
    found = _VERSION.search(os.path.realpath(home).rpartition("/")[2])
    return found[0] if found else None
