"""Whether the files of a prefix are those that its packages brought: each by hash, or quickly by size and date."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench_runner.environment.hashing import HashTask, hash_files, usable_cores
from bench_runner.environment.installed import InstalledFile, InstalledPackage
from bench_runner.environment.links import files_by_path, wrong_link

Mode = Literal["quick", "full"]
Fault = Literal["missing", "size", "content", "kind", "link", "unreadable"]

_KIND_BITS: Final = 0o170000
RECORD_SLACK_SECONDS: Final = 2.0
"""An installer writes a package's record after its files; a file much younger than its record was changed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFault:
    """A file that is not as its package brought it."""

    package: str
    path: str
    fault: Fault
    expected: str
    actual: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """The outcome over a prefix.  ``unchecked`` files have no hash in their record; bytecode is not counted."""

    mode: Mode
    faults: tuple[FileFault, ...]
    checked: int
    unchecked: int
    bytes_read: int


def check_files(
    prefix: Path, packages: Sequence[InstalledPackage], mode: Mode = "full", workers: int | None = None
) -> FileReport:
    """Check every file that the packages' records name (they leave bytecode out: Python writes it anew).

    ``quick`` compares presence, kind, size and date, and hashes only what is younger than its package's record;
    ``full`` hashes everything.  ``workers`` defaults to the cores that this process may use.
    """
    root, lstat = str(prefix), os.lstat
    faults: list[FileFault] = []
    tasks: list[HashTask] = []
    links: list[tuple[InstalledPackage, InstalledFile]] = []
    total = unchecked = 0
    for package in packages:
        unchanged_until = _modified_at(package.record) if mode == "quick" else -math.inf
        total += len(package.files)
        for file in package.files:
            try:
                status = lstat(f"{root}/{file.path}")
            except OSError as error:
                faults.append(_absent(package, file, error))
                continue
            regular = status.st_mode & _KIND_BITS == stat.S_IFREG
            if regular and status.st_size == file.size_bytes and status.st_mtime < unchanged_until and not file.is_link:
                continue  # by far the most, so tested first and at once
            fault = _kind_or_size_fault(package, file, status)
            if fault is not None:
                faults.append(fault)
            elif file.is_link:
                links.append((package, file))
            elif file.sha256 is None:
                unchecked += 1
            elif status.st_mtime >= unchanged_until:
                tasks.append(HashTask(package.name, file.path, file.sha256, file.size_bytes or 0))
    others = files_by_path(packages) if links else {}
    for package, file in links:
        wrong = wrong_link(root, package, file, others)
        if wrong is not None:
            faults.append(_fault(package.name, file.path, "link", *wrong))
    read, differences = hash_files(prefix, tasks, workers or usable_cores())
    for task, kind, actual in differences:
        shown = f"sha256 {actual}" if kind == "content" else actual
        what: Fault = "content" if kind == "content" else "unreadable"
        faults.append(_fault(task.package, task.path, what, f"sha256 {task.sha256}", shown))
    return FileReport(
        mode=mode,
        faults=tuple(sorted(faults, key=lambda f: (f.package, f.path))),
        checked=total - unchecked,
        unchecked=unchecked,
        bytes_read=read,
    )


def _fault(package: str, path: str, fault: Fault, expected: str, actual: str) -> FileFault:
    return FileFault(package=package, path=path, fault=fault, expected=expected, actual=actual)


def _modified_at(record: Path) -> float:
    """Seconds since the epoch until which a file of this record's package counts as unchanged."""
    try:
        return record.stat().st_mtime + RECORD_SLACK_SECONDS
    except OSError:
        return -math.inf  # the record has gone since it was read: hash everything


def _absent(package: InstalledPackage, file: InstalledFile, error: OSError) -> FileFault:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return _fault(package.name, file.path, "missing", "a softlink" if file.is_link else "a file", "nothing there")
    return _fault(package.name, file.path, "unreadable", "a file", error.strerror or str(error))


def _kind_or_size_fault(package: InstalledPackage, file: InstalledFile, status: os.stat_result) -> FileFault | None:
    expected = stat.S_IFLNK if file.is_link else stat.S_IFREG
    if status.st_mode & _KIND_BITS != expected:
        return _fault(package.name, file.path, "kind", _kind(expected), _kind(status.st_mode))
    if not file.is_link and file.size_bytes is not None and status.st_size != file.size_bytes:
        return _fault(package.name, file.path, "size", f"{file.size_bytes} bytes", f"{status.st_size} bytes")
    return None


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a softlink", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return kinds.get(mode & _KIND_BITS, "a device, pipe or socket")


def unowned_files(prefix: Path, packages: Sequence[InstalledPackage], folders: Iterable[Path]) -> tuple[str, ...]:
    """Files under the folders (site-packages) that no package brought, relative to the prefix; bytecode left out."""
    owned = {file.path for package in packages for file in package.files}
    found: list[str] = []
    for folder in folders:
        for directory, names, files in os.walk(folder):
            names[:] = [name for name in names if name != "__pycache__"]
            relative = os.path.relpath(directory, prefix)
            found += [
                path
                for path in (f"{relative}/{name}" for name in files if not name.endswith(".pyc"))
                if path not in owned
            ]
    return tuple(sorted(found))
