"""Whether the softlinks of a prefix lead where their packages' did.

Records do not hold a link's target.  rattler's hash is of the target's text; conda's of the content that it leads to
(as packed, so the prefix may since have been written into that file), or of nothing for a link to a folder or to
nowhere.  Where the unpacked package still lies in the cache, its own link decides.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Final

from bench_runner.environment.hash_worker import file_sha256
from bench_runner.environment.installed import InstalledFile, InstalledPackage

EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
_OTHER_TARGET: Final = "-> another target, by the hash in its record"


def wrong_link(
    root: str, package: InstalledPackage, file: InstalledFile, others: dict[str, InstalledFile]
) -> tuple[str, str] | None:
    """(expected, actual) if a softlink of the prefix ``root`` does not lead where its package's did.

    ``others`` are the prefix's files by path.
    """
    path = f"{root}/{file.path}"
    try:
        target = os.readlink(path)  # noqa: PTH115 (Path would tidy the text, whose hash counts)
    except OSError as error:
        return "a softlink", error.strerror or str(error)
    original = _in_cache(package, file)
    if original is not None:
        return None if original == target else (f"-> {original}", f"-> {target}")
    known = {file.sha256, file.package_sha256} - {None}
    if not known or hashlib.sha256(os.fsencode(target)).hexdigest() in known:
        return None
    end = os.path.normpath(os.path.join(os.path.dirname(file.path), target))  # noqa: PTH118, PTH120 (need not exist)
    if end in others and known & {others[end].sha256, others[end].package_sha256}:
        return None
    resolved = os.path.realpath(path)
    if not os.path.isfile(resolved):  # noqa: PTH113
        return None if EMPTY_SHA256 in known else (_OTHER_TARGET, f"-> {target}")
    try:
        content = file_sha256(resolved)[0]
    except OSError as error:
        return "-> a readable file", f"-> {target}: {error.strerror}"
    return None if content in known else (_OTHER_TARGET, f"-> {target}")


def _in_cache(package: InstalledPackage, file: InstalledFile) -> str | None:
    if package.cache_dir is None:
        return None
    try:
        return os.readlink(package.cache_dir / file.path)  # noqa: PTH115
    except OSError:
        return None  # the cache was emptied, or the installer moved the file: the hash decides


def files_by_path(packages: Sequence[InstalledPackage]) -> dict[str, InstalledFile]:
    """The files of all packages, to look up where a link leads."""
    return {file.path: file for package in packages for file in package.files}
