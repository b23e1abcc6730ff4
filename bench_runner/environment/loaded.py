"""What an environment does when it runs: its Python tries torch, numpy and a kernel in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from bench_runner.environment.maps import mapped_libraries
from bench_runner.environment.reading import read_bounded

PROBE: Final = Path(__file__).resolve().parents[1] / "worker" / "probe_environment.py"
DEADLINE_SECONDS: Final = 180.0
LARGEST_RESULT_BYTES: Final = 128 << 20
_LARGEST_OUTPUT_BYTES: Final = 64 << 10

State = Literal["passed", "failed", "broken-off", "not-reached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the probe.  ``broken-off``: the process ended or hung in it; ``not-reached``: one before was."""

    name: str
    state: State
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    missing_module: str | None = None
    traceback: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEnvironment:
    """The probe's outcome.  ``ended`` says how its process ended, empty when well; ``output`` is its stderr's end.

    ``libraries`` are the shared libraries mapped into it at the end, by real path.
    """

    python: Path
    steps: Mapping[str, Step]
    ended: str
    output: str
    libraries: tuple[str, ...] = ()

    def step(self, name: str) -> Step:
        """The step of that name; not-reached if the probe never came to it."""
        return self.steps.get(name) or Step(name=name, state="not-reached")


def probe_loaded(
    python: Path, environ: Mapping[str, str] | None = None, deadline_seconds: float = DEADLINE_SECONDS
) -> LoadedEnvironment:
    """Run the probe with an environment's Python, in the variables at hand unless others are given.

    A crash, an endless import, a Python that cannot be started: all are values.  Nothing of the process is left, and
    nothing is written into the environment.
    """
    variables = {**(os.environ if environ is None else environ), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="bench-runner-probe-") as folder:
        result = Path(folder) / "result.jsonl"
        result.touch()
        with (Path(folder) / "output").open("w+b") as output:
            ended = _run([str(python), str(PROBE), str(result)], variables, output.fileno(), deadline_seconds)
            output.seek(max(0, output.seek(0, os.SEEK_END) - _LARGEST_OUTPUT_BYTES))
            said = output.read(_LARGEST_OUTPUT_BYTES).decode("utf-8", "replace")
        lines = read_bounded(result, LARGEST_RESULT_BYTES, "probe's result").decode("utf-8", "replace")
    steps = parse_steps(lines)
    maps = steps["libraries"].values.get("maps", "") if "libraries" in steps else ""
    libraries = tuple(dict.fromkeys(os.path.realpath(path) for path in mapped_libraries(str(maps))))
    return LoadedEnvironment(python=python, steps=steps, ended=ended, output=said, libraries=libraries)


def parse_steps(text: str) -> dict[str, Step]:
    """Steps from the probe's lines; the last one begun and not ended is broken off.  Other lines are left out."""
    steps: dict[str, Step] = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut in the middle when the process was killed
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), str):
            continue
        name, values = entry["step"], entry.get("values")
        warned = entry.get("warnings")
        state = entry.get("state")
        steps[name] = Step(
            name=name,
            state=state if state in ("passed", "failed") else "broken-off",
            values=values if isinstance(values, dict) else {},
            error=str(entry.get("error") or ""),
            missing_module=entry["module"] if isinstance(entry.get("module"), str) else None,
            traceback=str(entry.get("traceback") or ""),
            warnings=tuple(str(w) for w in warned) if isinstance(warned, list) else (),
        )
    return steps


def _run(command: list[str], environ: Mapping[str, str], output: int, deadline_seconds: float) -> str:
    """Run a command in a session of its own; how it ended, empty when with exit code 0."""
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environ), start_new_session=True
        )
    except OSError as error:
        return f"could not be started: {error.strerror or error}"
    try:
        code = child.wait(deadline_seconds)
    except subprocess.TimeoutExpired:
        return f"did not end within {deadline_seconds:g} s"
    finally:
        _end(child)
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}" if code else ""


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child's session if it still runs, and collect it."""
    if child.poll() is not None:
        return
    os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.returncode = -signal.SIGKILL  # blocked in a driver: it ends when the driver lets go of it
