"""``bench-runner compare``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_FINDINGS, EXIT_INCONCLUSIVE, EXIT_OK, EXIT_USAGE, UsageError

if TYPE_CHECKING:
    from bench_runner.comparing import Compared

FORMATS: Final = ("text", "markdown", "html", "json")
SUFFIXES: Final = {".txt": "text", ".md": "markdown", ".html": "html", ".json": "json"}


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
    file_format: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}. Default: by the file's name, else text.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> int:
    """Compare two machines, commits, environments, baselines or files; in any mix.

    A side is a machine (a100-box), a machine at a commit, tag, session, environment or lock (a100-box@1a2b3c), the same
    on all machines (@1a2b3c), a frozen baseline, or a file or folder of records or of asv's results.

    Example: bench-runner compare a100-box h100-box --threshold 10
    """
    from bench_runner.comparing import compare_sides
    from bench_runner.sides import select

    chosen = chosen_format(file_format, out, as_json=as_json)
    compared = compare_sides(
        select(baseline, results),
        select(candidate, results),
        results,
        threshold=fraction(threshold),
        metrics=metric or (),
    )
    _show(compared, chosen, out)
    for line in compared.unreadable:
        output.note(f"bench-runner: not read: {line}")
    if compared.unreadable:
        return EXIT_USAGE
    if compared.outcome.verdict == "regression":
        return EXIT_FINDINGS
    unclear = any(comparison.verdict == "inconclusive" for comparison in compared.outcome.comparisons)
    return EXIT_INCONCLUSIVE if strict and unclear else EXIT_OK


def chosen_format(file_format: str | None, out: Path | None, *, as_json: bool) -> str:
    """The format by option or by the file's name; UsageError for one that there is not."""
    if as_json and file_format not in (None, "json"):
        raise UsageError(f"--json and --format {file_format}: choose one of the two")
    chosen = "json" if as_json else file_format or SUFFIXES.get(out.suffix.lower() if out else "", "text")
    if chosen not in FORMATS:
        raise UsageError(f"--format {chosen}: must be one of {', '.join(FORMATS)}")
    return chosen


def _show(compared: Compared, chosen: str, out: Path | None) -> None:
    """Render in the chosen format, to the file or to standard output."""
    from bench_runner.report import comparison
    from bench_runner.report.files import write_text
    from bench_runner.report.formats import encodable

    if chosen == "json" and out is None:
        output.emit_json(comparison.compare_document(compared))
        return
    if chosen == "json":
        text = json.dumps(comparison.compare_document(compared), indent=1, allow_nan=False) + "\n"
    elif chosen in ("markdown", "html"):
        from bench_runner.report import comparison_page  # half a second of imports that the others do without

        in_markdown = chosen == "markdown"
        text = (comparison_page.compare_markdown if in_markdown else comparison_page.compare_html)(compared)
    else:
        text = comparison.compare_text(compared)
    if out is None:
        output.emit_text(encodable(text, sys.stdout.encoding))
        return
    write_text(out, text)
    output.note(f"bench-runner: wrote {out}")


def fraction(percent: float | None) -> float | None:
    """``--threshold`` as a fraction; UsageError for what is no sensible percentage."""
    if percent is None:
        return None
    if not 0.1 <= percent <= 1000:
        raise UsageError(f"--threshold {percent:g}: must be between 0.1 and 1000 percent")
    return percent / 100
