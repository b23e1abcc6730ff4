"""What to do about a finding, as commands that work when pasted."""

from __future__ import annotations

import shlex
from pathlib import Path


def create_beside(prefix: Path, lock: Path, suffix: str = "new") -> str:
    """Build the locked environment anew, beside the one that was judged, so that nothing is lost.

    With the package cache validated: a prefix's files are hard links into it, so what was edited in place in the one
    is edited in the other.
    """
    new = prefix.with_name(f"{prefix.name}-{suffix}") if prefix.name else Path.home() / f"environment-{suffix}"
    return f"bench-runner env create {shlex.quote(str(new))} --lock {shlex.quote(str(lock))} --validate-cache"


def pip_uninstall(python: Path, names: list[str]) -> str:
    return f"{shlex.quote(str(python))} -m pip uninstall -y {shlex.join(names)}"


def lock_anew(environment_file: Path, virtual_packages: Path | None, lock: Path) -> str:
    """Solve and lock again where the channel can be reached."""
    virtual = f" --virtual-package-spec {shlex.quote(str(virtual_packages))}" if virtual_packages else ""
    return f"conda-lock -f {shlex.quote(str(environment_file))}{virtual} --lockfile {shlex.quote(str(lock))}"
