"""One HTML file: works offline, everything in it, every foreign text escaped.

Tables are in the page itself; plotly.js is in it once, compressed, and is unpacked by the browser when the first plot
comes into view.  A content security policy keeps the page from loading or sending anything.
"""

from __future__ import annotations

import base64
import gzip
import importlib.resources
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from math import isnan
from typing import Any, Final

from markupsafe import Markup

from bench_runner.record import RunRecord
from bench_runner.report.figures import Figure
from bench_runner.report.formats import printable
from bench_runner.report.page import Page, page_of
from bench_runner.report.templating import environment

TEMPLATE: Final = "report.html.j2"
NUMBER: Final = ' class="number"'


def render(
    records: Sequence[RunRecord],
    *,
    problems: Sequence[str] = (),
    findings: Mapping[str, Any] | None = None,
    made: datetime | None = None,
) -> str:
    """The page of ``records``.  ``findings`` is a document of ``bench-runner verify --json``; ``problems`` are lines on
    what could not be read."""
    page = page_of(records)
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            page=page,
            runs=len(records),
            problems=[printable(problem) for problem in problems],
            findings=findings,
            made=f"{made or datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            number=Markup(' class="number"'),
            cells=_cells,
            data=_data(page),
            plotly=Markup(_plotly()),  # noqa: S704 (base64 of a file of ours: letters, digits, + / =)
        )
    )


def _cells(row: Sequence[str], numeric: Sequence[bool]) -> Markup:
    """The cells of a table's row, escaped: there are tens of thousands, and a template takes its time over each."""
    marked = zip(row, numeric, strict=True)
    cells = "".join(f"<td{NUMBER if right else ''}>{escape(cell)}</td>" for cell, right in marked)
    return Markup(cells)  # noqa: S704 (each cell is escaped above)


@cache
def _plotly() -> str:
    """plotly.js, compressed and as base64: 2 MB instead of 5."""
    source = importlib.resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(source, compresslevel=9, mtime=0)).decode("ascii")


def _data(page: Page) -> dict[str, Any]:
    """What the page's script reads.  Jinja's ``tojson`` escapes it for its place in the page."""
    return {
        "machines": [
            {
                "name": system.name,
                "accelerator": system.accelerator,
                "search": " ".join((system.name, system.accelerator, system.environment, *system.lines)).lower(),
            }
            for system in page.systems
        ],
        "measures": [
            {"label": measure.label, "unit": measure.unit, "direction": measure.direction} for measure in page.measures
        ],
        "values": [
            {
                number: system.measures[measure]
                for number, system in enumerate(page.systems)
                if measure in system.measures
            }
            for measure in page.measures
        ],
        "figures": {
            f"m{m}-b{b}-{f}": _plain(figure)
            for m, system in enumerate(page.systems)
            for b, block in enumerate(system.blocks)
            for f, figure in enumerate(block.figures)
        },
    }


def _plain(figure: Figure) -> dict[str, Any]:
    """A figure for JSON: no NaN; its words are in the page already."""
    return {
        "title": figure.title,
        "kind": figure.kind,
        "x_label": figure.x_label,
        "y_label": figure.y_label,
        "y_log": figure.y_log,
        "x_bytes": figure.x_bytes,
        "series": [
            {
                "name": one.name,
                "x": one.x,
                "y": [None if isnan(value) else value for value in one.y],
                "role": one.role,
                "color": one.color,
            }
            for one in figure.series
        ],
    }
