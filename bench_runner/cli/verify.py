"""``bench-runner verify``: environment, machine and links judged."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_FINDINGS, EXIT_OK, EXIT_USAGE, UsageError

if TYPE_CHECKING:
    from bench_runner.environment.lockfile import Lock
    from bench_runner.environment.verify import Verification
    from bench_runner.finding import Finding

DEFAULT_LOCK: Final = Path("conda-lock.yml")
CPU_LOCK: Final = Path("conda-lock-cpu.yml")


class Part(StrEnum):
    """What can be verified."""

    ENVIRONMENT = "environment"
    MACHINE = "machine"
    LINKS = "links"


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    prefix: Annotated[
        Path | None, typer.Option(help="The environment's folder.  Default: the one that the workers run in.")
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option(help="The lock file.  Default: the prefix's own, or the one for this machine."),
    ] = None,
    only: Annotated[list[Part] | None, typer.Option(help="Verify this part alone; may be given several times.")] = None,
    quick: Annotated[bool, typer.Option("--quick/--full", help="Files by size and date, or each by its hash.")] = False,
    passed: Annotated[bool, typer.Option("--passed", help="List the passed and the skipped checks too.")] = False,
    one_line: Annotated[bool, typer.Option("--one-line", help="One line, fit for a prolog or a drain reason.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Verify the environment against the lock, the machine, and the links between its devices.

    The links are measured, which starts worker processes; --only environment --only machine leaves that out.

    Exit codes: 0 nothing failed (warnings included), 1 something failed, 2 the lock cannot be read or does not belong
    to its environment.yml.

    Example: bench-runner verify --only environment --prefix /opt/bench --quick
    """
    from bench_runner.environment.lockcheck import STALE_CHECKS
    from bench_runner.report.verification import verify_document, verify_line, verify_text

    if one_line and as_json:
        raise UsageError("--one-line and --json: choose one of the two")

    place, python = _place(prefix)
    parts = list(dict.fromkeys(only or Part))
    groups: dict[str, list[Finding]] = {}
    seconds: dict[str, float] = {}
    subject: dict[str, Any] = {"prefix": str(place)}
    if Part.ENVIRONMENT in parts:
        read = lock_for(place, lock)
        subject |= {"lock": str(read.path) if read else None, "mode": "quick" if quick else "full"}
        verification = _environment(place, python, read, quick=quick)
        groups["environment"] = list(verification.findings)
        seconds |= verification.seconds
    for part in (Part.MACHINE, Part.LINKS):
        if part in parts:
            groups[part.value], seconds[part.value] = _timed(part, str(python))
    if as_json:
        output.emit_json(verify_document(groups, subject, seconds))
    elif one_line:
        output.emit_text(verify_line(groups))
    else:
        output.emit_text(verify_text(groups, subject, passes=passed))
    failed = {finding.check for findings in groups.values() for finding in findings if finding.status == "fail"}
    if failed & STALE_CHECKS:
        return EXIT_USAGE
    return EXIT_FINDINGS if failed else EXIT_OK


def lock_for(prefix: Path, named: Path | None) -> Lock | None:
    """The lock that was named; else the one here that built the prefix; else the one that suits this machine."""
    from bench_runner.environment.host import virtual_packages
    from bench_runner.environment.lockfile import read_lock
    from bench_runner.environment.prefix import read_mark

    if named is not None:
        return read_lock(named)
    mark = read_mark(prefix)
    if mark is not None:
        for path in sorted(Path().glob("conda-lock*.yml")):
            lock = read_lock(path)
            if lock.sha256 == mark.lock_sha256:
                return lock
    usual = DEFAULT_LOCK if "__cuda" in virtual_packages() or not CPU_LOCK.exists() else CPU_LOCK
    return read_lock(usual) if usual.exists() else None


def _environment(prefix: Path, python: Path, lock: Lock | None, *, quick: bool) -> Verification:
    from bench_runner.environment.verify import verify_environment

    return verify_environment(prefix, lock, "quick" if quick else "full", python=python)


def _place(prefix: Path | None) -> tuple[Path, Path]:
    """The prefix to judge and its Python; by default the environment of the workers, else of this command."""
    import sys

    from bench_runner.errors import LaunchError, shortened
    from bench_runner.interpreter import find_worker_python

    if prefix is None:
        try:
            python = Path(find_worker_python().path).absolute()
        except LaunchError:
            python = Path(sys.prefix) / "bin" / "python"  # no Python has torch: the trial run of this one says so
        return python.parent.parent, python
    place = prefix.absolute()
    if not place.is_dir():
        raise UsageError(f"--prefix {shortened(str(prefix))}: no such folder; name an environment's")
    named = [place / "bin" / name for name in ("python", "python3")]
    marks = [*named, place / "conda-meta", place / "pyvenv.cfg"]
    if not any(path.exists() or path.is_symlink() for path in marks):
        raise UsageError(
            f"--prefix {shortened(str(prefix))}: no environment (no bin/python, conda-meta or pyvenv.cfg there); name "
            "an environment's folder"
        )
    return place, next((path for path in named if path.exists()), named[0])


def _timed(part: Part, python: str) -> tuple[list[Finding], float]:
    import time

    from bench_runner.machine import verify as machine

    started = time.perf_counter()
    findings = machine.machine_findings(python) if part is Part.MACHINE else machine.links_findings(python)
    return findings, time.perf_counter() - started
