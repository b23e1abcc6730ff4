"""The package cache: archives whose hashes were checked, unpacked once and shared by all prefixes.

    DIRECTORY/                     archives (``NAME-VERSION-BUILD.conda``), ours or put there by hand or by conda
    DIRECTORY/extracted/           the layout that rattler links from, one folder a package
    DIRECTORY/extracted/*.checked  written last: the hashes under which a folder was unpacked

py-rattler checks no hash for file:// and ignores md5 altogether, so both are checked here, before anything is unpacked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from bench_runner.environment.lockfile import LockedPackage
from bench_runner.environment.reading import load_json, read_bounded
from bench_runner.errors import EnvironmentBuildError, UnreadableError

CHECKED_SUFFIX: Final = ".checked"
TEMPORARY_START: Final = ".unpacking-"
_LARGEST_PATHS_BYTES: Final = 256 << 20
_SITE_PACKAGES: Final = re.compile(r"^lib/python3[^/]*/site-packages/")
_SCRIPTS: Final = re.compile(r"^python-scripts/")


@dataclass(frozen=True, slots=True)
class PackageCache:
    """A cache folder.  Whoever changes it holds ``lock_path`` (see install)."""

    directory: Path

    @property
    def extracted(self) -> Path:
        return self.directory / "extracted"

    @property
    def lock_path(self) -> Path:
        return self.directory / ".bench-runner.lock"

    def prepare(self) -> None:
        """Create the folders and remove what a broken-off build left; raises EnvironmentBuildError."""
        try:
            self.extracted.mkdir(parents=True, exist_ok=True)
            for leftover in self.extracted.glob(f"{TEMPORARY_START}*"):
                shutil.rmtree(leftover)
        except OSError as error:
            raise EnvironmentBuildError(
                f"package cache {self.directory}: {error.strerror}; --cache-dir names another folder"
            ) from error

    def folder(self, package: LockedPackage) -> Path:
        """Where rattler looks for the unpacked package."""
        return self.extracted / stem(package)

    def _mark(self, package: LockedPackage) -> Path:
        return self.extracted / f"{stem(package)}{CHECKED_SUFFIX}"

    def has(self, package: LockedPackage) -> bool:
        """Whether the package lies unpacked here, under the hashes of the lock."""
        try:
            mark = load_json(read_bounded(self._mark(package), 4096, "cache mark"), self._mark(package), "cache mark")
        except UnreadableError:
            return False
        agrees = isinstance(mark, dict) and all(
            want is None or mark.get(kind) == want for kind, want in (("sha256", package.sha256), ("md5", package.md5))
        )
        return agrees and (self.folder(package) / "info" / "index.json").is_file()

    def archive(self, package: LockedPackage) -> Path:
        """Where the package's archive lies, or would."""
        return self.directory / package.file_name

    def part(self, package: LockedPackage) -> Path:
        """Where a download of exactly this archive grows, also over several attempts."""
        return self.directory / f"{package.file_name}.{(package.sha256 or package.md5 or '')[:16]}.part"

    def forget(self, package: LockedPackage) -> None:
        """Remove the unpacked package, mark first."""
        self._mark(package).unlink(missing_ok=True)
        if self.folder(package).exists():
            shutil.rmtree(self.folder(package))

    def unpack(self, package: LockedPackage, archive: Path) -> None:
        """Unpack an archive whose hashes were checked and look it over; raises EnvironmentBuildError."""
        from rattler.package_streaming import extract

        temporary = self.extracted / f"{TEMPORARY_START}{os.getpid()}-{stem(package)}"
        try:
            extract(archive, temporary)
            check_contents(package, temporary)
            self.forget(package)
            temporary.replace(self.folder(package))
            mark = {"sha256": package.sha256, "md5": package.md5, "archive_bytes": archive.stat().st_size}
            unfinished = self._mark(package).with_suffix(".tmp")
            unfinished.write_text(json.dumps(mark), encoding="utf-8")
            unfinished.replace(self._mark(package))
        except OSError as error:  # rattler raises OSError for damaged archives as well
            raise EnvironmentBuildError(f"{package.file_name}: cannot be unpacked: {one_line(error)}") from error
        finally:
            if temporary.exists():
                shutil.rmtree(temporary)

    def damaged(self, package: LockedPackage) -> str | None:
        """Compare every file of the unpacked package with the hash in its own list; the first that differs, or None.

        Files are hard links into prefixes: whoever edits one in place edits it here too.
        """
        try:
            for entry in path_entries(self.folder(package)):
                path, expected = self.folder(package) / entry["_path"], entry.get("sha256")
                if entry.get("path_type") == "softlink" or not isinstance(expected, str):
                    continue
                if not path.is_file():
                    return f"{entry['_path']} is missing"
                with path.open("rb") as stream:
                    if hashlib.file_digest(stream, "sha256").hexdigest() != expected:
                        return f"{entry['_path']} was changed"
        except (OSError, UnreadableError) as error:
            return one_line(error)
        return None


