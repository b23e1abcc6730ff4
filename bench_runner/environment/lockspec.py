"""What a lock was made from: environment.yml and virtual-packages.yaml, read and hashed as conda-lock does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bench_runner.environment.lockfile import Lock
from bench_runner.environment.reading import YamlValue, decode_text, load_plain_yaml, read_bounded
from bench_runner.errors import UnreadableError

LARGEST_SOURCE_BYTES: Final = 1 << 20
_WHAT: Final = "environment file"
_CONDA_LOCK_RAISES: Final = (
    ValueError,  # pydantic's too
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,
    AssertionError,
    yaml.YAMLError,  # its pure Python parser refuses a little more than libyaml
)
"""What conda-lock lets through for a damaged file, found by trying thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSource:
    """An environment.yml and the virtual packages that go with it.

    ``specs`` are its dependencies as conda match specs; ``virtual_packages`` maps a platform to names and versions, and
    is ``None`` without a file: conda-lock then assumes its own.  ``content_hashes`` maps a platform to every hash
    that conda-lock accepts for them.
    """

    path: Path
    virtual_path: Path | None
    channels: tuple[str, ...]
    specs: tuple[str, ...]
    pip_specs: tuple[str, ...]
    virtual_packages: Mapping[str, Mapping[str, str]] | None
    content_hashes: Mapping[str, frozenset[str]]


def read_source(lock: Lock) -> LockSource | None:
    """The one environment.yml that the lock names, from the lock's own folder; None if it is not there.

    Raises UnreadableError for one that is damaged, or for a lock of several sources.
    """
    if len(lock.sources) != 1:
        raise UnreadableError(f"lock file {lock.path}: made from {len(lock.sources)} sources; one is checked")
    path = lock.path.parent / lock.sources[0]
    if not path.exists():
        return None
    document = _document(path)
    virtual_path = virtual_packages_beside(path)
    entries = _list(document.get("dependencies", []), f"{_WHAT} {path}: dependencies")
    specs = tuple(entry for entry in entries if isinstance(entry, str))
    pip_specs = tuple(
        str(spec)
        for entry in entries
        if isinstance(entry, dict)
        for spec in _list(entry.get("pip", []), f"{_WHAT} {path}: pip")
    )
    return LockSource(
        path=path,
        virtual_path=virtual_path,
        channels=tuple(str(c) for c in _list(document.get("channels", []), f"{_WHAT} {path}: channels")),
        specs=specs,
        pip_specs=pip_specs,
        virtual_packages=_virtual_packages(virtual_path) if virtual_path else None,
        content_hashes={} if pip_specs else _content_hashes(path, virtual_path),
    )


def virtual_packages_beside(environment_file: Path) -> Path | None:
    """``virtual-packages-cpu.yaml`` for ``environment-cpu.yml``, else ``virtual-packages.yaml``, if there is one."""
    variant = environment_file.stem.removeprefix("environment")
    for name in (f"virtual-packages{variant}.yaml", "virtual-packages.yaml"):
        if (environment_file.parent / name).is_file():
            return environment_file.parent / name
    return None


def _document(path: Path) -> dict[str, YamlValue]:
    document = load_plain_yaml(decode_text(read_bounded(path, LARGEST_SOURCE_BYTES, _WHAT), path, _WHAT), path, _WHAT)
    if not isinstance(document, dict):
        raise UnreadableError(f"{_WHAT} {path}: must be a mapping")
    return document


def _list(value: YamlValue, where: str) -> list[YamlValue]:
    if not isinstance(value, list):
        raise UnreadableError(f"{where}: must be a list")
    return value


def _virtual_packages(path: Path) -> dict[str, dict[str, str]]:
    subdirs = _document(path).get("subdirs")
    found: dict[str, dict[str, str]] = {}
    for platform, entry in subdirs.items() if isinstance(subdirs, dict) else ():
        packages = entry.get("packages") if isinstance(entry, dict) else None
        if not isinstance(packages, dict):
            raise UnreadableError(f"{_WHAT} {path}: subdirs.{platform}.packages must be a mapping")
        found[platform] = {name: str(version) for name, version in packages.items()}
    return found


def _content_hashes(path: Path, virtual_path: Path | None) -> dict[str, frozenset[str]]:
    """By conda-lock's own code, so that its next version's hash is the right one too.  Needs no network: no pip."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # conda-lock's import announces what it will itself drop
        from conda_lock.content_hash import backwards_compatible_content_hashes
        from conda_lock.lookup import DEFAULT_MAPPING_URL
        from conda_lock.src_parser import make_lock_spec
        from conda_lock.virtual_package import default_virtual_package_repodata, virtual_package_repo_from_specification

        try:
            spec = make_lock_spec(src_files=[path], mapping_url=DEFAULT_MAPPING_URL)
            virtual: Any = (
                virtual_package_repo_from_specification(virtual_path)
                if virtual_path
                else default_virtual_package_repodata()
            )
            return {
                str(platform): frozenset(backwards_compatible_content_hashes(spec, virtual, platform))
                for platform in spec.platforms
            }
        except _CONDA_LOCK_RAISES as error:
            reason = " ".join(str(error).split())[:300]
            raise UnreadableError(f"{_WHAT} {path}: conda-lock cannot read it: {reason}") from error
