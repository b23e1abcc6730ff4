"""The report as one JSON document, ``bench-runner/report/1`` (docs/schemas/report-1.json)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import pandas as pd

from bench_runner.report.tables import Section
from bench_runner.store import Problem

SCHEMA: Final = "bench-runner/report/1"


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as plain JSON values; what is missing is null, times are ISO 8601 in UTC."""
    plain = frame.assign(started_at=frame["started_at"].dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    columns = {name: plain[name].astype(object).where(plain[name].notna(), None).tolist() for name in plain.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def report_document(frame: pd.DataFrame, sections: Sequence[Section], problems: Sequence[Problem]) -> dict[str, Any]:
    """Rows (one a metric value), the summary of each machine, and what could not be read."""
    return {
        "schema": SCHEMA,
        "machines": [
            {
                "machine": section.machine,
                "description": list(section.lines),
                "step_gaps": list(section.step_gaps),
                "not_measured": list(section.not_measured),
                "warnings": list(section.warnings),
            }
            for section in sections
        ],
        "rows": rows_of(frame),
        "problems": [asdict(problem) for problem in problems],
    }


def as_text(document: dict[str, Any]) -> str:
    """The document as a file holds it."""
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
