"""conda-lock.yml as values: which packages, from where, with which hashes.

Read by an own small reader because the file may come from anywhere and the quick paths (every record names its lock)
have no second to spend: conda-lock's parser takes 1.7 s with its import for 300 packages, follows YAML anchors and
raises whatever it meets.  A test holds this reader to conda-lock's and py-rattler's on the same files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, get_args
from urllib.parse import unquote, urlsplit

from bench_runner.environment.reading import YamlValue, decode_text, load_plain_yaml, read_bounded
from bench_runner.errors import UnreadableError

LARGEST_LOCK_BYTES: Final = 16 << 20
LOCK_VERSIONS: Final = ("1", "2")
Manager = Literal["conda", "pip"]

_NULL: Final = ("", "~", "null", "Null", "NULL")
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_ARCHIVES: Final = (".conda", ".tar.bz2")
_WHAT: Final = "lock file"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """One package as locked.

    ``channel`` is the URL above the subdir (``https://conda.anaconda.org/conda-forge``), ``depends`` are match specs
    whose build part conda-lock has dropped.  A pip package has no build, channel or subdir: they are empty.
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
    platform: str
    manager: Manager
    category: str = "main"

    @property
    def label(self) -> str:
        """``name version build``, as messages name a package."""
        return f"{self.name} {self.version} {self.build}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock file.  ``sha256`` is the file's own; ``content_hash`` maps a platform to the hash of what was asked."""

    path: Path
    sha256: str
    platforms: tuple[str, ...]
    channels: tuple[str, ...]
    sources: tuple[str, ...]
    content_hash: Mapping[str, str]
    packages: tuple[LockedPackage, ...]

    def conda_packages(self, platform: str) -> tuple[LockedPackage, ...]:
        """The conda packages for one platform (``linux-64``), in the file's order, repeated names included."""
        return tuple(p for p in self.packages if p.platform == platform and p.manager == "conda")

    def pip_packages(self, platform: str) -> tuple[LockedPackage, ...]:
        """The packages for one platform that pip is to install."""
        return tuple(p for p in self.packages if p.platform == platform and p.manager == "pip")


def read_lock(path: Path | str) -> Lock:
    """Read and check a conda-lock file of version 1 or 2; raises UnreadableError, one line, for anything else."""
    path = Path(path)
    content = read_bounded(path, LARGEST_LOCK_BYTES, _WHAT)
    document = load_plain_yaml(decode_text(content, path, _WHAT), path, _WHAT)
    try:
        return _lock(document, path, hashlib.sha256(content).hexdigest())
    except _LockFault as fault:
        raise UnreadableError(f"{_WHAT} {path}: {fault}") from fault


def channel_name(channel: str) -> str:
    """A channel's short name, the same on every mirror: ``conda-forge``, ``pkgs/main``; a short name stays itself."""
    parts = [part for part in (urlsplit(channel).path if "://" in channel else channel).split("/") if part]
    if len(parts) > 1 and parts[-2] == "pkgs":
        return f"pkgs/{parts[-1]}"
    return parts[-1] if parts else ""


def parse_package_url(url: str) -> tuple[str, str, str]:
    """(channel, subdir, file name) of a conda package's URL; raises ValueError for anything else."""
    parts = urlsplit(url)
    pieces = parts.path.split("/")
    file_name = unquote(pieces[-1])
    if parts.scheme not in ("https", "http", "file") or len(pieces) < 3 or not file_name.endswith(_ARCHIVES):
        raise ValueError("not the URL of a conda package (https://…/CHANNEL/SUBDIR/NAME-VERSION-BUILD.conda)")
    if "/" in file_name or "\\" in file_name or "\0" in file_name:
        raise ValueError("a file name with a path in it")
    channel = f"{parts.scheme}://{parts.netloc}{'/'.join(pieces[:-2])}"
    return channel, pieces[-2], file_name


def split_file_name(file_name: str) -> tuple[str, str, str]:
    """(name, version, build) of a conda archive's file name; raises ValueError."""
    stem = next((file_name.removesuffix(end) for end in _ARCHIVES if file_name.endswith(end)), "")
    parts = stem.rsplit("-", 2)
    if len(parts) != 3 or not all(parts):
        raise ValueError("not NAME-VERSION-BUILD.conda")
    return parts[0], parts[1], parts[2]


class _LockFault(ValueError):
    """Something in the document is not as a lock has it; becomes an UnreadableError with the path in front."""


def _mapping(value: YamlValue | None, where: str) -> dict[str, YamlValue]:
    if not isinstance(value, dict):
        raise _LockFault(f"{where}: must be a mapping")
    return value


def _sequence(value: YamlValue | None, where: str) -> list[YamlValue]:
    if not isinstance(value, list):
        raise _LockFault(f"{where}: must be a list")
    return value


def _text(value: YamlValue | None, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _LockFault(f"{where}: must be text")
    if not value.isprintable() or len(value) > 4096:
        raise _LockFault(f"{where}: {value[:40]!r} holds control characters or is longer than 4,096")
    return value


def _lock(document: YamlValue, path: Path, sha256: str) -> Lock:
    top = _mapping(document, "the document")
    version = top.get("version")
    if version not in LOCK_VERSIONS:
        raise _LockFault(
            f"version = {str(version)[:40]!r}: conda-lock's versions {' and '.join(LOCK_VERSIONS)} are read"
        )
    metadata = _mapping(top.get("metadata"), "metadata")
    hashes = {
        _text(platform, "metadata.content_hash"): _text(value, f"metadata.content_hash.{platform}")
        for platform, value in _mapping(metadata.get("content_hash"), "metadata.content_hash").items()
    }
    platforms = _texts(metadata.get("platforms"), "metadata.platforms")
    packages = tuple(
        _package(entry, f"package {index}", platforms)
        for index, entry in enumerate(_sequence(top.get("package"), "package"))
    )
    return Lock(
        path=path,
        sha256=sha256,
        platforms=platforms,
        channels=tuple(
            _text(_mapping(channel, "metadata.channels").get("url"), "metadata.channels.url")
            for channel in _sequence(metadata.get("channels"), "metadata.channels")
        ),
        sources=_texts(metadata.get("sources", []), "metadata.sources"),
        content_hash=MappingProxyType(hashes),
        packages=packages,
    )


def _texts(value: YamlValue | None, where: str) -> tuple[str, ...]:
    return tuple(_text(item, where) for item in _sequence(value, where))


def _package(entry: YamlValue, where: str, platforms: tuple[str, ...]) -> LockedPackage:
    fields = _mapping(entry, where)
    name = _text(fields.get("name"), f"{where}: name")
    if not _NAME.fullmatch(name):
        raise _LockFault(f"{where}: name = {name!r}: not the name of a package")
    where = f"package {name}"
    manager = _text(fields.get("manager"), f"{where}: manager")
    if manager not in get_args(Manager):
        raise _LockFault(f"{where}: manager = {manager!r}: must be conda or pip")
    platform = _text(fields.get("platform"), f"{where}: platform")
    if platform not in platforms:
        raise _LockFault(f"{where}: platform = {platform!r}: not among the lock's platforms {', '.join(platforms)}")
    version = _text(fields.get("version"), f"{where}: version")
    url = _text(fields.get("url"), f"{where}: url")
    md5, sha256 = _hashes(fields.get("hash"), where)
    channel = subdir = build = ""
    file_name = unquote(urlsplit(url).path.rsplit("/", 1)[-1]) if manager == "pip" else ""
    if manager == "conda":
        channel, subdir, file_name, build = _origin(url, name, version, platform, where)
    dependencies = _mapping(fields.get("dependencies", {}), f"{where}: dependencies")
    return LockedPackage(
        name=name,
        version=version,
        build=build,
        channel=channel,
        subdir=subdir,
        url=url,
        file_name=file_name,
        md5=md5,
        sha256=sha256,
        depends=tuple(_dependency(key, value, where) for key, value in dependencies.items()),
        platform=platform,
        manager="conda" if manager == "conda" else "pip",
        category=_category(fields),
    )


def _origin(url: str, name: str, version: str, platform: str, where: str) -> tuple[str, str, str, str]:
    """(channel, subdir, file name, build) from the URL, which must agree with the entry's other fields."""
    try:
        channel, subdir, file_name = parse_package_url(url)
        found = split_file_name(file_name)
    except ValueError as error:
        raise _LockFault(f"{where}: url = {url!r}: {error}") from error
    if found[:2] != (name, version):
        raise _LockFault(f"{where}: url = {url!r}: the file is {found[0]} {found[1]}, the entry is {name} {version}")
    if subdir not in (platform, "noarch"):
        raise _LockFault(f"{where}: url = {url!r}: subdir {subdir}, but the entry's platform is {platform}")
    return channel, subdir, file_name, found[2]


def _hashes(value: YamlValue | None, where: str) -> tuple[str | None, str | None]:
    hashes = _mapping(value, f"{where}: hash")
    found: list[str | None] = []
    for kind, pattern in (("md5", _MD5), ("sha256", _SHA256)):
        text = hashes.get(kind)
        if text is None or text in _NULL:
            found.append(None)
        elif isinstance(text, str) and pattern.fullmatch(text):
            found.append(text)
        else:
            raise _LockFault(f"{where}: hash.{kind} = {str(text)[:80]!r}: not {kind} in lower-case hexadecimal")
    if found == [None, None]:
        raise _LockFault(f"{where}: hash: neither md5 nor sha256")
    return found[0], found[1]


def _dependency(name: str, spec: YamlValue, where: str) -> str:
    if not isinstance(spec, str):
        raise _LockFault(f"{where}: dependencies.{name[:80]!r}: must be text")
    return f"{name} {spec}".strip() if spec not in _NULL else name


def _category(fields: dict[str, YamlValue]) -> str:
    category = fields.get("category", "main")
    return category if isinstance(category, str) else "main"
