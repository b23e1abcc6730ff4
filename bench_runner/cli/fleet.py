"""``bench-runner fleet``."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_FINDINGS, EXIT_OK, EXIT_USAGE, UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="fleet")(fleet)


class Format(StrEnum):
    """How a fleet is shown."""

    TEXT = "text"
    NODES = "nodes"


def fleet(
    folder: Annotated[Path, typer.Argument(help="Folder with results of many machines.")] = Path("results"),
    threshold: Annotated[float, typer.Option(help="The smallest deviation worth naming, in percent.")] = 3.0,
    expect: Annotated[
        str | None, typer.Option(help="Machines that should be there: node[001-128],login, or a file of such lines.")
    ] = None,
    shown: Annotated[Format, typer.Option("--format", help="text, or nodes: a line a machine for a scheduler.")] = (
        Format.TEXT
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Many machines on one page: how each metric is distributed, who stands out, what is missing; worst first.

    Machines with the same GPUs (or the same CPU) are held against each other, each by its newest session, and each
    against its own earlier sessions.

    Example: bench-runner fleet results --expect 'node[001-128]' --format nodes
    """
    from dataclasses import replace

    from bench_runner.analysis.fleet import newest_session, survey
    from bench_runner.analysis.fleet_nodes import drifted, nodes_of, slow_machines, unlike, unmeasured
    from bench_runner.cli.compare import fraction
    from bench_runner.finding import verdict
    from bench_runner.report.fleet import fleet_document, fleet_text, nodes_text
    from bench_runner.report.formats import encodable
    from bench_runner.store import read_tree

    asked = fraction(threshold) or 0.0
    if as_json and shown is Format.NODES:
        raise UsageError("--json and --format nodes: choose one of the two (the JSON document has the nodes too)")
    expected = _expected(expect)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name the one that holds the machines' results")
    records, problems = read_tree(folder)
    unreadable = [str(problem) for problem in problems]
    if not records and not expected:
        raise UsageError(f"{folder}: holds no results that can be read")
    newest = newest_session(records)
    found = survey(newest, threshold=asked)
    overall = [*slow_machines(found), *drifted(records, threshold=asked)]
    found = replace(found, findings=(*overall, *found.findings, *unlike(newest), *unmeasured(found, expected)))
    nodes = nodes_of(found, expected)
    if as_json:
        output.emit_json(fleet_document(found, nodes, unreadable))
    else:
        text = nodes_text(nodes) if shown is Format.NODES else fleet_text(found, nodes, unreadable)
        output.emit_text(encodable(text, sys.stdout.encoding))
    for line in unreadable:
        output.note(f"bench-runner: not read: {line}")
    if unreadable:
        return EXIT_USAGE
    return EXIT_FINDINGS if verdict(found.findings) == "fail" else EXIT_OK


def _expected(text: str | None) -> tuple[str, ...]:
    """The names given as a list in Slurm's short form, or in a file with such a list on each line."""
    from bench_runner.nodes.slurm import parse_hosts

    if text is None:
        return ()
    path = Path(text)
    try:
        is_file = path.is_file()
    except OSError:  # a list may be longer than any name of a file
        is_file = False
    if not is_file:
        return parse_hosts(text, "--expect")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"--expect {text}: cannot be read ({error})") from error
    words = [line.partition("#")[0].strip() for line in lines]
    return tuple(dict.fromkeys(host for word in words if word for host in parse_hosts(word, f"--expect {text}")))
