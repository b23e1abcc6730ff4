"""``bench-runner compare``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_FINDINGS, EXIT_INCONCLUSIVE, EXIT_OK, EXIT_USAGE, UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="compare")(compare)


def compare(
    baseline: Annotated[str, typer.Argument(help="What to compare with: see below.")],
    candidate: Annotated[str, typer.Argument(help="What to judge.")],
    threshold: Annotated[
        float | None, typer.Option(help="The change that matters, in percent. Default: 5; 10 between machines.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Compare these metrics instead of the usual ones.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if anything is inconclusive.")] = False,
    results: Annotated[Path, typer.Option(help="Folder with results.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Compare two machines, commits, environments, baselines or files; in any mix.

    A side is a machine (a100-box), a machine at a commit, tag, session, environment or lock (a100-box@1a2b3c), the same
    on all machines (@1a2b3c), a frozen baseline, or a file or folder of records or of asv's results.

    Example: bench-runner compare a100-box h100-box --threshold 10
    """
    from bench_runner.comparing import compare_sides
    from bench_runner.report.comparison import compare_document, compare_text
    from bench_runner.report.formats import encodable
    from bench_runner.sides import select

    compared = compare_sides(
        select(baseline, results),
        select(candidate, results),
        results,
        threshold=fraction(threshold),
        metrics=metric or (),
    )
    if as_json:
        output.emit_json(compare_document(compared))
    else:
        output.emit_text(encodable(compare_text(compared), sys.stdout.encoding))
    for line in compared.unreadable:
        output.note(f"bench-runner: not read: {line}")
    if compared.unreadable:
        return EXIT_USAGE
    if compared.outcome.verdict == "regression":
        return EXIT_FINDINGS
    unclear = any(comparison.verdict == "inconclusive" for comparison in compared.outcome.comparisons)
    return EXIT_INCONCLUSIVE if strict and unclear else EXIT_OK


def fraction(percent: float | None) -> float | None:
    """``--threshold`` as a fraction; UsageError for what is no sensible percentage."""
    if percent is None:
        return None
    if not 0.1 <= percent <= 1000:
        raise UsageError(f"--threshold {percent:g}: must be between 0.1 and 1000 percent")
    return percent / 100
