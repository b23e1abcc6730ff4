"""What a conda prefix says is installed: ``conda-meta/*.json`` as conda, mamba, micromamba and rattler write it.

Fields that some installers leave empty (micromamba 2.1 to 2.3 after an explicit install; rattler after an install from
a lock file) are filled from the URL and the file names.  One damaged file is a value that says so, not an end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench_runner.environment.lockfile import parse_package_url, split_file_name
from bench_runner.environment.reading import load_json, read_bounded
from bench_runner.errors import UnreadableError

LARGEST_META_BYTES: Final = 128 << 20
LARGEST_NUMBER_OF_PACKAGES: Final = 20_000
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_WHAT: Final = "package record"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFile:
    """A file that a package brought.

    ``sha256`` and ``size_bytes`` are those in the prefix; a size is ``None`` where the installer may have changed it
    by writing the prefix into the file.  ``package_sha256`` is of the file in the archive.
    """

    path: str
    is_link: bool
    sha256: str | None
    package_sha256: str | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPackage:
    """A package by its record.

    ``channel`` is the URL above the subdir, or as short as the installer wrote it.  ``files`` leaves bytecode out,
    which Python writes anew; ``distributions`` are the ``dist-info`` folders it brought, relative to the prefix.
    """

    name: str
    version: str
    build: str
    channel: str
    subdir: str
    url: str
    file_name: str
    md5: str | None
    sha256: str | None
    depends: tuple[str, ...]
    files: tuple[InstalledFile, ...]
    distributions: tuple[str, ...]
    record: Path
    cache_dir: Path | None = None

    @property
    def label(self) -> str:
        """``name version build``, as messages name a package."""
        return f"{self.name} {self.version} {self.build}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRecord:
    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPrefix:
    """All of a prefix's records; a name can be there twice, after a broken-off update."""

    prefix: Path
    packages: tuple[InstalledPackage, ...]
    unreadable: tuple[UnreadableRecord, ...]


def is_conda_prefix(prefix: Path) -> bool:
    """Whether conda, mamba, rattler or alike manages this folder."""
    return (prefix / "conda-meta").is_dir()


def read_installed(prefix: Path, *, with_files: bool = True) -> InstalledPrefix:
    """Read every record; raises UnreadableError only when there is no readable ``conda-meta`` folder.

    Without files it is quick enough for every benchmark's record.
    """
    packages: list[InstalledPackage] = []
    unreadable: list[UnreadableRecord] = []
    for path in record_paths(prefix):
        try:
            packages.append(read_record(path, with_files=with_files))
        except UnreadableError as error:
            unreadable.append(UnreadableRecord(path=path, reason=str(error)))
    return InstalledPrefix(prefix=prefix, packages=tuple(packages), unreadable=tuple(unreadable))


def record_paths(prefix: Path) -> list[Path]:
    """The record files, by name."""
    folder = prefix / "conda-meta"
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".json"))
    except OSError as error:
        raise UnreadableError(f"conda prefix {prefix}: conda-meta: {error.strerror}") from error
    if len(names) > LARGEST_NUMBER_OF_PACKAGES:
        raise UnreadableError(f"conda prefix {prefix}: {len(names)} records; no prefix has so many")
    return [folder / name for name in names]


def read_record(path: Path, *, with_files: bool = True) -> InstalledPackage:
    """One record; raises UnreadableError, one line, if it is damaged or cannot be told whose it is."""
    document = load_json(read_bounded(path, LARGEST_META_BYTES, _WHAT), path, _WHAT)
    if not isinstance(document, dict):
        raise UnreadableError(f"{_WHAT} {path}: not a JSON object")
    url = _text(document, "url")
    channel, subdir, url_file = _origin(url)
    file_name = _text(document, "fn") or url_file or path.name.removesuffix(".json") + ".conda"
    try:
        fallback = split_file_name(file_name)
    except ValueError:
        fallback = ("", "", "")
    name, version, build = (
        _text(document, field) or fallback[index] for index, field in enumerate(("name", "version", "build"))
    )
    if not name or not version:
        raise UnreadableError(f"{_WHAT} {path}: neither its fields nor its file name say which package this is")
    cache = _text(document, "extracted_package_dir")
    entries = _entries(document)
    return InstalledPackage(
        name=name,
        version=version,
        build=build or _text(document, "build_string"),
        channel=channel or _text(document, "channel"),
        subdir=subdir or _text(document, "subdir"),
        url=url,
        file_name=file_name,
        md5=_hash(document, "md5", _MD5),
        sha256=_hash(document, "sha256", _SHA256),
        depends=tuple(d for d in _list(document, "depends") if isinstance(d, str)),
        files=_files(entries, path) if with_files else (),
        distributions=_distributions(entries),
        record=path,
        cache_dir=Path(cache) if cache else None,
    )


def _origin(url: str) -> tuple[str, str, str]:
    try:
        return parse_package_url(url)
    except ValueError:
        return "", "", ""


def _text(document: Mapping[str, Any], field: str) -> str:
    value = document.get(field)
    return value if isinstance(value, str) and value.isprintable() else ""


def _list(document: Mapping[str, Any], field: str) -> list[Any]:
    value = document.get(field)
    return value if isinstance(value, list) else []


def _hash(document: Mapping[str, Any], field: str, pattern: re.Pattern[str]) -> str | None:
    value = document.get(field)
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


def _entries(document: Mapping[str, Any]) -> list[Any]:
    """The entries of ``paths_data``, else made from ``files``, which has names alone."""
    paths_data = document.get("paths_data")
    entries = _list(paths_data, "paths") if isinstance(paths_data, dict) else []
    return entries or [{"_path": path} for path in _list(document, "files")]


def _distributions(entries: list[Any]) -> tuple[str, ...]:
    paths = (entry.get("_path") for entry in entries if isinstance(entry, dict))
    folders = {
        folder
        for folder, _, _ in (path.rpartition("/") for path in paths if isinstance(path, str) and "-info/" in path)
        if folder.endswith((".dist-info", ".egg-info"))
    }
    return tuple(sorted(folders))


def _files(entries: list[Any], record: Path) -> tuple[InstalledFile, ...]:
    files: list[InstalledFile] = []
    for entry in entries:
        path = _inside(entry.get("_path")) if isinstance(entry, dict) else None
        if path is None:
            raise UnreadableError(f"{_WHAT} {record}: {str(entry)[:80]!r} is not a file inside the prefix")
        if entry.get("path_type") == "directory" or path.endswith(".pyc"):
            continue
        package_sha256 = _hash(entry, "sha256", _SHA256)
        size = entry.get("size_in_bytes")
        written_into = bool(entry.get("prefix_placeholder")) and entry.get("file_mode") != "binary"
        files.append(
            InstalledFile(
                path=path,
                is_link=entry.get("path_type") == "softlink",
                sha256=_hash(entry, "sha256_in_prefix", _SHA256) or (None if written_into else package_sha256),
                package_sha256=package_sha256,
                size_bytes=size if isinstance(size, int) and size >= 0 and not written_into else None,
            )
        )
    return tuple(files)


def _inside(path: object) -> str | None:
    """The path if it is a relative one that stays inside the prefix."""
    if not isinstance(path, str) or not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        return None
    return path
