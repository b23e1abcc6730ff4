"""What torch makes of this machine, asked in a child process of the environment under test, with a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SCRIPT: Final = Path(__file__).parent.parent / "worker" / "probe_machine.py"
_MOST_ERROR_LINES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """A device as torch counts it.  ``works``: a kernel ran on it and gave the right values."""

    index: int
    name: str
    works: bool
    error: str | None = None
    capability: tuple[int, int] | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    architecture: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchProbe:
    """``failure``: the probe did not come to its end (no torch, a crash, the deadline); what is known stands anyway.

    ``hung_on`` is the device that it was trying at that moment, if any.
    """

    python: str
    torch: str | None = None
    path: str | None = None
    cuda: str | None = None
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    nccl: bool | None = None
    available: bool | None = None
    count: int | None = None
    warnings: tuple[str, ...] = ()
    init_error: str | None = None
    devices: tuple[TorchDevice, ...] = ()
    failure: str | None = None
    hung_on: int | None = None
    stderr: tuple[str, ...] = ()


def probe_command(python: str) -> list[str]:
    """``-P`` keeps the script's own folder, where our modules lie, out of the module search path."""
    return [python, "-P", str(SCRIPT)]


def probe_torch(python: str, environ: Mapping[str, str] | None = None, deadline_seconds: float = 90.0) -> TorchProbe:
    """Run the probe with ``python``.  Whatever happens to the child is in the answer; nothing of it is left behind.

    A child blocked in the driver does not end even when killed; the answer does not wait for it.
    """
    failure = None
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                probe_command(python),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=None if environ is None else dict(environ),
                start_new_session=True,
            )
        except OSError as error:
            return TorchProbe(python=python, failure=f"{python}: {error.strerror or error}")
        try:
            code = child.wait(deadline_seconds)
            if code < 0:
                failure = f"killed by {signal.Signals(-code).name}"
            elif code:
                failure = f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            failure = f"no answer within {deadline_seconds:g} s"
        finally:
            _end(child)
        output.seek(0)
        errors.seek(0)
        lines = output.read(1 << 20).decode("utf-8", "replace").splitlines()
        tail = errors.read(1 << 20).decode("utf-8", "replace").splitlines()[-_MOST_ERROR_LINES:]
    return parse_probe(python, lines, failure, tuple(tail))


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        # In uninterruptible sleep inside the driver: it ends when the driver lets go of it.
        child.returncode = -signal.SIGKILL


def parse_probe(python: str, lines: list[str], failure: str | None, stderr: tuple[str, ...]) -> TorchProbe:
    """The probe's lines as one value.  Lines that are not ours (something printed on import) are left alone."""
    parts: dict[str, dict[str, Any]] = {}
    devices: list[TorchDevice] = []
    starting: int | None = None
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if not isinstance(values, dict) or "part" not in values:
            continue
        part = values.pop("part")
        if part == "starting":
            starting = values.get("index")
        elif part == "device":
            devices.append(_device(values))
            starting = None
        else:
            parts[part] = values
    build, available = parts.get("build", {}), parts.get("availability", {})
    if failure is None and "import" in parts:
        failure = f"torch cannot be imported: {parts['import'].get('error')}"
    if failure is None and "end" not in parts:
        failure = "the probe broke off"
    return TorchProbe(
        python=python,
        torch=build.get("torch"),
        path=build.get("path"),
        cuda=build.get("cuda"),
        hip=build.get("hip"),
        architectures=tuple(build.get("architectures") or ()),
        nccl=build.get("nccl"),
        available=available.get("available"),
        count=available.get("count"),
        warnings=tuple(available.get("warnings") or ()),
        init_error=available.get("init_error"),
        devices=tuple(devices),
        failure=failure,
        hung_on=starting,
        stderr=stderr if failure else (),
    )


def _device(values: dict[str, Any]) -> TorchDevice:
    capability = values.get("capability")
    return TorchDevice(
        index=int(values["index"]),
        name=str(values.get("name")),
        works=bool(values.get("works")),
        error=values.get("error"),
        capability=(int(capability[0]), int(capability[1])) if capability else None,
        uuid=values.get("uuid"),
        pci_bus_id=values.get("pci_bus_id"),
        architecture=values.get("architecture"),
        memory_bytes=values.get("memory_bytes"),
    )
