"""``bench-runner predict``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_NOT_CARRIED_OUT, EXIT_OK, EXIT_USAGE, UsageError

MOST_DEVICES: Final = 1_000_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="predict")(predict)


def predict(
    devices: Annotated[str, typer.Option(help="Device counts such as 64,512,4096.")],
    selectors: Annotated[
        list[str] | None, typer.Argument(help="What was measured, as in compare. Default: all results.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder with results.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Predict DDP on more devices than there are, from the single-device step and the fitted all-reduce.

    Counts that were measured are predicted too, each from the others, so that one sees how good it is. Assumptions and
    an interval stand beside; see docs/metrics.md.

    Example: bench-runner predict --devices 64,512,4096 a100-box
    """
    from bench_runner.analysis.prediction import predictions
    from bench_runner.report.prediction import predict_document, predict_text
    from bench_runner.sides import several

    counts = _counts(devices)
    side = several(selectors or [], results)
    found = predictions(side.records, counts)
    for line in side.notes:
        output.note(f"bench-runner: {line}")
    for line in side.unreadable:
        output.note(f"bench-runner: not read: {line}")
    if as_json:
        output.emit_json(predict_document(found, side.unreadable))
    elif found:
        output.emit_text(predict_text(found, encoding=sys.stdout.encoding))
    if not found:
        output.note(
            "bench-runner: nothing to predict from: it takes a training on a single device, the same with DDP on two "
            "or more, and an all-reduce over as many, on one machine; bench-runner run measures them"
        )
    if side.unreadable:
        return EXIT_USAGE
    return EXIT_OK if found else EXIT_NOT_CARRIED_OUT


def _counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part[:9]) >= 1 and len(part) < 9 for part in parts):
        raise UsageError(f"--devices {text[:60]}: must be counts from 1 to {MOST_DEVICES:,} such as 64,512,4096")
    counts = [int(part) for part in parts]
    if max(counts) > MOST_DEVICES:
        raise UsageError(f"--devices {max(counts)}: must be at most {MOST_DEVICES:,}")
    return counts
