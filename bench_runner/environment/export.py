"""The environment at hand as a document like a lock: conda, pip and uv environments, without starting their Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

from bench_runner.environment.distributions import Distribution, normalize, read_distributions
from bench_runner.environment.download import shown
from bench_runner.environment.host import host_platform
from bench_runner.environment.installed import InstalledPackage, InstalledPrefix, read_installed
from bench_runner.environment.lockfile import Lock
from bench_runner.environment.prefix import read_mark
from bench_runner.environment.reading import decode_text, load_json, read_bounded
from bench_runner.environment.summary import Kind, prefix_kind, python_version, relevant_variables
from bench_runner.errors import UnreadableError

EXPORT_SCHEMA: Final = "bench-runner/environment/1"
LARGEST_EXPORT_BYTES: Final = 64 << 20
MOST_PACKAGES: Final = 50_000
LONGEST_TEXT: Final = 8192
_LARGEST_DIRECT_URL_BYTES: Final = 1 << 20
_WHAT: Final = "environment export"

Manager = Literal["conda", "pip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPackage:
    """A package as installed or locked.  ``None`` means that its source does not say.

    ``manager`` is ``pip`` for whatever is no conda package; ``installer`` is what wrote it (``pip``, ``uv``).  ``url``
    and ``sha256`` of such a package are known only where it was installed from a URL.
    """

    name: str
    version: str
    manager: Manager
    build: str | None = None
    channel: str | None = None
    subdir: str | None = None
    url: str | None = None
    md5: str | None = None
    sha256: str | None = None
    installer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentExport:
    """An environment at a moment.  ``lock_sha256`` is the lock that it was built from, as far as it says so;
    ``variables`` are those that change NCCL, CUDA, OpenMP, BLAS and torch; ``not_read`` says what could not be read."""

    kind: Kind
    prefix: str
    python: str
    platform: str
    created_at: str
    packages: tuple[ExportedPackage, ...]
    lock_sha256: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    not_read: tuple[str, ...] = ()
    schema: str = EXPORT_SCHEMA


def export_prefix(prefix: Path, environ: Mapping[str, str] | None = None) -> EnvironmentExport:
    """Describe all that is installed in ``prefix``; raises UnreadableError if there is no environment."""
    if not prefix.is_dir():
        raise UnreadableError(f"{prefix}: no such folder; name the prefix of an environment (sys.prefix)")
    kind = prefix_kind(prefix)
    installed = read_installed(prefix, with_files=False) if kind == "conda" else None
    distributions = read_distributions(prefix)
    conda = installed.packages if installed else ()
    python = python_version(prefix, conda)
    if not python and not conda and not distributions:
        raise UnreadableError(f"{prefix}: no environment there: neither conda-meta, pyvenv.cfg nor site-packages")
    owned = {(prefix / folder).resolve() for package in conda for folder in package.distributions}
    from_pip = [d for d in distributions if d.info.resolve() not in owned]
    mark = read_mark(prefix)
    packages = [*(_from_conda(package) for package in conda), *(_from_pip(d) for d in from_pip)]
    return EnvironmentExport(
        kind=kind,
        prefix=str(prefix),
        python=python,
        platform=host_platform(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        packages=_sorted(packages),
        lock_sha256=mark.lock_sha256 if mark else None,
        variables=relevant_variables(os.environ if environ is None else environ),
        not_read=_not_read(installed, from_pip),
    )


def locked_as_packages(lock: Lock, platform: str) -> tuple[ExportedPackage, ...]:
    """A lock's packages for one platform in the same shape."""
    return _sorted(
        ExportedPackage(
            name=package.name,
            version=package.version,
            manager="conda" if package.manager == "conda" else "pip",
            build=package.build or None,
            channel=package.channel or None,
            subdir=package.subdir or None,
            url=shown(package.url),
            md5=package.md5,
            sha256=package.sha256,
        )
        for package in lock.packages
        if package.platform == platform
    )


def _sorted(packages: Iterable[ExportedPackage]) -> tuple[ExportedPackage, ...]:
    return tuple(sorted(packages, key=lambda p: (p.name, p.manager, p.version, p.build or "")))


def _not_read(installed: InstalledPrefix | None, distributions: list[Distribution]) -> tuple[str, ...]:
    broken = [record.reason for record in installed.unreadable] if installed else []
    return tuple(broken + [d.reason for d in distributions if d.reason])


def _from_conda(package: InstalledPackage) -> ExportedPackage:
    return ExportedPackage(
        name=package.name,
        version=package.version,
        manager="conda",
        build=package.build or None,
        channel=shown(package.channel) or None,
        subdir=package.subdir or None,
        url=shown(package.url) or None,
        md5=package.md5,
        sha256=package.sha256,
    )


