"""Get the packages of a lock into the cache, checked: from there, from archives lying there, file:// and http(s)."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench_runner.environment.cache import PackageCache, check_hashes, find_damage
from bench_runner.environment.channels import Mirror, local_path, mirrored, parse_mirror
from bench_runner.environment.download import Patience, content_length, fetch, new_session, shown
from bench_runner.environment.lockfile import LockedPackage
from bench_runner.environment.progress import Progress
from bench_runner.errors import EnvironmentBuildError

CACHE_VARIABLE: Final = "BENCH_RUNNER_CACHE_DIR"
CHANNEL_VARIABLE: Final = "BENCH_RUNNER_CHANNEL_URL"
UNPACKED_RATIO: Final = 3
"""Unpacked size over archive size, as a whole: 2.5 to 3.5 for environments with CUDA, where libraries dominate."""
_DOWNLOADS_AT_ONCE: Final = 6


def default_cache_dir() -> Path:
    """``$BENCH_RUNNER_CACHE_DIR``, else ``bench-runner/packages`` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(named) if named else Path(base) / "bench-runner" / "packages"


def default_mirrors() -> tuple[Mirror, ...]:
    """Mirrors that ``$BENCH_RUNNER_CHANNEL_URL`` names, separated by blanks; raises UsageError."""
    return tuple(parse_mirror(text) for text in os.environ.get(CHANNEL_VARIABLE, "").split())


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How an environment is built.  ``mirrors`` replace the lock's channels; ``offline`` takes everything from the
    cache; ``validate_cache`` compares every cached file with its hash first."""

    mirrors: tuple[Mirror, ...] = field(default_factory=default_mirrors)
    offline: bool = False
    cache_dir: Path = field(default_factory=default_cache_dir)
    validate_cache: bool = False
    patience: Patience = field(default_factory=Patience)
    compile_bytecode: bool = True


class Supply:
    """One filling of a cache.  Whoever calls holds the cache's lock."""

    def __init__(self, cache: PackageCache, options: BuildOptions, progress: Progress) -> None:
        self._cache = cache
        self._options = options
        self._progress = progress
        self._sessions = threading.local()
        self._telling = threading.Lock()
        self._stop = threading.Event()

    def fill(self, packages: Sequence[LockedPackage], prefix: Path) -> None:
        """Have every package unpacked; ``prefix`` is where they go afterwards.  Raises EnvironmentBuildError."""
        if self._options.validate_cache:
            self._validate([package for package in packages if self._cache.has(package)])
        missing = [package for package in packages if not self._cache.has(package)]
        if not missing:
            return
        sizes = self._sizes(missing)
        _check_space(self._cache.directory, prefix, sum(sizes))
        self._progress.stage("packages", sum(sizes), "bytes")
        with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
            jobs = [pool.submit(self._supply, package) for package in missing]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                self._stop.set()
                for job in jobs:
                    job.cancel()
                raise

    def _validate(self, packages: Sequence[LockedPackage]) -> None:
        self._progress.stage("check the cache", len(packages), "packages")
        for package, damage in find_damage(self._cache, packages, os.cpu_count() or 1):
            self._progress.note(f"package cache: {package.label}: {damage}; fetched anew")
            self._cache.forget(package)

    def _session(self) -> Any:
        if not hasattr(self._sessions, "session"):
            self._sessions.session = new_session()
        return self._sessions.session

    def _advance(self, amount: int) -> None:
        if self._stop.is_set():
            raise CancelledError  # another package has failed, or Ctrl-C: no download goes on for its own sake
        with self._telling:
            self._progress.advance(amount)

    def _note(self, text: str) -> None:
        with self._telling:
            self._progress.note(text)

    def _sizes(self, packages: Sequence[LockedPackage]) -> list[int]:
        """Archive sizes in bytes as far as they can be told, which also finds an unreachable channel at once."""
        with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
            first = self._size(packages[0])
            return [first, *pool.map(self._size, packages[1:])]

    def _size(self, package: LockedPackage) -> int:
        archive = self._cache.archive(package)
        if archive.exists():
            return archive.stat().st_size
        url = mirrored(package, self._options.mirrors)
        local = local_path(url)
        if local is not None:
            if not local.is_file():
                raise EnvironmentBuildError(f"{local}: the channel does not have this file")
            return local.stat().st_size
        if self._options.offline:
            raise EnvironmentBuildError(
                f"{package.file_name}: not in the package cache {self._cache.directory}, and --offline was asked for; "
                "without it, it is fetched"
            )
        return content_length(self._session(), url, self._options.patience)

    def _supply(self, package: LockedPackage) -> None:
        if self._stop.is_set():
            return
        archive = self._cache.archive(package)
        if archive.exists():
            fault = check_hashes(package, archive)
            if fault is None:
                self._cache.unpack(package, archive)
                self._advance(archive.stat().st_size)
                return
            if self._options.offline:
                raise EnvironmentBuildError(f"{archive}: {fault}; remove it, or fetch it anew without --offline")
        url = mirrored(package, self._options.mirrors)
        local = local_path(url)
        if local is None:
            self._download(package, url)
            return
        fault = check_hashes(package, local)
        if fault is not None:
            raise EnvironmentBuildError(f"{local}: {fault}; the file is not what was locked and is not used")
        self._cache.unpack(package, local)
        self._advance(local.stat().st_size)

    def _download(self, package: LockedPackage, url: str) -> None:
        part = self._cache.part(package)
        pieced = fetch(self._session(), url, part, self._options.patience, self._advance, self._note)
        fault = check_hashes(package, part)
        if fault is not None and pieced:
            # Pieces of different files, perhaps: once more in one go before the channel is blamed.
            self._advance(-part.stat().st_size)
            part.unlink()
            fetch(self._session(), url, part, self._options.patience, self._advance, self._note)
            fault = check_hashes(package, part)
        if fault is not None:
            part.unlink()
            raise EnvironmentBuildError(f"{shown(url)}: {fault}; the file is not what was locked and is not used")
        # The ending tells the unpacker the format.
        complete = part.with_name(f".{package.file_name}")
        part.replace(complete)
        try:
            self._cache.unpack(package, complete)
        finally:
            complete.unlink()


def _check_space(cache_dir: Path, prefix: Path, archive_bytes: int) -> None:
    """Refuse early what cannot fit: unpacked packages are linked, or copied where the prefix is on another disk."""
    unpacked = archive_bytes * UNPACKED_RATIO
    needs = {cache_dir: archive_bytes + unpacked}
    if cache_dir.stat().st_dev != prefix.stat().st_dev:
        needs[prefix] = unpacked
    for folder, needed in needs.items():
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise EnvironmentBuildError(
                f"{folder}: about {needed / 1e9:.3g} GB needed, {free / 1e9:.3g} GB free; free some, or name another "
                f"folder ({'--cache-dir' if folder == cache_dir else 'PREFIX'})"
            )
