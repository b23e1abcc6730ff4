"""``bench-runner profile-noise``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_OK, EXIT_USAGE


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="profile-noise")(profile_noise)


def profile_noise(
    selectors: Annotated[
        list[str] | None, typer.Argument(help="Results of one machine, as in compare. Default: all results.")
    ] = None,
    machine: Annotated[str | None, typer.Option(help="Only the records of this machine.")] = None,
    results: Annotated[Path, typer.Option(help="Folder with results.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as one JSON document.")] = False,
) -> int:
    """Learn from repeated launches how far a machine's results differ by themselves, and store it with the machine.

    Comparisons of that machine then say more with fewer launches. Launches of several sessions (days) also show how
    far sessions differ.

    Example: bench-runner profile-noise --machine a100-box
    """
    from bench_runner.noise_file import profile_of, write_profile
    from bench_runner.report.noise import noise_text
    from bench_runner.sides import several

    side = several(selectors or [], results)
    records = [record for record in side.records if machine in (None, record.machine.name)]
    profile = profile_of(records)
    path = write_profile(results, profile)
    if as_json:
        output.emit_json(profile.to_json())
    else:
        output.emit_text(noise_text(profile))
    output.note(f"bench-runner: wrote {path}")
    for line in side.unreadable:
        output.note(f"bench-runner: not read: {line}")
    return EXIT_USAGE if side.unreadable else EXIT_OK
