"""Which Python runs the workers: one that has torch, found without importing it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench_runner.errors import LaunchError

VARIABLE: Final = "BENCH_RUNNER_PYTHON"
OLDEST_PYTHON: Final = (3, 11)
PROBE_SECONDS: Final = 30.0

# Metadata and no import: importing torch costs seconds, and may crash where the environment is broken.
_PROBE: Final = """
import importlib.metadata as m, importlib.util as u, json, platform
def version():
    try:
        return m.version("torch") if u.find_spec("torch") else None
    except m.PackageNotFoundError:
        return "unknown"
print(json.dumps({"python": platform.python_version(), "torch": version()}))
"""

Source = Literal["explicit", "running", "environment", "path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPython:
    """A Python for torchrun and the workers, and how it was found."""

    path: str
    python_version: str
    torch_version: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsuitable:
    """A Python that cannot run the workers, and why."""

    path: str
    reason: str


def find_worker_python(explicit: str | None = None, environ: Mapping[str, str] = os.environ) -> WorkerPython:
    """The first suitable: ``explicit`` or BENCH_RUNNER_PYTHON, the running one, the active environment's, PATH's.

    One that was named and does not do is an error; nothing else is then tried.  Raises LaunchError with the remedy.
    """
    named = explicit or environ.get(VARIABLE)
    if named:
        found = probe(shutil.which(named, path=environ.get("PATH")) or named, "explicit")
        if isinstance(found, WorkerPython):
            return found
        raise LaunchError(
            f"{'python' if explicit else VARIABLE} = {named}: {found.reason}; name a Python that has torch"
        )
    running = _running()
    if running is not None:
        return running
    tried = [f"{sys.executable}: it has no torch"]
    for path, source in _candidates(environ):
        found = probe(path, source)
        if isinstance(found, WorkerPython):
            return found
        tried.append(f"{found.path}: {found.reason}")
    raise LaunchError(
        f"no Python with torch found ({'; '.join(tried)}); install it with `{sys.executable} -m pip install torch`, "
        f"or name a Python that has it by {VARIABLE}"
    )


def _running() -> WorkerPython | None:
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return WorkerPython(
        path=sys.executable, python_version=platform.python_version(), torch_version=version, source="running"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Source]]:
    """Interpreters by place, each once; not resolved, as a virtual environment is known by its link's place."""
    seen = {sys.executable}
    prefixes = (environ[name] for name in ("CONDA_PREFIX", "VIRTUAL_ENV") if environ.get(name))
    places: list[tuple[str | None, Source]] = [
        (str(Path(prefix, "bin", "python")), "environment") for prefix in prefixes
    ]
    places += [(shutil.which(name, path=environ.get("PATH")), "path") for name in ("python3", "python")]
    for path, source in places:
        if path is not None and path not in seen and Path(path).is_file():
            seen.add(path)
            yield path, source


def probe(path: str, source: Source) -> WorkerPython | Unsuitable:
    """Ask the interpreter at ``path`` for its version and torch's."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    try:
        process = subprocess.Popen(
            [path, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Unsuitable(path=path, reason=f"it cannot be started: {error.strerror}")
    with process:
        try:
            output, _ = process.communicate(timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a wrapper's children would hold the pipe open
            return Unsuitable(path=path, reason=f"it did not answer within {PROBE_SECONDS:.0f} s")
    try:
        document = json.loads(output)
        python, torch = str(document["python"]), document["torch"]
        version = tuple(int(part) for part in python.split(".")[:2])
    except (ValueError, KeyError, TypeError):
        return Unsuitable(path=path, reason=f"it is no working Python (exit code {process.returncode})")
    if version < OLDEST_PYTHON:
        return Unsuitable(path=path, reason=f"it is Python {python}, and 3.11 or newer is needed")
    if torch is None:
        return Unsuitable(path=path, reason="it has no torch")
    return WorkerPython(path=path, python_version=python, torch_version=str(torch), source=source)
