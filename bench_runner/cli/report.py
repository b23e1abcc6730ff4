"""``bench-runner report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_OK, EXIT_USAGE, UnreadableError, UsageError

if TYPE_CHECKING:
    from bench_runner.record import RunRecord
    from bench_runner.store import Problem

FORMATS: Final = ("text", "markdown", "html", "csv", "parquet", "json")
SUFFIXES: Final = {
    ".txt": "text",
    ".md": "markdown",
    ".html": "html",
    ".csv": "csv",
    ".parquet": "parquet",
    ".json": "json",
}
WHOLE: Final = ("html", "csv", "parquet")
"""Formats that hold all sessions unless one is asked for: they show history or are for analysis."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="report")(report)


def report(
    results: Annotated[Path, typer.Option(help="Folder or file with results.")] = Path("results"),
    machine: Annotated[list[str] | None, typer.Option(help="Only this machine; may be given several times.")] = None,
    session: Annotated[
        str | None,
        typer.Option(help="last (newest of each machine), all, or an id. Default: last; all for html, csv, parquet."),
    ] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}. Default: by the file's name, else text.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    verified: Annotated[
        Path | None, typer.Option("--verify", help="A document of bench-runner verify --json to show on the HTML page.")
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw the figures into this folder as well.")] = None,
    plot_format: Annotated[str, typer.Option(help="png or svg.")] = "png",
) -> int:
    """Show stored results: text, Markdown, JSON, one HTML page, or the whole data as CSV or Parquet.

    Example: bench-runner report -o report.html
    """
    if plot_format not in ("png", "svg"):
        raise UsageError(f"--plot-format {plot_format}: must be png or svg")
    chosen = _format(file_format, out, as_json)
    if chosen == "parquet" and out is None:
        raise UsageError("--format parquet: needs a file; name one with -o results.parquet")
    found, problems = _read(results)
    for problem in problems:
        output.note(f"bench-runner: not read: {problem}")
    if not found:
        raise UnreadableError(f"{results}: no results to report; measure some with bench-runner run")
    from bench_runner.analysis.selection import ALL, LAST, select

    wanted = session or (ALL if chosen in WHOLE else LAST)
    records = select([record for _, record in found], machines=machine or (), session=wanted)
    hidden = len({record.session_id for _, record in found}) - len({record.session_id for record in records})
    if session is None and hidden and not machine:
        output.note(
            f"bench-runner: {hidden} older session{'s' if hidden > 1 else ''} not shown; --session all shows all"
        )
    sources = {id(record): str(path) for path, record in found}
    findings = None
    if verified is not None:
        from bench_runner.report.verify_reader import read_findings

        findings = read_findings(verified)
    _show(records, [sources[id(record)] for record in records], problems, chosen, out, findings)
    if plots is not None:
        from bench_runner.report.plots import write_plots

        written = write_plots(records, plots, "svg" if plot_format == "svg" else "png")
        output.note(f"bench-runner: wrote {len(written)} plots into {plots}")
    return EXIT_USAGE if problems else EXIT_OK


def _format(file_format: str | None, out: Path | None, as_json: bool) -> str:
    if as_json:
        if file_format not in (None, "json"):
            raise UsageError(f"--json and --format {file_format}: choose one of the two")
        return "json"
    chosen = file_format or SUFFIXES.get(out.suffix.lower() if out else "", "text")
    if chosen not in FORMATS:
        raise UsageError(f"--format {chosen}: must be one of {', '.join(FORMATS)}")
    return chosen


def _read(results: Path) -> tuple[list[tuple[Path, RunRecord]], list[Problem]]:
    from bench_runner.store import read_sources

    if not results.exists():
        raise UnreadableError(f"{results}: no such folder; measure with bench-runner run, or name one with --results")
    return read_sources(results)


def _show(
    records: list[RunRecord],
    sources: list[str],
    problems: list[Problem],
    chosen: str,
    out: Path | None,
    findings: dict[str, Any] | None,
) -> None:
    """Render in the chosen format, to the file or to standard output."""
    from bench_runner.report.files import write_file, write_text
    from bench_runner.report.formats import encodable

    if chosen == "parquet":
        from bench_runner.analysis.frame import frame_of, write_frame

        assert out is not None
        write_file(out, lambda path: write_frame(frame_of(records, sources), path, "parquet"))
    elif chosen == "json" and out is None:
        output.emit_json(_document(records, sources, problems))
    else:
        text = _text(records, sources, problems, chosen, "utf-8" if out else sys.stdout.encoding, findings)
        if out is None:
            output.emit_text(encodable(text, sys.stdout.encoding))
        else:
            write_text(out, text)
    if out is not None:
        output.note(f"bench-runner: wrote {out}")


def _document(records: list[RunRecord], sources: list[str], problems: list[Problem]) -> dict[str, object]:
    from bench_runner.analysis.frame import frame_of
    from bench_runner.report.document import report_document
    from bench_runner.report.tables import sections

    return report_document(frame_of(records, sources), sections(records), problems)


def _text(
    records: list[RunRecord],
    sources: list[str],
    problems: list[Problem],
    chosen: str,
    encoding: str,
    findings: dict[str, Any] | None,
) -> str:
    from bench_runner.report.tables import sections

    if chosen == "json":
        from bench_runner.report.document import as_text

        return as_text(_document(records, sources, problems))
    if chosen == "csv":
        from bench_runner.analysis.frame import csv_text, frame_of

        return csv_text(frame_of(records, sources))
    if chosen == "html":
        from bench_runner.report import html

        return html.render(records, problems=[str(problem) for problem in problems], findings=findings)
    if chosen == "markdown":
        from bench_runner.report import markdown

        return markdown.render(sections(records))
    from bench_runner.report import text

    return text.render(sections(records), encoding=encoding)
