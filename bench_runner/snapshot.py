"""Which state of the source tree is measured: git's commit, or a hash of the content where there is no git.

A tarball has no commit, yet results need one to be stored under, compared by and told apart by.  The hash covers the
files that can change a measurement (sources, settings, locks), by relative path and content, so it is the same on
every machine that unpacks the same tarball, and neither results nor caches nor virtual environments change it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE_SUFFIXES: Final = frozenset(
    {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".py", ".pyi", ".sh", ".toml", ".yaml", ".yml"}
)
SOURCE_NAMES: Final = frozenset({"asv.conf.json", "asv.conf.jsonc", "Makefile"})
DERIVED_DIRECTORIES: Final = frozenset({"__pycache__", "build", "dist", "html", "node_modules", "results"})
ENVIRONMENT_MARKS: Final = ("pyvenv.cfg", "conda-meta")
COMMIT_LENGTH: Final = 40
_GIT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeState:
    """A source tree's identity: 40 hex digits, and the newest change in milliseconds since 1970 (as asv counts)."""

    commit: str
    date_ms: int


def _is_environment(directory: Path) -> bool:
    return any((directory / mark).exists() for mark in ENVIRONMENT_MARKS)


def source_files(root: Path) -> Iterator[Path]:
    """Regular files of ``root`` that can change a measurement, in a fixed order; links and hidden folders are left out.

    Raises OSError for a folder that cannot be read: a hash over half a tree would be a wrong name.
    """
    for directory, folders, files in os.walk(root, onerror=_raise):
        here = Path(directory)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in DERIVED_DIRECTORIES
            and not name.endswith(".egg-info")
            and not _is_environment(here / name)
        )
        for name in sorted(files):
            path = here / name
            wanted = path.suffix in SOURCE_SUFFIXES or name in SOURCE_NAMES
            if wanted and not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _raise(error: OSError) -> None:
    raise error


def tree_state(root: Path) -> TreeState:
    """The identity of the tree under ``root`` from its content alone.  An empty tree has one too."""
    whole = hashlib.sha256(b"bench-runner/tree/1\0")
    newest = 0.0
    for path in source_files(root):
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        whole.update(path.relative_to(root).as_posix().encode() + b"\0" + content)
        newest = max(newest, path.stat().st_mtime)
    return TreeState(commit=whole.hexdigest()[:COMMIT_LENGTH], date_ms=int(newest) * 1000)


def git_commit(root: Path) -> str | None:
    """The commit checked out in ``root``, or None: no ``.git`` there, no git program, no commit yet, or git refuses."""
    program = shutil.which("git")
    if program is None or not (root / ".git").exists():
        return None
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.resolve().parent)}
    command = [program, "-C", str(root), "rev-parse", "--verify", "--quiet", "HEAD^{commit}"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    commit = done.stdout.strip()
    return commit if done.returncode == 0 and len(commit) >= COMMIT_LENGTH else None


def current_commit(root: Path) -> str:
    """What results of the tree under ``root`` are stored under: git's commit, else the hash of the content."""
    return git_commit(root) or tree_state(root).commit


def stored_commits(results_dir: Path) -> dict[str, int]:
    """Commits that have asv results, with the date (milliseconds) stored beside them.

    Files that are not asv's or are damaged are left out here: asv names them itself whenever it loads the results.
    """
    found: dict[str, int] = {}
    for path in sorted(results_dir.glob("*/*.json")):
        if path.name == "machine.json":
            continue
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if not isinstance(document, dict):
            continue
        commit, date = document.get("commit_hash"), document.get("date")
        if isinstance(commit, str) and commit and isinstance(date, int) and not isinstance(date, bool):
            found[commit] = date
    return found