def stem(package: LockedPackage) -> str:
    """``NAME-VERSION-BUILD``."""
    return package.file_name.removesuffix(".conda").removesuffix(".tar.bz2")


def one_line(error: BaseException) -> str:
    """An error of a library on one line: what failed, and the innermost cause, of which rattler gives a whole list."""
    lines = [" ".join(line.removeprefix("Caused by:").split()) for line in str(error).splitlines() if line.strip()]
    return "; ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:400] or type(error).__name__


def find_damage(
    cache: PackageCache, packages: Iterable[LockedPackage], workers: int
) -> Iterator[tuple[LockedPackage, str]]:
    """Packages of the cache whose unpacked files differ from what was packed, with the first difference."""
    listed = list(packages)
    with ThreadPoolExecutor(workers) as pool:
        for package, damage in zip(listed, pool.map(cache.damaged, listed), strict=True):
            if damage is not None:
                yield package, damage


def check_hashes(package: LockedPackage, archive: Path) -> str | None:
    """What is wrong with an archive by the lock's sha256 and md5, or None.  Reads the file once."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with archive.open("rb") as stream:
        while block := stream.read(1 << 20):
            sha256.update(block)
            md5.update(block)
    for kind, want, have in (("sha256", package.sha256, sha256.hexdigest()), ("md5", package.md5, md5.hexdigest())):
        if want is not None and want != have:
            return f"{kind} is {have}, the lock has {want}"
    return None


def path_entries(folder: Path) -> list[dict[str, Any]]:
    """The files that an unpacked package says it has; raises UnreadableError.  Old packages have names alone."""
    paths = folder / "info" / "paths.json"
    if paths.exists():
        document = load_json(read_bounded(paths, _LARGEST_PATHS_BYTES, "package list"), paths, "package list")
        entries = document.get("paths") if isinstance(document, dict) else None
    else:
        files = folder / "info" / "files"
        text = read_bounded(files, _LARGEST_PATHS_BYTES, "package list").decode("utf-8", "replace")
        entries = [{"_path": line} for line in text.splitlines() if line]
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("_path"), str) for entry in entries
    ):
        raise UnreadableError(f"package list {folder / 'info'}: not a list of paths")
    return entries


def check_contents(package: LockedPackage, folder: Path) -> None:
    """Refuse a package that is not the locked one, that lacks files of its own list, or that would write outside the
    prefix: by a path, by an entry point's name, or with anything but files, folders and links."""
    index_path = folder / "info" / "index.json"
    try:
        index = load_json(read_bounded(index_path, _LARGEST_PATHS_BYTES, "package index"), index_path, "package index")
        entries = path_entries(folder)
        points = _entry_points(folder)
    except UnreadableError as error:
        raise EnvironmentBuildError(f"{package.file_name}: damaged inside: {error}") from error
    found = tuple(str(index.get(field)) for field in ("name", "version", "build")) if isinstance(index, dict) else ()
    if found != (package.name, package.version, package.build):
        raise EnvironmentBuildError(f"{package.file_name}: holds {' '.join(found) or 'no package'} instead; not used")
    for entry in entries:
        path = entry["_path"]
        if _leaves(path) or path.startswith("conda-meta/"):
            raise _refused(package, f"{path!r} is not a path inside the prefix")
        if not os.path.lexists(folder / path):
            raise EnvironmentBuildError(
                f"{package.file_name}: {path!r} of its own list is not in the archive; not used"
            )
    for point in points:
        command = point.partition("=")[0].strip()
        if not command or "/" in command or "\0" in command or command in (".", ".."):
            raise _refused(package, f"entry point {point[:80]!r}")
    _check_kinds(package, folder)


