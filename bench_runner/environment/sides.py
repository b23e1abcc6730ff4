"""What a word on the command line of ``env diff`` stands for: a prefix, a lock, an export or a run record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench_runner.environment.diff import Side
from bench_runner.environment.export import (
    EXPORT_SCHEMA,
    EnvironmentExport,
    ExportedPackage,
    export_prefix,
    locked_as_packages,
    parse_export,
)
from bench_runner.environment.host import host_platform
from bench_runner.environment.info import EnvironmentInfo
from bench_runner.environment.lockfile import read_lock
from bench_runner.environment.reading import load_json, read_bounded
from bench_runner.environment.summary import cuda_of
from bench_runner.errors import UnreadableError

_LARGEST_BYTES: Final = 64 << 20
_LINE: Final = re.compile(r"(?P<file>.+):(?P<line>[1-9]\d{0,8})")
_BUILT_FOR: Final = "torch is built for"


def read_side(text: str) -> Side:
    """A folder is a prefix, a YAML file a lock, JSON an export, JSON lines run records (``FILE:LINE``, else the last).

    Raises UnreadableError, one line, for anything else.
    """
    path, line = Path(text), None
    named = _LINE.fullmatch(text)
    if named and not path.exists():
        path, line = Path(named["file"]), int(named["line"])
    if path.is_dir():
        return side_of_export(text, export_prefix(path), "prefix")
    if not path.exists():
        raise UnreadableError(f"{text}: no such file or folder; name a prefix, lock, export or run record")
    if path.suffix in (".yml", ".yaml"):
        return _lock(text, path)
    if path.suffix == ".jsonl" or line is not None:
        return _record(text, path, line)
    document = load_json(read_bounded(path, _LARGEST_BYTES, "file"), path, "file")
    if isinstance(document, dict) and document.get("schema") == EXPORT_SCHEMA:
        return side_of_export(text, parse_export(document, path), "export")
    if isinstance(document, dict) and str(document.get("schema")).startswith("bench-runner/record/"):
        return _record(text, path, None)
    raise UnreadableError(f"{text}: neither an environment export nor a run record (its schema is another one)")


def side_of_export(label: str, export: EnvironmentExport, kind: str) -> Side:
    """A prefix or a stored export as a side."""
    return Side(
        label=label,
        kind="export" if kind == "export" else "prefix",
        packages=export.packages,
        facts=_facts(export.python, export.packages),
        variables=export.variables if kind == "export" else None,
    )


def side_of_info(label: str, info: EnvironmentInfo) -> Side:
    """The environment in a run record as a side."""
    packages = tuple(
        ExportedPackage(
            name=name,
            version=version.partition("=")[0],
            manager="conda" if "=" in version else "pip",
            build=version.partition("=")[2] or None,
        )
        for name, version in sorted(info.packages.items())
    )
    facts = dict(_facts(info.python, packages))
    for name in ("torch", "nccl", "cudnn"):
        value = getattr(info, name)
        if value:
            facts[f"{name} as run"] = value
    if info.torch:
        facts[_BUILT_FOR] = f"CUDA {info.cuda}" if info.cuda else "CPU"
    return Side(
        label=label,
        kind="record",
        packages=packages,
        facts=facts,
        variables=info.variables,
        libraries={library.name: library.version or "version unknown" for library in info.libraries},
        whole=False,
    )


def _facts(python: str, packages: tuple[ExportedPackage, ...]) -> Mapping[str, str]:
    """``python``, and what torch was built for as far as its version or build says."""
    facts = {"python": python} if python else {}
    versions = {p.name: f"{p.version}={p.build}" if p.build else p.version for p in packages}
    if any(name in versions for name in ("torch", "pytorch", "libtorch")):
        cuda = cuda_of(versions)
        told = cuda or any("cpu" in versions.get(name, "") for name in ("torch", "pytorch", "libtorch"))
        if told:
            facts[_BUILT_FOR] = f"CUDA {cuda}" if cuda else "CPU"
    return facts


def _lock(text: str, path: Path) -> Side:
    lock = read_lock(path)
    platform = host_platform() if host_platform() in lock.platforms else lock.platforms[0] if lock.platforms else ""
    packages = locked_as_packages(lock, platform)
    python = next((p.version for p in packages if p.name == "python"), "")
    return Side(label=text, kind="lock", packages=packages, facts=_facts(python, packages))


def _record(text: str, path: Path, number: int | None) -> Side:
    from bench_runner.store import LineProblem, parse_line

    lines = read_bounded(path, _LARGEST_BYTES, "run records").splitlines()
    numbers = [i for i, line in enumerate(lines, 1) if line.strip()] if number is None else [number]
    if not numbers or numbers[-1] > len(lines):
        raise UnreadableError(f"{text}: no record there; the file has {len(lines)} lines")
    try:
        record = parse_line(lines[numbers[-1] - 1])
    except LineProblem as problem:
        raise UnreadableError(f"{path}:{numbers[-1]}: {problem}") from problem
    return side_of_info(text, record.environment)
