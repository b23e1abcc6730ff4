"""Judge the variables around an environment: what they put before its own files.  Pure: values in, findings out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench_runner.environment.checks_packages import shown
from bench_runner.environment.shadows import Surroundings
from bench_runner.finding import Finding


def library_path(seen: Surroundings) -> Finding:
    """LD_LIBRARY_PATH goes before the path that conda's libraries carry in them (RUNPATH)."""
    return _shadowing(seen, "LD_LIBRARY_PATH", "libraries that go before the environment's own")


def preloaded(seen: Surroundings) -> Finding:
    return _shadowing(seen, "LD_PRELOAD", "libraries that every process loads first")


def module_path(seen: Surroundings) -> Finding:
    """Modules in PYTHONPATH that the environment has too: the variable's win."""
    return _shadowing(seen, "PYTHONPATH", "modules that hide the environment's own")


def python_home(seen: Surroundings) -> Finding:
    return _shadowing(seen, "PYTHONHOME", "another standard library")


def active_environment(seen: Surroundings) -> Finding:
    """Another environment is active than the one judged: ``python`` and ``torchrun`` on PATH are the other's."""
    check = "environment.surroundings.active"
    active = seen.active_prefix
    if active is None or os.path.realpath(active) == os.path.realpath(seen.prefix):
        return Finding(check=check, status="pass", message="no other environment is active")
    return Finding(
        check=check,
        status="warn",
        message="another environment is active than the one that is judged",
        expected=str(seen.prefix),
        actual=active,
        evidence=(f"CONDA_PREFIX or VIRTUAL_ENV = {active}",),
        remedy=f"conda activate {seen.prefix}, or call {seen.prefix}/bin/python by its path",
    )


def cuda_home(seen: Surroundings, torch_cuda: str | None) -> Finding:
    """CUDA_HOME of another release than torch's CUDA: extensions compiled on the machine do not fit torch."""
    check = "environment.surroundings.cuda-home"
    if seen.cuda_home is None:
        return Finding(check=check, status="pass", message="CUDA_HOME is not set")
    if Path(os.path.realpath(seen.cuda_home)).is_relative_to(os.path.realpath(seen.prefix)):
        return Finding(check=check, status="pass", message="CUDA_HOME lies in the environment")
    if torch_cuda is None or seen.cuda_home_version is None:
        message = f"CUDA_HOME = {seen.cuda_home}: its version, or torch's, is not known"
        return Finding(check=check, status="skip", message=message)
    if seen.cuda_home_version == torch_cuda:
        return Finding(check=check, status="pass", message=f"CUDA_HOME is CUDA {torch_cuda}, like torch")
    return Finding(
        check=check,
        status="warn",
        message="CUDA_HOME is of another release than the CUDA that torch was built for",
        expected=f"CUDA {torch_cuda}",
        actual=f"CUDA {seen.cuda_home_version}",
        evidence=(f"CUDA_HOME = {seen.cuda_home}",),
        remedy="unset CUDA_HOME CUDA_PATH",
    )


def surroundings_findings(seen: Surroundings, torch_cuda: str | None) -> list[Finding]:
    """Every check of the variables at hand."""
    return [*(check(seen) for check in CHECKS), cuda_home(seen, torch_cuda)]


def _shadowing(seen: Surroundings, variable: str, what: str) -> Finding:
    check = f"environment.surroundings.{re.sub('_', '-', variable.lower())}"
    named = [shadow for shadow in seen.shadows if shadow.variable == variable]
    telling = [shadow for shadow in named if shadow.files]
    if not named:
        return Finding(check=check, status="pass", message=f"{variable} names nothing outside the environment")
    if not telling:
        folders = tuple(str(shadow.entry) for shadow in named)
        return Finding(check=check, status="pass", message=f"{variable} names no {what}", evidence=folders)
    return Finding(
        check=check,
        status="warn",
        message=f"{variable} names {what}",
        expected=f"nothing outside {seen.prefix}",
        actual=os.pathsep.join(str(shadow.entry) for shadow in telling),
        evidence=shown(
            f"{shadow.entry}{'' if shadow.entry.name == name else f'/{name}'}"
            for shadow in telling
            for name in shadow.files
        ),
        remedy=f"unset {variable}",
    )


CHECKS: Final[tuple[Callable[[Surroundings], Finding], ...]] = (
    active_environment,
    library_path,
    preloaded,
    module_path,
    python_home,
)
