"""Python distributions in a prefix's site-packages, by their ``dist-info``: who installed them, and which files."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_runner.environment.reading import read_bounded
from bench_runner.errors import UnreadableError

LARGEST_RECORD_BYTES: Final = 64 << 20
LARGEST_METADATA_BYTES: Final = 8 << 20
_DIST_INFO: Final = re.compile(r"(?P<name>[A-Za-z0-9][\w.]*?)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist-info|egg-info)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One ``dist-info`` (or ``egg-info``) folder.

    ``name`` is normalized as PEP 503 has it; ``installer`` is empty where no INSTALLER file says; ``reason`` is why
    the metadata could not be read.
    """

    name: str
    version: str
    installer: str
    info: Path
    reason: str | None = None

    @property
    def site_packages(self) -> Path:
        return self.info.parent


def normalize(name: str) -> str:
    """PEP 503: ``Foo_Bar.baz`` and ``foo-bar-baz`` are one name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def site_packages_folders(prefix: Path) -> list[Path]:
    """The folders that a Python in ``prefix`` takes third-party modules from, each once and by its own path.

    Conda's Python brings a link ``lib/python3.1`` to ``lib/python3.12`` and the like: real folders come first.
    """
    found: list[Path] = []
    for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages"):
        for folder in sorted(prefix.glob(pattern), key=lambda folder: (folder.parent.is_symlink(), folder)):
            if folder.is_dir() and not any(folder.samefile(other) for other in found):
                found.append(folder)
    return found


def list_distributions(prefix: Path) -> list[Distribution]:
    """Every distribution by its folder's name alone, nothing read: quick."""
    found: list[Distribution] = []
    for folder in site_packages_folders(prefix):
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            match = _DIST_INFO.fullmatch(name)
            if match:
                distribution = normalize(match["name"])
                found.append(
                    Distribution(name=distribution, version=match["version"], installer="", info=folder / name)
                )
    return found


def read_distributions(prefix: Path) -> tuple[Distribution, ...]:
    """Every distribution with its installer; sorted by name.  A name can be there twice."""
    return tuple(sorted((_with_metadata(d) for d in list_distributions(prefix)), key=lambda d: (d.name, str(d.info))))


def recorded_files(distribution: Distribution) -> tuple[Path, ...]:
    """The files that pip recorded for a distribution, resolved against its site-packages; raises UnreadableError."""
    path = distribution.info / "RECORD"
    text = read_bounded(path, LARGEST_RECORD_BYTES, "pip's record").decode("utf-8", "replace")
    try:
        rows = [row for row in csv.reader(text.splitlines()) if row and row[0]]
    except csv.Error as error:
        raise UnreadableError(f"pip's record {path}: {error}") from error
    root = str(distribution.site_packages)
    return tuple(Path(os.path.normpath(os.path.join(root, row[0]))) for row in rows)  # noqa: PTH118 (may be absolute)


def _with_metadata(distribution: Distribution) -> Distribution:
    """The name and version as METADATA has them, and the installer."""
    info = distribution.info
    if not info.is_dir():
        return distribution
    name, version, reason = distribution.name, distribution.version, None
    metadata = info / ("METADATA" if info.name.endswith(".dist-info") else "PKG-INFO")
    try:
        text = read_bounded(metadata, LARGEST_METADATA_BYTES, "distribution metadata").decode("utf-8", "replace")
    except UnreadableError as error:
        reason = str(error)
    else:
        headers = text.partition("\n\n")[0]
        name = _header(headers, "Name") or name
        version = _header(headers, "Version") or version
    return Distribution(name=normalize(name), version=version, installer=_installer(info), info=info, reason=reason)


def _header(headers: str, field: str) -> str:
    match = re.search(rf"^{field}:[ \t]*(\S+)", headers, re.MULTILINE)
    return match[1] if match else ""


def _installer(info: Path) -> str:
    path = info / "INSTALLER"
    if not path.exists():
        return ""
    try:
        return read_bounded(path, 4096, "installer's name").decode("utf-8", "replace").strip().lower()
    except UnreadableError:
        return "unreadable"
