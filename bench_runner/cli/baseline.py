"""``bench-runner baseline set`` and ``bench-runner baseline list``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_OK, EXIT_USAGE, UsageError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Freeze results that gates are held against.")
    group.command(name="set")(set_baseline)
    group.command(name="list")(list_baselines)
    app.add_typer(group, name="baseline")


def set_baseline(
    name: Annotated[str, typer.Argument(help="The baseline's name.")],
    selectors: Annotated[
        list[str] | None, typer.Argument(help="What to freeze, as in compare. Default: all results.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a baseline of that name.")] = False,
    results: Annotated[Path, typer.Option(help="Folder with results.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Copy records into results/baselines/NAME.jsonl, a file to commit.

    Example: bench-runner baseline set before-driver-580 a100-box
    """
    from bench_runner.baseline import freeze
    from bench_runner.sides import several

    side = several(selectors or [], results)
    path = freeze(results, name, side.records, replace=replace)
    for line in side.notes:
        output.note(f"bench-runner: {line}")
    for line in side.unreadable:
        output.note(f"bench-runner: not read: {line}")
    launches = len({record.launch_id for record in side.records})
    if as_json:
        output.emit_json(
            {
                "schema": "bench-runner/baseline/1",
                "name": name,
                "path": str(path),
                "records": len(side.records),
                "launches": launches,
                "unreadable": list(side.unreadable),
            }
        )
    else:
        output.emit_text(f"baseline {name}: {len(side.records)} records of {launches} launches in {path}")
    return EXIT_USAGE if side.unreadable else EXIT_OK


def list_baselines(
    results: Annotated[Path, typer.Option(help="Folder with results.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Show all baselines with their machines, commits and sizes.

    Example: bench-runner baseline list
    """
    from bench_runner.baseline import summaries
    from bench_runner.report.formats import printable

    if not results.is_dir():
        raise UsageError(f"--results {results}: no such folder")
    found = summaries(results)
    if as_json:
        output.emit_json({"schema": "bench-runner/baselines/1", "baselines": [asdict(one) for one in found]})
    elif not found:
        output.emit_text(f"no baselines in {results}; freeze one with bench-runner baseline set NAME")
    else:
        for one in found:
            machines = printable(", ".join(one.machines))
            output.emit_text(f"{one.name}: {one.records} records of {one.launches} launches, newest {one.newest}")
            output.emit_text(f"  machines {machines}; commits {', '.join(one.commits)}")
    damaged = [line for one in found for line in one.unreadable]
    for line in damaged:
        output.note(f"bench-runner: not read: {line}")
    return EXIT_USAGE if damaged else EXIT_OK
