"""A prediction as one JSON document, ``bench-runner/predict/1`` (docs/schemas/predict-1.json), and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from bench_runner.analysis.prediction import CasePrediction, Predicted, median_error
from bench_runner.report import text
from bench_runner.report.formats import number, percent, seconds, span
from bench_runner.report.table import Table
from bench_runner.report.tables import Section

SCHEMA: Final = "bench-runner/predict/1"
ASSUMPTIONS: Final = (
    "weak scaling: the batch of each device stays as it was",
    "links: as measured within one node, between any two devices, all of them alike and none of them busy",
    "all-reduce: the cheaper of a ring and a double binary tree over such links; the interval ends with the dearer one",
    "overlap: DDP's buckets (1 MiB, then 25 MiB) become ready evenly over the backward pass",
    "slow-down: what the measured step took beyond its own prediction stays the same share; no stragglers beyond it",
)


def predict_document(cases: Sequence[CasePrediction], unreadable: Sequence[str]) -> dict[str, Any]:
    """Plain values; seconds, samples per second, fractions."""
    return {
        "schema": SCHEMA,
        "assumptions": list(ASSUMPTIONS),
        "median_error_held_out": median_error(cases),
        "cases": [
            {**asdict(case), "rows": [{**asdict(row), "error": row.error} for row in case.rows]} for case in cases
        ],
        "unreadable": list(unreadable),
    }


def predict_text(cases: Sequence[CasePrediction], *, encoding: str | None) -> str:
    """A table a case, then the assumptions."""
    error = median_error(cases)
    said = [] if error is None else [f"counts left out of the fit were met within {error:.0%} in the median"]
    sections = [_section(case) for case in cases]
    lines = ("Assumptions", *(f"- {line}" for line in (*ASSUMPTIONS, *said)))
    sections.append(Section(machine="", lines=lines, tables=(), not_measured=(), warnings=()))
    return text.render(sections, encoding=encoding)


def _section(case: CasePrediction) -> Section:
    counts = ", ".join(map(str, case.measured_devices))
    return Section(
        machine=case.machine,
        lines=(
            f"DDP and all-reduce measured on {counts} devices; step there {case.slowdown:.2f} × its own prediction",
        ),
        tables=(_table(case),),
        not_measured=(),
        warnings=case.warnings,
    )


_COLUMNS: Final = ("devices", "step", "interval", "samples/s", "efficiency", "exposed", "measured", "off by")


def _table(case: CasePrediction) -> Table:
    return Table(
        title=f"{case.case} on {case.machine}, {case.per_device_batch} per device",
        columns=_COLUMNS,
        numeric=(True,) * len(_COLUMNS),
        rows=tuple(_row(row) for row in case.rows),
    )


def _row(row: Predicted) -> tuple[str, ...]:
    measured = "–" if row.measured_seconds is None else seconds(row.measured_seconds)
    off = "–" if row.error is None else f"{100 * row.error:+.0f}%{'' if row.held_out else ' (fitted)'}"
    return (
        str(row.devices),
        seconds(row.step_seconds),
        span(seconds(row.low_seconds), seconds(row.high_seconds)),
        number(row.throughput),
        percent(row.efficiency),
        seconds(row.exposed_seconds),
        measured,
        off,
    )
