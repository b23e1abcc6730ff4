"""The part of an environment's description that goes into every record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LockState = Literal["match", "drift", "not-locked", "no-lock", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLibrary:
    """A shared library as mapped into a worker: what ran, not what was installed."""

    name: str
    path: str
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentInfo:
    """The environment that produced a result.

    ``lock_state``: ``match`` (verified against the lock), ``drift`` (a locked environment that differs from it),
    ``not-locked`` (a venv, uv or system Python), ``no-lock`` (no lock file found), ``unknown`` (not verified).
    ``packages`` maps a distribution's name to its version, with ``=build`` behind it for conda packages, for the
    packages that matter for speed and correctness.  ``variables`` holds the environment variables that change NCCL,
    CUDA, OpenMP and torch, as the workers saw them.
    """

    fingerprint: str
    kind: Literal["conda", "venv", "system"]
    prefix: str
    python: str
    lock_sha256: str | None = None
    lock_state: LockState = "unknown"
    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    cudnn: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    libraries: tuple[LoadedLibrary, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