def _entry_points(folder: Path) -> list[str]:
    path = folder / "info" / "link.json"
    if not path.exists():
        return []
    document = load_json(read_bounded(path, _LARGEST_PATHS_BYTES, "link list"), path, "link list")
    noarch = document.get("noarch") if isinstance(document, dict) else None
    points = noarch.get("entry_points") if isinstance(noarch, dict) else None
    return [point for point in points if isinstance(point, str)] if isinstance(points, list) else []


def _check_kinds(package: LockedPackage, folder: Path) -> None:
    for directory, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(directory) / name
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                raise _refused(package, f"{path.relative_to(folder)} is neither file, folder nor link")


def check_links(packages: Iterable[tuple[LockedPackage, Path]]) -> None:
    """Refuse packages where one brings a link that leads out of the prefix and something is to be written through it.

    A link out of the prefix that nothing goes through is only a link.
    """
    links: dict[PurePosixPath, tuple[str, str]] = {}
    written: list[tuple[PurePosixPath, LockedPackage]] = []
    for package, folder in packages:
        for entry in path_entries(folder):
            path = _place(entry["_path"])
            written.append((path, package))
            here = folder / entry["_path"]
            if here.is_symlink():
                links[path] = (str(here.readlink()), package.name)
    outward = _outward(links)
    for path, package in written if outward else ():
        for parent in path.parents:
            if parent in outward:
                owner = links[parent][1]
                raise _refused(package, f"{str(path)!r} goes through {str(parent)!r}, a link of {owner}")


def _place(path: str) -> PurePosixPath:
    """Where a packaged path lands, with the folders that depend on Python's version under one name."""
    return PurePosixPath(_SITE_PACKAGES.sub("site-packages/", _SCRIPTS.sub("bin/", path)))


def _outward(links: Mapping[PurePosixPath, tuple[str, str]]) -> set[PurePosixPath]:
    """Links that lead out of the prefix, by themselves or through each other."""
    outward: set[PurePosixPath] = set()
    while True:
        found = {path for path, (target, _) in links.items() if path not in outward and _goes(path, target, outward)}
        if not found:
            return outward
        outward |= found


def _goes(path: PurePosixPath, target: str, outward: set[PurePosixPath]) -> bool:
    joined = str(path.parent / target)
    # site-packages is two folders deeper than its short name says.
    depth = "lib/python3/" if joined.startswith("site-packages") else ""
    if _leaves(depth + joined):
        return True
    end = PurePosixPath(os.path.normpath(joined))
    return end in outward or any(parent in outward for parent in end.parents)


def _leaves(path: str) -> bool:
    """Whether a path, read against the prefix, can end outside of it."""
    normal = os.path.normpath(path)
    return not path or "\0" in path or path.startswith("/") or normal == ".." or normal.startswith("../")


def _refused(package: LockedPackage, what: str) -> EnvironmentBuildError:
    return EnvironmentBuildError(f"{package.file_name}: refused, it tries to write outside the prefix: {what}")
