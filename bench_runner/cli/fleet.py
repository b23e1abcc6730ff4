"""``bench-runner fleet``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_FINDINGS, EXIT_OK, EXIT_USAGE, UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="fleet")(fleet)


def fleet(
    folder: Annotated[Path, typer.Argument(help="Folder with results of many machines.")] = Path("results"),
    threshold: Annotated[float, typer.Option(help="The smallest deviation worth naming, in percent.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Many machines on one page: how each metric is distributed, who stands out, what is missing; worst first.

    Machines with the same GPUs (or the same CPU) are held against each other, each by its newest session.

    Example: bench-runner fleet results --threshold 5
    """
    from bench_runner.analysis.fleet import newest_session, survey
    from bench_runner.cli.compare import fraction
    from bench_runner.finding import verdict
    from bench_runner.report.fleet import fleet_document, fleet_text
    from bench_runner.report.formats import encodable
    from bench_runner.store import read_tree

    asked = fraction(threshold) or 0.0
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name the one that holds the machines' results")
    records, problems = read_tree(folder)
    unreadable = [str(problem) for problem in problems]
    if not records:
        raise UsageError(f"{folder}: holds no results that can be read")
    found = survey(newest_session(records), threshold=asked)
    if as_json:
        output.emit_json(fleet_document(found, unreadable))
    else:
        output.emit_text(encodable(fleet_text(found, unreadable), sys.stdout.encoding))
    for line in unreadable:
        output.note(f"bench-runner: not read: {line}")
    if unreadable:
        return EXIT_USAGE
    return EXIT_FINDINGS if verdict(found.findings) == "fail" else EXIT_OK
