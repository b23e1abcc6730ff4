"""Create an environment from conda-lock.yml by py-rattler; no conda, mamba or pip takes part.

Packages are fetched, checked by the lock's hashes, unpacked and looked over in the cache; only then are they linked
into the prefix, which is complete when its mark is written.  A build that was broken off at any moment is found by the
missing mark and done again; what had been downloaded is kept.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench_runner.environment import prefix as prefixes
from bench_runner.environment.cache import PackageCache, check_links, one_line
from bench_runner.environment.channels import local_path, mirrored
from bench_runner.environment.download import Patience, content_length, host_of, new_session
from bench_runner.environment.host import host_platform, unmet_constraints, unmet_requirements, virtual_packages
from bench_runner.environment.lockfile import Lock, LockedPackage, read_lock
from bench_runner.environment.progress import Progress, Silent
from bench_runner.environment.supply import BuildOptions, Supply
from bench_runner.errors import BenchRunnerError, EnvironmentBuildError

if TYPE_CHECKING:
    from rattler import RepoDataRecord

LONGEST_PREFIX: Final = 255
_WAIT_NOTICE_SECONDS: Final = 1.0
_REACH: Final = Patience(attempts=1, connect_seconds=3.0, quiet_seconds=5.0)


def create_environment(lock: Lock, prefix: Path, options: BuildOptions, progress: Progress | None = None) -> bool:
    """Build ``prefix`` from ``lock``; returns whether it was built now (False: it was complete already).

    Raises EnvironmentBuildError, one line, for everything that stands in the way; nothing that was good before is
    lost, and what is half built is never used.
    """
    progress = progress or Silent()
    prefix = prefix.absolute()
    packages = locked_packages(lock)
    _check_place(prefix)
    if prefixes.is_complete(prefix, lock.sha256):
        return False
    unmet = _unmet(lock, packages)
    if unmet:
        raise EnvironmentBuildError(f"{lock.path}: {unmet}")
    cache = PackageCache(options.cache_dir.absolute())
    with _storage(prefix):
        prefix.mkdir(parents=True, exist_ok=True)
        with _alone(prefix / prefixes.LOCK_NAME, f"{prefix}", progress):
            if prefixes.is_complete(prefix, lock.sha256):
                return False
            _clear(prefix)
            cache.prepare()
            with _alone(cache.lock_path, f"the package cache {cache.directory}", progress):
                _populate(cache, packages, prefix, options, progress)
                _link(cache, packages, prefix, progress)
            if options.compile_bytecode:
                _compile(prefix, progress)
            prefixes.write_mark(prefix, lock_sha256=lock.sha256, platform=host_platform(), packages=len(packages))
    return True


def locked_environment_available(root: Path) -> tuple[Path | None, str]:
    """Where ``asv run`` in ``root`` has, or would build, the locked environment; None if it cannot be had.

    The second value says in a few words why: it is built, can be built, or what stands in the way (no lock, another
    platform, no CUDA driver, an unreachable channel, which is found out within seconds).
    """
    try:
        lock = read_lock(prefixes.lock_path(root))
        packages = locked_packages(lock)
        prefix = prefixes.locked_prefix(root, lock.sha256)
        if prefixes.is_complete(prefix, lock.sha256):
            return prefix, "is built"
        unmet = _unmet(lock, packages)
        if unmet:
            return None, f"{lock.path.name}: {unmet}"
        options = BuildOptions()
        cache = PackageCache(options.cache_dir.absolute())
        missing = [package for package in packages if not cache.has(package)]
        if not missing:
            return prefix, "can be built from the package cache"
        url = mirrored(missing[0], options.mirrors)
        local = local_path(url)
        if local is not None:
            return (
                (prefix, f"can be built from {local.parents[1]}") if local.is_file() else (None, f"{local} is missing")
            )
        content_length(new_session(), url, _REACH)
        return prefix, f"can be built: {host_of(url)} answers"
    except BenchRunnerError as error:
        return None, str(error)


def _unmet(lock: Lock, packages: Sequence[LockedPackage]) -> str | None:
    """What the lock asks of the machine and it does not have, with a word on the lock that asks for less."""
    unmet = unmet_requirements(packages, virtual_packages())
    if not unmet:
        return None
    more = f" (and {len(unmet) - 1} more)" if len(unmet) > 1 else ""
    lesser = lock.path.with_name(prefixes.CPU_LOCK_FILE_NAME)
    takes = "__cuda" in unmet[0] and lesser != lock.path and lesser.exists()
    hint = f"; without CUDA, take {lesser.name} (--lock, or {prefixes.LOCK_VARIABLE})" if takes else ""
    return f"{unmet[0]}{more}{hint}"


def locked_packages(lock: Lock) -> tuple[LockedPackage, ...]:
    """The lock's packages for this machine; raises EnvironmentBuildError for a lock that cannot be built here."""
    platform = host_platform()
    packages = lock.conda_packages(platform)
    if not packages:
        raise EnvironmentBuildError(f"{lock.path}: no packages for {platform}, only for {', '.join(lock.platforms)}")
    names = [package.name for package in packages]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise EnvironmentBuildError(f"{lock.path}: {', '.join(twice)} stands there twice; lock anew with conda-lock")
    from_pip = lock.pip_packages(platform)
    if from_pip:
        raise EnvironmentBuildError(
            f"{lock.path}: {from_pip[0].name} is for pip, which is not used here; name its conda package and lock anew"
        )
    return packages


