"""``bench-runner doctor``: find and name the faults of training jobs on several devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_runner.errors import EXIT_FINDINGS, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench_runner.finding import Finding

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document (bench-runner/doctor/1).")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="Find and name the faults of training jobs on several devices.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for name, function in _COMMANDS.items():
        group.command(name)(function)
    app.add_typer(group, name="doctor")


def _finish(probe: str, findings: Sequence[Finding], as_json: bool, details: Mapping[str, Any] | None = None) -> int:
    """Print what a probe found; 1 if anything failed."""
    from bench_runner.cli import output
    from bench_runner.doctor.document import doctor_document, doctor_text

    if as_json:
        output.emit_json(doctor_document(probe, findings, details))
    else:
        output.emit_text(doctor_text(findings))
    return EXIT_FINDINGS if any(finding.status == "fail" for finding in findings) else EXIT_OK


def log(
    files: Annotated[list[Path], typer.Argument(help="Output of a job that is over; one file, or one for each rank.")],
    world_size: Annotated[int | None, typer.Option(min=1, help="Number of ranks the job had, if known.")] = None,
    as_json: _Json = False,
) -> int:
    """Name the fault in the logs of a job that is over.

    Example: bench-runner doctor log logs/rank_*.log
    """
    from bench_runner.doctor.log_rules import judge_logs
    from bench_runner.doctor.logfile import read_log
    from bench_runner.doctor.logs import summarise
    from bench_runner.doctor.sources import read_sources

    summary = summarise([read_log(path) for path in files])
    sources = read_sources(frame for error in summary.errors for frame in error.frames)
    return _finish("log", judge_logs(summary, sources, world_size=world_size), as_json)


_COMMANDS = {"log": log}
