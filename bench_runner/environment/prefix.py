"""Prefixes that this program has built: how they are named, marked as complete, told apart and found.

A prefix is built in place, because packages carry its path, under a lock file of its own; the mark is written last.
What has no mark was never finished and is not used.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench_runner.environment.reading import load_json, read_bounded
from bench_runner.errors import UnreadableError

MARK_NAME: Final = "bench-runner-environment.json"
LOCK_NAME: Final = ".bench-runner.lock"
MARK_SCHEMA: Final = "bench-runner/prefix/1"
DIRECTORY_START: Final = "conda-lock-"
ENVIRONMENTS: Final = Path(".asv") / "env"
LOCK_FILE_NAME: Final = "conda-lock.yml"
CPU_LOCK_FILE_NAME: Final = "conda-lock-cpu.yml"
LOCK_VARIABLE: Final = "BENCH_RUNNER_LOCK"
_LARGEST_MARK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMark:
    """What a finished prefix says of itself.  ``prefix`` is where it was built: it cannot be moved."""

    prefix: str
    lock_sha256: str
    platform: str
    packages: int
    created_at: str
    schema: str = MARK_SCHEMA


def lock_path(root: Path) -> Path:
    """The lock that a tree measures by: ``$BENCH_RUNNER_LOCK`` (``conda-lock-cpu.yml``), else ``conda-lock.yml``."""
    return root / (os.environ.get(LOCK_VARIABLE) or LOCK_FILE_NAME)


def locked_directory(lock_sha256: str, variant: str = "") -> str:
    """The name of an environment's folder: another lock, or other settings (``variant``), another folder."""
    return f"{DIRECTORY_START}{lock_sha256[:16]}{'-' + variant if variant else ''}"


def locked_prefix(root: Path, lock_sha256: str) -> Path:
    """Where ``asv run`` in the tree ``root`` has the environment of a lock."""
    return (root / ENVIRONMENTS).absolute() / locked_directory(lock_sha256)


def write_mark(prefix: Path, *, lock_sha256: str, platform: str, packages: int) -> None:
    """Declare ``prefix`` complete; what came before is on disk first."""
    mark = {
        "schema": MARK_SCHEMA,
        "prefix": str(prefix.absolute()),
        "lock_sha256": lock_sha256,
        "platform": platform,
        "packages": packages,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    _sync_file_system(prefix)
    temporary = prefix / f".{MARK_NAME}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(mark, stream, indent=2)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(prefix / MARK_NAME)


def _sync_file_system(folder: Path) -> None:
    """Have all that was written to the folder's file system on disk (syncfs(2); all file systems where that lacks)."""
    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if syncfs is None or syncfs(descriptor) != 0:
            os.sync()
    finally:
        os.close(descriptor)


def read_mark(prefix: Path) -> PrefixMark | None:
    """The mark of a finished prefix; None where there is none, or a damaged one: then it was not finished."""
    path = prefix / MARK_NAME
    if not path.exists():
        return None
    try:
        document = load_json(read_bounded(path, _LARGEST_MARK_BYTES, "prefix mark"), path, "prefix mark")
        if document["schema"] != MARK_SCHEMA:
            return None
        return PrefixMark(**document)
    except (UnreadableError, TypeError, KeyError):
        return None


def is_complete(prefix: Path, lock_sha256: str) -> bool:
    """Whether ``prefix`` was built to the end, from the lock with this hash, stands where it was built and still has
    a record of each package; whether files were changed since is ``verify``'s question."""
    mark = read_mark(prefix)
    if mark is None or mark.lock_sha256 != lock_sha256 or mark.prefix != str(prefix.absolute()):
        return False
    return sum(1 for _ in (prefix / "conda-meta").glob("*.json")) >= mark.packages


def discard(prefix: Path) -> None:
    """Take the mark away: whoever needs the prefix next builds it anew."""
    (prefix / MARK_NAME).unlink(missing_ok=True)


def is_ours(prefix: Path) -> bool:
    """Whether this program made the folder, finished or not."""
    return (prefix / LOCK_NAME).exists() or (prefix / MARK_NAME).exists()


def built_prefixes(environments: Path) -> list[Path]:
    """Folders of locked environments, finished or not, sorted by name."""
    if not environments.is_dir():
        return []
    return sorted(path for path in environments.iterdir() if path.name.startswith(DIRECTORY_START) and path.is_dir())