def _check_place(prefix: Path) -> None:
    if len(os.fsencode(prefix)) > LONGEST_PREFIX:
        raise EnvironmentBuildError(f"{prefix}: longer than {LONGEST_PREFIX} bytes, which packages have room for")
    if prefix.exists() and not prefix.is_dir():
        raise EnvironmentBuildError(f"{prefix}: there is a file of that name")
    if prefix.is_dir() and any(prefix.iterdir()) and not prefixes.is_ours(prefix):
        raise EnvironmentBuildError(f"{prefix}: not empty and not made by bench-runner; name another folder")


def _clear(prefix: Path) -> None:
    """Empty a prefix that was never finished; refuses one that is complete, of another lock."""
    mark = prefixes.read_mark(prefix)
    if mark is not None and mark.prefix == str(prefix):
        raise EnvironmentBuildError(
            f"{prefix}: holds a complete environment of another lock ({mark.lock_sha256[:12]}); "
            f"name another folder, or remove it: rm -r {prefix}"
        )
    for entry in prefix.iterdir():
        if entry.name == prefixes.LOCK_NAME:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def _alone(lock_path: Path, what: str, progress: Progress) -> Iterator[None]:
    """Hold a lock file; says so when another build has it.  The kernel frees it whatever ends the holder."""
    import filelock

    lock = filelock.FileLock(lock_path)
    try:
        lock.acquire(timeout=_WAIT_NOTICE_SECONDS)
    except filelock.Timeout:
        progress.note(f"another build uses {what}: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _storage(prefix: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line."""
    try:
        yield
    except OSError as error:
        where = error.filename or prefix
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EnvironmentBuildError(f"{where}: no space left; free some, or name other folders") from error
        raise EnvironmentBuildError(f"{where}: {error.strerror or one_line(error)}") from error


def _populate(
    cache: PackageCache, packages: Sequence[LockedPackage], prefix: Path, options: BuildOptions, progress: Progress
) -> None:
    """Have every package unpacked in the cache, checked."""
    Supply(cache, options, progress).fill(packages, prefix)
    check_links((package, cache.folder(package)) for package in packages)
    constraints = unmet_constraints(((p, cache.folder(p)) for p in packages), virtual_packages())
    if constraints:
        raise EnvironmentBuildError(constraints[0])


def _link(cache: PackageCache, packages: Sequence[LockedPackage], prefix: Path, progress: Progress) -> None:
    from rattler import install
    from rattler.exceptions import InstallerError, LinkError, TransactionError

    records = [_record(cache, package) for package in packages]
    progress.stage("link", len(records), "packages")
    try:
        asyncio.run(
            install(
                records,
                target_prefix=prefix,
                cache_dir=cache.extracted,
                show_progress=False,
                execute_link_scripts=False,
                reporter=_Reporter(progress),
            )
        )
    except (InstallerError, LinkError, TransactionError) as error:
        raise EnvironmentBuildError(f"{prefix}: packages cannot be linked: {one_line(error)}") from error
    linked = len(list((prefix / "conda-meta").glob("*.json")))
    if linked != len(packages):
        raise EnvironmentBuildError(f"{prefix}: {linked} of {len(packages)} packages were linked")


class _Reporter:
    """rattler's reports as progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_link_complete(self, index: int) -> None:  # noqa: ARG002
        self._progress.advance(1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *_: 0
        raise AttributeError(name)


def _record(cache: PackageCache, package: LockedPackage) -> RepoDataRecord:
    """The package as rattler wants it: fields from its own index, source and hashes from the lock."""
    from rattler import PackageRecord, RepoDataRecord

    record = PackageRecord.from_index_json(
        cache.folder(package) / "info" / "index.json", sha256=package.sha256, md5=package.md5
    )
    return RepoDataRecord(record, package.file_name, package.url, f"{package.channel}/")


def _compile(prefix: Path, progress: Progress) -> None:
    """Byte-compile: an import of torch without .pyc files takes seconds, in every worker."""
    python = prefix / "bin" / "python"
    if not python.exists():
        return
    progress.stage("compile", 0, "packages")
    folders = [str(folder) for folder in sorted(prefix.glob("lib/python3*/site-packages"))]
    command = [str(python), "-I", "-m", "compileall", "-q", "-j", "0", *folders]
    # Some packages carry templates that are no Python: what cannot be compiled is left as it is, as conda does.
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd=prefix)
