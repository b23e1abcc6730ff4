"""asv's environment type ``conda-lock``: the locked environment, built by this program from conda-lock.yml.

Its name is stable (``conda-lock-py3.12``), so that results go on in one line when the lock changes; its folder depends
on the lock's hash.  Nothing is built or installed for a commit: the benchmarks run from the tree itself, whose root
``benchmarks/__init__.py`` puts on ``sys.path`` (asv's benchmark processes drop PYTHONPATH and ASV_PYTHONPATH).
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, Final

from asv import environment, util
from asv.console import log

from bench_runner.cli.progress import progress_for
from bench_runner.environment.install import create_environment, locked_packages
from bench_runner.environment.lockfile import Lock, read_lock
from bench_runner.environment.prefix import discard, is_complete, lock_path, locked_directory
from bench_runner.environment.supply import BuildOptions
from bench_runner.errors import BenchRunnerError

LOCK_VARIABLE: Final = "ASV_CONDA_LOCK_SHA256"
_NEEDED_BY_ASV: Final = ("python", "asv_runner")


class CondaLockEnvironment(environment.Environment):  # type: ignore[misc]
    """The environment that conda-lock.yml beside asv.conf.json (or ``$BENCH_RUNNER_LOCK``) describes."""

    tool_name = "conda-lock"
    matches_python_fallback = False

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: Any) -> None:  # noqa: ARG002
        self._root = Path.cwd()
        try:
            self._lock = read_lock(lock_path(self._root))
            versions = {package.name: package.version for package in locked_packages(self._lock)}
        except BenchRunnerError as error:
            raise environment.EnvironmentUnavailable(str(error)) from error
        lacking = [name for name in _NEEDED_BY_ASV if name not in versions]
        if lacking:
            raise environment.EnvironmentUnavailable(
                f"{self._lock.path}: no {' and no '.join(lacking)} in it; asv cannot measure there"
            )
        # asv's matrix has nothing to say here: what the lock has is what is measured.
        self._python = _minor_version(versions["python"])
        self._requirements: dict[str, str] = {}
        self._tagged_env_vars = tagged_env_vars
        super().__init__(conf, self._python, self._requirements, tagged_env_vars)
        self._is_setup = False
        self._global_env_vars[LOCK_VARIABLE] = self._lock.sha256

    @classmethod
    def matches(cls, python: str) -> bool:  # noqa: ARG003
        """Never chosen by guessing."""
        return False

    @property
    def lock(self) -> Lock:
        return self._lock

    @property
    def dir_name(self) -> str:
        variables = self.build_env_vars
        variant = hashlib.sha256(repr(sorted(variables.items())).encode()).hexdigest()[:8] if variables else ""
        return locked_directory(self._lock.sha256, variant)

    @property
    def installed_commit_hash(self) -> None:
        """Always None, so that asv names the commit afresh for every run; nothing is installed for it."""

    def check_presence(self) -> bool:
        """Whether the environment was built to the end from this very lock."""
        return is_complete(Path(self._path), self._lock.sha256)

    def create(self) -> None:
        """Build what is missing; asv's own would remove a folder in which another process builds."""
        if self._is_setup:
            return
        Path(self._env_dir).mkdir(parents=True, exist_ok=True)
        self._setup()
        self.save_info_file(self._path)
        self._is_setup = True

    def _setup(self) -> None:
        if not self.check_presence():
            log.info(f"Creating {self.name} from {self._lock.path.name} in {os.path.relpath(self._path)}")
            log.flush()
        try:
            if self.check_presence() and not self._python_runs():
                log.warning(f"{self._path}: its Python does not run; built anew")
                discard(Path(self._path))
            with progress_for() as progress:
                create_environment(self._lock, Path(self._path), BuildOptions(), progress)
        except BenchRunnerError as error:
            raise util.UserError(f"{error}; -E existing measures in the environment at hand") from error

    def _python_runs(self) -> bool:
        try:
            self.run_executable("python", ["-c", "pass"], display_error=False)
        except (util.ProcessError, OSError):
            return False
        return True

    def install_project(self, conf: Any, repo: Any, commit_hash: str | None) -> None:  # noqa: ARG002
        """Nothing is installed; asv only remembers which commit is measured."""
        self._set_commit_hash(commit_hash)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        log.debug(f"Running '{' '.join(args)}' in {self.name}")
        return self.run_executable("python", args, **kwargs)


def _minor_version(version: str) -> str:
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else version