def _from_pip(distribution: Distribution) -> ExportedPackage:
    url, sha256 = _direct_url(distribution.info / "direct_url.json")
    return ExportedPackage(
        name=normalize(distribution.name),
        version=distribution.version,
        manager="pip",
        url=url,
        sha256=sha256,
        installer=distribution.installer or None,
    )


def _direct_url(path: Path) -> tuple[str | None, str | None]:
    """Where a distribution came from if not from an index (PEP 610), without credentials, and the archive's hash."""
    if not path.exists():
        return None, None
    try:
        document = load_json(read_bounded(path, _LARGEST_DIRECT_URL_BYTES, "direct URL"), path, "direct URL")
    except UnreadableError:
        return None, None  # the package is there all the same; where it came from is not known
    if not isinstance(document, dict) or not isinstance(document.get("url"), str):
        return None, None
    archive = document.get("archive_info")
    hashes = archive.get("hashes") if isinstance(archive, dict) else None
    sha256 = hashes.get("sha256") if isinstance(hashes, dict) else None
    try:
        url = shown(document["url"])
    except ValueError:
        return None, None
    return url, sha256 if isinstance(sha256, str) else None


def to_document(export: EnvironmentExport) -> dict[str, Any]:
    """Plain values; ``schema`` first."""
    document = asdict(export)
    document.pop("schema")
    document["packages"] = [asdict(package) for package in export.packages]
    document["not_read"] = list(export.not_read)
    return {"schema": export.schema, **document}


def read_export(path: Path) -> EnvironmentExport:
    """Read what ``env export`` wrote; raises UnreadableError, one line, for anything else."""
    content = read_bounded(path, LARGEST_EXPORT_BYTES, _WHAT)
    decode_text(content, path, _WHAT)
    return parse_export(load_json(content, path, _WHAT), path)


def parse_export(document: Any, path: Path) -> EnvironmentExport:
    """The values of a document; ``path`` is for messages."""
    if not isinstance(document, dict):
        raise UnreadableError(f"{_WHAT} {path}: not a JSON object")
    schema = document.get("schema")
    if schema != EXPORT_SCHEMA:
        raise UnreadableError(f"{_WHAT} {path}: schema = {str(schema)[:80]!r}: must be {EXPORT_SCHEMA!r}")
    fields = _fields(document, EnvironmentExport, path, "the document")
    if fields["kind"] not in get_args(Kind):
        raise UnreadableError(f"{_WHAT} {path}: kind = {fields['kind']!r}: must be one of {', '.join(get_args(Kind))}")
    packages = fields["packages"]
    if not isinstance(packages, list) or len(packages) > MOST_PACKAGES:
        raise UnreadableError(f"{_WHAT} {path}: packages: must be a list of at most {MOST_PACKAGES:,}")
    variables, not_read = fields["variables"], fields["not_read"]
    if not isinstance(variables, dict) or not isinstance(not_read, list):
        raise UnreadableError(f"{_WHAT} {path}: variables must be a mapping and not_read a list")
    for name, value in variables.items():
        _require_text(value, path, f"variable {name[:100]!r}")
    for reason in not_read:
        _require_text(reason, path, "not_read")
    return EnvironmentExport(
        **{
            **fields,
            "packages": tuple(_package(entry, path, index) for index, entry in enumerate(packages)),
            "not_read": tuple(not_read),
        }
    )


def _fields(document: dict[str, Any], kind: type[Any], path: Path, where: str) -> dict[str, Any]:
    """The mapping's values by the dataclass's fields: all of them, no others, text unless the field is a collection."""
    names = kind.__dataclass_fields__
    if set(document) != set(names):
        unknown = sorted(set(document) ^ set(names))[:3]
        raise UnreadableError(f"{_WHAT} {path}: {where}: {', '.join(map(repr, unknown))} missing or not known")
    for name, declared in names.items():
        annotation = str(declared.type)
        if "tuple" in annotation or "dict" in annotation:
            continue
        if not (document[name] is None and "None" in annotation):
            _require_text(document[name], path, f"{where}: {name}")
    return document


def _require_text(value: object, path: Path, where: str) -> None:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise UnreadableError(f"{_WHAT} {path}: {where[:200]}: must be text of at most {LONGEST_TEXT:,} characters")


def _package(entry: Any, path: Path, index: int) -> ExportedPackage:
    where = f"package {index}"
    if not isinstance(entry, dict):
        raise UnreadableError(f"{_WHAT} {path}: {where}: not a mapping")
    fields = _fields(entry, ExportedPackage, path, where)
    if fields["manager"] not in get_args(Manager) or not fields["name"]:
        raise UnreadableError(f"{_WHAT} {path}: {where}: needs a name, and conda or pip as its manager")
    return ExportedPackage(**fields)
